"""Answers a request: the newest versions that fit every machine, or why none do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, groupby

from devkit.compat.specifiers import satisfies, satisfies_python
from devkit.compat.version_tables import Tables
from devkit.facts.project import Policy
from devkit.facts.values import Release, record
from devkit.solver.assemble import assemble_plan
from devkit.solver.candidates import Problem, list_candidates
from devkit.solver.evaluate import Evaluation, evaluate_candidate, get_preference_key, is_clean
from devkit.solver.plan import Blocker, Conflict, Constraint, Plan, Request, Vendor
from devkit.solver.request import find_requested_variant, parse_torch
from devkit.text import join_words

# Explains a request that nothing fits: the rules that refuse it, and the requests next to it.

MOST_GIVEN_UP = 3
"""Wishes given up at once, short of all of them: what gives up more is no longer near."""


@record
class Relaxation:
    """A request with some of the wishes of another one given up."""

    request: Request
    original: Request
    given_up: tuple[str, ...]

    def says(self, plan: Plan) -> str:
        """What to change to get `plan`: flags to pass where that is enough."""
        return " ".join(filter(None, (_CHANGES[name](plan, self.original) for name in self.given_up)))


_RELAX: dict[str, Callable[[Request], Request]] = {
    "image": lambda request: replace(request, image=None),
    "pins": lambda request: replace(request, pins=()),
    "python": lambda request: replace(request, python=None),
    "cuda": lambda request: replace(request, cuda=None),
    "torch": lambda request: replace(request, torch=None),
    "features": lambda request: replace(request, features=()),
    "constraints": lambda request: replace(request, constraints=()),
}
"""Wishes in the order in which they are given up: the image first, what stands in the project's files last."""


def relax_request(request: Request) -> Iterator[Relaxation]:
    """The requests next to this one, nearest first: one wish less, then two, and in the end the CPU."""
    yield from _with_less(request, request, ())
    if request.vendor is not Vendor.CPU:
        version, _ = parse_torch(request.torch)
        on_cpu = replace(request, vendor=Vendor.CPU, torch=version or None, cuda=None)
        yield Relaxation(on_cpu, request, ("vendor",))
        yield from _with_less(on_cpu, request, ("vendor",))


def describe_request(question: Problem) -> str:
    """The request in words: "torch 2.15, CUDA 13.0 on Tesla P40 (6.1), driver 580.95.05"."""
    request = question.request
    drivers = dict.fromkeys(str(machine.driver) for machine in question.machines if machine.driver)
    parts = [
        f"torch {request.torch}" if request.torch else "torch",
        f"CUDA {request.cuda}" if request.cuda else "",
        f"Python {request.python}" if request.python else "",
        request.image or "",
        *(f"{name}=={version}" for name, version in request.pins),
        *request.features,
    ]
    on = [*question.spoken_gpus, *(f"driver {driver}" for driver in drivers)]
    where = f" on {', '.join(on)}" if on else ""
    return ", ".join(filter(None, parts)) + where


def find_blockers(verdicts: tuple[Evaluation, ...]) -> tuple[Blocker, ...]:
    """The rules that refuse, each once, the true cause first: that of the candidate that came furthest.

    Every line of the project's files that refuses is named: two that contradict each other are one cause.
    """
    furthest = sorted(verdicts, key=lambda verdict: -verdict.passed)
    found: dict[tuple[str, str], Blocker] = {}
    for each in (refusal for verdict in furthest for refusal in verdict.refusals):
        key = (each.rule, each.says if each.rule == "P2" else "")
        found.setdefault(key, Blocker(each.rule, each.says, each.source))
    return tuple(found.values())


def explain_no_candidate(question: Problem) -> Blocker:
    """Why there was nothing to judge: the release is not published in that build."""
    rows, indexes = question.tables.torch.releases, question.tables.torch.indexes
    wished, variant = parse_torch(question.request.torch)
    named = [row for row in rows if not wished or wished in (str(row.version), row.minor)]
    torch = f"torch {wished}" if wished else "torch"
    if question.vendor is Vendor.ROCM:
        return _no_rocm_build(question, torch, {row.version for row in named}, variant)
    labels = sorted({label for row in named for label in row.variants})
    published = ", ".join(f"{label} (CUDA {indexes[label].cuda})" for label in labels)
    asked = " and ".join(filter(None, (variant, f"CUDA {question.request.cuda}" if question.request.cuda else "")))
    return Blocker("W2", f"{torch} is published for {published}, not for {asked}", named[-1].source[0])


def _no_rocm_build(question: Problem, torch: str, named: set[object], variant: str) -> Blocker:
    rows = question.tables.rocm.releases
    labels = sorted({label for version, row in rows.items() if version in named for label in row.variants})
    source = next(iter(rows.values())).source[0]
    if not labels:
        newest = max(rows)
        return Blocker("W2", f"{torch} is not known to be published for ROCm; the newest that is, is {newest}", source)
    return Blocker("W2", f"{torch} is published for {', '.join(labels)}, not for {variant}", source)


def _with_less(request: Request, original: Request, before: tuple[str, ...]) -> Iterator[Relaxation]:
    given = [name for name in _RELAX if getattr(request, name)]
    counts = [count for count in range(1, len(given) + 1) if count <= MOST_GIVEN_UP or count == len(given)]
    for names in (names for count in counts for names in combinations(given, count)):
        changed = request
        for name in names:
            changed = _RELAX[name](changed)
        yield Relaxation(changed, original, (*before, *names))


def _pins(plan: Plan, original: Request) -> str:
    packages = dict(plan.packages)
    kept = [f"--pin {name}=={packages[name]}" for name, _ in original.pins if name in packages]
    return " ".join(kept) or "without --pin"


def _vendor(plan: Plan, original: Request) -> str:
    torch = f" --torch {plan.torch}" if parse_torch(original.torch)[1] else ""
    return f"--vendor cpu{torch}{' without --cuda' if original.cuda else ''}"


def _constraints(plan: Plan, original: Request) -> str:
    """The lines of the project's files that the plan does not meet, and what they would have to take."""
    takes = {**dict(plan.packages), "torch": f"{plan.torch}+{plan.variant}", "python": plan.python}
    broken = [each for each in original.constraints if each.name in takes and not _meets(each, takes[each.name])]
    return ", ".join(f"change {each.origin} to take {each.name} {takes[each.name]}" for each in broken)


def _meets(constraint: Constraint, version: str) -> bool:
    check = satisfies_python if constraint.name == "python" else satisfies
    return check(version, constraint.specifier)


_CHANGES: dict[str, Callable[[Plan, Request], str]] = {
    "image": lambda plan, _: f"--image {plan.base_image}",
    "pins": _pins,
    "python": lambda plan, _: f"--python {plan.python}",
    "cuda": lambda plan, _: f"--cuda {plan.cuda}" if plan.cuda else "without --cuda",
    "torch": lambda plan, _: f"--torch {plan.torch}+{plan.variant}",
    "features": lambda _, original: f"without {' '.join(f'--feature {name}' for name in original.features)}",
    "constraints": _constraints,
    "vendor": _vendor,
}


# Holds an answer against the project's policy: another name or another image where one is allowed, else a conflict.

RULE = "policy"
SOURCE = "devkit.toml"

Answer = Plan | Conflict
Solve = Callable[[Request, Tables], Answer]


def apply_policy(answer: Answer, request: Request, tables: Tables, *, policy: Policy, solve: Solve) -> Answer:
    """`answer` as the policy allows it. `solve` answers a request that names an allowed image."""
    if isinstance(answer, Conflict):
        nearest = answer.nearest and _mirrored(answer.nearest, policy)
        return replace(answer, nearest=nearest if nearest and not _refusal(nearest, policy) else None)
    refusal = _refusal(answer, policy)
    if refusal is None:
        return _mirrored(answer, policy)
    others = () if request.image else _allowed(answer, policy, tables)
    for image in others:
        other = solve(replace(request, image=image), tables)
        if isinstance(other, Plan) and _refusal(other, policy) is None:
            return _because(_mirrored(other, policy), f"allowed by policy.registries; {answer.base_image} is not")
    return Conflict(f"{answer.base_image} under the policy of {SOURCE}", (refusal,), None, "", answer.data_as_of)


def _refusal(plan: Plan, policy: Policy) -> Blocker | None:
    image = policy.resolve_mirror(plan.base_image)
    if not policy.allows_image(image):
        allowed = join_words(policy.registries, "or")
        return Blocker(RULE, f"the base image {image} is not of an allowed registry: {allowed}", SOURCE)
    return None


def _allowed(plan: Plan, policy: Policy, tables: Tables) -> Iterator[str]:
    """Images that the tables know and the policy allows, those of Python first, then CUDA's for the plan's CUDA."""
    images = tables.images
    tags = [row.tag for row in images.python_images]
    if plan.cuda is not None:
        numbers = Release.parse(plan.cuda).numbers
        rows = [row for row in images.cuda_images if row.cuda.numbers[:2] == numbers and not row.may_vanish]
        tags += [f"nvidia/cuda:{row.cuda}-base-{row.system}" for row in rows]
    return (tag for tag in tags if policy.allows_image(policy.resolve_mirror(tag)))


def _mirrored(plan: Plan, policy: Policy) -> Plan:
    image = policy.resolve_mirror(plan.base_image)
    if image == plan.base_image:
        return plan
    return _because(replace(plan, base_image=image), f"{plan.because('base_image')}; by the name of policy.mirrors")


def _because(plan: Plan, because: str) -> Plan:
    """The plan with this reason beside its image."""
    reasons = (
        replace(reason, value=plan.base_image, because=because) if reason.field == "base_image" else reason
        for reason in plan.reasons
    )
    return replace(plan, reasons=tuple(reasons))


def solve(request: Request, tables: Tables) -> Plan | Conflict:
    """The plan for a request, or the rules that refuse it together with the nearest plan.

    The policy comes last: it speaks of images alone, and a plan that it forbids may be had with another.
    """
    answer = _solved(request, tables)
    if request.policy is None:
        return answer
    return apply_policy(answer, request, tables, policy=request.policy, solve=_solved)


def _solved(request: Request, tables: Tables) -> Plan | Conflict:
    plan, verdicts, question = _attempt(request, tables)
    if plan is not None:
        return plan
    for change in relax_request(question.request):
        nearest, _, _ = _attempt(change.request, tables)
        if nearest is not None:
            return Conflict(
                describe_request(question), _blockers(question, verdicts), nearest, change.says(nearest), tables.as_of
            )
    return Conflict(describe_request(question), _blockers(question, verdicts), None, "", tables.as_of)


def build_problem(request: Request, tables: Tables) -> Problem:
    """The request with its vendor settled."""
    return Problem(request, choose_vendor(request), tables)


def choose_vendor(request: Request) -> Vendor:
    """What to compute on: as asked, else what a build that is wanted is for, else the vendor of the GPUs or driver."""
    if request.vendor is not None:
        return request.vendor
    variant = find_requested_variant(request)
    if variant.startswith("rocm") or any(machine.amd_gpus for machine in request.machines):
        return Vendor.ROCM
    if variant == "cpu":
        return Vendor.CPU
    shows_gpu = any(machine.driver or machine.gpus for machine in request.machines)
    return Vendor.NVIDIA if shows_gpu or variant or request.cuda else Vendor.CPU


def _attempt(request: Request, tables: Tables) -> tuple[Plan | None, tuple[Evaluation, ...], Problem]:
    question = build_problem(request, tables)
    verdicts: tuple[Evaluation, ...] = ()
    for _, builds in groupby(list_candidates(question), key=lambda candidate: candidate.release.version):
        judged = tuple(evaluate_candidate(candidate, question) for candidate in builds)
        verdicts += judged
        if any(is_clean(verdict, question) for verdict in judged):
            # An older release cannot beat it: there is no need to judge those.
            break
    fitting = [verdict for verdict in verdicts if not verdict.refusals]
    if not fitting:
        return None, verdicts, question
    winner = min(fitting, key=lambda verdict: get_preference_key(verdict, question))
    others = tuple(verdict for verdict in verdicts if verdict is not winner)
    return assemble_plan(winner, others, question), verdicts, question


def _blockers(question: Problem, verdicts: tuple[Evaluation, ...]) -> tuple[Blocker, ...]:
    if not verdicts:
        return (explain_no_candidate(question),)
    apart = _fit_apart(question)
    return (*apart, *find_blockers(verdicts))


def _fit_apart(question: Problem) -> tuple[Blocker, ...]:
    """A6: each GPU alone can be served, but no one wheel serves them all."""
    machines = [replace(machine, gpus=(gpu,)) for machine in question.machines for gpu in machine.gpus]
    machines += [replace(machine, amd_gpus=(gpu,)) for machine in question.machines for gpu in machine.amd_gpus]
    if len(machines) < 2:
        return ()
    for machine in machines:
        if _attempt(replace(question.request, machines=(machine,)), question.tables)[0] is None:
            return ()
    names = join_words(question.spoken_gpus)
    source = question.tables.torch.releases[-1].source[0]
    return (Blocker("A6", f"each has a wheel of its own, but no one wheel serves {names}", source),)
