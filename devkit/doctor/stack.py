"""The stack that a GPU workload stands on, layer by layer, with what was found at each."""

from collections.abc import Callable, Iterator
from enum import StrEnum

from devkit.doctor.model import Check, Outcome, Passed, Severity
from devkit.doctor.report import Report, Shown
from devkit.doctor.stack_readings import READINGS, Value
from devkit.facts.model import Facts, Platform, System, Wsl
from devkit.facts.record import record
from devkit.text import on_one_line


class State(StrEnum):
    """How a layer is, in the word that stands beside its glyph."""

    CAUSE = "root cause"
    PROBLEM = "problem"
    WARNING = "warning"
    FOLLOWS = "consequence"
    FINE = "fine"
    UNJUDGED = "not judged"


@record
class Layer:
    """One layer: its state, what was read there, and what its checks said."""

    name: str
    title: str
    about: str
    state: State
    readings: tuple[Value, ...]
    roots: tuple[Shown, ...]
    consequences: tuple[Shown, ...]
    others: tuple[Outcome, ...]
    """Outcomes without findings: passed, skipped, crashed."""

    @property
    def passed(self) -> int:
        """How many of its checks passed."""
        return sum(isinstance(outcome.verdict, Passed) for outcome in self.others)


LAYERS = (
    ("hardware", "Hardware", "GPUs on the PCI bus"),
    ("windows", "WSL and Windows", "how the guest reaches the GPU"),
    ("kernel", "Kernel driver", "the nvidia module and its device nodes"),
    ("libraries", "NVML and libcuda", "the driver's own libraries"),
    ("engine", "Container engine", "Docker or Podman"),
    ("toolkit", "Container Toolkit and CDI", "how the engine hands GPUs over"),
    ("container", "Container", "what the container was given"),
    ("cuda", "CUDA", "image and wheel against the driver"),
    ("python", "Python and torch", "the workload's libraries"),
    ("project", "Project, hub and storage", "settings, models, room"),
)
"""From the metal up: name, title, what it is."""

_OF_DOMAIN = {
    "GPU": "hardware",
    "DRV": "kernel",
    "WSL": "windows",
    "ENG": "engine",
    "CTK": "toolkit",
    "CDI": "toolkit",
    "CON": "container",
    "MEM": "container",
    "NET": "container",
    "CUD": "cuda",
    "PYT": "python",
    "PRJ": "project",
    "HUB": "project",
    "STO": "project",
}
_OF_CHECK = {"DRV002": "libraries", "DRV003": "libraries", "CUD003": "libraries"}
"""Where a check stands on another layer than its domain."""


def layer_of(check: Check) -> str:
    """The name of the layer that a check looks at."""
    return _OF_CHECK.get(check.code) or _OF_DOMAIN[check.code[:3]]


def stack_of(facts: Facts, report: Report) -> tuple[Layer, ...]:
    """The layers that this machine has, from the metal up."""
    return tuple(
        _layer(name, title, about, facts, report)
        for name, title, about in LAYERS
        if name != "windows" or _has_windows(facts)
    )


def _has_windows(facts: Facts) -> bool:
    platform = facts.system.platform if isinstance(facts.system, System) else None
    return isinstance(facts.wsl, Wsl) or platform in (Platform.WSL2, Platform.WSL1, Platform.WINDOWS)


def _layer(name: str, title: str, about: str, facts: Facts, report: Report) -> Layer:
    read: Callable[[Facts], Iterator[Value]] = READINGS[name]
    found = [shown for shown in report.findings if layer_of(shown.check) == name]
    roots = tuple(shown for shown in report.roots if layer_of(shown.check) == name)
    outcomes = [outcome for outcome in report.outcomes if layer_of(outcome.check) == name]
    has_findings = {shown.check.code for shown in found}
    others = tuple(outcome for outcome in outcomes if outcome.check.code not in has_findings)
    consequences = tuple(shown for shown in found if shown.finding.follows_from is not None)
    state = _state(report, roots, consequences, others)
    readings = tuple(Value(said.name, on_one_line(said.value)) for said in read(facts))
    return Layer(name, title, about, state, readings, roots, consequences, others)


def _state(
    report: Report, roots: tuple[Shown, ...], consequences: tuple[Shown, ...], others: tuple[Outcome, ...]
) -> State:
    severities = {shown.finding.severity for shown in roots}
    first = next(iter(report.roots), None)
    if Severity.ERROR in severities:
        return State.CAUSE if first in roots else State.PROBLEM
    if any(shown.finding.severity is not Severity.NOTE for shown in consequences):
        return State.FOLLOWS
    if Severity.WARNING in severities or any(outcome in report.crashed for outcome in others):
        return State.WARNING
    if roots or any(isinstance(outcome.verdict, Passed) for outcome in others):
        return State.FINE
    return State.UNJUDGED
