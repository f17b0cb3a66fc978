"""Puts a candidate through the rules, in the order in which a failure would be the true cause."""

from collections.abc import Callable, Iterator

from devkit.compat.rules import CudaSupport
from devkit.facts.values import Release, record
from devkit.solver import base_image, gpu_support, packages
from devkit.solver.base_image import NVCC, find_image
from devkit.solver.candidates import Candidate, Objection, Problem
from devkit.solver.plan import Vendor

# Speaks for what the user wants to do: features that a GPU of the plan must have, and what they ask of the plan.


def validate_features(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Features that a GPU of the plan does not have (F1)."""
    for name in question.request.features:
        row = question.tables.stack.features[name]
        for gpu, capability in question.gpus:
            if capability < row.capability:
                says = f"{row.title} needs compute capability {row.capability}; {gpu} has {capability}"
                yield Objection.by(row, "F1", says)


def find_feature_warnings(question: Problem) -> Iterator[str]:
    """What a plan must say about the features it was asked for."""
    if question.vendor is Vendor.ROCM:
        return
    for name in question.request.features:
        row = question.tables.stack.features[name]
        if question.vendor is Vendor.CPU:
            yield f"{row.title} was asked for; on the CPU that is not checked"
        elif row.note:
            yield f"{row.title}: {row.note}"
    yield from _compiler(question)


def _compiler(question: Problem) -> Iterator[str]:
    asked = question.request.image
    if NVCC not in question.request.features or question.vendor is not Vendor.NVIDIA or asked is None:
        return
    image = find_image(asked, question)
    if not image.tells_compiler:
        yield f"{asked} is not in the tables: whether it has nvcc, and of which CUDA, was not checked"


Validator = Callable[[Candidate, Problem], Iterator[Objection]]

VALIDATORS: tuple[Validator, ...] = (
    packages.validate_constraints,
    base_image.validate_image_tag,
    base_image.validate_python_wheel,
    base_image.validate_image_system,
    base_image.validate_image_life,
    gpu_support.validate_published,
    gpu_support.validate_rocm_published,
    gpu_support.validate_cuda_code,
    gpu_support.validate_rocm_code,
    gpu_support.validate_driver,
    base_image.validate_image_driver,
    packages.validate_packages,
    packages.validate_bitsandbytes,
    validate_features,
    gpu_support.validate_rocm_features,
)
"""From "does it exist" to "can it do what was asked": the first that refuses is the cause to report."""

_PREFERENCE = (CudaSupport.FULL, CudaSupport.MINOR, CudaSupport.FORWARD, CudaSupport.NO)


@record
class Evaluation:
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


def evaluate_candidate(candidate: Candidate, question: Problem) -> Evaluation:
    """The verdict on one candidate; stages after the first refusal are not asked."""
    objections: list[Objection] = []
    for passed, stage in enumerate(VALIDATORS):
        found = list(stage(candidate, question))
        objections += found
        if any(objection.refuses for objection in found):
            return Evaluation(candidate, tuple(objections), passed)
    return Evaluation(candidate, tuple(objections), len(VALIDATORS))


def is_clean(verdict: Evaluation, question: Problem) -> bool:
    """Whether nothing speaks against a candidate and no forward compatibility is needed."""
    return (
        not verdict.objections and gpu_support.find_cuda_support(verdict.candidate, question) is not CudaSupport.FORWARD
    )


def get_preference_key(verdict: Evaluation, question: Problem) -> tuple[object, ...]:
    """Sort key among candidates that nothing refuses, best first (W5).

    Fewest doubts, no forward compatibility, the newest torch, full support before minor version compatibility, the
    variant that plain pip would bring, the newest CUDA.
    """
    candidate = verdict.candidate
    runs = gpu_support.find_cuda_support(candidate, question)
    return (
        len(verdict.doubts),
        runs is CudaSupport.FORWARD,
        _newest_first(candidate.release.version),
        _PREFERENCE.index(runs),
        candidate.index.label != candidate.release.default_variant,
        _newest_first(candidate.cuda or Release.parse("0")),
    )


def _newest_first(release: Release) -> tuple[int, ...]:
    return tuple(-number for number in (*release.numbers, 0, 0)[:3])
