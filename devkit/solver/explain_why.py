"""Shows one choice in full: as text for people, and as the document that `plan --why FIELD --json` prints."""

from devkit.solver.explain import Json, age_document, age_text, conflict_document, conflict_text, reason_text
from devkit.solver.model import Conflict, Plan
from devkit.solver.why import Other, Why
from devkit.text import wrapped

SCHEMA = "devkit.why/1"

_INDENT = "  "
_GAP = 2


def why_document(found: Why, answer: Plan | Conflict, *, today: str | None) -> Json:
    """The document of one choice, ready for JSON; without a plan it has a conflict in place of a reason."""
    reason = found.reason
    return {
        "schema": SCHEMA,
        "verdict": "plan" if isinstance(answer, Plan) else "conflict",
        "field": found.field,
        "value": reason.value if reason else None,
        "because": reason.because if reason else None,
        "source": reason.source if reason else None,
        "confidence": str(reason.confidence) if reason else None,
        "others": [
            {"choice": each.choice, "rule": each.rule or None, "says": each.says, "source": each.source}
            for each in found.others
        ],
        "conflict": conflict_document(answer) if isinstance(answer, Conflict) else None,
        **age_document(answer, today),
    }


def why_text(found: Why, answer: Plan | Conflict, *, width: int, today: str | None) -> str:
    """One choice for people, folded to `width` columns: the reason or the conflict, then what else there was."""
    parts = [reason_text(found.reason, width=width)] if found.reason else []
    if isinstance(answer, Conflict):
        parts.append(conflict_text(answer, width=width))
    if found.others:
        parts.append(_others(found.others, width=width))
    return "\n\n".join([*parts, age_text(answer, today)])


def _others(others: tuple[Other, ...], *, width: int) -> str:
    """A line per choice: its name, the rule, what it says; in what a rule says, long texts go on below."""
    names = max(len(each.choice) for each in others)
    rules = max(len(each.rule or "fits") for each in others)
    left = len(_INDENT) + names + rules + 2 * _GAP
    lines = ["Not chosen:"]
    for each in others:
        head = f"{_INDENT}{each.choice:<{names}}{' ' * _GAP}{each.rule or 'fits':<{rules}}{' ' * _GAP}"
        lines.append(head + wrapped(each.says, width=max(width, left + 30), indent=" " * left)[left:])
    return "\n".join(lines)
