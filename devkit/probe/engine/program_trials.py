"""Programs that containers with a GPU need, each run once: a file that is there says not that it can run."""

from collections.abc import Iterator

from devkit.facts.model import Platform, ProgramFailure
from devkit.facts.values import Unknown
from devkit.probe.attempts import run_or_explain
from devkit.probe.circumstances import detect_container
from devkit.probe.engine.client import COMPOSE_PLUGIN, COMPOSE_PLUGIN_FOLDERS, COMPOSE_VERSION, find_docker_config
from devkit.probe.host import NOT_EXECUTABLE, NOT_FOUND, Host, ProgramResult
from devkit.probe.machine.operating_system import read_platform
from devkit.probe.machine.programs import SYSTEM_PROGRAM_FOLDERS, split_search_path

PROGRAMS = (
    *("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli"),
    *("nvidia-cdi-hook", "runc", "crun"),
)
"""Programs that an engine starts for a container, and that know --version or refuse it without harm."""

_DEADLINE_S = 2.0


def read_program_failures(host: Host) -> tuple[ProgramFailure, ...] | Unknown:
    """Run each program that is on this machine, and return those that cannot run, with their words."""
    if read_platform(host) not in (Platform.LINUX, Platform.WSL2) or detect_container(host):
        return Unknown("only read on a Linux host")
    return tuple(failure for argv in _list_commands(host) if (failure := _try(host, argv)) is not None)


def _list_commands(host: Host) -> Iterator[tuple[str, ...]]:
    folders = tuple(dict.fromkeys((*split_search_path(host.env.get("PATH", "")), *SYSTEM_PROGRAM_FOLDERS)))
    for name in PROGRAMS:
        if path := _find_file(host, name, folders):
            yield path, "--version"
    if path := _find_file(host, COMPOSE_PLUGIN, (f"{find_docker_config(host)}/cli-plugins", *COMPOSE_PLUGIN_FOLDERS)):
        yield path, *COMPOSE_VERSION


def _find_file(host: Host, name: str, folders: tuple[str, ...]) -> str:
    """Find the first file of a name, whether or not it may be executed."""
    paths = (f"{folder}/{name}" for folder in folders)
    return next((path for path in paths if (found := host.stat(path)) is not None and found.kind == "file"), "")


def _try(host: Host, argv: tuple[str, ...]) -> ProgramFailure | None:
    _, failure = run_or_explain(host, argv, deadline_s=_DEADLINE_S, name=argv[0], works=can_run)
    return failure


def can_run(done: ProgramResult) -> bool:
    """Say if a program was executed and ended on its own: what it thinks of its arguments does not matter."""
    return done.code not in (NOT_FOUND, NOT_EXECUTABLE) and done.code >= 0
