"""Evaluation of candidates: settle the environment of each, and put it through the rules."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from devkit.compat.rules import CudaSupport
from devkit.facts.values import Release
from devkit.solver import base_image, gpu_support, packages
from devkit.solver.candidates import SUPPORT_ORDER, Candidate, Environment, Objection, Problem

Validator = Callable[[Environment, Problem], Iterator[Objection]]

VALIDATORS: tuple[Validator, ...] = (
    packages.validate_constraints,
    base_image.validate_image_tag,
    base_image.validate_python_wheel,
    base_image.validate_image_system,
    lambda environment, problem: base_image.doubt_image_life(environment.image, problem),
    gpu_support.validate_published,
    gpu_support.validate_gpu_code,
    gpu_support.validate_driver,
    lambda environment, problem: base_image.validate_cuda_of_image(environment.image, problem),
    packages.validate_companions,
    packages.validate_bitsandbytes,
    gpu_support.validate_features,
)
"""From "does it exist" to "can it do what was requested": the first that refuses is the root cause to report."""


@dataclass(frozen=True)
class Evaluation:
    """An environment with the objections to it. `passed` counts the validators before the one that refused it."""

    environment: Environment
    objections: tuple[Objection, ...]
    passed: int

    @property
    def candidate(self) -> Candidate:
        """The torch build."""
        return self.environment.candidate

    @property
    def refusals(self) -> tuple[Objection, ...]:
        """The objections that rule the candidate out."""
        return tuple(objection for objection in self.objections if objection.refuses)

    @property
    def doubts(self) -> tuple[Objection, ...]:
        """The objections that only warn."""
        return tuple(objection for objection in self.objections if not objection.refuses)

    @property
    def preference_key(self) -> tuple[object, ...]:
        """Sort key among candidates that nothing refuses, best first (W5).

        Fewest doubts, no forward compatibility, the newest torch, full support before minor version compatibility, the
        variant that plain pip would install, the newest CUDA.
        """
        candidate, support = self.candidate, self.environment.support
        return (
            len(self.doubts),
            support is CudaSupport.FORWARD,
            _newest_first(candidate.release.version),
            SUPPORT_ORDER.index(support),
            candidate.index.label != candidate.release.default_variant,
            _newest_first(candidate.cuda or Release.parse("0")),
        )


def evaluate_candidate(candidate: Candidate, problem: Problem) -> Evaluation:
    """Settle a candidate's environment, and validate it up to the first rule that refuses it."""
    support = gpu_support.find_cuda_support(candidate, problem)
    environment = Environment(candidate, support, None, None)
    image, python = base_image.choose_image_and_python(candidate, problem, environment.support)
    environment = replace(environment, image=image, python=python)
    objections: list[Objection] = []
    for passed, validate in enumerate(VALIDATORS):
        if validate is packages.validate_companions:
            # Choosing packages is most of the work: only for what the hardware runs.
            environment = replace(environment, packages=packages.choose_packages(environment, problem))
        found = list(validate(environment, problem))
        objections += found
        if any(objection.refuses for objection in found):
            return Evaluation(environment, tuple(objections), passed)
    return Evaluation(environment, tuple(objections), len(VALIDATORS))


def _newest_first(release: Release) -> tuple[int, ...]:
    return tuple(-number for number in (*release.numbers, 0, 0)[:3])
