"""Speaks for the hardware: GPU code for every GPU, and a driver that runs the CUDA of the wheel."""

from collections.abc import Iterator

from devkit.compat.gpus import offers_forward_compatibility
from devkit.compat.rows import Capability, TorchWheel
from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    driver_cuda,
    forward_package,
    full_driver,
    has_kernels,
    oldest_driver,
    runs_cuda,
)
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.machine import FLAGS
from devkit.solver.model import Machine, Vendor
from devkit.solver.question import Candidate, Objection, Question, once, spoken_gpu

_ORDER = (CudaSupport.FULL, CudaSupport.MINOR, CudaSupport.FORWARD, CudaSupport.NO)


def unpublished(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Processors for which no wheel of this build is known."""
    if candidate.cuda is None:
        return
    known = {wheel.machine for wheel in candidate.wheels}
    for machine in dict.fromkeys(machine.machine for machine in question.machines):
        if machine not in known:
            yield Objection("W2", f"no wheel of {candidate} is known for {machine}", candidate.release.source[0])


def architecture(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """GPUs that the wheel has no code for (A1 to A6), or that the installed driver does not know (R1)."""
    if candidate.cuda is None:
        return
    for machine in question.machines:
        for name, capability in machine.gpus:
            row = question.tables.driver.capabilities.get(capability)
            if row is not None:
                yield from _driver_knows(machine, name, row, question)
                yield from _generic_wheel_loads(candidate, name, row)
            yield from _has_code(candidate, machine, name, capability, row, question)


def driver(candidate: Candidate, question: Question) -> Iterator[Objection]:
    """Drivers that do not run the CUDA of the wheel (R4)."""
    if candidate.cuda is None:
        return
    for machine in question.machines:
        if support_on(machine, candidate.cuda, question) is CudaSupport.NO:
            floor = oldest_driver(candidate.cuda, platform=machine.platform, known=question.tables)
            says = f"CUDA {candidate.cuda} needs {_driver_word(machine)} {floor} or newer; {_has(machine)}"
            family = question.tables.driver.families.get(candidate.cuda.major)
            yield Objection("R4", says, family.source[0] if family else candidate.index.source[0])


@once
def support(candidate: Candidate, question: Question) -> CudaSupport:
    """How well the least of the drivers runs this build; full for the CPU build and where no driver is known."""
    if candidate.cuda is None:
        return CudaSupport.FULL
    found = [support_on(machine, candidate.cuda, question) for machine in question.machines]
    return max(found, key=_ORDER.index, default=CudaSupport.FULL)


def support_on(machine: Machine, cuda: Release, question: Question) -> CudaSupport:
    """How one machine's driver runs `cuda`; full where no driver is known, for a warning names the one it needs."""
    if machine.driver is None:
        return CudaSupport.FULL
    runs = runs_cuda(machine.driver, cuda, platform=machine.platform, driver_says=machine.cuda, known=question.tables)
    if runs is not CudaSupport.NO or not has_forward_gpus(machine, question):
        return runs
    package = forward_package(machine.driver, cuda, platform=machine.platform, known=question.tables)
    return CudaSupport.FORWARD if package else CudaSupport.NO


def has_forward_gpus(machine: Machine, question: Question) -> bool:
    """Whether forward compatibility is offered for every GPU of a machine; False when none is named."""
    names = [name for name, _ in machine.gpus]
    return bool(names) and all(offers_forward_compatibility(name, known=question.tables) for name in names)


def driver_warnings(candidate: Candidate, question: Question) -> Iterator[str]:
    """What minor version or forward compatibility leaves out (R3, R5), and the driver that a plan without one needs."""
    cuda = candidate.cuda
    if cuda is None or question.vendor is not Vendor.NVIDIA:
        return
    for machine in question.machines:
        full = full_driver(cuda, platform=machine.platform, known=question.tables)
        until = f" until {_driver_word(machine)} {full} or newer is installed" if full else ""
        if machine.driver is None:
            floor = oldest_driver(cuda, platform=machine.platform, known=question.tables)
            yield f"no driver is known for {machine.origin}: it needs {floor} or newer, and {full} for full support"
            continue
        match support_on(machine, cuda, question):
            case CudaSupport.MINOR:
                yield (
                    f"CUDA {cuda} runs on driver {machine.driver} by minor version compatibility:"
                    f" code that has the driver compile PTX fails with error 222{until}"
                    " (torch.compile is safe: Triton brings its own compiler)"
                )
            case CudaSupport.FORWARD:
                yield (
                    f"CUDA {cuda} runs on driver {machine.driver} by forward compatibility only:"
                    f" the container must carry the cuda-compat libraries{until}"
                )
            case CudaSupport.FULL | CudaSupport.NO:
                pass


def _driver_knows(machine: Machine, name: str, row: Capability, question: Question) -> Iterator[Objection]:
    """Whether the kernel driver supports the GPU at all; Windows branches are compared by the CUDA they run."""
    if machine.driver is None:
        return
    newest = machine.cuda or driver_cuda(machine.driver, platform=machine.platform, known=question.tables)
    first = _branch_cuda(row.first_branch, question)
    last = _branch_cuda(row.last_branch, question)
    if newest and last and newest > last:
        says = f"driver branch {row.last_branch} is the last for {spoken_gpu(name, row.capability)}; {_has(machine)}"
        yield Objection.by(row, "R1", says)
    if newest and first and newest < first:
        says = f"{spoken_gpu(name, row.capability)} needs driver branch {row.first_branch} or newer; {_has(machine)}"
        yield Objection.by(row, "R1", says)


def _branch_cuda(branch: int | None, question: Question) -> Release | None:
    return next((row.cuda for row in question.tables.driver.branches if row.branch == branch), None)


def _generic_wheel_loads(candidate: Candidate, name: str, row: Capability) -> Iterator[Objection]:
    first = row.generic_wheels_from_cuda
    if first is not None and candidate.cuda is not None and candidate.cuda < first:
        says = f"{spoken_gpu(name, row.capability)} loads ordinary aarch64 wheels only from CUDA {first} on"
        yield Objection.by(row, "A4", says)


def _has_code(
    candidate: Candidate,
    machine: Machine,
    name: str,
    capability: ComputeCapability,
    row: Capability | None,
    question: Question,
) -> Iterator[Objection]:
    cuda = candidate.cuda
    wheel = next((wheel for wheel in candidate.wheels if wheel.machine == machine.machine), None)
    if wheel is None or cuda is None:
        return
    compiles = support_on(machine, cuda, question) is CudaSupport.FULL
    match has_kernels(capability, wheel.sass, wheel.ptx, driver_compiles=compiles):
        case CodeSupport.NATIVE:
            yield from _predates(candidate, name, row, wheel)
        case CodeSupport.PTX:
            gpu = spoken_gpu(name, capability)
            says = f"{candidate} holds only PTX for {gpu}: the driver compiles it, slowly at first"
            yield Objection("A3", says, wheel.source[0], refuses=False)
        case CodeSupport.NONE:
            held = ", ".join(wheel.sass)
            says = f"{candidate} has no kernels for {spoken_gpu(name, capability)}: it holds {held}"
            objection = Objection.by(wheel, "A1", says)
            yield objection if objection.refuses else _by_toolkit(objection, cuda, row)


def _predates(candidate: Candidate, name: str, row: Capability | None, wheel: TorchWheel) -> Iterator[Objection]:
    """A5: code for an older GPU of the family runs, but the CUDA around it was made before this one."""
    if row is None or candidate.cuda is None or candidate.cuda >= row.first_cuda:
        return
    says = (
        f"CUDA {candidate.cuda} is older than {spoken_gpu(name, row.capability)}, which CUDA {row.first_cuda} knows"
        f" first: the kernels of {candidate} run on it, its libraries and Triton's compiler may not"
    )
    yield Objection("A5", says, wheel.source[0], refuses=False)


def _by_toolkit(doubt: Objection, cuda: Release, row: Capability | None) -> Objection:
    """A5: where the wheel was not read, the CUDA Toolkit it was built with may still settle that it has no code."""
    if row is None or row.is_inferred:
        return doubt
    if cuda < row.first_cuda:
        says = f"{doubt.says}; CUDA {row.first_cuda} is the first that can build for it"
        return Objection("A5", says, row.source[0])
    if row.last_cuda is not None and cuda > row.last_cuda:
        says = f"{doubt.says}; CUDA {row.last_cuda} is the last that can build for it"
        return Objection("A5", says, row.source[0])
    return doubt


def _driver_word(machine: Machine) -> str:
    return "Windows driver" if machine.platform == "wsl2" else "driver"


def _has(machine: Machine) -> str:
    if machine.origin == FLAGS:
        return f"--driver is {machine.driver}"
    return f"{machine.origin} has {machine.driver}"
