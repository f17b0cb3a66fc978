"""A plan whose packages uv resolves: the tables bound torch to what the machines run, and uv chooses within that.

A project that leaves versions open was tried with those of its time. Years later the newest ones have dropped what
it calls, and no metadata says so: requests as of a day are limited to the versions that its code was written for.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol

from devkit.compat.specifiers import satisfies, split_requirement
from devkit.compat.version_tables import RowConfidence, Tables
from devkit.compat.wheels import (
    describe_foreign_wheel,
    describe_wheel,
    find_foreign_wheels,
    find_wheels,
    list_python_limits,
    list_wheel_limits,
)
from devkit.facts.dependencies import (
    NO_DEPENDENCIES,
    TORCH_FAMILY,
    Dependencies,
    Framework,
    Refused,
    RequirementRole,
    Resolution,
    ResolutionRequest,
    Resolved,
)
from devkit.facts.values import Release, Unknown
from devkit.solver.base_image import find_image
from devkit.solver.candidates import build_problem, describe_request, find_candidate
from devkit.solver.compiled_packages import add_compiled_packages, list_compile_limits
from devkit.solver.evaluate import evaluate_candidate
from devkit.solver.packages import BITSANDBYTES, find_limits, find_pin_warnings, list_lockstep, list_torch_bounds
from devkit.solver.plan import (
    AS_OF,
    LATEST,
    PYTHON,
    RESOLUTION,
    Blocker,
    CompileMode,
    Conflict,
    Constraint,
    Plan,
    Reason,
    Request,
    explain_field,
)
from devkit.solver.project import (
    add_project_constraints,
    list_project_constraints,
    list_torch_siblings,
    select_torch_build,
)
from devkit.solver.solve import list_fitting_torch, solve_project
from devkit.solver.system_packages import add_system_packages
from devkit.text import join_words


class Resolve(Protocol):
    """Resolves requests. It may answer what is expected at the same time as what is asked for."""

    def __call__(self, wanted: ResolutionRequest) -> Resolution:
        """Resolve."""

    def expect(self, wanted: ResolutionRequest) -> object:
        """Hear of a request that is likely to follow."""


ORIGIN = "uv's resolution"
RULE = "uv"
_OF_TORCH = re.compile(r"(?:nvidia|cuda)-.+|triton")
"""What torch brings; the public index, where it is resolved, has it for one build of torch, which need not be the plan's."""
_BOUND = re.compile("==|<|~=")
_NOT_FOUND = "was not found in the package registry"
AT_ONCE = 3
"""Pythons that are resolved for at the same time, once the first has no resolution."""
DAYS_LATER = (31, 122, 366)
"""Where the index has no release of a package from the requested day any more, the nearest later one is looked for."""
WHEEL_MONTHS = 6
"""Months after the release of a Python within which packages with compiled code got wheels for it."""
MAX_SET_ASIDE = 3
"""Rounds of setting requirements aside that nobody could install together."""
MAX_OTHER_PYTHONS = 2
"""Pythons in which wheels are looked for that the plan's own lacks."""


def plan_project(
    request: Request,
    dependencies: Dependencies,
    tables: Tables,
    resolve: Resolve | Unknown,
    *,
    recorded: Plan | None = None,
    wants_nearest: bool = True,
) -> Plan | Conflict:
    """Plan a project whose packages `resolve` chooses; what uv refuses is a conflict with its reason.

    `resolve` is Unknown where the packages are not to be resolved. `recorded` is an earlier plan for the same
    requirements, whose versions are taken if nothing newer is known. Without `wants_nearest`, a conflict does not name the
    nearest plan that fits, and nothing is set aside: otherwise a plan without what nobody could install is the last resort, and
    names it. Where packages of the requested day do not fit together or cannot be resolved, the plan has the newest, and says so.
    """
    if recorded and dependencies.guide_python and not satisfies(recorded.python, dependencies.guide_python.specifier):
        # What a project has been planned with stays.
        dependencies = replace(dependencies, guide_python=None)
    plan = partial(
        _plan,
        dependencies=dependencies,
        tables=tables,
        resolve=resolve,
        recorded=recorded,
    )
    answer = _plan_days(request, dependencies, tables, plan, recorded)
    if not (wants_nearest and isinstance(answer, Conflict) and answer.blockers[0].rule == RULE):
        return answer
    aside = _plan_days(request, dependencies, tables, partial(plan, sets_aside=True), recorded)
    return aside if isinstance(aside, Plan) else plan(replace(request, as_of=""), wants_nearest=True)


def _plan_days(
    request: Request,
    dependencies: Dependencies,
    tables: Tables,
    plan: Callable[[Request], Plan | Conflict],
    recorded: Plan | None,
) -> Plan | Conflict:
    """Plan with the packages of the requested day, and with the newest where those do not fit."""
    newest, answer = replace(request, as_of=""), None
    if request.as_of in ("", LATEST) or dependencies.is_locked or not dependencies.asks_for_packages:
        for guide in _list_guide_pythons(request, dependencies, tables, day=tables.as_of):
            answer = plan(replace(newest, constraints=(*newest.constraints, guide)))
            if isinstance(answer, Plan):
                return answer
        return plan(newest)
    for dated in list_dated_requests(request, dependencies, tables):
        answer = plan(dated)
        if isinstance(answer, Plan) and isinstance(answer.resolution, Resolved):
            return answer
        if isinstance(answer, Plan) and recorded is None:
            break
    unread = answer.resolution if isinstance(answer, Plan) else None
    answer = plan(newest)
    if isinstance(answer, Conflict):
        return answer
    because = f"no plan fits those released by {request.as_of}"
    if isinstance(unread, Unknown):
        because = f"{unread.reason}, and so devkit does not know those released by {request.as_of}"
    return replace(answer, warnings=(*answer.warnings, f"the packages are the newest, because {because}"))


def _plan(
    request: Request,
    dependencies: Dependencies,
    tables: Tables,
    resolve: Resolve | Unknown,
    recorded: Plan | None,
    wants_nearest: bool = False,
    sets_aside: bool = False,
) -> Plan | Conflict:
    """Plan a project once, with the packages of the request's day."""
    plan = solve_project(request, dependencies, tables)
    if isinstance(plan, Conflict):
        return plan
    search = _Search(request, dependencies, tables, plan)
    if not search.has_packages:
        return plan
    if search.dependencies.is_locked:
        return search.finish(plan, search.read_lock(resolve, recorded))
    found: Plan | Conflict | Unknown = (
        resolve
        if isinstance(resolve, Unknown)
        else search.run(resolve, wants_nearest=wants_nearest, sets_aside=sets_aside)
    )
    if plan.framework is Framework.NONE and _brings_torch(found, recorded):
        # A package that the project asks for needs torch: so the tables choose its build.
        request = replace(request, framework=Framework.TORCH)
        return _plan(request, dependencies, tables, resolve, recorded, wants_nearest, sets_aside)
    if not isinstance(found, Unknown):
        return found
    return (search.take(recorded) if recorded else None) or search.leave_unchecked(found)


def _list_gone(refusal: Refused) -> list[str]:
    """List the packages of which the index has no release of the requested day any more, as of grain-nightly."""
    found = re.findall(r"there are no versions of ([\w.-]*\w)(?! *[=<>!~])", refusal.details)
    return [name for name in dict.fromkeys(found) if f"`{name}` was filtered" in refusal.details]


def _brings_torch(found: Plan | Conflict | Unknown, recorded: Plan | None) -> bool:
    """Return whether uv's answer, or the earlier one where there is none, has torch, or a build that takes it."""
    if isinstance(found, Unknown):
        return bool(recorded and recorded.torch)
    resolved = found.resolution if isinstance(found, Plan) else None
    if not isinstance(resolved, Resolved):
        return False
    taken = (each.name for build in resolved.builds for each in build.modules)
    return "torch" in dict(resolved.packages) or "torch" in taken


class _Search:
    """The search for the versions of one project. `plan` is what the tables choose alone."""

    def __init__(
        self,
        request: Request,
        dependencies: Dependencies,
        tables: Tables,
        plan: Plan,
        relaxed: tuple[str, ...] = (),
        absent: tuple[str, ...] = (),
    ) -> None:
        self._request = request
        self._all = dependencies
        self._tables = tables
        self._plan = plan
        self._relaxed = relaxed
        self._absent = absent
        self.dependencies = select_torch_build(dependencies, plan)
        self._adds_packages = request.adds_packages and not self.dependencies.asks_for_packages
        self.has_packages = bool(plan.packages or plan.additions or self.dependencies.asks_for_packages)
        # The GPU code was read in the wheels for x86_64 alone.
        machines = [machine for machine in build_problem(request, tables).machines if machine.machine == "x86_64"]
        gpus = [capability for machine in machines for _, capability in machine.gpus]
        self._wheel_limits = list_wheel_limits(plan.cuda, gpus, tables) if plan.torch else {}
        self._needs = [need for need in self.dependencies.needs if need.role is not RequirementRole.CONSTRAINT]
        wanted = [need for need in reversed(self.dependencies.needs) if need.name == "torch" or need in self._needs]
        self._required = {need.name: need for need in wanted if need.specifier}
        """The first requirement of each package that limits its version, of those that can be set aside."""
        self._torch_bounds = list_torch_bounds({need.name for need in self._needs}, tables) if plan.torch else ()
        self._releases: dict[str, tuple[tuple[str, ...], ...]] = {}
        """torch releases by Python."""
        self._solved: dict[Request, Plan | Conflict] = {}
        self._wheeled: set[str] = set()
        """Releases of torch that are chosen for the wheels of other packages."""
        self._undated: tuple[str, ...] | None = None
        self._gone: dict[str, int] = {}
        """Packages of which the index has no release of the requested day, with how many of DAYS_LATER have none either."""
        self._varying: set[str] = set()
        """Packages that have another version on another processor."""

    def run(self, resolve: Resolve, *, wants_nearest: bool, sets_aside: bool) -> Plan | Conflict | Unknown:
        """Resolve; a refusal becomes a conflict, which names the nearest plan where one is wanted."""
        found = self.resolve(resolve)
        if isinstance(found, Refused) and self._torch_bounds:
            # These machines run no torch that is old enough. What is installed then says so, and can be patched.
            self._torch_bounds = ()
            found = self.resolve(resolve)
        if isinstance(found, Refused) and sets_aside:
            found = self._set_aside(found, resolve)
        return self._refuse(found, resolve if wants_nearest else None) if isinstance(found, Refused) else found

    def _set_aside(self, refusal: Refused, resolve: Resolve) -> Plan | Refused:
        """Resolve without names that the index does not have, and with other versions of what rules each other out.

        What the request itself asks for stays. So do the requirements of a project with its own indexes, which may have
        private packages.
        """
        asked = self._request
        if asked.pins or asked.torch or asked.python or any(each.needs_consent for each in self.dependencies.indexes):
            return refusal
        search, last = self, refusal
        for _ in range(MAX_SET_ASIDE):
            own = dict.fromkeys(need.name for need in self._needs)
            names = [name for name in own | self._required if last.mentions(name)]
            missing = [name for name in names if name not in TORCH_FAMILY and last.mentions(f"{name} {_NOT_FOUND}")]
            # What another package depends on gives way first: the other is nearer to what the project calls.
            order = sorted(names, key=lambda name: f"depends on {name}" not in last.details)
            tries = [search._vary(relaxed=[name]) for name in order if name in self._required.keys() - search._relaxed]
            tries = [search._vary(absent=missing)] if missing else tries
            further: list[tuple[_Search, Refused]] = []
            for each in tries:
                found = each.resolve(resolve)
                if isinstance(found, Plan):
                    resolved = found.resolved | ({"torch": found.torch} if found.torch else {})
                    relaxed = (name for name in each._relaxed if name in resolved)
                    return each._override(found, tuple(f"{name}=={resolved[name]}" for name in relaxed))
                if isinstance(found, Unknown):
                    return refusal
                if found.reason != last.reason:
                    further.append((each, found))
            if not further:
                return refusal
            search, last = further[0]
        return refusal

    def _vary(self, *, relaxed: Iterable[str] = (), absent: Iterable[str] = ()) -> "_Search":
        """Return the same search with more requirements set aside."""
        relaxed, absent = (*self._relaxed, *relaxed), (*self._absent, *absent)
        # The tables bind torch to what the project requires of its family, before uv is asked.
        free = {*TORCH_FAMILY}.intersection(relaxed)
        needs = (replace(need, specifier="") if need.name in free else need for need in self._all.needs)
        given = replace(self._all, needs=tuple(needs)) if free else self._all
        answer = solve_project(self._request, given, self._tables) if free else self._plan
        plan = answer if isinstance(answer, Plan) else self._plan
        search = _Search(self._request, given, self._tables, plan, relaxed, absent)
        search._required = self._required
        if not free:
            search._releases, search._wheeled, search._solved = {**self._releases}, {*self._wheeled}, self._solved
        return search

    def _override(self, plan: Plan, overrides: tuple[str, ...]) -> Plan:
        """Return the plan with versions that take the place of those that the project requires."""
        needs = self._required
        says = [
            f"{needs[name].origin} requires {name}{needs[name].specifier}, which cannot be installed with the rest: the image"
            f" gets {name} {version} instead"
            for name, _, version in (each.partition("==") for each in overrides)
            if name in needs
        ]
        return replace(plan, overrides=overrides, warnings=(*says, *plan.warnings))

    def resolve(self, resolve: Resolve) -> Plan | Refused | Unknown:
        """Resolve for the plan's Python, or for another where none is requested: old packages lack wheels for new ones."""
        refusal: Refused | None = None
        for plan in chain([self._plan], self._begin_other_pythons(resolve)):
            found = self._resolve_for(plan, resolve)
            if isinstance(found, Plan):
                preferred = self._prefer_wheels(found, resolve)
                if refusal is None or preferred.python != plan.python:
                    return preferred
                because = f"the packages cannot be resolved for Python {self._plan.python}: {refusal.reason}"
                return explain_field(preferred, PYTHON, because)
            if isinstance(found, Unknown):
                return refusal or found
            refusal = refusal or found
            # What a package needs may depend on the Python without a word of that in the reason; whether it exists does
            # not. For the nearest plan only reasons count that say so: an older Python has older releases of torch, too.
            is_of_python = refusal.mentions("Python", "wheels", *TORCH_FAMILY)
            if not is_of_python and (self._relaxed or refusal.mentions(_NOT_FOUND)):
                break
        return refusal or Unknown("no Python to resolve for")

    def read_lock(self, resolve: Resolve | Unknown, recorded: Plan | None) -> Resolved:
        """Return the versions that the project's own lock holds for the plan's Python and machines, with their wheels."""
        plan = self._plan
        limits = list_project_constraints(self.dependencies, machines=plan.architectures, python=plan.python)
        exact = {each.name: each.specifier[2:] for each in limits if re.fullmatch(r"==[^*,]+", each.specifier)}
        exact.pop(PYTHON, None)
        torch = {"torch": plan.torch} if plan.torch else {}
        locked = Resolved(tuple(sorted((exact | torch).items())))
        elsewhere = {*TORCH_FAMILY, *(need.name for need in self.dependencies.needs if need.url or need.index)}
        pinned = [f"{name}=={version}" for name, version in locked.packages if name not in elsewhere]
        found: Resolution | None = recorded.resolution if recorded else None
        if not isinstance(resolve, Unknown):
            found = self._ask(plan, resolve, [], pinned, is_alone=True, follows=False) if pinned else None
        elif isinstance(found, Resolved) and not {*found.packages} <= {*locked.packages}:
            found = None  # the lock was made again since
        if not isinstance(found, Resolved):
            return locked
        packages = tuple(each for each in locked.packages if each[0] not in found.absent)
        return replace(found, packages=packages, unread=(), asked=(), hashes=())

    def take(self, recorded: Plan) -> Plan | None:
        """Return the plan with the versions of an earlier one; None where the machines do not run its torch any more."""
        found = recorded.resolution
        if not isinstance(found, Resolved):
            found = Resolved(tuple(recorded.versions.items()))
        versions = dict(found.packages)
        framework = "" if recorded.torch else versions.get(recorded.framework, "")
        answer = self._solve(python=recorded.python, torch=recorded.torch, framework=framework)
        if isinstance(answer, Conflict) or answer.framework is not recorded.framework:
            return None
        fitted = self._fit_cuda(answer, versions) if answer.torch else answer
        if isinstance(fitted, Refused):
            return None
        for name in ("torch", PYTHON) if fitted.torch else (PYTHON,):
            fitted = explain_field(fitted, name, recorded.because(name))
        return self._override(self.finish(fitted, found, recorded.limits), recorded.overrides)

    def leave_unchecked(self, reason: Unknown) -> Plan:
        """Return the plan of the tables, which says that the project's packages were not resolved.

        Of those that are built for some CUDA alone it expects the newest release.
        """
        named = {need.name for need in self._needs}
        newest = {row.name: str(row.version) for row in self._tables.stack.cuda_wheels if row.name in named}
        fitted = self._fit_cuda(self._plan, newest) if self._plan.cuda and self._plan.torch else self._plan
        plan = self._plan if isinstance(fitted, Refused) else fitted
        warnings = plan.warnings
        if not self._adds_packages:
            warnings = (
                *warnings,
                f"{reason.reason}, so devkit did not check whether the project's packages can be installed",
            )
        return replace(plan, resolution=reason, warnings=warnings)

    def finish(self, plan: Plan, resolved: Resolved, limits: tuple[str, ...] = ()) -> Plan:
        """Return the plan with the versions of a resolution, and what that leaves unchecked."""
        named = {need.name for need in self._needs}
        packages = tuple(each for each in resolved.packages if each[0] in named or not self._is_of_torch(each[0]))
        resolved, versions = replace(resolved, packages=packages), dict(packages)
        for name, version in plan.packages:
            if versions.get(name, version) != version:
                plan = explain_field(plan, name, "resolved by uv with the other packages", value=versions[name])
        own = {name: versions.get(name, version) for name, version in plan.packages}
        names = dict.fromkeys(need.name for need in self._needs if need.name in versions and need.name not in own)
        source = self.dependencies.lock or next(iter(self.dependencies.files), RULE)
        is_locked = self.dependencies.is_locked
        because = (
            f"as pinned in {source}"
            if is_locked
            else f"uv's resolution for Python {plan.python} on {' and '.join(plan.architectures)}"
        )
        known = {row.name for row in self._tables.stack.packages} | {BITSANDBYTES, *TORCH_FAMILY}
        stacks = self._tables.stack.stacks.values()
        known |= {split_requirement(line)[0].partition("[")[0] for stack in stacks for line in stack.requires}
        wheels = {row.name: f"; {describe_wheel(row)}" for row in find_wheels(versions, self._tables)}
        shown = [(name, versions[name]) for name in dict.fromkeys((*names, *wheels)) if name in known or name in wheels]
        shown += [(RESOLUTION, source if is_locked else RULE)] if names else []
        day = self._request.as_of
        dated = Reason(AS_OF, day, "the project's packages are those released by then", source, RowConfidence.CONFIRMED)
        answered = set(find_pin_warnings(build_problem(self._request, self._tables)))
        finished = replace(
            plan,
            packages=tuple(own.items()),
            project_packages=tuple((name, versions[name]) for name in names),
            limits=limits,
            resolution=resolved,
            reasons=(
                *plan.reasons,
                *(
                    Reason(name, value, f"{because}{wheels.get(name, '')}", source, RowConfidence.CONFIRMED)
                    for name, value in shown
                ),
                *((dated,) if day else ()),
            ),
            warnings=(
                *(warning for warning in plan.warnings if warning not in answered),
                *(f"not checked: the requirements of {each}" for each in resolved.unread),
                *(f"{name} is newer than {day}: the index has no wheel from that day that fits" for name in self._gone),
            ),
        )
        finished = add_compiled_packages(finished, self.dependencies, build_problem(self._request, self._tables))
        return add_system_packages(finished, self.dependencies, self._request.apt, self._tables)

    def _constrain(self, *, python: str, torch: str = "", framework: str = "") -> Request:
        """Return the request with what uv chose; the Python of the tables needs no constraint."""
        constraints = self._request.constraints
        if torch:
            constraints += (Constraint("torch", f"=={torch}", ORIGIN),)
        if framework:
            constraints += (Constraint(self._plan.framework, f"=={framework}", ORIGIN),)
        if python != self._plan.python:
            constraints += (Constraint(PYTHON, f"=={python}.*", ORIGIN),)
        return replace(self._request, constraints=constraints)

    def _solve(self, *, python: str, torch: str = "", framework: str = "") -> Plan | Conflict:
        request = self._constrain(python=python, torch=torch, framework=framework)
        if request not in self._solved:
            self._solved[request] = solve_project(request, self._all, self._tables)
        return self._solved[request]

    def _list_other_pythons(self) -> Iterator[str]:
        """List the next older ones, then the next newer ones."""
        own = Release.parse(self._plan.python)
        others = sorted(Release.parse(row.version) for row in self._tables.stack.pythons)
        yield from (str(each) for each in reversed(others) if each < own)
        yield from (str(each) for each in others if each > own)

    def _list_plans_for_other_pythons(self) -> Iterator[Plan]:
        if self._request.python or self._request.image:
            return
        for python in self._list_other_pythons():
            answer = self._solve(python=python)
            if isinstance(answer, Plan) and answer.python == python:
                yield answer

    def _begin_other_pythons(self, resolve: Resolve) -> Iterator[Plan]:
        """Yield the plans for other Pythons; meanwhile the next ones are resolved for, beside the caller."""
        begun: deque[Plan] = deque()
        for plan in self._list_plans_for_other_pythons():
            if plan.torch and (releases := self._list_torch_releases(plan.python)):
                siblings = list_torch_siblings(self.dependencies, machines=plan.architectures, python=plan.python)
                own = [f"{name}=={version}" for name, version in plan.packages if name != "torch"]
                limit = _format_range(releases[0], self._tables)
                resolve.expect(self._build_request(plan, [limit], [*own, *filter(_BOUND.search, siblings)]))
            begun.append(plan)
            if len(begun) == AT_ONCE:
                yield begun.popleft()
        yield from begun

    def _resolve_for(self, plan: Plan, resolve: Resolve) -> Plan | Refused | Unknown:
        """Resolve with the Python of `plan`: within the torch releases that suit the machines best, then within all."""
        if not plan.torch:
            return self._resolve_framework(plan, resolve)
        own = [name for name, _ in plan.packages if name != "torch"]
        pins = dict(self._request.pins)
        choices = [[f"{name}=={version}" for name, version in plan.packages if name != "torch"]]
        if self._adds_packages:
            choices.append([f"{name}=={pins[name]}" if name in pins else name for name in own])
        refusal: Refused | None = None
        for versions in self._list_torch_releases(plan.python):
            for requirements in choices:
                found = self._resolve_within(_format_range(versions, self._tables), plan, requirements, resolve)
                if isinstance(found, Resolved):
                    return self._settle(plan, found, requirements, resolve)
                if isinstance(found, Unknown):
                    return found
                refusal = refusal or found
            if refusal and not refusal.mentions(*TORCH_FAMILY):
                break
        return refusal or Unknown("no known release of torch fits")

    def _list_torch_releases(self, python: str) -> tuple[tuple[str, ...], ...]:
        """List which releases to leave to uv, best first: those that compiled packages take, then all that fit."""
        if python not in self._releases:
            request = replace(self._constrain(python=python), python=python)
            request = add_project_constraints(request, self.dependencies, python=python)
            limits = list_compile_limits(self.dependencies, build_problem(request, self._tables))
            both = dict.fromkeys((replace(request, constraints=request.constraints + limits), request))
            groups = [each for one in both for each in list_fitting_torch(one, self._tables)]
            self._releases[python] = tuple(dict.fromkeys((*self._list_with_wheels(python, groups), *groups)))
        return self._releases[python]

    def _list_with_wheels(self, python: str, groups: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
        """List the releases of the newest minor for which fewer packages compile than for the newest of all.

        Each release is planned as if it were chosen: whether a wheel fits depends on its CUDA, its glibc and the Python.
        """
        minors: dict[str, list[str]] = {}
        for release in dict.fromkeys(chain(*groups)):
            minors.setdefault(release.rpartition(".")[0], []).append(release)
        compiled: dict[str, int] = {}
        for minor, releases in minors.items():
            plan = self._solve(python=python, torch=releases[0])
            without = (CompileMode.COMPILED, CompileMode.LEFT_OUT)
            packages = plan.compiled if isinstance(plan, Plan) else ()
            compiled[minor] = sum(each.mode in without for each in packages if not each.path)
            if not compiled[minor] or self._request.torch:
                break
        fewest = min(compiled.values(), default=0)
        best = next((minor for minor, count in compiled.items() if count == fewest), "")
        if best != next(iter(minors), ""):
            self._wheeled |= {*minors[best]}
            yield tuple(minors[best])

    def _resolve_within(self, limit: str, plan: Plan, requirements: list[str], resolve: Resolve) -> Resolution:
        """Resolve with torch last: chosen first, it would be the newest, and age whatever needs another one."""
        siblings = list_torch_siblings(self.dependencies, machines=plan.architectures, python=plan.python)
        found = self._ask(plan, resolve, [limit], [*requirements, *filter(_BOUND.search, siblings)])
        if not isinstance(found, Resolved):
            return found
        chosen = dict(found.packages)
        family = [line for line in ("torch", *siblings) if re.split(r"[^\w.-]", line)[0] not in chosen]
        if not family:
            return found
        pinned = [f"{name}=={version}" for name, version in found.packages]
        beside = self._ask(plan, resolve, [limit, *pinned], family, is_alone=True)
        if isinstance(beside, Refused) and f"torch {_NOT_FOUND}" in beside.reason:
            return replace(found, unread=(*found.unread, "torch itself, which the package index does not have"))
        if isinstance(beside, Refused):
            return self._ask(plan, resolve, [limit], [*requirements, *siblings, "torch"])
        if isinstance(beside, Unknown):
            return beside
        packages = tuple(sorted({*found.packages, *beside.packages}))
        return replace(found, packages=packages, wheels=tuple(sorted({*found.wheels, *beside.wheels})))

    def _resolve_framework(self, plan: Plan, resolve: Resolve) -> Plan | Refused | Unknown:
        """Resolve for a different framework than torch: its CUDA is that of the release which uv chooses."""
        limits = [f"{name}=={version}" for name, version in self._request.pins]
        found = self._ask(plan, resolve, limits, [*plan.additions])
        if not isinstance(found, Resolved):
            return found
        release = dict(found.packages).get(plan.framework, "")
        settled = self._solve(python=plan.python, framework=release) if release else plan
        if isinstance(settled, Conflict):
            return Refused(settled.blockers[0].says)
        if settled.additions != plan.additions:
            # A release has its own name for the extra that brings CUDA's libraries.
            return self._resolve_framework(settled, resolve)
        return self.finish(settled, found, self._hold(found, tuple(limits)))

    def _ask(
        self,
        plan: Plan,
        resolve: Resolve,
        constraints: list[str],
        requirements: list[str],
        *,
        is_alone: bool = False,
        follows: bool = True,
    ) -> Resolution:
        """Resolve for every processor of the plan, with one torch for all; the answer is that of the first."""
        answer: Resolved | None = None
        undated = self._list_undated(plan, resolve) if self._request.as_of else ()
        first = replace(self._build_request(plan, constraints, requirements), is_alone=is_alone, follows=follows)
        chosen: tuple[str, ...] = ()
        for machine in plan.architectures:
            request = replace(first, machine=machine, constraints=(*first.constraints, *chosen))
            request = replace(request, undated=(*undated, *self._list_later(plan.python)))
            found = resolve(request)
            while isinstance(found, Refused) and request.as_of and self._take_later(_list_gone(found)):
                request = replace(request, undated=(*undated, *self._list_later(plan.python)))
                found = resolve(request)
            before = dict(self._gone)
            while isinstance(found, Resolved) and request.as_of and not is_alone:
                if not self._take_later(self._list_unbuildable(found), from_step=len(DAYS_LATER)):
                    break
                newer = replace(request, undated=(*undated, *self._list_later(plan.python)))
                better = resolve(newer)
                if not isinstance(better, Resolved):
                    break
                request, found, before = newer, better, dict(self._gone)
            self._gone = before
            if isinstance(found, Resolved) and not is_alone and (behind := list_lockstep(found.packages, self._tables)):
                later = resolve(replace(request, constraints=(*request.constraints, *behind)))
                says = f"{join_words([*behind])} {_NOT_FOUND}: {join_words([*behind.values()])}"
                found = Refused(says) if isinstance(later, Refused) else later
            if not isinstance(found, Resolved):
                return found
            if answer is not None:
                versions, known = dict(answer.packages), dict(answer.hashes)
                self._varying |= {name for name, version in found.packages if versions.get(name) != version}
                # A package without hashes for one of the processors has none.
                shared = [(name, more) for name, more in found.hashes if name in known]
                hashes = tuple((name, tuple(sorted({*known[name], *more}))) for name, more in shared)
                answer = replace(answer, hashes=hashes)
            else:
                answer = found
                chosen = tuple(f"torch=={version}" for name, version in found.packages if name == "torch")
        return answer or Unknown("the plan is not for any CPU architecture")

    def _build_request(self, plan: Plan, constraints: list[str], requirements: list[str]) -> ResolutionRequest:
        """Build the request for the first processor of the plan."""
        glibc = find_image(plan.base_image, build_problem(self._request, self._tables)).glibc
        python_limits = list_python_limits(plan.python, self._tables) if plan.torch else {}
        # Packages that build with an old setuptools import its pkg_resources, too.
        named = {need.name for need in self._needs}
        limits = (row.requirement for row in self._tables.stack.build_limits if row.is_general)
        general = (each for each in limits if each.partition("<")[0] not in named)
        return ResolutionRequest(
            python=plan.python,
            machine=plan.architectures[0],
            glibc=str(glibc or ""),
            constraints=(
                *constraints,
                *self._wheel_limits,
                *python_limits,
                *self._torch_bounds,
                *general,
                *self._request.stated,
            ),
            requirements=tuple(requirements),
            relaxed=self._relaxed,
            absent=self._absent,
            as_of=self._request.as_of,
            undated=(*(self._undated or ()), *self._list_later(plan.python)),
        )

    def _list_unbuildable(self, found: Resolved) -> list[str]:
        """List the packages that compile and whose releases of the day have wheels for other Pythons alone."""
        fixed = {name for name, need in self._required.items() if need.specifier.startswith("==")}
        return [name for name, pythons in found.elsewhere if pythons and name not in fixed]

    def _take_later(self, gone: list[str], *, from_step: int = 0) -> bool:
        """Take the next later day for packages that are gone, and for what moves with them; False where none is left."""
        pairs = [{row.name, row.behind} for row in self._tables.stack.lockstep]
        both = [*gone, *(name for pair in pairs if pair.intersection(gone) for name in pair)]
        steps = {name: max(self._gone.get(name, -1) + 1, from_step) for name in dict.fromkeys(both)}
        self._gone |= steps
        return bool(steps) and all(steps[name] <= len(DAYS_LATER) + 1 for name in gone)

    def _list_later(self, python: str) -> tuple[str, ...]:
        """List the packages that may be newer than the requested day, each with the days later as long as it has any."""
        if not self._gone:
            return ()
        # A Python is supported for five years (PEP 602).
        ends = next(row.eol for row in self._tables.stack.pythons if row.version == python)
        months = (int(ends[:4]) - 5) * 12 + int(ends[5:]) - 1 + WHEEL_MONTHS
        wheels = f"{months // 12}-{months % 12 + 1:02}-01"
        later = (*(f"={days}" for days in DAYS_LATER), f"={wheels}" if wheels > self._request.as_of else "", "")
        return tuple(f"{name}{later[min(step, len(later) - 1)]}" for name, step in self._gone.items())

    def _list_undated(self, plan: Plan, resolve: Resolve) -> tuple[str, ...]:
        """List what need not be of the requested day: a torch that only later could serve these machines, and its needs."""
        if self._undated is None:
            released = {str(row.version): row.released for row in self._tables.torch.releases}
            if released.get(plan.torch, "") <= self._request.as_of:
                self._undated = ()
            else:
                machine, requirements = plan.architectures[0], (f"torch=={plan.torch}",)
                alone = ResolutionRequest(plan.python, machine, requirements=requirements, is_alone=True)
                found = resolve(alone)
                names = [name for name, _ in found.packages] if isinstance(found, Resolved) else []
                self._undated = tuple(dict.fromkeys((*TORCH_FAMILY, *names)))
        return self._undated

    def _settle(self, plan: Plan, found: Resolved, requirements: list[str], resolve: Resolve) -> Plan | Refused:
        """Settle what follows from the torch that uv chose: its build, and what only the tables know of the others."""
        versions = dict(found.packages)
        torch = versions.get("torch", plan.torch)
        compiled = {row.name for row in self._tables.stack.cuda_wheels if row.sass}
        for name in compiled & {*found.from_source} if plan.cuda else ():
            # Hours with a CUDA Toolkit that the image does not have.
            places = join_words(plan.architectures)
            return Refused(
                f"{name} {versions[name]} has no wheel for Python {plan.python} on {places}, only its source"
            )
        settled = self._solve(python=plan.python, torch=torch) if torch != plan.torch else plan
        if isinstance(settled, Conflict):
            return Refused(settled.blockers[0].says)
        if torch != self._plan.torch:
            newest = f"{self._plan.torch} is the newest that fits"
            because = f"resolved by uv with the project's packages; {newest}"
            if torch in self._wheeled:
                because = f"more packages have wheels for it, so fewer must be compiled; {newest}"
            settled = explain_field(settled, "torch", because)
        fitted = self._fit_cuda(settled, versions)
        settled = settled if isinstance(fitted, Refused) else fitted
        limits = tuple(f"{name}=={version}" for name, version in self._request.pins)
        # A torch that the tables do not list is a candidate only where the project's files name it.
        request = add_project_constraints(self._constrain(python=plan.python), self.dependencies, python=plan.python)
        problem = build_problem(request, self._tables)
        environment = evaluate_candidate(find_candidate(problem, settled), problem).environment
        avoided: dict[str, str] = {}
        for keeps_others in (False, True):
            # The project may hold the version that a package would need another of: then that package is an older one.
            tried = dict(find_limits(versions, environment, problem, keeps_others=keeps_others))
            if tried == avoided:
                break
            avoided = avoided or tried
            better = self._resolve_within(f"torch=={torch}", settled, [*requirements, *tried], resolve)
            if not isinstance(better, Resolved):
                continue
            # The wheel of a release that does not fit this torch says nothing of the CUDA of one that does.
            within = self._fit_cuda(settled, dict(better.packages))
            if not isinstance(within, Refused):
                return self.finish(within, better, self._hold(better, (*limits, *tried)))
        if isinstance(fitted, Refused):
            return fitted
        if avoided:
            settled = replace(settled, warnings=(*settled.warnings, *avoided.values()))
        return self.finish(settled, found, self._hold(found, limits))

    def _hold(self, found: Resolved, limits: tuple[str, ...]) -> tuple[str, ...]:
        """Return the constraints that the image keeps to: every version, so that each build of it is the same.

        Where the requirements of a package are not known, another version may turn out to be needed.
        """
        if not self._request.as_of and (self._request.no_hold or found.unread):
            return limits
        held = (
            each
            for each in found.packages
            if each[0] not in TORCH_FAMILY and not self._is_of_torch(each[0]) and each[0] not in self._varying
        )
        return tuple(dict.fromkeys((*limits, *(f"{name}=={version}" for name, version in held))))

    def _is_of_torch(self, name: str) -> bool:
        return bool(self._plan.torch and _OF_TORCH.fullmatch(name))

    def _fit_cuda(self, plan: Plan, versions: Mapping[str, str]) -> Plan | Refused:
        """Choose the build of torch for the CUDA that other packages' wheels are built for."""
        for row in find_foreign_wheels(versions, plan.cuda, self._tables):
            says = describe_foreign_wheel(row, versions)
            if plan.cuda is None:
                return replace(
                    plan, warnings=(*plan.warnings, f"{says}: it is installed, but cannot be loaded without it")
                )
            builds = {wheel.cuda for wheel in self._tables.torch.indexes.values() if wheel.cuda}
            wheels = [*find_wheels(versions, self._tables)]
            for cuda in sorted((each for each in builds if all(one.fits(str(each)) for one in wheels)), reverse=True):
                request = replace(self._constrain(python=plan.python, torch=plan.torch), cuda=str(cuda))
                answer = solve_project(request, self._all, self._tables)
                if isinstance(answer, Plan):
                    answer = explain_field(answer, "torch", plan.because("torch"))
                    return explain_field(answer, "cuda", f"{says}; {answer.because('cuda')}")
            return Refused(f"{says}, but torch {plan.torch} for these machines is not")
        return plan

    def _prefer_wheels(self, plan: Plan, resolve: Resolve) -> Plan:
        """Take another Python for which there are wheels that this one lacks; where one is requested, only say so."""
        resolved = plan.resolution
        if not isinstance(resolved, Resolved) or not resolved.from_source:
            return plan
        pinned = [f"{name}=={dict(resolved.packages)[name]}" for name in resolved.from_source]
        known, others = dict(resolved.elsewhere), [*self._list_other_pythons()]
        have = {each: sum(each in pythons for pythons in known.values()) for each in others}
        wheeled, says = sorted(filter(have.get, others), key=lambda each: -have[each]), ""
        for python in wheeled if known.keys() >= {*resolved.from_source} else others[:MAX_OTHER_PYTHONS]:
            found = self._ask(replace(plan, python=python), resolve, [], pinned, is_alone=True, follows=False)
            if not isinstance(found, Resolved):
                continue
            lacking = [name for name in resolved.from_source if name not in found.from_source]
            if not lacking:
                continue
            has_no_wheel = f"{join_words(lacking)}: no wheel for Python {plan.python}"
            for other in self._list_plans_for_other_pythons():
                better = self._resolve_for(other, resolve) if other.python == python else None
                is_near = python in others[:MAX_OTHER_PYTHONS]
                if isinstance(better, Plan) and (is_near or better.torch == plan.torch):
                    return explain_field(better, PYTHON, has_no_wheel)
            says = says or f"{has_no_wheel}, so the image build compiles it; Python {python} has a wheel"
        return replace(plan, warnings=(*plan.warnings, says)) if says else plan

    def _refuse(self, refusal: Refused, resolve: Resolve | None) -> Conflict:
        """Return the conflict: uv's reason, and with a resolver the nearest plan that it does not refuse."""
        source = next(iter(self.dependencies.files), RULE)
        request = replace(self._request, framework=self._plan.framework)
        wanted = describe_request(build_problem(request, self._tables))
        wanted = wanted if source == RULE else f"{wanted}, {source}"
        pinned = find_wheels(dict(request.pins), self._tables)
        says = [f"{row.name} {dict(request.pins)[row.name]}: {describe_wheel(row)}" for row in pinned]
        limits = self._wheel_limits | list_python_limits(self._plan.python, self._tables)
        says += [why for limit, why in limits.items() if refusal.mentions(re.split("[<>]", limit)[0])]
        blocker = Blocker(RULE, f"Python {self._plan.python}: {'; '.join((refusal.reason, *says))}", source)
        if resolve is None:
            return Conflict(wanted, (blocker,), None, "", self._plan.data_as_of)
        for search, change in self._list_relaxed(refusal):
            found = search.resolve(resolve)
            if isinstance(found, Plan):
                return Conflict(wanted, (blocker,), found, change(found), self._plan.data_as_of)
        ignoring = solve_project(request, NO_DEPENDENCIES, self._tables)
        nearest = ignoring if isinstance(ignoring, Plan) and self.dependencies.asks_for_packages else None
        return Conflict(wanted, (blocker,), nearest, "--ignore-dependencies", self._plan.data_as_of)

    def _list_relaxed(self, refusal: Refused) -> Iterator[tuple["_Search", Callable[[Plan], str]]]:
        """List searches with one part of the request less, or one version in the project's files, and what to change."""
        request = self._request

        def format_pins(plan: Plan) -> str:
            pinned = [(name, plan.resolved.get(name)) for name, _ in request.pins]
            return " ".join(f"--pin {name}=={version}" for name, version in pinned if version)

        parts: tuple[tuple[Request, Callable[[Plan], str]], ...] = (
            (replace(request, pins=()), format_pins),
            (replace(request, torch=None), lambda plan: f"--torch {plan.torch}+{plan.variant}"),
            (replace(request, python=None), lambda plan: f"--python {plan.python}"),
        )
        for changed, change in parts:
            if changed != request:
                answer = solve_project(changed, self._all, self._tables)
                if isinstance(answer, Plan):
                    yield _Search(changed, self._all, self._tables, answer), change
        for need in self._needs:
            if need.specifier and refusal.mentions(need.name) and need.name not in TORCH_FAMILY:

                def change(plan: Plan, name: str = need.name, origin: str = need.origin) -> str:
                    return f"change {origin} to take {name} {plan.versions.get(name, '')}, or --ignore-dependencies"

                yield _Search(request, self._all, self._tables, self._plan, (*self._relaxed, need.name)), change


def _format_range(versions: tuple[str, ...], tables: Tables) -> str:
    """Format releases of torch as a constraint: from the oldest to the newest, but for those between that do not fit."""
    fitting = sorted(map(Release.parse, versions))
    if len(fitting) == 1:
        return f"torch=={fitting[0]}"
    between = (row.version for row in tables.torch.releases if fitting[0] < row.version < fitting[-1])
    excluded = "".join(f",!={version}" for version in between if version not in fitting)
    return f"torch>={fitting[0]},<={fitting[-1]}{excluded}"


MIN_AGE_MONTHS = 6
"""Code that was changed since then is taken to work with the newest packages."""


def is_old(day: str, tables: Tables) -> bool:
    """Return whether code of that day is older than `MIN_AGE_MONTHS`, as of the version tables."""
    (year, month, number), (now, now_month, now_number) = (map(int, text.split("-")) for text in (day, tables.as_of))
    return (now - year) * 12 + now_month - month - (number >= now_number) >= MIN_AGE_MONTHS


def list_dated_requests(request: Request, dependencies: Dependencies, tables: Tables) -> Iterator[Request]:
    """Yield the request limited to the torch and the Python of its day: those that suit the machines best come first.

    Where only later releases of torch suit them it is the first of these. The Python is the guide's, then one of the day;
    each request is also yielded with any Python. Where a torch, a Python or an image is requested, that one stays open.
    """
    origin = f"--as-of {request.as_of}"
    # The newest minor of Python 3 that was a year old then: since 3.9 there is one each October (PEP 602).
    newest = int(request.as_of[:4]) - (2012 if int(request.as_of[5:7]) >= 10 else 2013)
    limits = [Constraint(PYTHON, f"<3.{newest + 1 + more}", origin) for more in range(1 + len(tables.stack.pythons))]
    guides = [(each,) for each in _list_guide_pythons(request, dependencies, tables, day=request.as_of)]
    for torch in _list_torch_limits(request, dependencies, tables):
        within = replace(request, constraints=(*request.constraints, *torch))

        def solve(*more: Constraint, within: Request = within) -> Plan | Conflict:
            return solve_project(replace(within, constraints=(*within.constraints, *more)), dependencies, tables)

        # Where none of the day is left, the nearest is the oldest that the machines' torch runs on.
        best = "" if isinstance(solve(limits[0]), Plan) else getattr(solve(), "torch", "")
        nearest = (each for each in limits if best and getattr(solve(each), "torch", "") == best)
        python = next(nearest, limits[0])
        pythons = ((),) if request.python or request.image else (*guides, (python,), ())
        for constraints in dict.fromkeys(pythons):
            yield replace(within, constraints=(*within.constraints, *constraints))


def _list_guide_pythons(
    request: Request, dependencies: Dependencies, tables: Tables, *, day: str
) -> Iterator[Constraint]:
    """Yield the Python of the guide's own environment, which still got fixes on the day; nothing where one is chosen."""
    guide = dependencies.guide_python
    if guide and not (request.python or request.image or dependencies.is_locked):
        supported = (row.version for row in tables.stack.pythons if row.eol >= day[: len("2026-11")])
        if any(satisfies(version, guide.specifier) for version in supported):
            yield Constraint(PYTHON, guide.specifier, guide.origin)


def _list_torch_limits(
    request: Request, dependencies: Dependencies, tables: Tables
) -> Iterator[tuple[Constraint, ...]]:
    """Yield the limit of torch for the request's day, and none where a torch is requested."""
    if request.torch:
        yield ()
        return
    origin = f"--as-of {request.as_of}"
    released = {str(row.version): row.released for row in tables.torch.releases}
    constrained = add_project_constraints(request, dependencies, python=request.python)
    for group in list_fitting_torch(constrained, tables):
        by_then = [Release.parse(version) for version in group if released.get(version, "9") <= request.as_of]
        later = [Release.parse(version) for version in group if released.get(version, "") > request.as_of]
        if by_then:
            yield (Constraint("torch", f"<={max(by_then)}", origin),)
        elif later:
            yield (Constraint("torch", f"<={min(later)}", f"{origin}, when no release ran on these machines,"),)
