"""Shows an answer: as text for people, and as the document that --json prints."""

from devkit.solver.model import Conflict, Plan, Reason, Vendor
from devkit.text import wrapped

SCHEMA = "devkit.plan/1"

_INDENT = "  "
_NARROWEST_COLUMN = 30
_WIDEST_VALUE = 26
"""A longer value, such as an address, has a line of its own."""

Json = dict[str, object]


def answer_document(answer: Plan | Conflict) -> Json:
    """The document of an answer, ready for JSON; exactly one of `plan` and `conflict` is not None."""
    if isinstance(answer, Plan):
        return {
            "schema": SCHEMA,
            "verdict": "plan",
            "plan": plan_document(answer),
            "warnings": list(answer.warnings),
            "conflict": None,
        }
    nearest = plan_document(answer.nearest) if answer.nearest else None
    blockers = [{"rule": each.rule, "says": each.says, "source": each.source} for each in answer.blockers]
    conflict = {
        "wanted": answer.wanted,
        "blockers": blockers,
        "nearest": nearest,
        "nearest_changes": answer.nearest_changes,
    }
    warnings = list(answer.nearest.warnings) if answer.nearest else []
    return {"schema": SCHEMA, "verdict": "conflict", "plan": None, "warnings": warnings, "conflict": conflict}


def plan_document(plan: Plan) -> Json:
    """A plan, ready for JSON."""
    return {
        "vendor": plan.vendor.value,
        "base_image": plan.base_image,
        "python": plan.python,
        "torch": plan.torch,
        "variant": plan.variant,
        "cuda": plan.cuda,
        "torch_index": plan.torch_index,
        "packages": dict(plan.packages),
        "gpu_request": plan.gpu_request,
        "architectures": list(plan.architectures),
        "reasons": [_reason_document(reason) for reason in plan.reasons],
        "data_as_of": plan.data_as_of,
    }


def answer_text(answer: Plan | Conflict, *, width: int, was_asked_for_cpu: bool = False) -> str:
    """An answer for people, folded to `width` columns. A CPU plan that nobody asked for says how to plan for a GPU."""
    if isinstance(answer, Conflict):
        return _conflict_text(answer, width=width)
    parts = [_choices(answer, width=width), _warnings(answer, width=width)]
    if answer.vendor is Vendor.CPU and not was_asked_for_cpu:
        hint = 'To plan for a machine with a GPU: --gpu "RTX 4090" --driver 570.124.06, or --facts FILE from there.'
        parts.append(wrapped(hint, width=width))
    parts.append(f"Version tables as of {answer.data_as_of}.")
    return "\n\n".join(part for part in parts if part)


def reason_text(reason: Reason, *, width: int) -> str:
    """One reason in full, with its source and how sure it is."""
    head = wrapped(f"{reason.field} {reason.value}: {reason.because}", width=width)
    return f"{head}\n{_INDENT}source: {reason.source} ({reason.confidence})"


def _choices(plan: Plan, *, width: int) -> str:
    rows = [(reason.field, reason.value, reason.because) for reason in plan.reasons]
    names = max(len(row[0]) for row in rows)
    values = max(len(row[1]) for row in rows if len(row[1]) <= _WIDEST_VALUE)
    left = names + values + 2 * len(_INDENT)
    if width - left < _NARROWEST_COLUMN:
        # Too narrow for three columns: the reason goes below.
        left, values = 2 * len(_INDENT), width
    lines = []
    for name, value, because in rows:
        folded = wrapped(because, width=max(width, left + _NARROWEST_COLUMN), indent=" " * left).splitlines()
        head = f"{name:<{names}}  {value:<{values}}"
        if len(head) <= left:
            head, folded = head + folded[0][len(head) :], folded[1:]
        lines += [head.rstrip(), *folded]
    return "\n".join(lines)


def _warnings(plan: Plan, *, width: int) -> str:
    lines = [wrapped(f"! warning: {warning}", width=width) for warning in plan.warnings]
    return "\n".join(lines)


def _conflict_text(conflict: Conflict, *, width: int) -> str:
    lines = [wrapped(f"✗ conflict: nothing fits {conflict.wanted}", width=width)]
    for blocker in conflict.blockers:
        lines.append(wrapped(f"{blocker.rule}  {blocker.says}", width=width, indent=_INDENT))
        lines.append(f"{_INDENT * 3}source: {blocker.source}")
    if conflict.nearest is None:
        lines.append("No other choice of versions fits either.")
        return "\n".join(lines)
    plan = conflict.nearest
    built = f"CUDA {plan.cuda}" if plan.cuda else "the CPU"
    nearest = f"Nearest that fits: torch {plan.torch} for {built} on Python {plan.python}"
    lines += ["", wrapped(f"{nearest}. Pass: {conflict.nearest_changes}", width=width)]
    lines.append(f"Version tables as of {plan.data_as_of}.")
    return "\n".join(lines)


def _reason_document(reason: Reason) -> Json:
    return {
        "field": reason.field,
        "value": reason.value,
        "because": reason.because,
        "source": reason.source,
        "confidence": str(reason.confidence),
    }
