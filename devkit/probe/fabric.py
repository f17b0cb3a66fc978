"""The Fabric Manager, which connects GPUs through NVSwitches."""

from devkit.facts.values import Release, Unknown
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.programs import find_program

STATE = ("systemctl", "is-active", "nvidia-fabricmanager")
UNIT_FILES = (
    "/lib/systemd/system/nvidia-fabricmanager.service",
    "/usr/lib/systemd/system/nvidia-fabricmanager.service",
    "/etc/systemd/system/nvidia-fabricmanager.service",
)
PROGRAM = "nv-fabricmanager"


UNIT_STATES = (
    *("active", "inactive", "failed", "activating", "deactivating", "reloading", "refreshing", "maintenance"),
    "unknown",
)
"""Everything that `systemctl is-active` prints. Source: systemd, unit-def.c and systemctl-is-active.c."""


def fabric_manager_state(host: Host, nvswitch: bool | Unknown) -> str | Unknown:
    """What systemd says of the service; not asked where there is neither an NVSwitch nor the service."""
    if nvswitch is not True and not any(host.stat(path) for path in UNIT_FILES):
        return Unknown("only asked on machines with an NVSwitch, or with the service installed")
    done = host.run(STATE)
    state = done.out.strip()
    if done.code == TIMED_OUT or state not in UNIT_STATES:
        return Unknown("systemctl is missing or did not answer")
    return state


def fabric_manager_version(host: Host, nvswitch: bool | Unknown) -> Release | Unknown | None:
    """The installed Fabric Manager's version; None when it is not installed."""
    if nvswitch is not True:
        return Unknown("only asked on machines with an NVSwitch")
    program = find_program(host, PROGRAM)
    if not program:
        return None
    done = host.run((program, "--version"))
    try:
        return Release.read(done.out)
    except ValueError:
        return Unknown(f"{PROGRAM} --version ended with status {done.code} and named no version")
