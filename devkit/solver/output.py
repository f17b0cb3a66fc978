"""Answers of the solver as text for people, and as the documents that --json prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from devkit.compat.version_tables import format_stale_warning
from devkit.facts.dependencies import Dependencies, Framework, Resolved
from devkit.facts.values import Unknown
from devkit.formats.documents import MAY_LACK, Json, build_from, encode
from devkit.solver.plan import RESOLUTION, Blocker, CompileMode, Conflict, Plan, Reason, Vendor
from devkit.text import count_days, format_count, join_some, join_words, wrap_text

_INDENT = "  "
"""A longer value, such as an address, gets its own line."""


@dataclass(frozen=True, kw_only=True)
class CompiledDocument:
    """A package that compiles code against torch."""

    name: str
    mode: CompileMode
    because: str
    source: str
    path: str
    core_minutes: int
    job_gb: int


@dataclass(frozen=True, kw_only=True)
class PlanDocument:
    """The versions that were chosen, each with its reason."""

    vendor: Vendor
    base_image: str
    python: str
    torch: str
    variant: str
    cuda: str | None
    rocm: str | None
    torch_index: str
    packages: Mapping[str, str]
    from_project: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    limits: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    overrides: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    resolved_from: str | None = field(default=None, metadata=MAY_LACK)
    framework: Framework
    additions: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    capabilities: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    gpu_request: str
    architectures: tuple[str, ...]
    nvcc: str
    compiled: tuple[CompiledDocument, ...]
    reasons: tuple[Reason, ...]
    data_as_of: str


@dataclass(frozen=True, kw_only=True)
class ConflictDocument:
    """The rules that refuse a plan, and the nearest one."""

    wanted: str
    blockers: tuple[Blocker, ...]
    nearest: PlanDocument | None
    nearest_changes: str


@dataclass(frozen=True, kw_only=True)
class ResolutionDocument:
    """The packages that uv resolved, or the reason why that was not checked."""

    status: Literal["resolved", "not checked"]
    because: str | None = None
    packages: Mapping[str, str] | None = field(default=None, metadata=MAY_LACK)
    from_source: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    not_checked: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)
    asked: tuple[str, ...] | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True, kw_only=True)
class AnswerDocument:
    """Printed by devkit plan --json; exactly one of `plan` and `conflict` is not null."""

    schema: Literal["devkit.plan/1"] = "devkit.plan/1"
    verdict: Literal["plan", "conflict"]
    plan: PlanDocument | None
    resolution: ResolutionDocument | None
    warnings: tuple[str, ...]
    conflict: ConflictDocument | None
    data_as_of: str
    data_age_days: int | None = field(default=None, metadata=MAY_LACK)


def serialize_answer(answer: Plan | Conflict, *, today: str) -> Json:
    """Serialize an answer for JSON. By `today`, an ISO 8601 date, it says how old its data is."""
    plan = answer if isinstance(answer, Plan) else answer.nearest
    stale = format_stale_warning(answer.data_as_of, today)
    return encode(
        AnswerDocument(
            verdict="plan" if isinstance(answer, Plan) else "conflict",
            plan=build_plan_document(answer) if isinstance(answer, Plan) else None,
            resolution=_build_resolution_document(answer) if isinstance(answer, Plan) else None,
            warnings=(*(plan.warnings if plan else ()), *([stale] if stale else ())),
            conflict=build_conflict_document(answer),
            data_as_of=answer.data_as_of,
            data_age_days=count_days(answer.data_as_of, today),
        )
    )


def serialize_plan(plan: Plan) -> Json:
    """Serialize a plan for JSON."""
    return encode(build_plan_document(plan))


def build_plan_document(plan: Plan) -> PlanDocument:
    """Build the document of a plan."""
    return build_from(
        PlanDocument,
        plan,
        packages=plan.versions,
        from_project=tuple(name for name, _ in plan.project_packages) or None,
        limits=plan.limits or None,
        overrides=plan.overrides or None,
        resolved_from=plan.resolved_from or None,
        additions=plan.additions or None,
        capabilities=plan.capabilities if plan.framework is Framework.CUDA else None,
        compiled=tuple(build_from(CompiledDocument, each) for each in plan.compiled),
    )


def build_conflict_document(answer: Plan | Conflict) -> ConflictDocument | None:
    """Build the document of a conflict; None for a plan."""
    if isinstance(answer, Plan):
        return None
    nearest = build_plan_document(answer.nearest) if answer.nearest else None
    return build_from(ConflictDocument, answer, nearest=nearest)


def describe_resolution(plan: Plan) -> str:
    """Describe in one line the versions of the packages that the project names; "" where none is known."""
    named = [f"{name} {version}" for name, version in plan.project_packages]
    asked = plan.resolution.asked if isinstance(plan.resolution, Resolved) else ()
    places = [f"also queried, in addition to the public index: {join_words(asked)}"] if asked else []
    return "; ".join([*([f"resolved: {join_some(named)}"] if named else []), *places])


def _build_resolution_document(plan: Plan) -> ResolutionDocument:
    match plan.resolution:
        case Resolved(packages, from_source, unread, asked):
            return ResolutionDocument(
                status="resolved",
                packages=dict(packages),
                from_source=from_source,
                not_checked=unread,
                asked=asked or None,
            )
        case Unknown(reason):
            return ResolutionDocument(status="not checked", because=reason)
        case None:
            return ResolutionDocument(status="not checked", because="nothing needed resolving")


def serialize_dependencies(dependencies: Dependencies) -> Json:
    """Serialize for JSON what was read of a project's requirements, what is installed and what else there is."""
    available = dependencies.available
    return {
        "dependencies": {
            "tool": dependencies.tool.value,
            "files": list(dependencies.files),
            "lock": dependencies.lock,
            "extras": list(dependencies.extras),
            "groups": list(dependencies.groups),
            "available": {
                "extras": list(available.extras),
                "groups": list(available.groups),
                "requirements": list(available.requirements),
            },
        }
    }


def format_answer(answer: Plan | Conflict, *, width: int, is_cpu_requested: bool = False, today: str) -> str:
    """Format an answer, folded to `width` columns. A CPU plan that was not requested says how to plan for a GPU."""
    if isinstance(answer, Conflict):
        parts = [format_conflict(answer, width=width)]
    else:
        is_shown = {name for name, _ in answer.project_packages} <= {reason.field for reason in answer.reasons}
        resolved = "" if is_shown else wrap_text(describe_resolution(answer), width=width)
        headline = wrap_text(f"plan: {describe_plan(answer)}", width=width, hanging=_INDENT)
        headline += f"\n{format_choices(answer, width=width)}"
        parts = [headline, resolved, _format_warnings(answer.warnings, width=width)]
    if isinstance(answer, Plan) and answer.lacks_gpu and not is_cpu_requested:
        hint = 'To plan for a machine with a GPU, use --gpu "RTX 4090" --driver 570.124.06, or --facts FILE from that machine.'
        parts.append(wrap_text(hint, width=width))
    stale = format_stale_warning(answer.data_as_of, today)
    parts += [_format_warnings((stale,) if stale else (), width=width)]
    parts.append(wrap_text(format_age(answer, today), width=width))
    first, *rest = filter(None, parts)
    return "\n\n".join((first, "\n".join(rest)))


def format_age(answer: Plan | Conflict, today: str) -> str:
    """Format the age of an answer's data, as one line."""
    days = count_days(answer.data_as_of, today)
    ago = f"{format_count(days, 'day')} ago" if days > 0 else "today"
    return f"Version tables as of {answer.data_as_of}, {ago}."


def format_reason(reason: Reason, *, width: int) -> str:
    """Format one reason in full, with its source and confidence."""
    head = wrap_text(f"{reason.field} {reason.value}: {reason.because}", width=width)
    return f"{head}\n{_INDENT}source: {reason.source} ({reason.confidence})"


def format_conflict(conflict: Conflict, *, width: int) -> str:
    """Format the rules that refuse a request, and what to request instead."""
    lines = [wrap_text(f"✗ conflict: nothing fits {conflict.wanted}", width=width)]
    for blocker in conflict.blockers:
        lines.append(wrap_text(f"{blocker.rule}  {blocker.says}", width=width, indent=_INDENT))
        lines.append(f"{_INDENT * 3}source: {blocker.source}")
    if conflict.nearest is None:
        lines.append("No other versions fit either.")
        return "\n".join(lines)
    plan = conflict.nearest
    nearest = f"Nearest that fits: {describe_plan(plan)}"
    verb = "Pass" if conflict.nearest_changes.startswith("--") else "It takes"
    lines += ["", wrap_text(f"{nearest}. {verb}: {conflict.nearest_changes}", width=width)]
    return "\n".join(lines)


def describe_plan(plan: Plan) -> str:
    """Describe a plan in a few words: "torch 2.14.1 for CUDA 12.6 on Python 3.12"."""
    built = f"CUDA {plan.cuda}" if plan.cuda else f"ROCm {plan.rocm}" if plan.rocm else "the CPU"
    what = f"torch {plan.torch}" if plan.torch else plan.framework.label
    return f"{what} for {built} on Python {plan.python}"


def format_choices(plan: Plan, *, width: int) -> str:
    """Format each choice with its reason as a line, folded to `width`; packages with the same reason share one."""
    rows = []
    for because, same in groupby(plan.reasons, key=lambda reason: reason.because):
        reasons = list(same)
        alike = [each for each in reasons if each.field != RESOLUTION] or reasons
        shown = ", ".join(f"{each.field} {each.value}" for each in alike)
        rows += [("packages", shown, because)] if len(alike) > 1 else [(alike[0].field, alike[0].value, because)]
    left = max(len(name) for name, *_ in rows) + len(_INDENT)
    lines = (f"{name:<{left}}{value}{_INDENT}{because}" for name, value, because in rows)
    return "\n".join(wrap_text(line, width=width, hanging=" " * left) for line in lines)


def _format_warnings(warnings: tuple[str, ...], *, width: int) -> str:
    return "\n".join(wrap_text(f"! warning: {warning}", width=width, hanging=_INDENT) for warning in warnings)


def format_requirements(plan: Plan) -> str:
    """Format the packages of a plan as a requirements file with torch's index, which pip and uv read."""
    lines = [f"--extra-index-url {plan.torch_index}"] if plan.torch_index else []
    for name, version in plan.versions.items():
        is_build = name == "torch" and plan.variant and "+" not in version and plan.torch_index
        lines.append(f"{name}=={version}+{plan.variant}" if is_build else f"{name}=={version}")
    return "\n".join(lines)


def list_install_words(plan: Plan, *, with_uv: bool) -> tuple[str, ...]:
    """List what follows `uv pip install`, or `pip install`, to install the plan's packages, torch in its build."""
    extras = {each.partition("[")[0]: each for each in plan.additions}
    names = plan.versions if plan.torch else {**dict.fromkeys(extras, ""), **plan.versions}
    words = [f"{extras.get(name, name)}=={version}" if version else extras[name] for name, version in names.items()]
    if not plan.torch:
        return tuple(words)
    if with_uv:
        return (f"--torch-backend={plan.variant}", *words)
    words = [f"{word}+{plan.variant}" if word.startswith("torch==") and "+" not in word else word for word in words]
    return (f"--extra-index-url={plan.torch_index}", *words)
