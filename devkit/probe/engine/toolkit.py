"""The NVIDIA Container Toolkit: its programs, its settings, and the files of daemons that name its runtime."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from devkit.facts.engine import Toolkit
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import get_object, get_text, get_texts, parse_toml
from devkit.probe.engine.daemon_files import (
    find_daemon_file,
    find_daemon_pid,
    read_daemon_environment,
    read_daemon_files,
)
from devkit.probe.engine.pods import read_pod_runtime
from devkit.probe.host import NOT_FOUND, Host, explain_failure
from devkit.probe.machine.programs import find_program, find_program_or_path

TOOLKIT_HOOK = "nvidia-container-runtime-hook"
TOOLKIT_VERSION = ("nvidia-ctk", "--version")
TOOLKIT_RUNTIME = "nvidia-container-runtime"
ENROOT_HOOK = "/etc/enroot/hooks.d/98-nvidia.sh"
"""Source: NVIDIA/enroot, doc/standard-hooks.md."""
TOOLKIT_CLI = "nvidia-container-cli"
CONFIG_NAME = "nvidia-container-runtime/config.toml"
CONFIG_VARIABLE = "NVIDIA_CTK_CONFIG_FILE_PATH"
TOOLKIT_CONFIG = f"/etc/{CONFIG_NAME}"
LOW_LEVEL_RUNTIMES = ("runc", "crun")
LDCONFIG_PATHS = ("/sbin/ldconfig.real", "/sbin/ldconfig")
"""Ubuntu wraps ldconfig and keeps the real one beside it; Debian does not.

Source: nvidia-container-toolkit, api/config/v1/cli.go, `ldconfigPath.normalize`.
"""
NO_LDCONFIG = Unknown("this machine has no ldconfig in /sbin")
SETTING_TYPES: Mapping[str, type] = {
    "disable-require": bool,
    "accept-nvidia-visible-devices-envvar-when-unprivileged": bool,
    "accept-nvidia-visible-devices-as-volume-mounts": bool,
    "supported-driver-capabilities": str,
    "nvidia-container-cli.root": str,
    "nvidia-container-cli.path": str,
    "nvidia-container-cli.environment": list,
    "nvidia-container-cli.load-kmods": bool,
    "nvidia-container-cli.no-cgroups": bool,
    "nvidia-container-cli.user": str,
    "nvidia-container-cli.ldconfig": str,
    "nvidia-container-runtime.debug": str,
    "nvidia-container-runtime.log-level": str,
    "nvidia-container-runtime.runtimes": list,
    "nvidia-container-runtime.mode": str,
    "nvidia-container-runtime-hook.path": str,
    "nvidia-container-runtime-hook.skip-mode-detection": bool,
}
"""Source: nvidia-container-toolkit, api/config/v1: config.go, cli.go, runtime.go and hook.go."""
TYPE_NAMES: Mapping[type, str] = {bool: "true or false", str: "string", list: "list"}
REFRESH_UNIT = "nvidia-cdi-refresh.path"
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
TARGETS = ("multi-user.target", "graphical.target", "default.target")
NVIDIACTL_NUMBERS = "195:255"
"""Major and minor number of /dev/nvidiactl. Source: Linux, Documentation/admin-guide/devices.txt."""

_NOT_INSTALLED = Unknown("the NVIDIA Container Toolkit is not installed")


def read_toolkit(host: Host) -> Toolkit:
    """Read the toolkit's version and configuration, and the engines that know its runtime."""
    done = host.run(TOOLKIT_VERSION)
    reason = f"nvidia-ctk --version ended with status {done.code}: {(done.err or done.out).strip()}"
    version: Release | Unknown | None = None
    if done.code != NOT_FOUND:
        # Of a program that cannot run, its failure tells.
        version = Release.find(done.out.partition("version")[2]) or explain_failure(
            TOOLKIT_VERSION, done, reason, is_lost=done.code == 0
        )
    config_path = _find_config_path(host)
    config = _config(host, config_path) if version is not None else _NOT_INSTALLED
    runtime, command = _section(config, TOOLKIT_RUNTIME), _section(config, TOOLKIT_CLI)
    ldconfig, features = _of(command, "ldconfig", ""), _section(config, "features")
    # An @ means "on the host"; without it the path is the container's, which is not visible from here.
    default = next((path for path in LDCONFIG_PATHS if host.stat(path) is not None), NO_LDCONFIG)
    ldconfig_exists: bool | Unknown = Unknown("config.toml does not specify a host ldconfig")
    if isinstance(ldconfig, Unknown):
        ldconfig_exists = ldconfig
    elif not ldconfig:
        ldconfig_exists = True if isinstance(default, str) else default
    elif ldconfig.startswith("@"):
        ldconfig = ldconfig.lstrip("@")
        ldconfig_exists = host.stat(ldconfig) is not None
    config_error: str | Unknown = ""
    if isinstance(config, Unknown):
        config_error = config.reason if "not valid TOML" in config.reason else config
    else:
        config_error = ", ".join(_list_wrong_types(config))
    low_level = runtime if isinstance(runtime, Unknown) else get_texts(runtime, "runtimes") or LOW_LEVEL_RUNTIMES
    return Toolkit(
        version=version,
        runtime_path=find_program(host, TOOLKIT_RUNTIME),
        mode=_of(runtime, "mode", "auto"),
        no_cgroups=command if isinstance(command, Unknown) else command.get("no-cgroups", False) is True,
        driver_root=_of(command, "root", ""),
        daemon_files=read_daemon_files(host),
        daemon_file=find_daemon_file(host),
        config_error=config_error,
        ldconfig=ldconfig,
        ldconfig_exists=ldconfig_exists,
        features=features
        if isinstance(features, Unknown)
        else tuple(sorted(k for k, v in features.items() if v is True)),
        cdi_refresh=_cdi_refresh(host),
        # udev's names by number, which some releases of runc hand to systemd.
        char_links=host.stat(f"/dev/char/{NVIDIACTL_NUMBERS}") is not None
        if host.stat("/dev/nvidiactl") is not None and host.list("/dev/char")
        else Unknown("/dev/nvidiactl or /dev/char is missing"),
        config_path=config_path,
        default_ldconfig=default,
        cli_path=find_program_or_path(host, get_text(command, "path") or TOOLKIT_CLI)
        if isinstance(command, dict)
        else (find_program(host, TOOLKIT_CLI) if version is None else command),
        low_level_runtimes=low_level,
        low_level_runtime=low_level
        if isinstance(low_level, Unknown)
        else next(filter(None, (find_program_or_path(host, name) for name in low_level)), ""),
        cli_setting=_of(command, "path", ""),
        pods=read_pod_runtime(host),
        accepts_variable=config
        if isinstance(config, Unknown)
        else config.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True) is not False,
        enroot_hook=(ENROOT_HOOK if host.stat(ENROOT_HOOK) is not None else "")
        if find_program(host, "enroot")
        else None,
    )


def _find_config_path(host: Host) -> str:
    """Find the settings file by the daemon's own variables, which its runtime and hook inherit.

    Where this user may not see them, the daemon belongs to another one, and only this user's deliberate choice counts.
    Source: nvidia-container-toolkit, api/config/v1/config.go, `GetConfigFilePath`.
    """
    daemon = read_daemon_environment(host, find_daemon_pid(host))
    if path := daemon.get(CONFIG_VARIABLE) or host.env.get(CONFIG_VARIABLE):
        return path
    return f"{daemon.get('XDG_CONFIG_HOME') or '/etc'}/{CONFIG_NAME}"


def _config(host: Host, path: str) -> dict[str, Any] | Unknown:
    """config.toml, empty where there is none: the toolkit has a default for everything."""
    text = host.read(path)
    if text is None and host.stat(path) is not None:
        return Unknown(f"{path} cannot be read by this user", is_lost=True)
    try:
        return parse_toml(text or "")
    except ValueError as error:
        return Unknown(f"{path} is not valid TOML: {error}")


def _list_wrong_types(config: dict[str, Any]) -> Iterator[str]:
    """List the settings whose type the toolkit refuses, and with it every container that it should start."""
    for name, kind in SETTING_TYPES.items():
        section, _, key = name.rpartition(".")
        owner = config.get(section, {}) if section else config
        if not isinstance(owner, dict):
            continue
        value = owner.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))):
            yield f"{name}: expected {TYPE_NAMES[kind]}, got {json.dumps(value, default=str)}"


def _section(config: dict[str, Any] | Unknown, name: str) -> dict[str, Any] | Unknown:
    return config if isinstance(config, Unknown) else get_object(config, name)


def _of(section: dict[str, Any] | Unknown, key: str, default: str) -> str | Unknown:
    return section if isinstance(section, Unknown) else str(section.get(key, default))


def _cdi_refresh(host: Host) -> str:
    """Return how the unit that renews CDI specifications is set, by the files that systemd itself reads."""
    if any((host.link(f"{folder}/{REFRESH_UNIT}") or "") == "/dev/null" for folder in UNIT_FOLDERS):
        return "masked"
    if all(host.stat(f"{folder}/{REFRESH_UNIT}") is None for folder in UNIT_FOLDERS):
        return ""
    wants = (f"{folder}/{target}.wants/{REFRESH_UNIT}" for folder in UNIT_FOLDERS for target in TARGETS)
    return "enabled" if any(host.stat(path) is not None for path in wants) else "disabled"
