"""Explains a request that nothing fits: the rules that refuse it, and the requests next to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from devkit.solver.judge import Verdict
from devkit.solver.model import Blocker, Plan, Request, Vendor
from devkit.solver.question import Question, spoken_gpu
from devkit.solver.request import torch_wanted


@dataclass(frozen=True)
class Change:
    """A request with some of its wishes given up."""

    request: Request
    given_up: tuple[str, ...]

    def flags(self, plan: Plan) -> str:
        """The changed wishes as flags that lead to `plan`."""
        return " ".join(_FLAGS[name](plan) for name in self.given_up)


_RELAX: dict[str, Callable[[Request], Request]] = {
    "image": lambda request: replace(request, image=None),
    "pins": lambda request: replace(request, pins=()),
    "python": lambda request: replace(request, python=None),
    "cuda": lambda request: replace(request, cuda=None),
    "torch": lambda request: replace(request, torch=None),
    "features": lambda request: replace(request, features=()),
}
"""Wishes in the order in which they are given up: the image first, what the user wants to do last."""

_FLAGS: dict[str, Callable[[Plan], str]] = {
    "image": lambda plan: f"--image {plan.base_image}",
    "pins": lambda plan: " ".join(f"--pin {name}=={version}" for name, version in plan.packages if name != "torch"),
    "python": lambda plan: f"--python {plan.python}",
    "cuda": lambda plan: f"--cuda {plan.cuda}",
    "torch": lambda plan: f"--torch {plan.torch}+{plan.variant}",
    "features": lambda _: "without --feature",
    "vendor": lambda _: "--vendor cpu",
}


def relaxed(request: Request) -> Iterator[Change]:
    """The requests next to this one, nearest first: one wish less, then two, and in the end the CPU."""
    given = [name for name in _RELAX if getattr(request, name)]
    for count in range(1, len(given) + 1):
        for names in combinations(given, count):
            changed = request
            for name in names:
                changed = _RELAX[name](changed)
            yield Change(changed, names)
    if request.vendor is not Vendor.CPU:
        yield Change(Request(request.machines, vendor=Vendor.CPU), ("vendor",))


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
    on = [spoken_gpu(name, capability) for name, capability in question.gpus]
    on += [f"driver {driver}" for driver in drivers]
    where = f" on {', '.join(on)}" if on else ""
    return ", ".join(filter(None, parts)) + where


def blockers(verdicts: tuple[Verdict, ...]) -> tuple[Blocker, ...]:
    """The rules that refuse, each once, the true cause first: that of the candidate that came furthest."""
    furthest = sorted(verdicts, key=lambda verdict: -verdict.passed)
    found: dict[str, Blocker] = {}
    for each in (refusal for verdict in furthest for refusal in verdict.refusals):
        found.setdefault(each.rule, Blocker(each.rule, each.says, each.source))
    return tuple(found.values())


def no_candidate(question: Question) -> Blocker:
    """Why there was nothing to judge: the release is not published with that CUDA."""
    rows, indexes = question.tables.torch.releases, question.tables.torch.indexes
    wished, variant = torch_wanted(question.request.torch)
    named = [row for row in rows if not wished or wished in (str(row.version), row.minor)]
    source = named[-1].source[0]
    labels = sorted({label for row in named for label in row.variants})
    published = ", ".join(f"{label} (CUDA {indexes[label].cuda})" for label in labels)
    asked = " and ".join(filter(None, (variant, f"CUDA {question.request.cuda}" if question.request.cuda else "")))
    torch = f"torch {wished}" if wished else "torch"
    return Blocker("W2", f"{torch} is published for {published}, not for {asked}", source)
