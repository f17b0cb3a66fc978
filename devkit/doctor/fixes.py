"""Fixes and commands for this machine: its distribution, its driver, its engine, its GPUs."""

from collections.abc import Mapping
from enum import StrEnum

from devkit.doctor.error_codes import XID_CATALOG_URL
from devkit.doctor.model import Fix, Restart, Side
from devkit.doctor.preconditions import find_platform, is_in_container
from devkit.facts.model import Engine, EngineKind, Facts, FailedGpu, Gpu, Platform
from devkit.facts.values import Unknown


class DistroFamily(StrEnum):
    """A group of distributions that share a package manager and package names."""

    UBUNTU = "ubuntu"
    DEBIAN = "debian"
    FEDORA = "fedora"
    RHEL = "rhel"
    SUSE = "suse"
    ARCH = "arch"
    NIXOS = "nixos"
    OTHER = "other"


_FAMILY_OF_ID: Mapping[str, DistroFamily] = {
    "ubuntu": DistroFamily.UBUNTU,
    "debian": DistroFamily.DEBIAN,
    "fedora": DistroFamily.FEDORA,
    "rhel": DistroFamily.RHEL,
    "centos": DistroFamily.RHEL,
    "amzn": DistroFamily.RHEL,
    "suse": DistroFamily.SUSE,
    "opensuse": DistroFamily.SUSE,
    "sles": DistroFamily.SUSE,
    "arch": DistroFamily.ARCH,
    "nixos": DistroFamily.NIXOS,
}


def find_distro_family(facts: Facts) -> DistroFamily:
    """Find the distribution family of the side where packages would be installed.

    OTHER inside a container, whose distribution says nothing about the host's.
    """
    if is_in_container(facts) or isinstance(facts.system, Unknown):
        return DistroFamily.OTHER
    return _match_family(facts)


def find_container_distro_family(facts: Facts) -> DistroFamily:
    """Find the distribution family of the container's own image."""
    return DistroFamily.OTHER if isinstance(facts.system, Unknown) else _match_family(facts)


def _match_family(facts: Facts) -> DistroFamily:
    if isinstance(facts.system, Unknown) or isinstance(facts.system.distribution, Unknown):
        return DistroFamily.OTHER
    distribution = facts.system.distribution
    for name in (distribution.id, *distribution.like):
        for known_id, family in _FAMILY_OF_ID.items():
            if name == known_id or name.startswith(f"{known_id}-"):
                return family
    return DistroFamily.OTHER


DRIVER_INSTALL_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: ("sudo apt-get update", "sudo ubuntu-drivers install"),
    DistroFamily.DEBIAN: ("sudo apt-get update", "sudo apt-get install -y linux-headers-$(uname -r) nvidia-driver"),
    DistroFamily.FEDORA: ("sudo dnf install -y akmod-nvidia xorg-x11-drv-nvidia-cuda",),
    DistroFamily.RHEL: ("sudo dnf install -y nvidia-open",),
    DistroFamily.SUSE: ("sudo zypper install -y nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06",),
    DistroFamily.ARCH: ("sudo pacman -S --needed nvidia-open nvidia-utils",),
    DistroFamily.NIXOS: (
        '# in configuration.nix: services.xserver.videoDrivers = [ "nvidia" ]; hardware.nvidia.open = true;',
        "sudo nixos-rebuild switch",
    ),
}
"""Packages of the driver. Source: each distribution's own driver guide; RPM Fusion for Fedora."""

KERNEL_HEADERS_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: ("sudo apt-get install -y linux-headers-$(uname -r)", "sudo dkms autoinstall"),
    DistroFamily.DEBIAN: ("sudo apt-get install -y linux-headers-$(uname -r)", "sudo dkms autoinstall"),
    DistroFamily.FEDORA: ("sudo dnf install -y kernel-devel-$(uname -r)", "sudo akmods --force"),
    DistroFamily.RHEL: ("sudo dnf install -y kernel-devel-$(uname -r)", "sudo dkms autoinstall"),
    DistroFamily.SUSE: ("sudo zypper install -y kernel-default-devel", "sudo dkms autoinstall"),
    DistroFamily.ARCH: ("sudo pacman -S --needed linux-headers", "sudo dkms autoinstall"),
}

_JOIN_DOCKER_GROUP = "sudo usermod -aG docker $USER"
ENGINE_INSTALL_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: ("sudo apt-get install -y docker.io docker-compose-v2 docker-buildx", _JOIN_DOCKER_GROUP),
    DistroFamily.FEDORA: ("sudo dnf install -y moby-engine docker-compose", _JOIN_DOCKER_GROUP),
    DistroFamily.SUSE: ("sudo zypper install -y docker docker-compose docker-buildx", _JOIN_DOCKER_GROUP),
    DistroFamily.ARCH: ("sudo pacman -S --needed docker docker-compose docker-buildx", _JOIN_DOCKER_GROUP),
    DistroFamily.NIXOS: ("# in configuration.nix: virtualisation.docker.enable = true;", "sudo nixos-rebuild switch"),
}
"""The distribution's own Docker, where it is recent enough for dev containers; elsewhere Docker's guide says how."""

ENGINE_REMOVE_COMMANDS: Mapping[DistroFamily, str] = {
    DistroFamily.UBUNTU: "sudo apt-get remove -y docker-ce || sudo apt-get remove -y docker.io",
    DistroFamily.DEBIAN: "sudo apt-get remove -y docker-ce || sudo apt-get remove -y docker.io",
    DistroFamily.FEDORA: "sudo dnf remove -y docker-ce || sudo dnf remove -y moby-engine",
    DistroFamily.RHEL: "sudo dnf remove -y docker-ce",
    DistroFamily.SUSE: "sudo zypper remove -y docker",
    DistroFamily.ARCH: "sudo pacman -R docker",
}

COMPOSE_INSTALL_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: (
        "sudo apt-get install -y docker-compose-plugin || sudo apt-get install -y docker-compose-v2",
    ),
    DistroFamily.DEBIAN: ("sudo apt-get install -y docker-compose-plugin",),
    DistroFamily.FEDORA: ("sudo dnf install -y docker-compose-plugin || sudo dnf install -y docker-compose",),
    DistroFamily.RHEL: ("sudo dnf install -y docker-compose-plugin",),
    DistroFamily.SUSE: ("sudo zypper install -y docker-compose",),
    DistroFamily.ARCH: ("sudo pacman -S --needed docker-compose",),
}
"""Docker's own packages first, then the distribution's."""

INITRAMFS_COMMANDS: Mapping[DistroFamily, str] = {
    DistroFamily.UBUNTU: "sudo update-initramfs -u",
    DistroFamily.DEBIAN: "sudo update-initramfs -u",
    DistroFamily.FEDORA: "sudo dracut -f",
    DistroFamily.RHEL: "sudo dracut -f",
    DistroFamily.SUSE: "sudo dracut -f",
    DistroFamily.ARCH: "sudo mkinitcpio -P",
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
TOOLKIT_INSTALL_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: _APT_TOOLKIT,
    DistroFamily.DEBIAN: _APT_TOOLKIT,
    DistroFamily.FEDORA: _DNF_TOOLKIT,
    DistroFamily.RHEL: _DNF_TOOLKIT,
    DistroFamily.SUSE: (
        f"sudo zypper addrepo {_REPOSITORY}/stable/rpm/nvidia-container-toolkit.repo",
        "sudo zypper --gpg-auto-import-keys install -y nvidia-container-toolkit",
    ),
    DistroFamily.ARCH: ("sudo pacman -S --needed nvidia-container-toolkit",),
    DistroFamily.NIXOS: (
        "# in configuration.nix: hardware.nvidia-container-toolkit.enable = true;",
        "sudo nixos-rebuild switch",
    ),
}
"""Source: NVIDIA, Container Toolkit install guide; Arch and NixOS package it themselves."""

_TOOLKIT_PACKAGES = (
    "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1"
)
TOOLKIT_REINSTALL_COMMANDS: Mapping[DistroFamily, tuple[str, ...]] = {
    DistroFamily.UBUNTU: (f"sudo apt-get install -y --reinstall {_TOOLKIT_PACKAGES}",),
    DistroFamily.DEBIAN: (f"sudo apt-get install -y --reinstall {_TOOLKIT_PACKAGES}",),
    DistroFamily.FEDORA: (f"sudo dnf reinstall -y {_TOOLKIT_PACKAGES}",),
    DistroFamily.RHEL: (f"sudo dnf reinstall -y {_TOOLKIT_PACKAGES}",),
    DistroFamily.SUSE: (f"sudo zypper install --force -y {_TOOLKIT_PACKAGES}",),
    DistroFamily.ARCH: ("sudo pacman -S nvidia-container-toolkit libnvidia-container",),
}
"""The toolkit's four packages, for programs that are gone. Source: NVIDIA, Container Toolkit install guide."""

TOOLKIT_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
CDI_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"
TOOLKIT_TROUBLESHOOTING = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
)
ENGINE_GUIDE = "https://docs.docker.com/engine/install/"
CUDA_COMPATIBILITY_GUIDE = "https://docs.nvidia.com/deploy/cuda-compatibility/"
DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
WSL_GUIDE = "https://docs.nvidia.com/cuda/wsl-user-guide/"


def restart_engine(facts: Facts, engine: Engine | None) -> tuple[str, ...]:
    """List the commands that restart this machine's engine; Podman has no daemon to restart."""
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
    """Say if systemd runs the services here; assumed where it is not known."""
    return isinstance(facts.system, Unknown) or facts.system.runs_systemd is not False


def configure_runtime(facts: Facts, engine: Engine) -> tuple[str, ...]:
    """List the commands that offer GPUs to this engine's containers, with the Container Toolkit installed."""
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
    """List the commands that regenerate the CDI specification."""
    if find_distro_family(facts) is DistroFamily.NIXOS:
        return ("sudo systemctl restart nvidia-container-toolkit-cdi-generator.service",)
    return ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)


def add_kernel_argument(family: DistroFamily, argument: str) -> tuple[str, ...]:
    """List the commands that add a kernel argument; none where the boot loader is not known."""
    by_file = (f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{argument} /' /etc/default/grub",)
    match family:
        case DistroFamily.UBUNTU | DistroFamily.DEBIAN:
            return (*by_file, "sudo update-grub")
        case DistroFamily.FEDORA | DistroFamily.RHEL:
            return (f"sudo grubby --update-kernel=ALL --args={argument}",)
        case DistroFamily.SUSE | DistroFamily.ARCH:
            return (
                *by_file,
                "sudo grub-mkconfig -o /boot/grub/grub.cfg" if family is DistroFamily.ARCH else _SUSE_GRUB,
            )
        case DistroFamily.NIXOS:
            return (f'# in configuration.nix: boot.kernelParams = [ "{argument}" ];', "sudo nixos-rebuild switch")
        case _:
            return ()


_SUSE_GRUB = "sudo grub2-mkconfig -o /boot/grub2/grub.cfg"


def find_host_side(facts: Facts) -> Side:
    """Find the side that repairs the machine around the GPU: its Linux host, the WSL guest, or Windows."""
    platform = find_platform(facts)
    if platform is Platform.WINDOWS:
        return Side.WINDOWS
    if is_in_container(facts):
        return Side.HOST
    return Side.WSL if platform in (Platform.WSL2, Platform.WSL1) else Side.HOST


def find_driver_side(facts: Facts) -> Side:
    """Find the side that has the driver: Windows for WSL, never the guest."""
    return Side.WINDOWS if find_platform(facts) in (Platform.WSL1, Platform.WSL2, Platform.WINDOWS) else Side.HOST


def update_driver(facts: Facts, wanted: str) -> Fix:
    """Build the fix that installs a newer driver."""
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix(
            f"Install the NVIDIA driver {wanted} on Windows, then restart WSL. Install none inside of WSL.",
            ("wsl.exe --shutdown",) if find_platform(facts) is not Platform.WINDOWS else (),
            where=Side.WINDOWS,
            restart=Restart.WSL if find_platform(facts) is not Platform.WINDOWS else Restart.HOST,
            docs=WSL_GUIDE,
        )
    return Fix(
        f"Install the NVIDIA driver {wanted} on the host, with its own package manager, and reboot.",
        DRIVER_INSTALL_COMMANDS.get(find_distro_family(facts), ()),
        root=True,
        restart=Restart.HOST,
        docs=DRIVER_GUIDE,
    )


def power_cycle(facts: Facts) -> Fix:
    """Build the fix for a GPU that has fallen off the bus: only a power cycle brings it back."""
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix("Restart Windows.", where=Side.WINDOWS, restart=Restart.HOST)
    return Fix(
        "Power the host off and on again; a warm reboot may not bring the GPU back. If it happens again, check power"
        " cables, slot or riser, cooling and firmware, and try a lower clock: `sudo nvidia-smi -lgc 300,1500`. Until"
        " then use the other GPUs by CUDA_VISIBLE_DEVICES.",
        ("journalctl -k -b | grep -iE 'xid|fallen off the bus'", "sudo poweroff"),
        root=True,
        restart=Restart.HOST,
        docs=XID_CATALOG_URL,
    )


def reset_gpu_or_reboot(facts: Facts, gpu: Gpu | FailedGpu | None) -> Fix:
    """Build the fix for a GPU that its driver no longer uses."""
    if find_driver_side(facts) is Side.WINDOWS:
        return Fix("Restart Windows.", where=Side.WINDOWS, restart=Restart.HOST)
    return Fix(
        "Stop every program that uses the GPU, then reset it on the host; reboot if the reset is refused. If the fault"
        " comes back, update the driver, then have the GPU tested.",
        (f"sudo nvidia-smi --gpu-reset -i {gpu.index}" if gpu else "sudo reboot",),
        root=True,
        docs=XID_CATALOG_URL,
    )
