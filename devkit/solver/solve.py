"""The solver: the newest versions that fit every machine of a request, or why none do, and the nearest plan."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations, groupby
from typing import Any

from devkit.compat.version_tables import RowConfidence, Tables
from devkit.facts.dependencies import Dependencies, Framework, PackageManager
from devkit.solver.candidates import Problem, build_problem, describe_request, list_candidates
from devkit.solver.compiled_packages import add_compiled_packages, list_compile_limits
from devkit.solver.evaluate import Evaluation, assemble_plan, evaluate_candidate
from devkit.solver.frameworks import plan_framework
from devkit.solver.gpu_support import GRAPHICS, NVCC
from devkit.solver.plan import Blocker, Conflict, Plan, Reason, Request, Vendor, parse_torch
from devkit.solver.project import add_project_constraints, find_dependency_warnings
from devkit.solver.system_packages import add_system_packages
from devkit.text import join_words

MAX_GIVEN_UP = 3
"""Parts of a request given up at once, short of all of them: what gives up more is no longer near."""
MAX_ROUNDS = 3
"""The project's constraints may depend on the Python, and the Python on the constraints."""
RELAXABLE = ("image", "pins", "python", "cuda", "torch", "features", "constraints")
"""Parts of a request in the order in which they are given up."""
_LABELS = {
    Vendor.NVIDIA: re.compile(r"cu\d{3}"),
    Vendor.ROCM: re.compile(r"rocm\d[\d.]*"),
    Vendor.CPU: re.compile("cpu"),
}
"""The labels of torch's builds, by vendor. Numbers in one of them have as many digits as in another."""


def solve_project(request: Request, dependencies: Dependencies, tables: Tables) -> Plan | Conflict:
    """Solve a request in a project with these dependencies; the plan says which of them were read and which not.

    Of extras that exclude each other, each with its own torch, it takes one for the plan's vendor: that of the
    plan's build, else the newest that fits. A reason names it, by which `select_torch_build` finds it.
    """
    answer = _solve_dependencies(request, dependencies, tables)
    plan = answer if isinstance(answer, Plan) else answer.nearest
    if not dependencies.torch_builds or plan is None:
        return answer
    variant, label = plan.variant, _LABELS[plan.vendor]
    builds = [build for build in dependencies.torch_builds if label.fullmatch(build.label)]
    builds.sort(key=lambda build: (build.label == variant, re.findall(r"\d+", build.label)), reverse=True)
    for build in builds:
        other = _solve_dependencies(request, build.dependencies, tables)
        if isinstance(other, Plan):
            others = [each.choice for each in dependencies.torch_builds if each is not build]
            because = f"its torch is built for {build.label}"
            because += f"; {join_words(others, 'or')} takes another" if others else ""
            source = dependencies.files[0]
            kind, name = build.choice.removeprefix("--").split()
            reason = Reason(kind, name, because, source, RowConfidence.CONFIRMED)
            return replace(other, reasons=(*other.reasons, reason))
    return answer


def _solve_dependencies(request: Request, dependencies: Dependencies, tables: Tables) -> Plan | Conflict:
    python = request.python
    request = replace(request, adds_packages=request.adds_packages and not dependencies.asks_for_packages)
    answer: Plan | Conflict
    request = _settle_framework(request, dependencies)
    limits = list_compile_limits(dependencies, build_problem(request, tables))
    for _ in range(MAX_ROUNDS):
        constrained = add_project_constraints(request, dependencies, python=python)
        answer = solve(replace(constrained, constraints=constrained.constraints + limits), tables)
        if limits and isinstance(answer, Conflict):
            # What does not compile is left out then.
            answer, limits = solve(constrained, tables), ()
        if isinstance(answer, Conflict) or answer.python == python:
            break
        python = answer.python
    if isinstance(answer, Conflict):
        return answer
    if answer.framework is Framework.TORCH:
        answer = add_compiled_packages(answer, dependencies, build_problem(request, tables))
    answer = replace(answer, is_graphical=GRAPHICS in request.features)
    answer = add_system_packages(answer, dependencies, request.apt, tables)
    if not (dependencies.files or dependencies.unread):
        return answer
    warnings = (*answer.warnings, *dict.fromkeys(find_dependency_warnings(dependencies, answer)))
    if dependencies.tool is PackageManager.NONE or not dependencies.files:
        return replace(answer, warnings=warnings)
    source = dependencies.lock or dependencies.files[0]
    reason = Reason("dependencies", dependencies.tool.value, dependencies.because, source, RowConfidence.CONFIRMED)
    return replace(answer, reasons=(*answer.reasons, reason), warnings=warnings)


def _settle_framework(request: Request, dependencies: Dependencies) -> Request:
    """Return the request for the project's framework; a request that names torch, or what only torch has, gets torch."""
    if request.framework is not None:
        return request
    if request.torch or any(name not in (NVCC, GRAPHICS) for name in request.features):
        return replace(request, framework=Framework.TORCH)
    return replace(request, framework=dependencies.framework, framework_because=dependencies.framework_because)


def solve(request: Request, tables: Tables) -> Plan | Conflict:
    """Solve a request: the plan for it, or the rules that refuse it together with the nearest plan."""
    problem = build_problem(request, tables)
    if request.framework not in (None, Framework.TORCH):
        return plan_framework(problem)
    plan, evaluations = _find_plan(problem)
    if plan is not None:
        return plan
    nearest, changes = None, ""
    for relaxation in _relax(request):
        nearest, _ = _find_plan(build_problem(relaxation.request, tables))
        if nearest is not None:
            changes = relaxation.describe(nearest)
            break
    return Conflict(describe_request(problem), _list_blockers(problem, evaluations), nearest, changes, tables.as_of)


def list_fitting_torch(request: Request, tables: Tables) -> tuple[tuple[str, ...], ...]:
    """List the releases of torch that fit, newest first: those as free of doubt as the best one, then all of them."""
    problem = build_problem(request, tables)
    fitting = [
        each for each in (evaluate_candidate(each, problem) for each in list_candidates(problem)) if not each.refusals
    ]
    ranks = sorted({each.preference_key[:2] for each in fitting})
    groups = [ranks[:1], ranks] if len(ranks) > 1 else [ranks]
    return tuple(
        tuple(
            dict.fromkeys(str(each.candidate.release.version) for each in fitting if each.preference_key[:2] in group)
        )
        for group in groups
        if group
    )


def _find_plan(problem: Problem) -> tuple[Plan | None, tuple[Evaluation, ...]]:
    """Find the best candidate of a problem; return its plan, None without one, and all evaluations."""
    evaluations: tuple[Evaluation, ...] = ()
    for _, builds in groupby(list_candidates(problem), key=lambda candidate: candidate.release.version):
        of_release = tuple(evaluate_candidate(candidate, problem) for candidate in builds)
        evaluations += of_release
        if any(not each.refusals and each.preference_key[:2] == (0, False) for each in of_release):
            # An older release cannot beat it: there is no need to evaluate those.
            break
    fitting = [each for each in evaluations if not each.refusals]
    if not fitting:
        return None, evaluations
    winner = min(fitting, key=lambda each: each.preference_key)
    rejected = tuple(each for each in evaluations if each is not winner)
    return assemble_plan(winner, rejected, problem), evaluations


def _list_blockers(problem: Problem, evaluations: tuple[Evaluation, ...]) -> tuple[Blocker, ...]:
    """List the rules that refuse a request, each once, the root cause first: that of the candidate that came furthest.

    Every line of the project's files that refuses is named: two that contradict each other are one cause.
    """
    if not evaluations:
        return (_explain_no_candidate(problem),)
    found: dict[tuple[str, str], Blocker] = {}
    furthest = sorted(evaluations, key=lambda each: -each.passed)
    for refusal in (refusal for each in furthest for refusal in each.refusals):
        key = (refusal.rule, refusal.says if refusal.rule == "P2" else "")
        found.setdefault(key, Blocker(refusal.rule, refusal.says, refusal.source))
    machines = [replace(machine, gpus=(gpu,)) for machine in problem.machines for gpu in machine.gpus]
    machines += [replace(machine, amd_gpus=(gpu,)) for machine in problem.machines for gpu in machine.amd_gpus]
    alone = (build_problem(replace(problem.request, machines=(machine,)), problem.tables) for machine in machines)
    if len(machines) > 1 and all(_find_plan(each)[0] is not None for each in alone):
        says = f"each has its own wheel, but no single wheel serves {join_words(problem.gpu_names)}"
        return (Blocker("A6", says, problem.tables.torch.releases[-1].source[0]), *found.values())
    return tuple(found.values())


def _explain_no_candidate(problem: Problem) -> Blocker:
    """Explain why there was nothing to evaluate: the release is not published in that build."""
    rows, indexes = problem.tables.torch.releases, problem.tables.torch.indexes
    wanted, variant = parse_torch(problem.request.torch)
    named = [row for row in rows if not wanted or wanted in (str(row.version), row.minor)]
    torch = f"torch {wanted}" if wanted else "torch"
    if problem.vendor is Vendor.ROCM:
        published = problem.tables.rocm.releases
        source = next(iter(published.values())).source[0]
        versions = {row.version for row in named}
        labels = sorted({label for version, row in published.items() if version in versions for label in row.variants})
        if labels:
            return Blocker("W2", f"{torch} is published for {', '.join(labels)}, not for {variant}", source)
        newest = f"the newest published one is {max(published)}"
        return Blocker("W2", f"{torch} is not known to be published for ROCm; {newest}", source)
    labels = sorted({label for row in named for label in row.variants})
    builds = ", ".join(f"{label} (CUDA {indexes[label].cuda})" for label in labels)
    requested = filter(None, (variant, f"CUDA {problem.request.cuda}" if problem.request.cuda else ""))
    return Blocker("W2", f"{torch} is published for {builds}, not for {' and '.join(requested)}", named[-1].source[0])


@dataclass(frozen=True)
class Relaxation:
    """A request with some parts of the original given up."""

    request: Request
    original: Request
    given_up: tuple[str, ...]

    def describe(self, plan: Plan) -> str:
        """Describe what to change to get `plan`: flags to pass where that is enough."""
        original, packages = self.original, dict(plan.packages)
        pins = [f"--pin {name}=={packages[name]}" for name, _ in original.pins if name in packages]
        torch = f" --torch {plan.torch}" if parse_torch(original.torch)[1] else ""
        # Lines of the project's files that the plan does not meet, and the versions they would have to allow.
        versions = {**packages, "torch": f"{plan.torch}+{plan.variant}", "python": plan.python}
        named = [each for each in original.constraints if each.name in versions]
        broken = [each for each in named if not each.is_met_by(versions[each.name])]
        changes = {
            "image": f"--image {plan.base_image}",
            "pins": " ".join(pins) or "without --pin",
            "python": f"--python {plan.python}",
            "cuda": f"--cuda {plan.cuda}" if plan.cuda else "without --cuda",
            "torch": f"--torch {plan.torch}+{plan.variant}",
            "features": f"without {' '.join(f'--feature {name}' for name in original.features)}",
            "constraints": ", ".join(
                f"change {each.origin} to take {each.name} {versions[each.name]}" for each in broken
            ),
            "vendor": f"--vendor cpu{torch}{' without --cuda' if original.cuda else ''}",
        }
        return " ".join(filter(None, (changes[name] for name in self.given_up)))


def _relax(request: Request) -> Iterator[Relaxation]:
    """List the requests next to this one, nearest first: with one part less, then two, and in the end for the CPU."""
    yield from _give_up(request, request, ())
    if request.vendor is not Vendor.CPU:
        version, _ = parse_torch(request.torch)
        on_cpu = replace(request, vendor=Vendor.CPU, torch=version or None, cuda=None)
        yield Relaxation(on_cpu, request, ("vendor",))
        yield from _give_up(on_cpu, request, ("vendor",))


def _give_up(request: Request, original: Request, before: tuple[str, ...]) -> Iterator[Relaxation]:
    named = [name for name in RELAXABLE if getattr(request, name)]
    defaults: dict[str, Any] = {field.name: field.default for field in fields(Request)}
    for count in range(1, len(named) + 1):
        if count > MAX_GIVEN_UP and count != len(named):
            continue
        for names in combinations(named, count):
            changed = replace(request, **{name: defaults[name] for name in names})
            yield Relaxation(changed, original, (*before, *names))
