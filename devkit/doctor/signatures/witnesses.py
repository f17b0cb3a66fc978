"""What a machine says about the causes of an error text, and the causes ranked by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from devkit.doctor.model import Confidence
from devkit.doctor.signatures.model import Cause, Match
from devkit.doctor.signatures.text_facts import TextFact, TextFacts
from devkit.facts.machine import Circumstances, name_container

if TYPE_CHECKING:
    from devkit.facts.model import Facts


@dataclass(frozen=True)
class Witness:
    """A reading of a machine that supports a cause, or contradicts it."""

    says: str
    is_for: bool


Ask = Callable[[str], Witness | None]
"""Returns what the machine says about the cause that the check of a code looks for; None for nothing."""

_NO_DRIVER, _DRIVER, _NO_DEVICE, _WSL, _NO_WSL, _PODMAN, _SNAP, _DOCKER, _BLIND = range(9)

_RULES: Mapping[str, tuple[frozenset[int], frozenset[int]]] = {
    **dict.fromkeys(("DRV001", "DRV014"), (frozenset({_NO_DRIVER}), frozenset({_DRIVER}))),
    **dict.fromkeys(("DRV002", "DRV003", "CUD004", "PYT006"), (frozenset(), frozenset({_NO_DRIVER}))),
    "CON001": (frozenset({_BLIND}), frozenset()),
    "DRV005": (frozenset({_NO_DEVICE}), frozenset({_NO_DRIVER})),
    **dict.fromkeys((f"WSL00{number}" for number in range(1, 10)), (frozenset({_WSL}), frozenset({_NO_WSL}))),
    "ENG003": (frozenset({_SNAP}), frozenset({_PODMAN, _DOCKER})),
    "ENG012": (frozenset({_PODMAN}), frozenset({_SNAP, _DOCKER})),
}
"""By code, the circumstances that speak for its cause and those that speak against it."""


@dataclass(frozen=True)
class Machine:
    """A machine to ask about the causes of a text, and its versions for those that the text does not name.

    `is_of_text` says whether the text is known to come from it.
    """

    ask: Ask
    values: TextFacts
    is_of_text: bool


def describe_circumstances(here: Circumstances) -> Machine:
    """Return this machine, from which a text need not come. It answers by its circumstances."""
    has_driver = bool(here.driver) or (here.is_wsl and here.has_device)
    holds = {
        _NO_DRIVER: "" if has_driver else "no NVIDIA driver is loaded",
        _DRIVER: f"driver {here.driver} is loaded" if here.driver else "",
        _NO_DEVICE: "" if here.has_device or not has_driver else "no device node of a GPU exists",
        _WSL: "this is WSL" if here.is_wsl else "",
        _NO_WSL: "" if here.is_wsl else "this is not WSL",
        _PODMAN: "docker is Podman" if here.docker == "podman" else "",
        _SNAP: "docker is a snap" if here.docker == "snap" else "",
        _DOCKER: "docker is Docker's own" if here.docker == "docker" else "",
        _BLIND: f"this {name_container(here.container)} has no GPU" if here.container and not here.has_device else "",
    }

    def ask(code: str) -> Witness | None:
        speaks_for, speaks_against = _RULES.get(code, (frozenset(), frozenset()))
        for circumstance in (*speaks_for, *speaks_against):
            if says := holds[circumstance]:
                return Witness(f"on this machine: {says}", circumstance in speaks_for)
        return None

    return Machine(ask, TextFacts(), is_of_text=False)


def describe_facts(facts: "Facts") -> Machine:
    """Return the machine that a text comes from. It answers by the check of a code: one that finds the cause, or passes."""
    from devkit.doctor.checks.loader import load_check
    from devkit.doctor.fixes import name_engine
    from devkit.doctor.model import Found, Passed
    from devkit.doctor.runner import run_on_host_and_container
    from devkit.facts.gpu import NvmlAnswer
    from devkit.facts.values import ComputeCapability, Release, Unknown

    def ask(code: str) -> Witness | None:
        (outcome,) = run_on_host_and_container((load_check(code),), facts, clock=lambda: 0.0)
        if isinstance(outcome.verdict, Found):
            return Witness(f"{code} finds: {outcome.verdict.findings[0].message}", is_for=True)
        if isinstance(outcome.verdict, Passed):
            return Witness(f"{code} passes: {outcome.check.title}", is_for=False)
        return None

    nvml, loaded = facts.nvml, getattr(facts.driver, "loaded", None)
    cuda = nvml.cuda if isinstance(nvml, NvmlAnswer) else None
    inside = getattr(facts.container, "kind", "")
    engine = inside if inside in ("kubernetes", "apptainer") else name_engine(facts.engine)
    stated = [
        ("driver", str(loaded) if isinstance(loaded, Release) else ""),
        ("reported_cuda", str(cuda) if isinstance(cuda, Release) else ""),
        ("machine", "" if isinstance(facts.system, Unknown) else facts.system.machine),
        ("engine", "" if engine == "none" else engine),
        *(("capability", str(gpu.capability)) for gpu in facts.gpus if isinstance(gpu.capability, ComputeCapability)),
    ]
    values = TextFacts(tuple(TextFact(name, value) for name, value in stated if value), machine=facts)
    return Machine(ask, values, is_of_text=True)


def rank_by_machine(match: Match, machine: Machine) -> Match:
    """Add what the machine says to the causes of a match, and put those first for which it speaks.

    A text that is certain of its cause, or names words for it, outranks a machine that need not be the one of the text.
    """
    first = Cause(match.code, match.cause, match.fix, match.confidence, match.speaks_for, match.speaks_against)
    causes, weights = [], []
    for cause in (first, *match.alternatives):
        witness = machine.ask(cause.code) if cause.code else None
        weights.append(0 if witness is None else 1 if witness.is_for else -1)
        if witness and witness.is_for:
            cause = replace(cause, speaks_for=(*cause.speaks_for, witness.says))
        elif witness:
            cause = replace(cause, speaks_against=(*cause.speaks_against, witness.says))
        causes.append(cause)
    order = list(range(len(causes)))
    if first.confidence is not Confidence.CERTAIN and (machine.is_of_text or not first.speaks_for):
        order.sort(key=lambda place: -weights[place])
    best, *others = (causes[place] for place in order)
    is_moved = order[0] != 0
    return replace(
        match,
        code=best.code,
        cause=best.cause,
        fix=best.fix,
        confidence=Confidence.LIKELY if is_moved else best.confidence,
        speaks_for=best.speaks_for,
        speaks_against=best.speaks_against,
        alternatives=tuple(replace(cause, confidence=Confidence.POSSIBLE) for cause in others),
    )
