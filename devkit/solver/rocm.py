"""Speaks for AMD GPUs: code for their targets in the ROCm wheels, and features that they have."""

from collections.abc import Iterator

from devkit.compat.rocm_rows import RocmIndex
from devkit.solver.model import Vendor
from devkit.solver.question import Candidate, Objection, Question, spoken_amd_gpu


def unpublished(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Processors for which there are no ROCm wheels."""
    if not isinstance(candidate.index, RocmIndex):
        return
    for machine in dict.fromkeys(machine.machine for machine in question.machines):
        if machine != "x86_64":
            source = candidate.index.source[0]
            yield Objection("W2", f"{candidate} is published for x86_64 only, not for {machine}", source)


def architecture(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """AMD GPUs that the wheel has no code for (G1): a target runs its own code and no other's."""
    index = candidate.index
    if not isinstance(index, RocmIndex):
        return
    for name, target in question.amd_gpus:
        if target not in index.targets:
            held = ", ".join(index.targets)
            says = f"{candidate} has no kernels for {spoken_amd_gpu(name, target)}: it holds {held}"
            yield Objection.by(index, "G1", says)


def features(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Features that an AMD GPU of the plan does not have (F1)."""
    if candidate.rocm is None:
        return
    for name in question.request.features:
        row = question.tables.rocm.features.get(name)
        for gpu, target in question.amd_gpus if row else ():
            if row is not None and target not in row.targets:
                title = question.tables.stack.features[name].title
                yield Objection.by(row, "F1", f"{title}: {spoken_amd_gpu(gpu, target)} is not known to have it")


def warnings(question: Question) -> Iterator[str]:
    """What a plan for AMD GPUs must say beside its versions."""
    if question.vendor is not Vendor.ROCM:
        return
    if not question.amd_gpus:
        yield "no AMD GPU is known: whether the wheel has code for it was not checked"
    yield "ROCm needs the amdgpu kernel driver on the host; its version is not checked"
    if any(machine.platform == "wsl2" for machine in question.machines):
        yield "on WSL 2 ROCm serves a few Radeon cards only, through AMD's own packages for WSL"
    for name in question.request.features:
        if name not in question.tables.rocm.features:
            yield f"{question.tables.stack.features[name].title} was asked for; on AMD GPUs that is not checked"
