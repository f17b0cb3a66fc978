"""Chooses bitsandbytes: a release with a library for torch's CUDA or ROCm, and code for every GPU (B1 to B4)."""

from collections.abc import Iterator

from devkit.compat.rows import Bitsandbytes, BitsandbytesLibrary
from devkit.compat.rules import CodeSupport, LibraryChoice, bitsandbytes_library, has_kernels
from devkit.compat.specifiers import meets, meets_python
from devkit.facts.values import ComputeCapability, Release
from devkit.solver import constraints
from devkit.solver.constraints import BITSANDBYTES
from devkit.solver.image import chosen_python
from devkit.solver.question import Candidate, Objection, Question, once
from devkit.solver.stack import Chosen, asked_by, companions

_NEEDS_BITSANDBYTES = ("nf4", "llm-int8")


@once
def bitsandbytes(candidate: Candidate, question: Question) -> Chosen | None:
    """The newest bitsandbytes with a library for the build and code for every GPU; None when there is none."""
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    if pinned is not None and all(row.version != pinned for row in rows):
        return Chosen(BITSANDBYTES, pinned, None, "asked for")
    wanted = asked_by(companions(candidate, question) or (), BITSANDBYTES)
    asked = constraints.of(BITSANDBYTES, question)
    for row in rows:
        is_allowed = pinned in (None, row.version) and constraints.allows(asked, row.version)
        if is_allowed and _fits(row, wanted, candidate, question):
            because = "asked for" if pinned else _because(candidate, question)
            return Chosen(BITSANDBYTES, row.version, row, because)
    return None


def library(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """A missing bitsandbytes library (B1, B2); it refuses where 4-bit or 8-bit work was asked for, else it warns."""
    if bitsandbytes(candidate, question) is not None:
        return
    pinned = dict(question.request.pins).get(BITSANDBYTES)
    rows = question.tables.stack.bitsandbytes
    row = next((row for row in rows if row.version == pinned), rows[0])
    wanted = pinned is not None or any(name in question.request.features for name in _NEEDS_BITSANDBYTES)
    says = _missing_library(row, candidate, question, is_pinned=pinned is not None)
    yield Objection("B1", says, row.source[0], refuses=wanted and not row.is_inferred)


def why_not(row: Bitsandbytes, candidate: Candidate, question: Question) -> str:
    """What keeps a release of bitsandbytes from a build on these machines."""
    python = chosen_python(candidate, question)
    for asked in constraints.of(BITSANDBYTES, question):
        if not constraints.allows([asked], row.version):
            return constraints.spoken(asked)
    if python is not None and not meets_python(python, row.python):
        return f"needs Python {row.python}"
    if not meets(str(candidate.release.version), row.torch):
        return f"needs torch {row.torch}"
    if candidate.cuda is not None and str(candidate.cuda) not in row.cudas:
        return f"has no library for CUDA {candidate.cuda}"
    wanted = asked_by(companions(candidate, question) or (), BITSANDBYTES)
    if not meets(row.version, wanted):
        return f"the other packages ask for {wanted}"
    return (
        f"its library for {candidate.built_for} has no code for {_served(question) or 'this machine'}, as far as read"
    )


def _fits(row: Bitsandbytes, wanted: str, candidate: Candidate, question: Question) -> bool:
    python, torch = chosen_python(candidate, question), str(candidate.release.version)
    takes_both = (python is None or meets_python(python, row.python)) and meets(torch, row.torch)
    if not takes_both or not meets(row.version, wanted):
        return False
    if candidate.cuda is not None:
        return _has_library(row, candidate.cuda, question)
    if candidate.rocm is not None:
        return _has_rocm_library(row, candidate.rocm, question)
    return row.cpu and (row.aarch64 or question.architectures == ("x86_64",))


def _has_library(row: Bitsandbytes, cuda: Release, question: Question) -> bool:
    if bitsandbytes_library(cuda, row.cudas).choice is not LibraryChoice.EXACT:
        return False
    code = [each for each in question.tables.stack.libraries if each.version == row.version and str(cuda) in each.cudas]
    return all(
        any(_serves(each, machine.machine, capability) for each in code)
        for machine in question.machines
        for _, capability in machine.gpus
    )


def _serves(library: BitsandbytesLibrary, machine: str, capability: ComputeCapability) -> bool:
    has_code = has_kernels(capability, library.sass, library.ptx) is not CodeSupport.NONE
    return library.machine == machine and has_code


def _has_rocm_library(row: Bitsandbytes, rocm: Release, question: Question) -> bool:
    libraries = [
        each for each in question.tables.rocm.libraries if each.version == row.version and str(rocm) in each.rocms
    ]
    return bool(libraries) and all(any(target in each.targets for each in libraries) for _, target in question.amd_gpus)


def _missing_library(row: Bitsandbytes, candidate: Candidate, question: Question, *, is_pinned: bool) -> str:
    if candidate.cuda is None and candidate.rocm is None:
        return f"bitsandbytes {row.version} does not fit torch {candidate.release.version} on this machine"
    if candidate.cuda is not None and is_pinned and str(candidate.cuda) not in row.cudas:
        other = bitsandbytes_library(candidate.cuda, row.cudas)
        override = f"; BNB_CUDA_VERSION={other.cuda.replace('.', '')} makes it load another" if other.cuda else ""
        has = ", ".join(row.cudas)
        return f"bitsandbytes {row.version} has no library for CUDA {candidate.cuda}: it has {has}{override}"
    asked = constraints.of(BITSANDBYTES, question)
    wants = f" ({' and '.join(constraints.spoken(each) for each in asked)})" if asked else ""
    code = f" with code for {served}" if (served := _served(question)) else ""
    return f"no bitsandbytes fits torch {candidate.release.version} and {candidate.built_for}{code}{wants}"


def _served(question: Question) -> str:
    capabilities = [str(capability) for _, capability in question.gpus]
    return ", ".join(dict.fromkeys([*capabilities, *(target for _, target in question.amd_gpus)]))


def _because(candidate: Candidate, question: Question) -> str:
    if candidate.cuda is None and candidate.rocm is None:
        return f"newest release that fits torch {candidate.release.version} and runs on the CPU"
    code = f" with code for {served}" if (served := _served(question)) else ""
    return f"newest release with a library for {candidate.built_for}{code}"
