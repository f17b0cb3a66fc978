"""Checks from inside a container: its GPU, libraries, shared memory, compiler, workspace and user."""

from collections.abc import Iterator
from shlex import quote

from devkit.doctor.checks.cascades import NEEDS_CONTAINER_GPU_CODES
from devkit.doctor.fixes import (
    TOOLKIT_TROUBLESHOOTING,
    DistroFamily,
    Purpose,
    find_container_distro_family,
    list_commands,
)
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import (
    NO_VISIBLE_DEVICES,
    is_in_wsl,
    require,
    require_container,
    require_driver,
    require_python,
    require_torch,
    require_torch_cuda,
    require_visible_gpu,
)
from devkit.doctor.thresholds import MIB, SHARED_MEMORY_BYTES
from devkit.facts.model import Container, Driver, Facts, NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, join_words

_ROOT_UID = 0

_UNKNOWN_UID = -1

_REQUEST_GPU = {
    "docker": "docker run --gpus all ...",
    "podman": "podman run --device nvidia.com/gpu=all ...",
    "kubernetes": "resources: {limits: {nvidia.com/gpu: 1}}",
    "apptainer": "apptainer exec --nv ...",
}

REQUIRED_CAPABILITIES = ("compute", "utility")

_GRAPHICS_LOADERS = {"libEGL.so.1": "libegl1", "libvulkan.so.1": "libvulkan1"}
"""The loaders of EGL and Vulkan, and the Debian packages that have them."""


@check("CON001", causes=NEEDS_CONTAINER_GPU_CODES)
def container_has_gpu(facts: Facts) -> Iterator[Finding]:
    container = require_container(facts)
    require_visible_gpu(facts)
    if isinstance(facts.nvml, NvmlAnswer) and facts.nvml.gpus:
        return
    if isinstance(facts.nvml, NvmlFailure) and facts.nvml.end in (NvmlEnd.TIMED_OUT, NvmlEnd.CRASHED):
        raise NotApplicable("NVML hangs or crashes, which a GPU that was not given cannot cause")
    if is_in_wsl(facts):
        raise NotApplicable("in WSL the GPU is /dev/dxg, which is there")
    driver = require_driver(facts)
    if driver.loaded is None and driver.pci_gpus == ():
        raise NotApplicable("nothing but NVML speaks of a GPU here")
    has_gpu_node = any(node.removeprefix("/dev/nvidia").isdigit() for node in driver.device_nodes)
    if driver.nvidiactl == "open" and has_gpu_node:
        return
    yield explain_missing_gpu(facts, container, driver)


def explain_missing_gpu(facts: Facts, container: Container, driver: Driver) -> Finding:
    """Explain why a container cannot open /dev/nvidiactl, or got no GPU with it."""
    match driver.nvidiactl:
        case "EPERM":
            return Finding(
                Severity.ERROR,
                "this container has lost its GPU: the device nodes are there, but its cgroup no longer allows them",
                Fix(
                    "Recreate the container now. To keep it from coming back, give GPUs by CDI on the host: a systemd reload,"
                    " which package upgrades cause, drops what the legacy hook allowed.",
                    (
                        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                        _REQUEST_GPU["podman"]
                        if container.kind == "podman"
                        else "docker run --device nvidia.com/gpu=all ...",
                    ),
                    root=True,
                    docs=TOOLKIT_TROUBLESHOOTING,
                ),
                subject="/dev/nvidiactl",
                evidence=("open(/dev/nvidiactl): EPERM (operation not permitted)",),
            )
        case "EACCES":
            return Finding(
                Severity.ERROR,
                "this user may not open the GPU's device nodes: file mode, SELinux or a user namespace refuses it",
                Fix(
                    "Compare `ls -lZ /dev/nvidia*` inside and on the host. With SELinux, start the container with the option"
                    " below; with a mode other than 0666, the driver option NVreg_DeviceFileMode is set on the host.",
                    ("--security-opt=label=disable",),
                    docs=TOOLKIT_TROUBLESHOOTING,
                ),
                subject="/dev/nvidiactl",
                evidence=("open(/dev/nvidiactl): EACCES (permission denied)",),
                confidence=Confidence.LIKELY,
            )
        case "absent" | "open":
            evidence = ["open(/dev/nvidiactl): ENOENT (no such file)"]
            if driver.nvidiactl == "open":
                evidence = ["/dev/nvidiactl opens, but there is no /dev/nvidia0 or other GPU beside it"]
            if not isinstance(driver.pci_gpus, Unknown) and driver.pci_gpus:
                evidence.append(f"PCI {driver.pci_gpus[0].address} is an NVIDIA GPU")
            if isinstance(driver.loaded, Release):
                evidence.append(f"the host's driver {driver.loaded} is loaded")
            variable = container.visible_devices
            evidence.append(
                "NVIDIA_VISIBLE_DEVICES is not set" if variable is None else f"NVIDIA_VISIBLE_DEVICES={variable}"
            )
            # NVIDIA's images set the variable themselves, so it is no proof of a request.
            may_request = variable is not None and variable.strip() not in NO_VISIBLE_DEVICES
            # Without them NVIDIA_REQUIRE_CUDA is not there either, and who started the container set the variable.
            if may_request and container.require_cuda is None:
                return Finding(
                    Severity.ERROR,
                    "this container requested the machine's NVIDIA GPU, but got none",
                    Fix(
                        "Look on the host, whose engine or toolkit passed the request over: the nvidia runtime did not start the"
                        " container, the toolkit's mode is csv, or it accepts no variable of an unprivileged user.",
                        ("devkit doctor",),
                        docs=TOOLKIT_TROUBLESHOOTING,
                    ),
                    evidence=tuple(evidence),
                    confidence=Confidence.LIKELY,
                )
            hint = (
                " Where that was done, the toolkit on the host passed it over (mode csv, or a user's variable that it does"
                " not accept): run devkit doctor there."
                if may_request
                else ""
            )
            return Finding(
                Severity.ERROR,
                "the machine has an NVIDIA GPU, but this container got none",
                Fix(
                    "Ask for the GPU when the container is created (in Compose: `gpus: all` for the service; in a dev"
                    f" container of devkit: DEVKIT_GPU), then recreate it. Nothing inside of it needs a change.{hint}",
                    (_REQUEST_GPU.get(container.kind, _REQUEST_GPU["docker"]),),
                    where=Side.PROJECT,
                ),
                evidence=tuple(evidence),
                confidence=Confidence.LIKELY if may_request else Confidence.CERTAIN,
            )
        case error:
            return Finding(
                Severity.ERROR,
                f"/dev/nvidiactl cannot be opened: {error}",
                Fix("Recreate the container. If that does not help, look on the host.", ("devkit doctor",)),
                evidence=(f"open(/dev/nvidiactl): {error}",),
                confidence=Confidence.POSSIBLE,
            )


@check("CON002", causes=("DRV003", "PYT006"))
def driver_capabilities_suffice(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    text = require_container(facts).driver_capabilities
    if not text or (require_container(facts).visible_devices or "") in NO_VISIBLE_DEVICES:
        raise NotApplicable("the container restricts no driver capabilities")
    requested = {name.strip() for name in text.split(",")}
    missing = [name for name in REQUIRED_CAPABILITIES if "all" not in requested and name not in requested]
    driver = require_driver(facts)
    libraries = {"compute": driver.libcuda, "utility": driver.libnvidia_ml}
    absent = [name for name in missing if libraries[name] is None]
    if not absent:
        return
    yield Finding(
        Severity.ERROR if "compute" in absent else Severity.WARNING,
        f"the container was started without the driver capability {join_words(absent)}",
        Fix(
            "Set NVIDIA_DRIVER_CAPABILITIES=compute,utility in the image or the Compose file, and recreate the"
            " container.",
            ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
            where=Side.PROJECT,
        ),
        evidence=(f"NVIDIA_DRIVER_CAPABILITIES={text}", f"libraries of {join_words(absent)} are absent"),
    )


@check("CON015")
def graphics_are_complete(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    container = require_container(facts)
    if "graphics" not in (container.driver_capabilities or "").split(","):
        raise NotApplicable("the container does not request graphics")
    if is_in_wsl(facts):
        raise NotApplicable("in WSL graphics go through Windows")
    missing = require(container.missing_graphics)
    capability = f"NVIDIA_DRIVER_CAPABILITIES={container.driver_capabilities}"
    if "libEGL_nvidia.so.0" in missing:
        yield Finding(
            Severity.WARNING,
            "graphics were requested, but the driver's libEGL_nvidia.so.0 is not in the container",
            Fix(
                "Install the driver's graphics part on the host, which drivers for computing alone leave out (on Ubuntu"
                " libnvidia-gl of the driver's branch), and recreate the container.",
                ("ldconfig -p | grep libEGL_nvidia",),
                where=Side.HOST,
            ),
            evidence=(capability, "libEGL_nvidia.so.0: absent"),
        )
        return
    loaders = [package for name, package in _GRAPHICS_LOADERS.items() if name in missing]
    if loaders:
        is_debian = find_container_distro_family(facts) in (DistroFamily.UBUNTU, DistroFamily.DEBIAN)
        yield Finding(
            Severity.WARNING,
            f"the image lacks the loader {join_words(name for name in _GRAPHICS_LOADERS if name in missing)}",
            Fix(
                "Install the loaders in the image.",
                (f"apt-get update && apt-get install -y --no-install-recommends {' '.join(loaders)}",)
                if is_debian
                else (),
                where=Side.IMAGE,
            ),
            evidence=(capability, *(f"{name}: absent" for name in missing)),
        )
    files = [name for name in missing if name.endswith(".json")]
    if files:
        yield Finding(
            Severity.WARNING,
            f"{join_words(files)}, by which the loaders find the driver, {'is' if len(files) == 1 else 'are'} absent",
            Fix(
                "Update the Container Toolkit on the host, which mounts them; with CDI make the specification anew.",
                ("nvidia-ctk --version", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
                where=Side.HOST,
                root=True,
            ),
            evidence=(capability, *(f"{name}: absent" for name in files)),
            confidence=Confidence.LIKELY,
        )


@check("CON003")
def shared_memory_suffices(facts: Facts) -> Iterator[Finding]:
    size_bytes = require(require_container(facts).shm_bytes)
    if size_bytes >= SHARED_MEMORY_BYTES.value:
        return
    yield Finding(
        Severity.WARNING,
        f"shared memory (/dev/shm) is {format_bytes(size_bytes)}: data loaders with workers die with a Bus error",
        Fix(
            "Set shm_size for the service in the Compose file (or --shm-size), and recreate the container.",
            ("shm_size: 8gb",),
            where=Side.PROJECT,
        ),
        evidence=(f"size of /dev/shm: {size_bytes // MIB} MiB",),
    )


@check("CON004", causes=("PYT019",))
def triton_can_compile(facts: Facts) -> Iterator[Finding]:
    container = require_container(facts)
    require_torch_cuda(facts)
    if not container.c_compiler:
        yield Finding(
            Severity.WARNING,
            "no C compiler in this container: torch.compile and Triton kernels fail",
            _add_to_image(facts, "add_compiler", "a C compiler"),
            evidence=("none of cc, gcc and clang is on PATH",),
        )
    if container.python_headers is False:
        python = require(facts.python)
        yield Finding(
            Severity.WARNING,
            f"Python.h of Python {python.version} is missing: torch.compile and Triton kernels fail",
            _add_to_image(facts, "add_python_headers", "the Python headers"),
            evidence=(f"no Python.h for {python.executable}",),
        )


def _add_to_image(facts: Facts, purpose: Purpose, what: str) -> Fix:
    commands = list_commands(facts, purpose, family=find_container_distro_family(facts))
    return Fix(f"Add {what} to the image, and rebuild it.", commands, where=Side.IMAGE, root=True)


@check("CON005", causes=("PYT019",))
def loader_finds_libcuda(facts: Facts) -> Iterator[Finding]:
    container = require_container(facts)
    require_torch(facts)
    if not any("triton" in package.name for package in require_python(facts).packages):
        raise NotApplicable("Triton is not installed in this Python")
    driver = require_driver(facts)
    if isinstance(driver.libcuda_paths, Unknown) or container.libcuda_in_cache is not False:
        return
    is_found = bool(driver.libcuda_paths)
    # Triton looks nowhere else once the variable names a folder.
    name_folder = (f"export TRITON_LIBCUDA_PATH={quote(path.rpartition('/')[0])}" for path in driver.libcuda_paths[:1])
    yield Finding(
        Severity.NOTE if is_found else Severity.WARNING,
        "the loader knows libcuda.so.1 but not libcuda.so, which old Triton links against"
        if is_found
        else "the loader does not find libcuda.so.1: Triton kernels fail",
        Fix(
            "Refresh the loader's cache when the container starts"
            + (", or name the folder to Triton." if is_found else "."),
            ("ldconfig", *name_folder),
            where=Side.CONTAINER,
            root=True,
        ),
        evidence=("ldconfig -p: no libcuda.so", f"libcuda.so.1: {join_words(driver.libcuda_paths) or 'not found'}"),
        confidence=Confidence.LIKELY,
    )


@check("CON013")
def workspace_is_writable(facts: Facts) -> Iterator[Finding]:
    require_container(facts)
    storage = require(facts.storage)
    folder = next((one for one in storage.directories if one.purpose == "workspace"), None)
    if folder is None or not folder.exists or folder.path == "/" or storage.uid == _UNKNOWN_UID:
        raise NotApplicable("there is no workspace to judge")
    if folder.is_writable:
        return
    yield Finding(
        Severity.ERROR,
        f"user {storage.uid} of this container may not write to the workspace, which belongs to {folder.owner_uid}",
        Fix(
            f"Give the container's user the number {folder.owner_uid}: in devcontainer.json name it as remoteUser and"
            " leave updateRemoteUserUID on; in an image of Ubuntu 24.04 remove the user ubuntu first."
            if folder.owner_uid != _ROOT_UID
            else "On the host, in the project's folder, give it to the number that this container's user has. Where root"
            " is the host's only user, name root as remoteUser instead; files of a container that ran as root are"
            " root's, too.",
            ('"remoteUser": "dev", "updateRemoteUserUID": true', "RUN userdel --remove ubuntu")
            if folder.owner_uid != _ROOT_UID
            else (f"sudo chown -R {storage.uid} .",),
            where=Side.PROJECT if folder.owner_uid != _ROOT_UID else Side.HOST,
            root=folder.owner_uid == _ROOT_UID,
        ),
        subject=folder.path,
        evidence=(f"{folder.path}: owner {folder.owner_uid}, not writable", f"this user: {storage.uid}"),
        confidence=Confidence.CERTAIN if folder.owner_uid != storage.uid else Confidence.LIKELY,
    )


@check("CON014")
def groups_have_names(facts: Facts) -> Iterator[Finding]:
    nameless = require(require_container(facts).nameless_groups)
    if not nameless:
        return
    yield Finding(
        Severity.NOTE,
        f"the group {join_words(str(number) for number in nameless)} has no name in this container, which harms nothing",
        Fix("Leave it, or add a line for it to /etc/group of the image.", where=Side.IMAGE),
        evidence=(f"/proc/self/status: Groups, without a name in /etc/group: {join_words(map(str, nameless))}",),
    )
