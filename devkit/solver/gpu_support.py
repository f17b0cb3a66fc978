"""Speaks for the hardware: GPU code for every GPU, and a driver that runs the CUDA of the wheel."""

from collections.abc import Iterator

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    check_cuda_support,
    check_gpu_code,
    find_forward_package,
    find_newest_cuda,
    find_oldest_driver,
    find_toolkit_driver,
)
from devkit.compat.version_tables import Capability, RocmIndex, TorchWheel
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.candidates import Candidate, Objection, Problem, describe_amd_gpu, describe_gpu, memoize
from devkit.solver.plan import Machine, Vendor
from devkit.solver.request import FLAGS_ORIGIN

_ORDER = (CudaSupport.FULL, CudaSupport.MINOR, CudaSupport.FORWARD, CudaSupport.NO)


def validate_published(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Processors for which no wheel of this build is known."""
    if candidate.cuda is None:
        return
    known = {wheel.machine for wheel in candidate.wheels}
    for machine in dict.fromkeys(machine.machine for machine in question.machines):
        if machine not in known:
            yield Objection("W2", f"no wheel of {candidate} is known for {machine}", candidate.release.source[0])


def validate_cuda_code(candidate: Candidate, question: Problem) -> Iterator[Objection]:
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


def validate_driver(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Drivers that do not run the CUDA of the wheel (R4)."""
    if candidate.cuda is None:
        return
    for machine in question.machines:
        if find_machine_support(machine, candidate.cuda, question) is CudaSupport.NO:
            floor = find_oldest_driver(candidate.cuda, platform=machine.platform, known=question.tables)
            says = f"CUDA {candidate.cuda} needs {_driver_word(machine)} {floor} or newer; {_has(machine)}"
            family = question.tables.driver.families.get(candidate.cuda.major)
            yield Objection("R4", says, family.source[0] if family else candidate.index.source[0])


@memoize
def find_cuda_support(candidate: Candidate, question: Problem) -> CudaSupport:
    """How well the least of the drivers runs this build; full for the CPU build and where no driver is known."""
    if candidate.cuda is None:
        return CudaSupport.FULL
    found = [find_machine_support(machine, candidate.cuda, question) for machine in question.machines]
    return max(found, key=_ORDER.index, default=CudaSupport.FULL)


def find_machine_support(machine: Machine, cuda: Release, question: Problem) -> CudaSupport:
    """How one machine's driver runs `cuda`; full where no driver is known, for a warning names the one it needs."""
    if machine.driver is None:
        return CudaSupport.FULL
    runs = check_cuda_support(
        machine.driver, cuda, platform=machine.platform, driver_says=machine.cuda, known=question.tables
    )
    if runs is not CudaSupport.NO or not has_forward_gpus(machine, question):
        return runs
    package = find_forward_package(machine.driver, cuda, platform=machine.platform, known=question.tables)
    return CudaSupport.FORWARD if package else CudaSupport.NO


def has_forward_gpus(machine: Machine, question: Problem) -> bool:
    """Whether forward compatibility is offered for every GPU of a machine; False when none is named."""
    names = [name for name, _ in machine.gpus]
    return bool(names) and all(has_forward_compatibility(name, known=question.tables) for name in names)


def find_driver_warnings(candidate: Candidate, question: Problem) -> Iterator[str]:
    """What minor version or forward compatibility leaves out (R3, R5), and the driver that a plan without one needs."""
    cuda = candidate.cuda
    if cuda is None or question.vendor is not Vendor.NVIDIA:
        return
    for machine in question.machines:
        full = find_toolkit_driver(cuda, platform=machine.platform, known=question.tables)
        until = f" until {_driver_word(machine)} {full} or newer is installed" if full else ""
        if machine.driver is None:
            floor = find_oldest_driver(cuda, platform=machine.platform, known=question.tables)
            yield f"no driver is known for {machine.origin}: it needs {floor} or newer, and {full} for full support"
            continue
        match find_machine_support(machine, cuda, question):
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


def _driver_knows(machine: Machine, name: str, row: Capability, question: Problem) -> Iterator[Objection]:
    """Whether the kernel driver supports the GPU at all; Windows branches are compared by the CUDA they run."""
    if machine.driver is None:
        return
    newest = machine.cuda or find_newest_cuda(machine.driver, platform=machine.platform, known=question.tables)
    first = _branch_cuda(row.first_branch, question)
    last = _branch_cuda(row.last_branch, question)
    if newest and last and newest > last:
        says = f"driver branch {row.last_branch} is the last for {describe_gpu(name, row.capability)}; {_has(machine)}"
        yield Objection.by(row, "R1", says)
    if newest and first and newest < first:
        says = f"{describe_gpu(name, row.capability)} needs driver branch {row.first_branch} or newer; {_has(machine)}"
        yield Objection.by(row, "R1", says)


def _branch_cuda(branch: int | None, question: Problem) -> Release | None:
    return next((row.cuda for row in question.tables.driver.branches if row.branch == branch), None)


def _generic_wheel_loads(candidate: Candidate, name: str, row: Capability) -> Iterator[Objection]:
    first = row.generic_wheels_from_cuda
    if first is not None and candidate.cuda is not None and candidate.cuda < first:
        says = f"{describe_gpu(name, row.capability)} loads ordinary aarch64 wheels only from CUDA {first} on"
        yield Objection.by(row, "A4", says)


def _has_code(
    candidate: Candidate,
    machine: Machine,
    name: str,
    capability: ComputeCapability,
    row: Capability | None,
    question: Problem,
) -> Iterator[Objection]:
    cuda = candidate.cuda
    wheel = next((wheel for wheel in candidate.wheels if wheel.machine == machine.machine), None)
    if wheel is None or cuda is None:
        return
    compiles = find_machine_support(machine, cuda, question) is CudaSupport.FULL
    match check_gpu_code(capability, wheel.sass, wheel.ptx, driver_compiles=compiles):
        case CodeSupport.NATIVE:
            yield from _predates(candidate, name, row, wheel)
        case CodeSupport.PTX:
            gpu = describe_gpu(name, capability)
            says = f"{candidate} holds only PTX for {gpu}: the driver compiles it, slowly at first"
            yield Objection("A3", says, wheel.source[0], refuses=False)
        case CodeSupport.NONE:
            held = ", ".join(wheel.sass)
            says = f"{candidate} has no kernels for {describe_gpu(name, capability)}: it holds {held}"
            objection = Objection.by(wheel, "A1", says)
            yield objection if objection.refuses else _by_toolkit(objection, cuda, row)


def _predates(candidate: Candidate, name: str, row: Capability | None, wheel: TorchWheel) -> Iterator[Objection]:
    """A5: code for an older GPU of the family runs, but the CUDA around it was made before this one."""
    if row is None or candidate.cuda is None or candidate.cuda >= row.first_cuda:
        return
    says = (
        f"CUDA {candidate.cuda} is older than {describe_gpu(name, row.capability)}, which CUDA {row.first_cuda} knows"
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
    if machine.origin == FLAGS_ORIGIN:
        return f"--driver is {machine.driver}"
    return f"{machine.origin} has {machine.driver}"


# What a plan must say of the NVIDIA Container Toolkit on its machines: known holes and faults (I6, S4).


def find_toolkit_warnings(question: Problem) -> Iterator[str]:
    """Warnings for machines whose toolkit is known; saved facts tell it, flags do not."""
    if question.vendor is not Vendor.NVIDIA:
        return
    for machine in question.machines:
        if machine.toolkit is not None:
            yield from _holes(machine, machine.toolkit, question)
            yield from _faults(machine, machine.toolkit, question)


def _holes(machine: Machine, toolkit: Release, question: Problem) -> Iterator[str]:
    open_holes = [row for row in question.tables.engines.vulnerabilities if toolkit < row.fixed_in]
    if open_holes:
        closed = max(row.fixed_in for row in open_holes)
        names = ", ".join(row.id for row in open_holes[:3])
        more = f" and {len(open_holes) - 3} more" if len(open_holes) > 3 else ""
        yield (
            f"NVIDIA Container Toolkit {toolkit} of {machine.origin} has known holes ({names}{more}):"
            f" update it to {closed} or newer (I6)"
        )


def _faults(machine: Machine, toolkit: Release, question: Problem) -> Iterator[str]:
    for row in question.tables.engines.faults:
        concerns = row.program == "nvidia-container-toolkit" and row.when in ("", machine.platform)
        if concerns and row.since <= toolkit < row.fixed_in:
            yield f"NVIDIA Container Toolkit {toolkit} of {machine.origin}: {row.summary}; fixed in {row.fixed_in} (S4)"


# Speaks for AMD GPUs: code for their targets in the ROCm wheels, and features that they have.


def validate_rocm_published(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Processors for which there are no ROCm wheels."""
    if not isinstance(candidate.index, RocmIndex):
        return
    for machine in dict.fromkeys(machine.machine for machine in question.machines):
        if machine != "x86_64":
            source = candidate.index.source[0]
            yield Objection("W2", f"{candidate} is published for x86_64 only, not for {machine}", source)


def validate_rocm_code(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """AMD GPUs that the wheel has no code for (G1): a target runs its own code and no other's."""
    index = candidate.index
    if not isinstance(index, RocmIndex):
        return
    for name, target in question.amd_gpus:
        if target not in index.targets:
            held = ", ".join(index.targets)
            says = f"{candidate} has no kernels for {describe_amd_gpu(name, target)}: it holds {held}"
            yield Objection.by(index, "G1", says)


def validate_rocm_features(candidate: Candidate, question: Problem) -> Iterator[Objection]:
    """Features that an AMD GPU of the plan does not have (F1)."""
    if candidate.rocm is None:
        return
    for name in question.request.features:
        row = question.tables.rocm.features.get(name)
        for gpu, target in question.amd_gpus if row else ():
            if row is not None and target not in row.targets:
                title = question.tables.stack.features[name].title
                yield Objection.by(row, "F1", f"{title}: {describe_amd_gpu(gpu, target)} is not known to have it")


def find_rocm_warnings(question: Problem) -> Iterator[str]:
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
