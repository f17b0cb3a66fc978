"""Explains a request that nothing fits: the rules that refuse it, and the requests next to it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from devkit.compat.specifiers import meets, meets_python
from devkit.facts.record import record
from devkit.solver.judge import Verdict
from devkit.solver.model import Blocker, Constraint, Plan, Request, Vendor
from devkit.solver.question import Question
from devkit.solver.request import torch_wanted

MOST_GIVEN_UP = 3
"""Wishes given up at once, short of all of them: what gives up more is no longer near."""


@record
class Change:
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


def relaxed(request: Request) -> Iterator[Change]:
    """The requests next to this one, nearest first: one wish less, then two, and in the end the CPU."""
    yield from _with_less(request, request, ())
    if request.vendor is not Vendor.CPU:
        version, _ = torch_wanted(request.torch)
        on_cpu = replace(request, vendor=Vendor.CPU, torch=version or None, cuda=None)
        yield Change(on_cpu, request, ("vendor",))
        yield from _with_less(on_cpu, request, ("vendor",))


def wanted(question: Question) -> str:
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


def blockers(verdicts: tuple[Verdict, ...]) -> tuple[Blocker, ...]:
    """The rules that refuse, each once, the true cause first: that of the candidate that came furthest.

    Every line of the project's files that refuses is named: two that contradict each other are one cause.
    """
    furthest = sorted(verdicts, key=lambda verdict: -verdict.passed)
    found: dict[tuple[str, str], Blocker] = {}
    for each in (refusal for verdict in furthest for refusal in verdict.refusals):
        key = (each.rule, each.says if each.rule == "P2" else "")
        found.setdefault(key, Blocker(each.rule, each.says, each.source))
    return tuple(found.values())


def no_candidate(question: Question) -> Blocker:
    """Why there was nothing to judge: the release is not published in that build."""
    rows, indexes = question.tables.torch.releases, question.tables.torch.indexes
    wished, variant = torch_wanted(question.request.torch)
    named = [row for row in rows if not wished or wished in (str(row.version), row.minor)]
    torch = f"torch {wished}" if wished else "torch"
    if question.vendor is Vendor.ROCM:
        return _no_rocm_build(question, torch, {row.version for row in named}, variant)
    labels = sorted({label for row in named for label in row.variants})
    published = ", ".join(f"{label} (CUDA {indexes[label].cuda})" for label in labels)
    asked = " and ".join(filter(None, (variant, f"CUDA {question.request.cuda}" if question.request.cuda else "")))
    return Blocker("W2", f"{torch} is published for {published}, not for {asked}", named[-1].source[0])


def _no_rocm_build(question: Question, torch: str, named: set[object], variant: str) -> Blocker:
    rows = question.tables.rocm.releases
    labels = sorted({label for version, row in rows.items() if version in named for label in row.variants})
    source = next(iter(rows.values())).source[0]
    if not labels:
        newest = max(rows)
        return Blocker("W2", f"{torch} is not known to be published for ROCm; the newest that is, is {newest}", source)
    return Blocker("W2", f"{torch} is published for {', '.join(labels)}, not for {variant}", source)


def _with_less(request: Request, original: Request, before: tuple[str, ...]) -> Iterator[Change]:
    given = [name for name in _RELAX if getattr(request, name)]
    counts = [count for count in range(1, len(given) + 1) if count <= MOST_GIVEN_UP or count == len(given)]
    for names in (names for count in counts for names in combinations(given, count)):
        changed = request
        for name in names:
            changed = _RELAX[name](changed)
        yield Change(changed, original, (*before, *names))


def _pins(plan: Plan, original: Request) -> str:
    packages = dict(plan.packages)
    kept = [f"--pin {name}=={packages[name]}" for name, _ in original.pins if name in packages]
    return " ".join(kept) or "without --pin"


def _vendor(plan: Plan, original: Request) -> str:
    torch = f" --torch {plan.torch}" if torch_wanted(original.torch)[1] else ""
    return f"--vendor cpu{torch}{' without --cuda' if original.cuda else ''}"


def _constraints(plan: Plan, original: Request) -> str:
    """The lines of the project's files that the plan does not meet, and what they would have to take."""
    takes = {**dict(plan.packages), "torch": f"{plan.torch}+{plan.variant}", "python": plan.python}
    broken = [each for each in original.constraints if each.name in takes and not _meets(each, takes[each.name])]
    return ", ".join(f"change {each.origin} to take {each.name} {takes[each.name]}" for each in broken)


def _meets(constraint: Constraint, version: str) -> bool:
    check = meets_python if constraint.name == "python" else meets
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
