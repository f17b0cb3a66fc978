"""Checks from inside a container: the GPU was given to it, and it has what GPU programs need."""

from collections.abc import Iterator

from devkit.doctor.applies import (
    NOTHING_VISIBLE,
    a_gpu_in_this_container,
    container_of,
    cuda_of_torch,
    driver_of,
    is_in_wsl,
    known,
    python_of,
    torch_of,
)
from devkit.doctor.checks.chains import WITHOUT_GPU_IN_CONTAINER
from devkit.doctor.checks.not_given import why_not_given
from devkit.doctor.limits import MIB, SHARED_MEMORY_BYTES
from devkit.doctor.machine import Family, container_family
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import Unknown
from devkit.text import human_bytes, listed

NEEDED_CAPABILITIES = ("compute", "utility")

_INSTALL_COMPILER = {
    Family.UBUNTU: "apt-get update && apt-get install -y --no-install-recommends build-essential",
    Family.DEBIAN: "apt-get update && apt-get install -y --no-install-recommends build-essential",
    Family.FEDORA: "dnf install -y gcc",
    Family.RHEL: "dnf install -y gcc",
    Family.SUSE: "zypper install -y gcc",
    Family.ARCH: "pacman -S --noconfirm gcc",
}
_INSTALL_HEADERS = {
    Family.UBUNTU: "apt-get update && apt-get install -y --no-install-recommends python3-dev",
    Family.DEBIAN: "apt-get update && apt-get install -y --no-install-recommends python3-dev",
    Family.FEDORA: "dnf install -y python3-devel",
    Family.RHEL: "dnf install -y python3-devel",
    Family.SUSE: "zypper install -y python3-devel",
}


@check(
    "CON001",
    "The GPU was given to this container",
    covers=("F01", "F07", "J02"),
    symptoms=("Found no NVIDIA driver on your system", "No CUDA GPUs are available", "Unknown Error"),
    causes=WITHOUT_GPU_IN_CONTAINER,
)
def gpu_given_to_container(facts: Facts) -> Iterator[Finding]:
    """On a machine with an NVIDIA GPU, this container can open it.

    Why it matters: a GPU must be asked for when the container is created; it is also lost when systemd rewrites the
    device rules of a running one. Both look alike from Python, and are repaired on different sides.
    How it is seen: opening /dev/nvidiactl. ENOENT: never requested. EPERM: the cgroup's device filter dropped it.
    EACCES: file mode, SELinux or a user namespace. A container whose NVML answers passes.
    Source: NVIDIA/nvidia-container-toolkit issues 48 and 1227; microsoft/vscode-remote-release issue 9385.
    """
    container = container_of(facts)
    a_gpu_in_this_container(facts)
    if isinstance(facts.nvml, NvmlAnswer) and facts.nvml.gpus:
        return
    if isinstance(facts.nvml, NvmlFailure) and facts.nvml.end in (NvmlEnd.TIMED_OUT, NvmlEnd.CRASHED):
        raise NotApplicable("NVML hangs or crashes, which a GPU that was not given cannot cause")
    if is_in_wsl(facts):
        raise NotApplicable("in WSL the GPU is /dev/dxg, which is there")
    driver = driver_of(facts)
    if driver.loaded is None and driver.pci_gpus == ():
        raise NotApplicable("nothing but NVML speaks of a GPU here")
    has_gpu_node = any(node.removeprefix("/dev/nvidia").isdigit() for node in driver.device_nodes)
    if driver.nvidiactl == "open" and has_gpu_node:
        return
    yield why_not_given(facts, container, driver)


@check(
    "CON002",
    "The container has the driver capabilities compute and utility",
    covers=("F16",),
    symptoms=("nvidia-smi: command not found", "NVIDIA_DRIVER_CAPABILITIES"),
    causes=("DRV003", "PYT006"),
)
def driver_capabilities_suffice(facts: Facts) -> Iterator[Finding]:
    """NVIDIA_DRIVER_CAPABILITIES includes compute (libcuda) and utility (NVML, nvidia-smi).

    Why it matters: the toolkit mounts only the libraries that were asked for. Without compute torch finds no driver
    although the device nodes are there.
    How it is seen: the variable, and whether libcuda.so.1 and libnvidia-ml.so.1 are in the container. Unset means
    both.
    Source: NVIDIA, Container Toolkit, "Driver capabilities"; NVIDIA/nvidia-docker issue 954.
    """
    a_gpu_in_this_container(facts)
    text = container_of(facts).driver_capabilities
    if not text or (container_of(facts).visible_devices or "") in NOTHING_VISIBLE:
        raise NotApplicable("the container restricts no driver capabilities")
    asked = {name.strip() for name in text.split(",")}
    missing = [name for name in NEEDED_CAPABILITIES if "all" not in asked and name not in asked]
    driver = driver_of(facts)
    libraries = {"compute": driver.libcuda, "utility": driver.libnvidia_ml}
    absent = [name for name in missing if libraries[name] is None]
    if not absent:
        return
    yield Finding(
        Severity.ERROR if "compute" in absent else Severity.WARNING,
        f"the container was started without the driver capability {listed(absent)}",
        Fix(
            "Set NVIDIA_DRIVER_CAPABILITIES=compute,utility in the image or the Compose file, and recreate the"
            " container.",
            ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
            where=Side.PROJECT,
        ),
        evidence=(f"NVIDIA_DRIVER_CAPABILITIES={text}", f"libraries of {listed(absent)} are absent"),
    )


@check(
    "CON003",
    "Shared memory is large enough for data loaders",
    covers=("I01", "I02"),
    symptoms=("DataLoader worker is killed by signal: Bus error", "out of shared memory", "shm_size"),
)
def shared_memory_suffices(facts: Facts) -> Iterator[Finding]:
    """The shared memory (/dev/shm) of this container holds at least a gibibyte.

    Why it matters: data loader workers and NCCL pass tensors through it. Docker's default of 64 MiB ends training
    with "Bus error", often hours in.
    How it is seen: the size of the /dev/shm mount.
    Source: pytorch/pytorch issue 5040; NVIDIA/nccl issue 290.
    """
    size_bytes = known(container_of(facts).shm_bytes)
    if size_bytes >= SHARED_MEMORY_BYTES.value:
        return
    yield Finding(
        Severity.WARNING,
        f"shared memory (/dev/shm) is {human_bytes(size_bytes)}: data loaders with workers die with a Bus error",
        Fix(
            "Set shm_size for the service in the Compose file (or --shm-size), and recreate the container.",
            ("shm_size: 8gb",),
            where=Side.PROJECT,
        ),
        evidence=(f"size of /dev/shm: {size_bytes // MIB} MiB",),
    )


@check(
    "CON004",
    "A C compiler and Python headers are there for Triton",
    covers=("H05", "H06"),
    causes=("PYT019",),
    symptoms=("Failed to find C compiler. Please specify via CC", "Python.h: No such file or directory"),
)
def triton_can_compile(facts: Facts) -> Iterator[Finding]:
    """The container has a C compiler and Python.h, where a CUDA build of torch is installed.

    Why it matters: Triton compiles a small launcher at run time, so torch.compile and several quantised kernels fail
    with "Failed to find C compiler" in slim images. nvcc is not needed.
    How it is seen: cc, gcc or clang on PATH, and Python.h of the interpreter that runs torch.
    Source: vllm-project/vllm issue 14075; triton-lang/triton, runtime build step.
    """
    container = container_of(facts)
    cuda_of_torch(facts)
    if not container.c_compiler:
        yield Finding(
            Severity.WARNING,
            "no C compiler in this container: torch.compile and Triton kernels fail",
            _add_to_image(facts, _INSTALL_COMPILER, "a C compiler"),
            evidence=("none of cc, gcc and clang is on PATH",),
        )
    if container.python_headers is False:
        python = known(facts.python)
        yield Finding(
            Severity.WARNING,
            f"Python.h of Python {python.version} is missing: torch.compile and Triton kernels fail",
            _add_to_image(facts, _INSTALL_HEADERS, "the Python headers"),
            evidence=(f"no Python.h for {python.executable}",),
        )


def _add_to_image(facts: Facts, commands: dict[Family, str], what: str) -> Fix:
    command = commands.get(container_family(facts))
    return Fix(f"Add {what} to the image, and rebuild it.", (command,) if command else (), where=Side.IMAGE, root=True)


@check(
    "CON005",
    "The loader finds libcuda",
    covers=("H07", "H08"),
    causes=("PYT019",),
    symptoms=("libcuda.so cannot found!", "/usr/bin/ld: cannot find -lcuda", "CUDA is not linked properly"),
)
def loader_finds_libcuda(facts: Facts) -> Iterator[Finding]:
    """The loader's cache knows libcuda, which Triton looks up there.

    Why it matters: the driver's library is mounted at start; when the cache was not refreshed, Triton ends with
    "libcuda.so cannot found!". Older Triton also needs the plain name libcuda.so to link against.
    How it is seen: libcuda.so.1 and libcuda.so in the output of `ldconfig -p`, where Triton is installed.
    Source: triton-lang/triton issues 2019 and 3053.
    """
    container = container_of(facts)
    torch_of(facts)
    if not any("triton" in package.name for package in python_of(facts).packages):
        raise NotApplicable("Triton is not installed in this Python")
    driver = driver_of(facts)
    if isinstance(driver.libcuda_paths, Unknown) or container.libcuda_in_cache is not False:
        return
    is_found = bool(driver.libcuda_paths)
    yield Finding(
        Severity.NOTE if is_found else Severity.WARNING,
        "the loader knows libcuda.so.1 but not libcuda.so, which old Triton links against"
        if is_found
        else "the loader does not find libcuda.so.1: Triton kernels fail",
        Fix(
            "Refresh the loader's cache when the container starts, or name the folder to Triton.",
            ("ldconfig", f"export TRITON_LIBCUDA_PATH={_folder(driver.libcuda_paths)}"),
            where=Side.CONTAINER,
            root=True,
        ),
        evidence=("ldconfig -p: no libcuda.so", f"libcuda.so.1: {listed(driver.libcuda_paths) or 'not found'}"),
        confidence=Confidence.LIKELY,
    )


def _folder(paths: tuple[str, ...]) -> str:
    return paths[0].rpartition("/")[0] if paths else "/usr/lib/x86_64-linux-gnu"
