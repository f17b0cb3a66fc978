"""The machine: operating system and user, storage, limits, the container around this process, and its Python."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.values import NOT_READ, Release, Unknown


@dataclass(frozen=True)
class Container:
    """This side when it is the inside of a container."""

    kind: str
    """"docker", "podman", "kubernetes", "apptainer", "flatpak", "lxc" or "unknown"."""
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
    nameless_groups: tuple[int, ...] | Unknown = NOT_READ
    """Numbers of this process's groups that the container has no name for."""
    missing_graphics: tuple[str, ...] | Unknown = NOT_READ
    """Libraries and vendor files of EGL and Vulkan that are absent; read where the capability graphics is requested."""


def name_container(kind: str) -> str:
    """Name a container by its kind as people write it: "Docker container", or "container" for an unknown kind."""
    return f"{'LXC' if kind == 'lxc' else kind.title()} container" if kind != "unknown" else "container"


@dataclass(frozen=True)
class Package:
    """An installed Python distribution, by metadata only: `tag` is its wheel tag, "" when not recorded."""

    name: str
    version: str
    tag: str
    requires: tuple[str, ...] | Unknown = NOT_READ
    """Its requirement lines on packages that matter to a GPU; those of optional extras aside."""


@dataclass(frozen=True)
class Copy:
    """One of several installations of the same distribution on one module path."""

    name: str
    version: str
    folder: str


@dataclass(frozen=True)
class CudaFolder:
    """A CUDA Toolkit with a compiler: where it is, what led there ("CUDA_HOME", "PATH" …), and its version."""

    path: str
    found_by: str
    version: Release | Unknown


@dataclass(frozen=True)
class Library:
    """A shared library, with the version that its real file name carries."""

    path: str
    version: Release | Unknown


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
    shadowing: tuple[Library, ...] | Unknown = NOT_READ
    """The same libraries with their versions."""
    copies: tuple[Copy, ...] | Unknown = NOT_READ
    """Distributions that stand on the module path more than once, in the order in which they are found."""
    user_site: str | Unknown = NOT_READ
    """The user's own site-packages where this Python reads them, "" where it does not."""
    installer: str | Unknown = NOT_READ
    """What installs packages here: "pip", "uv" or "conda"."""
    bnb_cuda_version: str | Unknown | None = NOT_READ
    """BNB_CUDA_VERSION, None when unset."""
    cuda_device_order: str | Unknown | None = NOT_READ
    """CUDA_DEVICE_ORDER, None when unset."""
    cuda_toolkit: CudaFolder | Unknown | None = NOT_READ
    """The CUDA Toolkit that builds of extensions would use; None when there is no compiler."""
    libstdcxx: Library | Unknown | None = NOT_READ
    """The C++ library that this Python's packages load; None when none was found."""


@dataclass(frozen=True)
class Mps:
    """CUDA's Multi-Process Service, as a process that is started here meets it."""

    pipe_directory: str
    answers: bool
    """Whether the socket of the control daemon is in that folder."""
    settings: tuple[str, ...]
    """CUDA_MPS_* of the environment, as NAME=value."""
    has_own_ipc: bool
    """Whether an engine gave this container its own shared memory, as it does with a private IPC namespace."""


@dataclass(frozen=True)
class Limits:
    """Limits of this process and its control group. Sizes in bytes, None for unlimited."""

    locked_memory_bytes: int | Unknown | None
    group_memory_bytes: int | Unknown | None
    out_of_memory_kills: int | Unknown
    """Processes that the kernel has killed in this control group since it was made."""
    cpu_count: float | Unknown | None = NOT_READ
    """CPUs that the control group allows at a time, None for no limit."""
    numa_nodes: tuple[int, ...] | Unknown = NOT_READ
    """NUMA nodes with a CPU on which this process may run."""
    swap_bytes: int | Unknown = NOT_READ
    interfaces: tuple[str, ...] | Unknown = NOT_READ
    """Network interfaces besides the loopback."""
    default_interface: str | Unknown = NOT_READ
    """The interface of the default route, "" for none."""
    has_infiniband: bool | Unknown = NOT_READ
    fabric_ports: tuple[str, ...] | Unknown = NOT_READ
    """Ports of RDMA adapters: "mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR), NUMA node 0"."""
    link_mtus: tuple[str, ...] | Unknown = NOT_READ
    """MTU of each interface that is hardware: "eno1 9000"."""
    numa_balancing: bool | Unknown = NOT_READ
    """Whether the kernel moves memory between NUMA nodes automatically."""
    cpu_model: str | Unknown = NOT_READ
    nccl: tuple[str, ...] | Unknown = NOT_READ
    """NCCL_* and what launchers set for several nodes, as NAME=value."""
    iommu_domains: tuple[str, ...] | Unknown = NOT_READ
    """Kind of the IOMMU domain of each NVIDIA GPU: "identity" passes through, "DMA" and "DMA-FQ" translate."""
    selinux: str | Unknown = NOT_READ
    """"enforcing", "permissive", or "" where SELinux is off."""
    selinux_allows_devices: bool | Unknown = NOT_READ
    """The policy's switch container_use_devices."""
    mps: Mps | Unknown | None = NOT_READ
    """None where nothing is set for it and no daemon answers."""


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
class WslSettings:
    """The file .wslconfig of the Windows user, which rules over every WSL 2 guest."""

    path: str
    memory: str
    """As written, such as "4GB"; "" for half of the machine's."""
    kernel: str
    """A kernel of the user's own, "" for Microsoft's."""
    gpu_support: bool
    networking: str
    """"nat", "mirrored" …; "" when it does not say, which is NAT."""


@dataclass(frozen=True)
class Tegra:
    """A Jetson or another board with NVIDIA's Tegra: its model by the device tree, and its L4T release.

    `release` is None where only the board shows, as in a container; R36.4.7 is JetPack 6.
    """

    model: str
    release: Release | Unknown | None


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
    image_tool: str | Unknown = NOT_READ
    """What changes a system that is an image: "rpm-ostree", "image" where nothing on the machine does, "" for packages."""
    wsl_settings: WslSettings | Unknown | None = NOT_READ
    """None when there is no .wslconfig, or nothing here that it rules."""
    tegra: Tegra | Unknown | None = NOT_READ
    """None if this is not a Jetson."""
    host_name: str | Unknown = NOT_READ
    """Read only so that it can be redacted wherever it occurs; saved facts do not carry it."""
    hidden_folders: tuple[str, ...] | Unknown = NOT_READ
    """Folders that every Linux system fills, and that are empty or may not be read."""
    managed_by: str | Unknown = NOT_READ
    """What lends this machine to several people: "Slurm job 4711", "a Kubernetes pod", "an LXC container"; "" for nothing."""
    is_in_job: bool | Unknown = NOT_READ
    """Whether this process belongs to a job of a batch scheduler, whose request decides which devices it may open."""


@dataclass(frozen=True)
class Directory:
    """A directory that devkit or a hub library will write to. Free space in bytes of its file system."""

    path: str
    purpose: str
    """"hub cache", "workspace", "engine data", "temporary", "Windows drive"."""
    exists: bool
    is_writable: bool
    owner_uid: int
    file_system: str
    free_bytes: int | Unknown
    free_files: int | Unknown = NOT_READ
    """How many more files it can hold (free inodes); Unknown where a file system does not count them."""
    is_world_writable: bool | Unknown = NOT_READ
    allows_programs: bool | Unknown = NOT_READ
    """Whether its file system was mounted without noexec."""
    is_read_only: bool | Unknown = NOT_READ
    """Whether its file system is mounted read-only."""
    is_in_home: bool | Unknown = NOT_READ
    """Whether it is below this user's home folder."""


@dataclass(frozen=True)
class Storage:
    """The directories that matter, and the user who must write there."""

    uid: int
    directories: tuple[Directory, ...]


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
    driver_store: tuple[str, ...] | Unknown = NOT_READ
    """Folders of NVIDIA's driver that Windows passes in under /usr/lib/wsl/drivers."""
    libcuda_link_in_cache: bool | Unknown = NOT_READ
    """Whether the loader's cache knows the plain name libcuda.so, which `-lcuda` asks for."""
    image_libraries: tuple[str, ...] | Unknown = NOT_READ
    """Driver libraries that a container's own image carries instead of getting them from Windows."""
    swap_bytes: int | Unknown = NOT_READ
    desktop_tools: bool | Unknown = NOT_READ
    """Whether Docker Desktop has put its commands into this distribution."""
    clock_behind_s: int | Unknown = NOT_READ
    """How far the guest's clock is behind the hardware clock that Windows keeps."""


@dataclass(frozen=True)
class Circumstances:
    """The driver, the container and the docker command of a machine: read from a few files, to judge an error text in no time."""

    driver: str
    """Version of the loaded NVIDIA driver, "" for none."""
    has_device: bool
    """Whether there is a node of an NVIDIA GPU under /dev."""
    is_wsl: bool
    container: str
    """As `Container.kind`, "" outside one."""
    docker: str
    """What the command docker is: "docker", "podman", "snap", or "" for none."""
