"""Facts: everything devkit knows about one machine, host or container, at one moment."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.values import ComputeCapability, Release, Unknown


class Platform(StrEnum):
    """The system a command runs on, as far as GPU advice differs."""

    LINUX = "linux"
    WSL2 = "wsl2"
    WSL1 = "wsl1"
    MACOS = "macos"
    WINDOWS = "windows"


@dataclass(frozen=True)
class Distribution:
    """The Linux distribution by /etc/os-release: `id` ubuntu, `like` (debian,), `version` 24.04."""

    id: str
    like: tuple[str, ...]
    version: str
    name: str


@dataclass(frozen=True)
class System:
    """The operating system and who is asking."""

    platform: Platform
    kernel: str
    machine: str
    distribution: Distribution | Unknown
    glibc: Release | Unknown
    memory_bytes: int | Unknown
    is_root: bool
    in_docker_group: bool | Unknown
    docker_group_is_active: bool | Unknown
    """Whether this very session carries the group: false right after `usermod -aG docker`."""
    runs_systemd: bool | Unknown


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA display or 3D function on the PCI bus, and the kernel driver that owns it ("" for none)."""

    address: str
    device_id: str
    kernel_driver: str


@dataclass(frozen=True)
class Driver:
    """The NVIDIA kernel driver on this side, read without NVML."""

    loaded: Release | Unknown | None
    """Version of the loaded module; None when it is not loaded."""
    is_open: bool | Unknown
    """Whether the loaded module is the open flavour."""
    on_disk: Release | Unknown | None
    """Version of the module installed for the running kernel; None when there is none."""
    dkms_state: str | Unknown
    """What `dkms status` says for the running kernel: "installed", "built", "added", "" for nothing."""
    libnvidia_ml: Release | Unknown | None
    """Version in the real file name of libnvidia-ml.so.1; None when the library is absent."""
    libcuda: Release | Unknown | None
    libcuda_paths: tuple[str, ...] | Unknown
    """Every libcuda.so.1 the loader can find, first wins."""
    device_nodes: tuple[str, ...]
    """NVIDIA nodes under /dev that exist: /dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm …"""
    nvidiactl: str
    """How opening /dev/nvidiactl ended: "open", "absent", "EPERM", "EACCES" or another errno name."""
    pci_gpus: tuple[PciGpu, ...] | Unknown
    nvswitch_present: bool | Unknown
    fabric_manager: str | Unknown
    """`systemctl is-active nvidia-fabricmanager`: "active", "inactive", "failed" …"""
    headers_present: bool | Unknown
    """Whether /lib/modules/<kernel>/build exists."""
    secure_boot: bool | Unknown
    upgraded_packages: tuple[str, ...]
    """The last log lines that touched NVIDIA driver packages, newest last."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that NVML can talk to. Memory in bytes."""

    index: int
    uuid: str | Unknown
    name: str
    capability: ComputeCapability | Unknown
    memory_bytes: int | Unknown
    free_bytes: int | Unknown
    mig_enabled: bool | Unknown
    mig_instances: tuple[str, ...]
    """UUIDs of the MIG devices, when MIG is on."""


@dataclass(frozen=True)
class FailedGpu:
    """One GPU that NVML counts but cannot talk to. `code` is the NVML return value, 15 for a lost GPU."""

    index: int
    code: int
    message: str


@dataclass(frozen=True)
class NvmlAnswer:
    """NVML started: the driver version, the newest CUDA it runs, and every GPU."""

    driver: Release | Unknown
    cuda: Release | Unknown
    gpus: tuple[Gpu | FailedGpu, ...]


class NvmlEnd(StrEnum):
    """How an NVML session ended when it gave no answer."""

    LIBRARY_NOT_FOUND = "library-not-found"
    ERROR = "error"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class NvmlFailure:
    """NVML gave no answer. `code` is its return value, the signal number for a crash, 0 for a time-out."""

    end: NvmlEnd
    code: int
    message: str
    call: str
    """The NVML function that was running."""


class EngineKind(StrEnum):
    """Whose daemon answers on the Docker socket."""

    DOCKER = "docker"
    DOCKER_DESKTOP = "docker-desktop"
    PODMAN = "podman"


@dataclass(frozen=True)
class Runtime:
    """An OCI runtime that the engine knows: its name and the program behind it."""

    name: str
    path: str


@dataclass(frozen=True)
class Endpoint:
    """Where the engine is asked, and what said so: "DOCKER_HOST", "context desktop-linux", "default"."""

    url: str
    chosen_by: str


@dataclass(frozen=True)
class Engine:
    """A container engine that answered on its API."""

    endpoint: Endpoint
    kind: EngineKind
    version: Release | Unknown
    api_version: str
    operating_system: str
    machine: str
    runtimes: tuple[Runtime, ...]
    default_runtime: str
    cdi_spec_dirs: tuple[str, ...]
    cdi_devices: tuple[str, ...] | Unknown
    """CDI devices that the engine itself lists; Unknown where its API does not say (before Docker 28)."""
    is_rootless: bool
    has_selinux: bool
    cgroup_driver: str
    cgroup_version: str
    root_dir: str
    is_snap: bool
    hook_on_path: bool | Unknown
    """Whether nvidia-container-runtime-hook is where this daemon looks for programs."""


class EngineEnd(StrEnum):
    """Why there is no answer from a container engine."""

    NOT_INSTALLED = "not-installed"
    NOT_RUNNING = "not-running"
    PERMISSION_DENIED = "permission-denied"
    TIMED_OUT = "timed-out"
    BAD_ENDPOINT = "bad-endpoint"
    ERROR = "error"


@dataclass(frozen=True)
class EngineFailure:
    """No engine answered at `endpoint`."""

    end: EngineEnd
    endpoint: Endpoint
    message: str


@dataclass(frozen=True)
class DaemonFile:
    """An engine's daemon.json: whether it parses, and whether it registers the nvidia runtime."""

    path: str
    error: str
    """Empty when the file parses; otherwise where and why it does not."""
    registers_nvidia: bool


@dataclass(frozen=True)
class Compose:
    """The Compose plugin on this side."""

    version: Release


@dataclass(frozen=True)
class Toolkit:
    """The NVIDIA Container Toolkit on this side."""

    version: Release | Unknown | None
    """None when nvidia-ctk is not installed."""
    hook_path: str
    """Where nvidia-container-runtime-hook is, "" when it is not on PATH."""
    runtime_path: str
    mode: str | Unknown
    """`mode` of the runtime in config.toml: "auto", "legacy", "cdi", "csv", "jit-cdi"."""
    no_cgroups: bool | Unknown
    driver_root: str | Unknown
    daemon_files: tuple[DaemonFile, ...]


@dataclass(frozen=True)
class CdiSpec:
    """One CDI specification file for nvidia.com/gpu or another kind."""

    path: str
    kind: str
    cdi_version: str
    devices: tuple[str, ...]
    driver: Release | None
    """The driver version in the library paths it mounts; None when no path carries one."""
    error: str
    """Empty when the file was read; otherwise why not."""


@dataclass(frozen=True)
class Wsl:
    """The WSL 2 guest's side of the GPU."""

    has_dxg: bool
    libraries: tuple[str, ...]
    """Files under /usr/lib/wsl/lib."""
    linux_driver_packages: tuple[str, ...]
    """Linux driver packages installed in the guest, where none belong."""
    libnvidia_ml_path: str
    """Which libnvidia-ml.so.1 the loader takes, "" for none."""


@dataclass(frozen=True)
class Container:
    """This side when it is the inside of a container."""

    kind: str
    """"docker", "podman", "kubernetes", "apptainer" or "unknown"."""
    visible_devices: str | None
    """NVIDIA_VISIBLE_DEVICES, None when unset."""
    driver_capabilities: str | None
    require_cuda: str | None
    shm_bytes: int | Unknown
    c_compiler: str
    """Path of cc, gcc or clang, "" for none."""
    python_headers: bool | Unknown
    libcuda_in_cache: bool | Unknown
    """Whether the loader's cache knows the plain name libcuda.so, which Triton links against."""
    compat_libcuda: str
    """A libcuda under a cuda compat directory that the loader would take first, "" for none."""


@dataclass(frozen=True)
class Package:
    """An installed Python distribution, by metadata only: `tag` is its wheel tag, "" when not recorded."""

    name: str
    version: str
    tag: str


@dataclass(frozen=True)
class Torch:
    """An installed torch, read from its files without importing it. `cuda` is None for a CPU build."""

    version: str
    cuda: Release | Unknown | None
    hip: str | None


@dataclass(frozen=True)
class Python:
    """The Python that would run the workload: the active virtual environment's, else this one."""

    version: Release
    executable: str
    torch: Torch | Unknown | None
    """None when torch is not installed."""
    packages: tuple[Package, ...]
    """Those that matter to a GPU: torch, triton, bitsandbytes, flash-attn, transformers, peft …"""
    bitsandbytes_cuda: tuple[str, ...]
    """CUDA versions for which the installed bitsandbytes carries a library: ("12.8", "13.0")."""
    cuda_visible_devices: str | None
    ld_library_path: tuple[str, ...]
    shadowing_libraries: tuple[str, ...]
    """CUDA libraries reachable through LD_LIBRARY_PATH that hide the wheels' own."""


@dataclass(frozen=True)
class Directory:
    """A directory that devkit or a hub library will write to. Free space in bytes of its file system."""

    path: str
    purpose: str
    """"hub cache", "workspace", "engine data", "temporary"."""
    exists: bool
    is_writable: bool
    owner_uid: int
    file_system: str
    free_bytes: int | Unknown


@dataclass(frozen=True)
class Storage:
    """The directories that matter, and the user who must write there."""

    uid: int
    directories: tuple[Directory, ...]


@dataclass(frozen=True)
class Facts:
    """One machine at one moment. `taken_at` is ISO 8601, UTC; `devkit` the version that read it."""

    taken_at: str
    devkit: str
    system: System | Unknown
    driver: Driver | Unknown
    nvml: NvmlAnswer | NvmlFailure | Unknown
    engine: Engine | EngineFailure | Unknown
    compose: Compose | Unknown | None
    toolkit: Toolkit | Unknown
    cdi: tuple[CdiSpec, ...] | Unknown
    wsl: Wsl | Unknown | None
    """None when this is not WSL 2."""
    container: Container | Unknown | None
    """None when this is not the inside of a container."""
    python: Python | Unknown
    storage: Storage | Unknown

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that answer; empty when NVML does not."""
        if not isinstance(self.nvml, NvmlAnswer):
            return ()
        return tuple(gpu for gpu in self.nvml.gpus if isinstance(gpu, Gpu))
