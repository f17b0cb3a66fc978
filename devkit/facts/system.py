"""The operating system, its storage, and who is asking."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.values import Release, Unknown


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
class Wsl:
    """The WSL 2 guest's side of the GPU."""

    has_dxg: bool
    libraries: tuple[str, ...]
    """Files under /usr/lib/wsl/lib."""
    linux_driver_packages: tuple[str, ...]
    """Linux driver packages installed in the guest, where none belong."""
    libnvidia_ml_path: str
    """Which libnvidia-ml.so.1 the loader takes, "" for none."""
