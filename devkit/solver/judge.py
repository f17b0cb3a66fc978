"""Puts a candidate through the rules, in the order in which a failure would be the true cause."""

from collections.abc import Callable, Iterator

from devkit.compat.rules import CudaSupport
from devkit.facts.record import record
from devkit.facts.values import Release
from devkit.solver import constraints, features, hardware, image, quantisation, requirement, rocm, stack
from devkit.solver.question import Candidate, Objection, Question

Stage = Callable[[Candidate, Question], Iterator[Objection]]

STAGES: tuple[Stage, ...] = (
    constraints.project,
    image.tag,
    image.python_wheel,
    image.system,
    image.life,
    hardware.unpublished,
    rocm.unpublished,
    hardware.architecture,
    rocm.architecture,
    hardware.driver,
    requirement.requirement,
    stack.packages,
    quantisation.library,
    features.features,
    rocm.features,
)
"""From "does it exist" to "can it do what was asked": the first that refuses is the cause to report."""

_PREFERENCE = (CudaSupport.FULL, CudaSupport.MINOR, CudaSupport.FORWARD, CudaSupport.NO)


@record
class Verdict:
    """A candidate with what speaks against it. `passed` counts the stages before the one that refused."""

    candidate: Candidate
    objections: tuple[Objection, ...]
    passed: int

    @property
    def refusals(self) -> tuple[Objection, ...]:
        """The objections that rule the candidate out."""
        return tuple(objection for objection in self.objections if objection.refuses)

    @property
    def doubts(self) -> tuple[Objection, ...]:
        """The objections that only warn."""
        return tuple(objection for objection in self.objections if not objection.refuses)


def judge(candidate: Candidate, question: Question) -> Verdict:
    """The verdict on one candidate; stages after the first refusal are not asked."""
    objections: list[Objection] = []
    for passed, stage in enumerate(STAGES):
        found = list(stage(candidate, question))
        objections += found
        if any(objection.refuses for objection in found):
            return Verdict(candidate, tuple(objections), passed)
    return Verdict(candidate, tuple(objections), len(STAGES))


def is_clean(verdict: Verdict, question: Question) -> bool:
    """Whether nothing speaks against a candidate and no forward compatibility is needed."""
    return not verdict.objections and hardware.support(verdict.candidate, question) is not CudaSupport.FORWARD


def preference(verdict: Verdict, question: Question) -> tuple[object, ...]:
    """Sort key among candidates that nothing refuses, best first (W5).

    Fewest doubts, no forward compatibility, the newest torch, full support before minor version compatibility, the
    variant that plain pip would bring, the newest CUDA.
    """
    candidate = verdict.candidate
    runs = hardware.support(candidate, question)
    return (
        len(verdict.doubts),
        runs is CudaSupport.FORWARD,
        _newest_first(candidate.release.version),
        _PREFERENCE.index(runs),
        candidate.index.label != candidate.release.default_variant,
        _newest_first(candidate.cuda or Release.read("0")),
    )


def _newest_first(release: Release) -> tuple[int, ...]:
    return tuple(-number for number in (*release.numbers, 0, 0)[:3])
