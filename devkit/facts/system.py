"""The operating system, its storage, and who is asking."""

from enum import StrEnum

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Release, Unknown


class Platform(StrEnum):
    """The system a command runs on, as far as GPU advice differs."""

    LINUX = "linux"
    WSL2 = "wsl2"
    WSL1 = "wsl1"
    MACOS = "macos"
    WINDOWS = "windows"


@record
class Distribution:
    """The Linux distribution by /etc/os-release: `id` ubuntu, `like` (debian,), `version` 24.04."""

    id: str
    like: tuple[str, ...]
    version: str
    name: str


@record
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


@record
class Tegra:
    """A Jetson or another board with NVIDIA's Tegra: its model by the device tree, and its L4T release.

    `release` is None where only the board shows, as in a container; R36.4.7 is JetPack 6.
    """

    model: str
    release: Release | Unknown | None


@record
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
    wsl_settings: WslSettings | Unknown | None = NOT_READ
    """None when there is no .wslconfig, or nothing here that it rules."""
    tegra: Tegra | Unknown | None = NOT_READ
    """None when this is no Jetson."""
    host_name: str | Unknown = NOT_READ
    """Read only so that it can be blanked wherever else it stands; saved facts do not carry it."""


@record
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


@record
class Storage:
    """The directories that matter, and the user who must write there."""

    uid: int
    directories: tuple[Directory, ...]


@record
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
