"""Commands that depend on the machine: its package manager, its engine, and how that engine restarts."""

from collections.abc import Mapping
from enum import StrEnum

from devkit.doctor.applies import is_in_container, platform_of
from devkit.doctor.model import Fix, Restart, Side
from devkit.facts.model import Engine, EngineKind, Facts, Platform
from devkit.facts.values import Unknown


class Family(StrEnum):
    """Distributions that share a package manager and package names."""

    UBUNTU = "ubuntu"
    DEBIAN = "debian"
    FEDORA = "fedora"
    RHEL = "rhel"
    SUSE = "suse"
    ARCH = "arch"
    NIXOS = "nixos"
    OTHER = "other"


_FAMILY_OF_ID: Mapping[str, Family] = {
    "ubuntu": Family.UBUNTU,
    "debian": Family.DEBIAN,
    "fedora": Family.FEDORA,
    "rhel": Family.RHEL,
    "centos": Family.RHEL,
    "amzn": Family.RHEL,
    "suse": Family.SUSE,
    "opensuse": Family.SUSE,
    "sles": Family.SUSE,
    "arch": Family.ARCH,
    "nixos": Family.NIXOS,
}


def family_of(facts: Facts) -> Family:
    """The distribution family of the side where packages would be installed.

    OTHER inside a container, whose distribution says nothing about the host's.
    """
    if is_in_container(facts) or isinstance(facts.system, Unknown):
        return Family.OTHER
    return _family_here(facts)


def container_family(facts: Facts) -> Family:
    """The distribution family of the container's own image."""
    return Family.OTHER if isinstance(facts.system, Unknown) else _family_here(facts)


def _family_here(facts: Facts) -> Family:
    if isinstance(facts.system, Unknown) or isinstance(facts.system.distribution, Unknown):
        return Family.OTHER
    distribution = facts.system.distribution
    for name in (distribution.id, *distribution.like):
        for known_id, family in _FAMILY_OF_ID.items():
            if name == known_id or name.startswith(f"{known_id}-"):
                return family
    return Family.OTHER


INSTALL_DRIVER: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: ("sudo apt-get update", "sudo ubuntu-drivers install"),
    Family.DEBIAN: ("sudo apt-get update", "sudo apt-get install -y linux-headers-$(uname -r) nvidia-driver"),
    Family.FEDORA: ("sudo dnf install -y akmod-nvidia xorg-x11-drv-nvidia-cuda",),
    Family.RHEL: ("sudo dnf install -y nvidia-open",),
    Family.SUSE: ("sudo zypper install -y nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06",),
    Family.ARCH: ("sudo pacman -S --needed nvidia-open nvidia-utils",),
    Family.NIXOS: (
        '# in configuration.nix: services.xserver.videoDrivers = [ "nvidia" ]; hardware.nvidia.open = true;',
        "sudo nixos-rebuild switch",
    ),
}
"""Packages of the driver. Source: each distribution's own driver guide; RPM Fusion for Fedora."""

INSTALL_HEADERS: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: ("sudo apt-get install -y linux-headers-$(uname -r)", "sudo dkms autoinstall"),
    Family.DEBIAN: ("sudo apt-get install -y linux-headers-$(uname -r)", "sudo dkms autoinstall"),
    Family.FEDORA: ("sudo dnf install -y kernel-devel-$(uname -r)", "sudo akmods --force"),
    Family.RHEL: ("sudo dnf install -y kernel-devel-$(uname -r)", "sudo dkms autoinstall"),
    Family.SUSE: ("sudo zypper install -y kernel-default-devel", "sudo dkms autoinstall"),
    Family.ARCH: ("sudo pacman -S --needed linux-headers", "sudo dkms autoinstall"),
}

_JOIN_DOCKER_GROUP = "sudo usermod -aG docker $USER"
INSTALL_ENGINE: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: ("sudo apt-get install -y docker.io docker-compose-v2 docker-buildx", _JOIN_DOCKER_GROUP),
    Family.FEDORA: ("sudo dnf install -y moby-engine docker-compose", _JOIN_DOCKER_GROUP),
    Family.SUSE: ("sudo zypper install -y docker docker-compose docker-buildx", _JOIN_DOCKER_GROUP),
    Family.ARCH: ("sudo pacman -S --needed docker docker-compose docker-buildx", _JOIN_DOCKER_GROUP),
    Family.NIXOS: ("# in configuration.nix: virtualisation.docker.enable = true;", "sudo nixos-rebuild switch"),
}
"""The distribution's own Docker, where it is recent enough for dev containers; elsewhere Docker's guide says how."""

REMOVE_ENGINE: Mapping[Family, str] = {
    Family.UBUNTU: "sudo apt-get remove -y docker-ce || sudo apt-get remove -y docker.io",
    Family.DEBIAN: "sudo apt-get remove -y docker-ce || sudo apt-get remove -y docker.io",
    Family.FEDORA: "sudo dnf remove -y docker-ce || sudo dnf remove -y moby-engine",
    Family.RHEL: "sudo dnf remove -y docker-ce",
    Family.SUSE: "sudo zypper remove -y docker",
    Family.ARCH: "sudo pacman -R docker",
}

INSTALL_COMPOSE: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: ("sudo apt-get install -y docker-compose-plugin || sudo apt-get install -y docker-compose-v2",),
    Family.DEBIAN: ("sudo apt-get install -y docker-compose-plugin",),
    Family.FEDORA: ("sudo dnf install -y docker-compose-plugin || sudo dnf install -y docker-compose",),
    Family.RHEL: ("sudo dnf install -y docker-compose-plugin",),
    Family.SUSE: ("sudo zypper install -y docker-compose",),
    Family.ARCH: ("sudo pacman -S --needed docker-compose",),
}
"""Docker's own packages first, then the distribution's."""

REBUILD_INITRAMFS: Mapping[Family, str] = {
    Family.UBUNTU: "sudo update-initramfs -u",
    Family.DEBIAN: "sudo update-initramfs -u",
    Family.FEDORA: "sudo dracut -f",
    Family.RHEL: "sudo dracut -f",
    Family.SUSE: "sudo dracut -f",
    Family.ARCH: "sudo mkinitcpio -P",
}

_KEYRING = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
_REPOSITORY = "https://nvidia.github.io/libnvidia-container"
_APT_TOOLKIT = (
    f"curl -fsSL {_REPOSITORY}/gpgkey | sudo gpg --dearmor -o {_KEYRING}",
    f"curl -fsSL {_REPOSITORY}/stable/deb/nvidia-container-toolkit.list"
    f" | sed 's#deb https://#deb [signed-by={_KEYRING}] https://#g'"
    " | sudo tee /etc/apt/sources.list.d/nvidia-container-toolkit.list",
    "sudo apt-get update",
    "sudo apt-get install -y nvidia-container-toolkit",
)
_DNF_TOOLKIT = (
    f"curl -fsSL {_REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo"
    " | sudo tee /etc/yum.repos.d/nvidia-container-toolkit.repo",
    "sudo dnf install -y nvidia-container-toolkit",
)
INSTALL_TOOLKIT: Mapping[Family, tuple[str, ...]] = {
    Family.UBUNTU: _APT_TOOLKIT,
    Family.DEBIAN: _APT_TOOLKIT,
    Family.FEDORA: _DNF_TOOLKIT,
    Family.RHEL: _DNF_TOOLKIT,
    Family.SUSE: (
        f"sudo zypper addrepo {_REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo",
        "sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit",
    ),
    Family.ARCH: ("sudo pacman -S --needed nvidia-container-toolkit",),
    Family.NIXOS: (
        "# in configuration.nix: hardware.nvidia-container-toolkit.enable = true;",
        "sudo nixos-rebuild switch",
    ),
}
"""Source: NVIDIA, Container Toolkit install guide; Arch and NixOS package it themselves."""

TOOLKIT_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
CDI_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"
TROUBLESHOOTING = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
WSL_GUIDE = "https://docs.nvidia.com/cuda/wsl-user-guide/"


def restart_engine(facts: Facts, engine: Engine | None) -> tuple[str, ...]:
    """How this machine restarts its engine, as commands; Podman has no daemon to restart."""
    if engine is not None and engine.kind is EngineKind.PODMAN:
        return ()
    if engine is not None and engine.kind is EngineKind.DOCKER_DESKTOP:
        return ("docker desktop restart",)
    if engine is not None and engine.is_snap:
        return ("sudo snap restart docker",)
    if engine is not None and engine.is_rootless:
        return ("systemctl --user restart docker",)
    if has_systemd(facts):
        return ("sudo systemctl restart docker",)
    return ("sudo service docker restart",)


def has_systemd(facts: Facts) -> bool:
    """Whether systemd runs the services here; assumed where it is not known."""
    return isinstance(facts.system, Unknown) or facts.system.runs_systemd is not False


def configure_runtime(facts: Facts, engine: Engine) -> tuple[str, ...]:
    """How GPUs are offered to this engine's containers, once the Container Toolkit is installed."""
    if engine.kind is EngineKind.PODMAN:
        return ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    if engine.is_rootless:
        return (
            "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json",
            *restart_engine(facts, engine),
            "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
        )
    return ("sudo nvidia-ctk runtime configure --runtime=docker", *restart_engine(facts, engine))


def refresh_cdi(facts: Facts) -> tuple[str, ...]:
    """How the CDI specification is written anew."""
    if family_of(facts) is Family.NIXOS:
        return ("sudo systemctl restart nvidia-container-toolkit-cdi-generator.service",)
    return ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)


def kernel_argument(family: Family, argument: str) -> tuple[str, ...]:
    """How the kernel gets one more argument from the next boot on; empty where the boot loader is not known."""
    by_file = (f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{argument} /' /etc/default/grub",)
    match family:
        case Family.UBUNTU | Family.DEBIAN:
            return (*by_file, "sudo update-grub")
        case Family.FEDORA | Family.RHEL:
            return (f"sudo grubby --update-kernel=ALL --args={argument}",)
        case Family.SUSE | Family.ARCH:
            return (*by_file, "sudo grub-mkconfig -o /boot/grub/grub.cfg" if family is Family.ARCH else _SUSE_GRUB)
        case Family.NIXOS:
            return (f'# in configuration.nix: boot.kernelParams = [ "{argument}" ];', "sudo nixos-rebuild switch")
        case _:
            return ()


_SUSE_GRUB = "sudo grub2-mkconfig -o /boot/grub2/grub.cfg"


def host_side(facts: Facts) -> Side:
    """Where the machine around the GPU is repaired: its Linux host, or the WSL guest that stands for it."""
    platform = platform_of(facts)
    if platform is Platform.WINDOWS:
        return Side.WINDOWS
    if is_in_container(facts):
        return Side.HOST
    return Side.WSL if platform in (Platform.WSL2, Platform.WSL1) else Side.HOST


def driver_side(facts: Facts) -> Side:
    """Where the driver lives: on Windows for WSL, never in the guest."""
    return Side.WINDOWS if platform_of(facts) in (Platform.WSL1, Platform.WSL2, Platform.WINDOWS) else Side.HOST


def update_driver(facts: Facts, wanted: str) -> Fix:
    """Install a newer driver; `wanted` names the lowest that will do, such as "580 or newer"."""
    if driver_side(facts) is Side.WINDOWS:
        return Fix(
            f"Install the NVIDIA driver {wanted} on Windows, then restart WSL. Install none inside of WSL.",
            ("wsl.exe --shutdown",) if platform_of(facts) is not Platform.WINDOWS else (),
            where=Side.WINDOWS,
            restart=Restart.WSL if platform_of(facts) is not Platform.WINDOWS else Restart.HOST,
            docs=WSL_GUIDE,
        )
    return Fix(
        f"Install the NVIDIA driver {wanted} on the host, with its own package manager, and reboot.",
        INSTALL_DRIVER.get(family_of(facts), ()),
        root=True,
        restart=Restart.HOST,
        docs=DRIVER_GUIDE,
    )
