"""Fixes and commands for this machine: its distribution, its driver, its engine, its GPUs."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from shlex import quote

from devkit.doctor.model import Side
from devkit.doctor.preconditions import find_platform, is_in_container
from devkit.facts.engine import Engine, EngineKind
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.formats.documents import load


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
    **{each.value: each for each in DistroFamily},
    **dict.fromkeys(("centos", "amzn"), DistroFamily.RHEL),
    **dict.fromkeys(("opensuse", "sles"), DistroFamily.SUSE),
}


def find_distro_family(facts: Facts) -> DistroFamily:
    """Find the distribution family of the side where packages would be installed.

    OTHER inside a container, whose distribution says nothing about the host's.
    """
    return DistroFamily.OTHER if is_in_container(facts) else find_container_distro_family(facts)


def find_container_distro_family(facts: Facts) -> DistroFamily:
    """Find the distribution family of the container's own image."""
    if isinstance(facts.system, Unknown) or isinstance(facts.system.distribution, Unknown):
        return DistroFamily.OTHER
    distribution = facts.system.distribution
    for name in (distribution.id, *distribution.like):
        for known_id, family in _FAMILY_OF_ID.items():
            if name == known_id or name.startswith(f"{known_id}-"):
                return family
    return DistroFamily.OTHER


@cache
def load_commands() -> Mapping[str, Mapping[str, list[str]]]:
    """Load the commands of each purpose, by distribution family."""
    return load("devkit.doctor", "commands")


def list_commands(
    facts: Facts, purpose: str, *, family: DistroFamily | None = None, **values: object
) -> tuple[str, ...]:
    """List the commands of this machine's distribution for a purpose, () where none is known.

    Args:
        facts: the machine.
        purpose: the table of commands.toml.
        family: a different distribution than the machine's own, such as that of a container's image.
        values: what the words in braces stand for, such as `branch`.
    """
    rows = load_commands()[purpose]
    commands = rows.get(family or find_distro_family(facts), rows.get(DistroFamily.OTHER, []))
    for name, value in values.items():
        commands = [command.replace(f"{{{name}}}", str(value)) for command in commands]
    return tuple(commands)


DAEMON_FILE = "/etc/docker/daemon.json"
TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"
_CONFIGURE = "nvidia-ctk runtime configure --runtime=docker"


def name_engine(engine: object) -> str:
    """Name the engine as variants of fixes do: none, podman, desktop, snap, rootless, or docker."""
    if not isinstance(engine, Engine):
        return "none"
    if engine.kind is EngineKind.PODMAN:
        return "podman"
    if engine.kind is EngineKind.DOCKER_DESKTOP:
        return "desktop"
    return "snap" if engine.is_snap else "rootless" if engine.is_rootless else "docker"


def list_restart_commands(engine: str, *, with_systemd: bool = True) -> tuple[str, ...]:
    """List the commands that restart an engine, by its name."""
    commands = {
        "podman": (),
        "desktop": ("docker desktop restart",),
        "snap": ("sudo snap restart docker",),
        "rootless": ("systemctl --user restart docker",),
    }
    return commands.get(engine, ("sudo systemctl restart docker" if with_systemd else "sudo service docker restart",))


def has_systemd(facts: Facts) -> bool:
    """Say if systemd runs the services here; assumed where it is not known."""
    return isinstance(facts.system, Unknown) or facts.system.runs_systemd is not False


def list_configure_commands(engine: str, *, with_systemd: bool = True) -> tuple[str, ...]:
    """List the commands that offer GPUs to an engine's containers, by its name."""
    restart = list_restart_commands(engine, with_systemd=with_systemd)
    if engine == "podman":
        return ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    if engine == "rootless":
        return (
            "nvidia-ctk runtime configure --runtime=docker --config=$HOME/.config/docker/daemon.json",
            *restart,
            "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",
        )
    return ("sudo nvidia-ctk runtime configure --runtime=docker", *restart)


def adapt_to_settings_files(command: str, facts: Facts) -> str:
    """Let a command edit the files that this machine's daemon and toolkit read, where those are not the usual ones."""
    if isinstance(facts.toolkit, Unknown):
        return command
    daemons, toolkits = facts.toolkit.daemon_file, facts.toolkit.config_path
    # Every command has it as a word outside quotation marks; a line break would end a comment that names it.
    if isinstance(daemons, str) and daemons != DAEMON_FILE and daemons.isprintable():
        command = command.replace(DAEMON_FILE, quote(daemons))
        if _CONFIGURE in command and "--config=" not in command:
            command = command.replace(_CONFIGURE, f"{_CONFIGURE} --config={quote(daemons)}")
    if toolkits != TOOLKIT_FILE and "nvidia-ctk config " in command and "--config=" not in command:
        command = command.replace("nvidia-ctk config ", f"nvidia-ctk config --config={quote(toolkits)} ")
    return command


_INSTALLS = re.compile(r"\b(?:apt-get|dnf|yum|zypper|pacman)\b")
_DNF_INSTALL = re.compile(r"^sudo (?:dnf|yum) (?:re)?install (?:-y )?")


def adapt_to_image(commands: tuple[str, ...], facts: Facts) -> tuple[tuple[str, ...], str]:
    """Return commands for a system that is an image, and the sentence that says how it is changed, "" for others."""
    tool = "" if isinstance(facts.system, Unknown) or is_in_container(facts) else facts.system.image_tool
    if not tool or isinstance(tool, Unknown) or not any(map(_INSTALLS.search, commands)):
        return commands, ""
    if tool == "rpm-ostree":
        layered = tuple(_DNF_INSTALL.sub("sudo rpm-ostree install ", each) for each in commands)
        return layered, "This system is image-based, so a layered package is available only after a reboot."
    return (
        (),
        "This system changes with its image, not with packages, so choose an image that contains the driver and the toolkit.",
    )


def refresh_cdi(facts: Facts) -> tuple[str, ...]:
    """List the commands that regenerate the CDI specification."""
    if find_distro_family(facts) is DistroFamily.NIXOS:
        return ("sudo systemctl restart nvidia-container-toolkit-cdi-generator.service",)
    return ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)


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


def find_workload_side(facts: Facts) -> Side:
    """Find the side on which the workload's packages are installed."""
    return Side.CONTAINER if is_in_container(facts) else Side.HOST


def adapt_to_installer(command: str, facts: Facts) -> str:
    """Write a command of pip for uv, if uv made this environment, which has no pip; leave others as they are."""
    is_uv = not isinstance(facts.python, Unknown) and facts.python.installer == "uv"
    if not is_uv or not command.startswith(("pip install ", "pip uninstall ")):
        return command
    return "uv " + command.replace(" --force-reinstall ", " --reinstall ").replace(" uninstall -y ", " uninstall ")
