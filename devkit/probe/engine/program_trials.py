"""Programs that containers with a GPU need, each run once: a file that is there says not that it can run."""

from collections.abc import Iterator
from dataclasses import replace

from devkit.facts.model import Platform, ProgramFailure
from devkit.facts.values import Unknown
from devkit.probe.attempts import find_error_lines, run_or_explain
from devkit.probe.children.protocol import format_signal
from devkit.probe.circumstances import detect_container
from devkit.probe.engine.client import COMPOSE_PLUGIN, COMPOSE_PLUGIN_FOLDERS, COMPOSE_VERSION, find_docker_config
from devkit.probe.host import NOT_EXECUTABLE, NOT_FOUND, Host, ProgramResult
from devkit.probe.machine.operating_system import read_platform
from devkit.probe.machine.programs import ANY_EXECUTE_BIT, SYSTEM_PROGRAM_FOLDERS, find_program, split_search_path

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
    """Find the program that a shell would run, or else the first file of its name."""
    if path := find_program(host, name, folders=folders):
        return path
    paths = (f"{folder}/{name}" for folder in folders)
    return next((path for path in paths if (found := host.stat(path)) is not None and found.kind == "file"), "")


def _try(host: Host, argv: tuple[str, ...]) -> ProgramFailure | None:
    path = argv[0]
    done, failure = run_or_explain(host, argv, deadline_s=_DEADLINE_S, name=path, works=can_run)
    if failure is None or not (words := _explain_refusal(host, path, done)):
        return failure
    return replace(failure, words=words)


def can_run(done: ProgramResult) -> bool:
    """Say if a program was executed and ended on its own: what it thinks of its arguments does not matter."""
    return done.code not in (NOT_FOUND, NOT_EXECUTABLE) and done.code >= 0


def _explain_refusal(host: Host, path: str, done: ProgramResult) -> tuple[str, ...]:
    """Return what the kernel has against a program that it did not execute, and the signal of one that crashed."""
    if done.code < 0:
        return (*find_error_lines(done.err), f"it crashed with {format_signal(-done.code)}")
    script = host.read(path) or ""
    interpreter = script.partition("\n")[0].removeprefix("#!").split()[:1] if script.startswith("#!") else []
    if interpreter and host.stat(interpreter[0]) is None:
        return (f"its interpreter {interpreter[0]} is not there",)
    found = host.stat(path)
    if found is not None and not found.mode & ANY_EXECUTE_BIT:
        return (f"mode {found.mode:04o} has no execute bit",)
    return () if not done.err.startswith("[Errno") else (done.err.partition("] ")[2].partition(":")[0],)
