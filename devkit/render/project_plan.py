"""Plans of projects whose packages uv resolves, and what devkit.lock remembers of that."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.compat.version_tables import RowConfidence, load_tables
from devkit.facts.dependencies import Dependencies, RequirementSources, Resolved
from devkit.facts.values import Unknown
from devkit.solver.plan import Conflict, Plan, Reason, Request
from devkit.solver.project import GUIDE

if TYPE_CHECKING:
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.solver.resolution import Resolve


def plan_with_packages(
    request: Request,
    dependencies: Dependencies,
    root: Path,
    settings: "ProjectSettings | None",
    *,
    no_resolve: bool = False,
    is_check: bool = False,
    is_last: bool = True,
    show_status: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Plan | Conflict:
    """Plan the project in the folder `root`, with its packages as uv resolves them.

    Without a devkit.toml, and with code that was not changed for long, they are those of its last change.
    With `is_check`, and wherever uv finds no answer, those count that devkit.lock holds of the same requirements.
    `show_status` shows a line while it runs. Where the project's guide asks for what does not fit, the project counts
    without it. Unless `is_last`, a conflict names no nearest plan, and nothing that could not be installed is set aside.
    """
    prepare = partial(_prepare, request, root=root, settings=settings, no_resolve=no_resolve, is_check=is_check)
    with show_status("uv resolves the packages"), ExitStack() as stack:
        other = dependencies.without_guide
        plan = prepare(dependencies, stack=stack)
        answer = plan(wants_nearest=is_last and other is None)
        if other is None or not isinstance(answer, Conflict):
            return answer
        without = prepare(other, stack=stack)(wants_nearest=False)
        if isinstance(without, Conflict):
            return plan() if is_last else answer
        # Where the guide names most of what the project needs, one line of it that does not fit is not the end of it.
        if 2 * len(other.needs) < len(dependencies.needs):
            aside = plan() if is_last else answer
            if not is_last or isinstance(aside, Plan):
                return aside
    says = f"{dependencies.because}, which does not fit: {answer.blockers[0].says}"
    reason = Reason(GUIDE, "left out", says, dependencies.because.partition(" ")[0], RowConfidence.CONFIRMED)
    return replace(without, reasons=(*without.reasons, reason), warnings=(*without.warnings, f"not taken: {says}"))


def _prepare(
    request: Request,
    dependencies: Dependencies,
    *,
    root: Path,
    settings: "ProjectSettings | None",
    no_resolve: bool,
    is_check: bool,
    stack: ExitStack,
) -> Callable[..., Plan | Conflict]:
    """Return what plans with these dependencies, again without asking uv again; `stack` ends its resolver."""
    from devkit.solver.stated import plan_stated

    as_of = request.as_of
    request = date_request(request, dependencies, root)
    sources = RequirementSources()
    if dependencies.lists or dependencies.needs:
        from devkit.render.container.packages import read_requirement_sources

        sources = read_requirement_sources(root, dependencies)
    wanted: tuple[object, ...] = (
        sources,
        request.pins,
        request.torch,
        request.cuda,
        request.python,
        request.image,
        request.features,
        *(need.text for need in dependencies.stated),
    )

    def sign(day: str) -> str:
        more = (*((day,) if day else ()), *(("no_hold",) if request.no_hold else ()))
        return sha256(repr((*wanted, *more)).encode()).hexdigest()

    locked = _read_locked_plan(root)
    is_same = bool(locked and locked.resolved_from == sign(request.as_of))
    recorded = locked if is_same else None
    resolve: Resolve | Unknown
    if no_resolve:
        resolve = Unknown("--no-resolve was given")
    elif is_check and locked and (is_same or not locked.resolved_from):
        resolve = Unknown("devkit.lock was written without resolving the packages")
    elif settings and settings.wheelhouse:
        resolve = Unknown("the image is built from a wheelhouse")
    else:
        from devkit.probe.uv_resolver import UvResolver

        resolve = stack.enter_context(UvResolver(sources, index=settings.index if settings else ""))

    def plan(*, wants_nearest: bool = True) -> Plan | Conflict:
        answer = plan_stated(
            request, dependencies, load_tables(), resolve, recorded=recorded, wants_nearest=wants_nearest
        )
        is_resolved = isinstance(answer, Plan) and isinstance(answer.resolution, Resolved)
        if not (isinstance(answer, Plan) and is_resolved):
            return answer
        # Where nothing of the day fits, devkit.toml keeps none.
        return replace(answer, resolved_from=sign(answer.as_of or as_of))

    return plan


def date_request(request: Request, dependencies: Dependencies, root: Path) -> Request:
    """Return the request as of the last change of code that is old, unless it has a day or the project a devkit.toml."""
    is_open = dependencies.asks_for_packages and not dependencies.is_locked
    if request.as_of or not is_open or os.access(root / "devkit.toml", os.F_OK):
        return request
    from devkit.probe.project.reader import read_last_change
    from devkit.solver.resolution import is_old

    day = read_last_change(root)
    return replace(request, as_of=day) if day and is_old(day, load_tables()) else request


def _read_locked_plan(root: Path) -> Plan | None:
    # Most plans are made where there is no lock: then its reader is not imported.
    if not os.access(root / "devkit.lock", os.F_OK):
        return None
    from devkit.render.devkit_lock import parse_locked_plan, read_project_lock

    document = read_project_lock(root).plan
    return parse_locked_plan(document) if document else None


def read_project_settings(folder: str) -> "ProjectSettings | None":
    """Read devkit.toml; None without one. Raises DevkitError for one that is wrong."""
    # Most projects have no devkit.toml: then its reader is not imported.
    if not os.access(f"{folder}/devkit.toml", os.F_OK):
        return None
    from devkit.render.devkit_toml import DEVKIT_TOML, parse_devkit_toml
    from devkit.render.files import read_file

    content = read_file(Path(folder), DEVKIT_TOML)
    if content is None:
        return None
    return parse_devkit_toml(content)
