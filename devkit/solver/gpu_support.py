"""GPU support of a candidate: code for every GPU in its wheels, a driver that runs its CUDA, features of the GPUs."""

from collections.abc import Iterator

from devkit.compat.gpus import has_forward_compatibility
from devkit.compat.rules import (
    CodeSupport,
    CudaSupport,
    check_cuda_support,
    check_gpu_code,
    find_oldest_driver,
    find_toolkit_driver,
)
from devkit.compat.version_tables import Capability, RocmIndex, TorchWheel
from devkit.facts.values import ComputeCapability, Release
from devkit.solver.candidates import Candidate, Environment, Objection, Problem, describe_gpu
from devkit.solver.plan import FLAGS_ORIGIN, Machine, Vendor

NVCC = "nvcc"
"""The feature that needs the CUDA compiler in the image."""
GRAPHICS = "graphics"
"""The feature that needs the driver's graphics libraries in the container, and the host's display where it has one."""


def find_cuda_support(candidate: Candidate, problem: Problem) -> tuple[CudaSupport, ...]:
    """Find how the driver of each machine runs the build's CUDA.

    The support is full for other builds, and where no driver is known: there a warning names the one it needs.
    """
    return tuple(
        check_cuda_support(
            machine.driver,
            candidate.cuda,
            platform=machine.platform,
            driver_says=machine.cuda,
            has_forward_gpus=bool(machine.gpus)
            and all(has_forward_compatibility(name, known=problem.tables) for name, _ in machine.gpus),
            known=problem.tables,
        )
        if candidate.cuda is not None and machine.driver is not None
        else CudaSupport.FULL
        for machine in problem.machines
    )


def validate_published(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to processors for which the build is not published, and doubt those for which that is not known (W2)."""
    candidate, release, label = environment.candidate, environment.candidate.release, environment.candidate.index.label
    known = {wheel.machine for wheel in candidate.wheels}
    if release.is_inferred and candidate.cuda is not None and label not in release.variants:
        says = (
            f"whether torch {release.version} is published for {label}, and with code for which GPUs, was not checked"
        )
        yield Objection("W2", says, release.source[0], refuses=False)
        return
    if candidate.rocm is not None and release.version not in problem.tables.rocm.releases:
        says = f"torch {release.version} is not known to be published for ROCm, and this was not checked"
        yield Objection("W2", says, candidate.index.source[0], refuses=False)
    for machine in dict.fromkeys(machine.machine for machine in problem.machines):
        if candidate.cuda is not None and machine not in known:
            may_be = release.is_inferred or machine == "x86_64" or (machine == "aarch64" and not release.x86_64_only)
            says = f"no wheel of {candidate} is published for {machine}"
            if may_be:
                says = f"whether {candidate} is published for {machine}, and with code for which GPUs, was not checked"
            yield Objection("W2", says, release.source[-1], refuses=not may_be)
        if candidate.rocm is not None and machine != "x86_64":
            says = f"{candidate} is published only for x86_64, not for {machine}"
            yield Objection("W2", says, candidate.index.source[0])


def validate_gpu_code(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to GPUs that the wheel has no code for (A1 to A6, G1), or that the installed driver does not know (R1)."""
    candidate, index = environment.candidate, environment.candidate.index
    if isinstance(index, RocmIndex):
        for name, target in problem.amd_gpus:
            # A target runs its own code and no other's.
            if target not in index.targets:
                held = ", ".join(index.targets)
                says = f"{candidate} has no kernels for {describe_gpu(name, target)}: it has {held}"
                yield Objection.from_row(index, "G1", says)
            elif target in index.without_rocblas:
                gpu = describe_gpu(name, target)
                says = f"the rocBLAS in {candidate} has no kernels for {gpu}, so the first matrix product aborts"
                yield Objection.from_row(index, "G1", says)
    if candidate.cuda is None:
        return
    for machine, support in zip(problem.machines, environment.machine_support, strict=True):
        wheel = next((wheel for wheel in candidate.wheels if wheel.machine == machine.machine), None)
        for name, capability in machine.gpus:
            row = problem.tables.driver.capabilities.get(capability)
            if row is not None:
                yield from _validate_driver_knows(machine, name, row, problem)
                first = row.generic_wheels_from_cuda
                if first is not None and candidate.cuda < first:
                    says = f"{describe_gpu(name, capability)} loads ordinary aarch64 wheels only with CUDA {first} and newer"
                    yield Objection.from_row(row, "A4", says)
            if wheel is not None:
                is_compiling = support is CudaSupport.FULL
                yield from _validate_wheel_code(candidate, wheel, name, capability, row, is_compiling=is_compiling)
            elif row is not None and not find_compile_target(candidate.cuda, capability, problem):
                says = f"CUDA {candidate.cuda} cannot build for {describe_gpu(name, capability)}"
                yield Objection.from_row(row, "A5", says)


def validate_driver(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to drivers that do not run the CUDA of the wheel (R4)."""
    candidate = environment.candidate
    for machine, support in zip(problem.machines, environment.machine_support, strict=True):
        if candidate.cuda is not None and support is CudaSupport.NO:
            floor = find_oldest_driver(candidate.cuda, platform=machine.platform, known=problem.tables)
            says = f"CUDA {candidate.cuda} needs {_driver_word(machine)} {floor} or newer; {_installed(machine)}"
            family = problem.tables.driver.families.get(candidate.cuda.major)
            yield Objection("R4", says, family.source[0] if family else candidate.index.source[0])


def validate_features(environment: Environment, problem: Problem) -> Iterator[Objection]:
    """Object to GPUs without a requested feature (F1)."""
    for name in problem.request.features:
        row = problem.tables.stack.features[name]
        for gpu, capability in problem.gpus:
            if capability < row.capability:
                says = (
                    f"compute capability {row.capability} or higher is required for {row.title}; {gpu} has {capability}"
                )
                yield Objection.from_row(row, "F1", says)
        on_amd = problem.tables.rocm.features.get(name) if environment.candidate.rocm is not None else None
        for gpu, target in problem.amd_gpus:
            if on_amd is not None and target not in on_amd.targets:
                says = f"{row.title}: {describe_gpu(gpu, target)} is not known to support it"
                yield Objection.from_row(on_amd, "F1", says)


def find_driver_warnings(environment: Environment, problem: Problem) -> Iterator[str]:
    """Warn of the limits of minor version and forward compatibility (R3, R5); name the driver where none is known."""
    cuda = environment.candidate.cuda
    if cuda is None or problem.vendor is not Vendor.NVIDIA:
        return
    for machine, support in zip(problem.machines, environment.machine_support, strict=True):
        full = find_toolkit_driver(cuda, platform=machine.platform, known=problem.tables)
        until = f" until {_driver_word(machine)} {full} or newer is installed" if full else ""
        if machine.driver is None:
            floor = find_oldest_driver(cuda, platform=machine.platform, known=problem.tables)
            yield f"no driver is known for {machine.origin}: it needs {floor} or newer, and {full} for full support"
        elif support is CudaSupport.MINOR:
            yield (
                f"CUDA {cuda} runs on driver {machine.driver} by minor version compatibility:"
                f" code that has the driver compile PTX fails with error 222{until}"
                " (torch.compile is safe: Triton includes its own compiler)"
            )
        elif support is CudaSupport.FORWARD:
            yield (
                f"CUDA {cuda} runs on driver {machine.driver} only by forward compatibility: "
                f"the container must contain the cuda-compat libraries{until}"
            )


def find_feature_warnings(problem: Problem) -> Iterator[str]:
    """Warn of requested features that were not checked on the CPU, or that have a limit."""
    for name in problem.request.features:
        row = problem.tables.stack.features[name]
        if problem.vendor is Vendor.CPU:
            yield f"{row.title} was requested; devkit does not check it on the CPU"
        elif problem.vendor is Vendor.NVIDIA and row.note:
            yield f"{row.title}: {row.note}"


def find_rocm_warnings(problem: Problem) -> Iterator[str]:
    """Warn of what a plan for AMD GPUs leaves unchecked."""
    if problem.vendor is not Vendor.ROCM:
        return
    if not problem.amd_gpus:
        yield "no AMD GPU is known, so the wheel's code for it was not checked"
    yield "ROCm needs the amdgpu kernel driver on the host; its version is not checked"
    if any(machine.platform == "wsl2" for machine in problem.machines):
        yield "on WSL 2, ROCm supports only a few Radeon cards, through AMD's own packages for WSL"
    for name in problem.request.features:
        if name not in problem.tables.rocm.features:
            yield f"{problem.tables.stack.features[name].title} was requested; devkit does not check it on AMD GPUs"


def find_toolkit_warnings(problem: Problem) -> Iterator[str]:
    """Warn of known vulnerabilities and faults of the machines' NVIDIA Container Toolkit (I6, S4).

    Saved facts tell its version, flags do not.
    """
    for machine in problem.machines if problem.vendor is Vendor.NVIDIA else ():
        toolkit = machine.toolkit
        if toolkit is None:
            continue
        of_machine = f"NVIDIA Container Toolkit {toolkit} of {machine.origin}"
        unfixed = [row for row in problem.tables.engines.vulnerabilities if toolkit < row.fixed_in]
        if unfixed:
            names = ", ".join(row.id for row in unfixed[:3])
            more = f" and {len(unfixed) - 3} more" if len(unfixed) > 3 else ""
            fixed_in = max(row.fixed_in for row in unfixed)
            yield f"{of_machine} has known vulnerabilities ({names}{more}): update it to {fixed_in} or newer (I6)"
        for row in problem.tables.engines.faults:
            concerns = row.program == "nvidia-container-toolkit" and row.when in ("", machine.platform)
            if concerns and row.since <= toolkit < row.fixed_in:
                yield f"{of_machine}: {row.summary}; fixed in {row.fixed_in} (S4)"


def _validate_driver_knows(machine: Machine, name: str, row: Capability, problem: Problem) -> Iterator[Objection]:
    """Object where the kernel driver does not support the GPU; Windows branches are compared by the CUDA they run."""
    newest = problem.newest_cuda(machine)
    if newest is None:
        return
    cudas = {each.branch: each.cuda for each in problem.tables.driver.branches}
    last = cudas.get(row.last_branch) if row.last_branch is not None else None
    first = cudas.get(row.first_branch) if row.first_branch is not None else None
    gpu = describe_gpu(name, row.capability)
    if last and newest > last:
        says = f"driver branch {row.last_branch} is the last for {gpu}; {_installed(machine)}"
        yield Objection.from_row(row, "R1", says)
    if first and newest < first:
        says = f"{gpu} needs driver branch {row.first_branch} or newer; {_installed(machine)}"
        yield Objection.from_row(row, "R1", says)


def _validate_wheel_code(
    candidate: Candidate,
    wheel: TorchWheel,
    name: str,
    capability: ComputeCapability,
    row: Capability | None,
    *,
    is_compiling: bool,
) -> Iterator[Objection]:
    """Object to a wheel without machine code for a GPU. `is_compiling`: the driver compiles the wheel's PTX."""
    cuda, gpu = candidate.cuda, describe_gpu(name, capability)
    if cuda is None:
        return
    match check_gpu_code(capability, wheel.sass, wheel.ptx, driver_compiles=is_compiling):
        case CodeSupport.NATIVE:
            if row is not None and cuda < row.first_cuda:
                says = (
                    f"CUDA {cuda} is older than {gpu}, which CUDA {row.first_cuda} supports first: the kernels of"
                    f" {candidate} run on it, its libraries and Triton's compiler may not"
                )
                yield Objection("A5", says, wheel.source[0], refuses=False)
        case CodeSupport.PTX:
            says = f"{candidate} has only PTX for {gpu}: the driver compiles it, which is slow the first time"
            yield Objection("A3", says, wheel.source[0], refuses=False)
        case CodeSupport.NONE:
            says = f"{candidate} has no kernels for {gpu}: it has {', '.join(wheel.sass)}"
            # Where the wheel was not read, the CUDA Toolkit may settle that it cannot have code for the GPU (A5).
            is_settled = wheel.is_inferred and row is not None and not row.is_inferred
            if is_settled and row is not None and cuda < row.first_cuda:
                says = f"{says}; CUDA {row.first_cuda} is the first release that can build for it"
                yield Objection("A5", says, row.source[0])
            elif is_settled and row is not None and row.last_cuda is not None and cuda > row.last_cuda:
                says = f"{says}; CUDA {row.last_cuda} is the last release that can build for it"
                yield Objection("A5", says, row.source[0])
            else:
                yield Objection.from_row(wheel, "A1", says)


def find_compile_target(cuda: Release, capability: ComputeCapability, problem: Problem) -> ComputeCapability | None:
    """Find what a CUDA Toolkit compiles for that GPU: the GPU, or the newest before it of its generation, whose code it runs.

    Code for a Tegra GPU runs on no other one.
    """
    rows = problem.tables.driver.capabilities.values()
    alike = [
        row
        for row in rows
        if row.capability == capability
        or (
            row.capability.major == capability.major
            and row.capability < capability
            and not row.generic_wheels_from_cuda
        )
    ]
    built = [row for row in alike if row.first_cuda <= cuda and (row.last_cuda is None or cuda <= row.last_cuda)]
    return max((row.capability for row in built), default=None)


def _driver_word(machine: Machine) -> str:
    return "Windows driver" if machine.platform == "wsl2" else "driver"


def _installed(machine: Machine) -> str:
    if machine.origin == FLAGS_ORIGIN:
        return f"--driver is {machine.driver}"
    return f"{machine.origin} has {machine.driver}"
