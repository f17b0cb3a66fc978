"""Speaks for what the user wants to do: features that a GPU of the plan must have, and what they ask of the plan."""

from collections.abc import Iterator

from devkit.solver.image import NVCC, known_image
from devkit.solver.model import Vendor
from devkit.solver.question import Candidate, Objection, Question


def features(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Features that a GPU of the plan does not have (F1)."""
    for name in question.request.features:
        row = question.tables.stack.features[name]
        for gpu, capability in question.gpus:
            if capability < row.capability:
                says = f"{row.title} needs compute capability {row.capability}; {gpu} has {capability}"
                yield Objection.by(row, "F1", says)


def feature_warnings(question: Question) -> Iterator[str]:
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


def _compiler(question: Question) -> Iterator[str]:
    asked = question.request.image
    if NVCC not in question.request.features or question.vendor is not Vendor.NVIDIA or asked is None:
        return
    image = known_image(asked, question)
    if not image.tells_compiler:
        yield f"{asked} is not in the tables: whether it has nvcc, and of which CUDA, was not checked"
