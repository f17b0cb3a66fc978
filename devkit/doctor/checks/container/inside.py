"""Checks from inside a container: its GPU, libraries, shared memory, compiler, workspace and user."""

from collections.abc import Iterator

from devkit.doctor.checks.cascades import NEEDS_CONTAINER_GPU_CODES
from devkit.doctor.fixes import find_container_distro_family
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    NO_VISIBLE_DEVICES,
    is_in_wsl,
    require,
    require_container,
    require_driver,
    require_torch,
    require_torch_cuda,
    require_visible_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import MIB, SHARED_MEMORY_BYTES
from devkit.facts.gpu import Driver, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.machine import Container
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, join_words

_UNKNOWN_UID = -1
REQUIRED_CAPABILITIES = ("compute", "utility")
_GRAPHICS_LOADERS = {"libEGL.so.1": "libegl1", "libvulkan.so.1": "libvulkan1"}
"""The loaders of EGL and Vulkan, and the Debian packages that have them."""


@check("CON001", causes=NEEDS_CONTAINER_GPU_CODES)
def container_has_gpu(facts: Facts) -> Iterator[Problem]:
    container = require_container(facts)
    require_visible_gpu(facts)
    if isinstance(facts.nvml, NvmlAnswer) and facts.nvml.gpus:
        return
    if isinstance(facts.nvml, NvmlFailure) and facts.nvml.end in (NvmlEnd.TIMED_OUT, NvmlEnd.CRASHED):
        raise NotApplicable("NVML hangs or crashes, which a missing GPU cannot cause")
    skip_if(is_in_wsl(facts), "in WSL, the GPU is /dev/dxg, which exists")
    driver = require_driver(facts)
    if driver.loaded is None and driver.pci_gpus == ():
        raise NotApplicable("only NVML reports a GPU here")
    has_gpu_node = any(node.removeprefix("/dev/nvidia").isdigit() for node in driver.device_nodes)
    if driver.nvidiactl == "open" and has_gpu_node:
        return
    match driver.nvidiactl:
        case "EPERM":
            evidence = ("open(/dev/nvidiactl): EPERM (operation not permitted)",)
            yield problem("access-lost", kind=container.kind, subject="/dev/nvidiactl", evidence=evidence)
        case "EACCES":
            evidence = ("open(/dev/nvidiactl): EACCES (permission denied)",)
            yield problem("access-refused", subject="/dev/nvidiactl", evidence=evidence)
        case "absent" | "open":
            yield _judge_request(container, driver)
        case error:
            yield problem("cannot-open", error=error, evidence=(f"open(/dev/nvidiactl): {error}",))


def _judge_request(container: Container, driver: Driver) -> Problem:
    variable = container.visible_devices
    evidence = ["open(/dev/nvidiactl): ENOENT (no such file)"]
    if driver.nvidiactl == "open":
        evidence = ["/dev/nvidiactl opens, but /dev/nvidia0 and other GPU nodes are missing"]
    if not isinstance(driver.pci_gpus, Unknown) and driver.pci_gpus:
        evidence.append(f"PCI {driver.pci_gpus[0].address} is an NVIDIA GPU")
    if isinstance(driver.loaded, Release):
        evidence.append(f"the host's driver {driver.loaded} is loaded")
    evidence.append("NVIDIA_VISIBLE_DEVICES is not set" if variable is None else f"NVIDIA_VISIBLE_DEVICES={variable}")
    if variable is None or variable.strip() in NO_VISIBLE_DEVICES:
        return problem("not-given", kind=container.kind, evidence=evidence)
    # NVIDIA's images set the variable themselves, which proves no request, and NVIDIA_REQUIRE_CUDA with it.
    by_user = container.require_cuda is None
    return problem("request-passed-over" if by_user else "not-given-to-image", kind=container.kind, evidence=evidence)


@check("CON002", require_visible_gpu, causes=("DRV003", "PYT006"))
def driver_capabilities_suffice(facts: Facts) -> Iterator[Problem]:
    text = require_container(facts).driver_capabilities
    if not text or (require_container(facts).visible_devices or "") in NO_VISIBLE_DEVICES:
        raise NotApplicable("the container restricts no driver capabilities")
    requested = {name.strip() for name in text.split(",")}
    missing = [name for name in REQUIRED_CAPABILITIES if "all" not in requested and name not in requested]
    driver = require_driver(facts)
    libraries = {"compute": driver.libcuda, "utility": driver.libnvidia_ml}
    absent = [name for name in missing if libraries[name] is None]
    if absent:
        yield problem(
            "capability-missing",
            capabilities=join_words(absent),
            severity=Severity.ERROR if "compute" in absent else Severity.WARNING,
            evidence=(f"NVIDIA_DRIVER_CAPABILITIES={text}", f"libraries for {join_words(absent)} are missing"),
        )


@check("CON015", require_visible_gpu)
def graphics_are_complete(facts: Facts) -> Iterator[Problem]:
    container = require_container(facts)
    if "graphics" not in (container.driver_capabilities or "").split(","):
        raise NotApplicable("the container does not request graphics")
    skip_if(is_in_wsl(facts), "in WSL, graphics go through Windows")
    missing = require(container.missing_graphics)
    capability = f"NVIDIA_DRIVER_CAPABILITIES={container.driver_capabilities}"
    if "libEGL_nvidia.so.0" in missing:
        yield problem("driver-part-missing", evidence=(capability, "libEGL_nvidia.so.0: absent"))
        return
    loaders = [name for name in _GRAPHICS_LOADERS if name in missing]
    if loaders:
        yield problem(
            "loader-missing",
            libraries=join_words(loaders),
            packages=tuple(_GRAPHICS_LOADERS[name] for name in loaders),
            family=find_container_distro_family(facts),
            evidence=(capability, *(f"{name}: absent" for name in missing)),
        )
    files = [name for name in missing if name.endswith(".json")]
    if files:
        evidence = (capability, *(f"{name}: absent" for name in files))
        yield problem(
            "file-missing" if len(files) == 1 else "files-missing", files=join_words(files), evidence=evidence
        )


@check("CON003")
def shared_memory_suffices(facts: Facts) -> Iterator[Problem]:
    size_bytes = require(require_container(facts).shm_bytes)
    if size_bytes < SHARED_MEMORY_BYTES:
        evidence = (f"size of /dev/shm: {size_bytes // MIB} MiB",)
        yield problem("too-small", size=format_bytes(size_bytes), evidence=evidence)


@check("CON004", causes=("PYT019",))
def triton_can_compile(facts: Facts) -> Iterator[Problem]:
    container = require_container(facts)
    require_torch_cuda(facts)
    family = find_container_distro_family(facts)
    if not container.c_compiler:
        yield problem("no-compiler", family=family, evidence=("none of cc, gcc and clang is on PATH",))
    if container.python_headers is False:
        python = require(facts.python)
        evidence = (f"no Python.h for {python.executable}",)
        yield problem("no-headers", version=python.version, family=family, evidence=evidence)


@check("CON005", causes=("PYT019",))
def loader_finds_libcuda(facts: Facts) -> Iterator[Problem]:
    container = require_container(facts)
    require_torch(facts)
    if not any("triton" in package.name for package in require(facts.python).packages):
        raise NotApplicable("Triton is not installed in this Python")
    paths = require_driver(facts).libcuda_paths
    if isinstance(paths, Unknown) or container.libcuda_in_cache is not False:
        return
    yield problem(
        "no-plain-name" if paths else "not-found",
        folder=paths[0].rpartition("/")[0] if paths else "",
        evidence=("ldconfig -p: no libcuda.so", f"libcuda.so.1: {join_words(paths) or 'not found'}"),
    )


@check("CON013", require_container)
def workspace_is_writable(facts: Facts) -> Iterator[Problem]:
    storage = require(facts.storage)
    folder = next((one for one in storage.directories if one.purpose == "workspace"), None)
    if folder is None or not folder.exists or folder.path == "/" or storage.uid == _UNKNOWN_UID:
        raise NotApplicable("no workspace to judge")
    if not folder.is_writable:
        yield problem(
            "not-writable",
            user=storage.uid,
            owner=folder.owner_uid,
            subject=folder.path,
            evidence=(f"{folder.path}: owner {folder.owner_uid}, not writable", f"this user: {storage.uid}"),
            confidence=Confidence.LIKELY if folder.owner_uid == storage.uid else None,
        )


@check("CON014")
def groups_have_names(facts: Facts) -> Iterator[Problem]:
    nameless = join_words(map(str, require(require_container(facts).nameless_groups)))
    if nameless:
        evidence = (f"/proc/self/status: Groups, without a name in /etc/group: {nameless}",)
        yield problem("nameless", groups=nameless, evidence=evidence)
