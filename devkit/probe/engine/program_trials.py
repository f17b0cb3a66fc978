"""Programs that containers with a GPU and the project's files need, each run once: a file that is there says not that it can run."""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.facts.machine import Platform
from devkit.facts.runs import ProgramFailure
from devkit.facts.values import Unknown
from devkit.probe.attempts import find_error_lines, run_or_explain
from devkit.probe.children.protocol import format_signal
from devkit.probe.circumstances import detect_container
from devkit.probe.engine.client import COMPOSE_PLUGIN_FOLDERS, find_docker_config
from devkit.probe.host import NOT_EXECUTABLE, NOT_FOUND, SYSTEM_PROGRAM_FOLDERS, TIMED_OUT, Host, ProgramResult
from devkit.probe.machine.operating_system import read_platform
from devkit.probe.machine.programs import ANY_EXECUTE_BIT, find_program, split_search_path

PROGRAMS = (
    *("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli"),
    *("nvidia-cdi-hook", "runc", "crun"),
)
"""Programs that an engine starts for a container: they know --version, or say that they do not."""

PLUGINS = ("docker-compose", "docker-buildx")
PLUGIN_QUESTION = "docker-cli-plugin-metadata"
"""What the docker command asks each plugin. Source: docker/cli, cli-plugins/metadata."""

_CONTAINER_FILES = (
    *("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml", ".devcontainer.json"),
    *(".devcontainer/devcontainer.json", ".devcontainer/docker-compose.yml", ".devcontainer/compose.yaml"),
)
_NEEDS = (
    (("git-lfs", "version"), (".gitattributes",), "filter=lfs"),
    (("ssh-add", "-l"), _CONTAINER_FILES, "SSH_AUTH_SOCK"),
)
"""What files of a project say, and the command that has to work then: git-lfs for its models, the agent that they mount."""

_USAGE = 2
"""The status of a refused argument. Source: GNU getopt's programs; package flag of Go."""
_REFUSES_FLAG = re.compile(r"\b(?:flag|option|argument)s?\b", re.IGNORECASE)
_DEADLINE_S = 2.0


def read_program_failures(host: Host, *, project: str = "") -> tuple[ProgramFailure, ...] | Unknown:
    """Run each program that is on this machine or that the project's files need, and return those that cannot run."""
    if read_platform(host) not in (Platform.LINUX, Platform.WSL2) or detect_container(host):
        return Unknown("only read on a Linux host")
    failures = []
    for argv, needed_by in (*_list_commands(host), *_list_needed(host, project)):
        path = argv[0]
        # Source: ssh-add(1): 1 is an agent without keys, 2 none.
        works = (lambda done: done.code in (0, 1, TIMED_OUT)) if path == "ssh-add" else can_run
        done, failure = run_or_explain(host, argv, deadline_s=_DEADLINE_S, name=path, works=works)
        if failure is not None:
            words = _explain_refusal(host, path, done) or failure.words
            failures.append(replace(failure, words=words, needed_by=needed_by))
    return tuple(failures)


def _list_commands(host: Host) -> Iterator[tuple[tuple[str, ...], str]]:
    folders = tuple(dict.fromkeys((*split_search_path(host.env.get("PATH", "")), *SYSTEM_PROGRAM_FOLDERS)))
    for name in PROGRAMS:
        if path := _find_file(host, name, folders):
            yield (path, "--version"), ""
    for name in PLUGINS:
        if path := _find_file(host, name, (f"{find_docker_config(host)}/cli-plugins", *COMPOSE_PLUGIN_FOLDERS)):
            yield (path, PLUGIN_QUESTION), ""


def _list_needed(host: Host, project: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for argv, files, words in _NEEDS:
        if file := next((file for file in files if words in (host.read(f"{project}/{file}") or "")), ""):
            yield argv, file


def _find_file(host: Host, name: str, folders: tuple[str, ...]) -> str:
    """Find the program that a shell would run, or else the first file of its name."""
    if path := find_program(host, name, folders=folders):
        return path
    paths = (f"{folder}/{name}" for folder in folders)
    return next((path for path in paths if (found := host.stat(path)) is not None and found.kind == "file"), "")


def can_run(done: ProgramResult) -> bool:
    """Say if a program was executed and gave an answer, or knows no such question. One that is late may only be busy."""
    is_answer = done.code in (0, _USAGE, TIMED_OUT) or _REFUSES_FLAG.search(done.err + done.out) is not None
    return is_answer and done.code not in (NOT_FOUND, NOT_EXECUTABLE) and done.code >= 0


def _explain_refusal(host: Host, path: str, done: ProgramResult) -> tuple[str, ...]:
    """Return what the kernel has against a program that it did not execute, and the signal of one that crashed."""
    if done.code < 0:
        return (*find_error_lines(done.err), f"it crashed with {format_signal(-done.code)}")
    if done.code == NOT_FOUND and "/" not in path:
        return ("it is not installed",)
    script = host.read(path) or ""
    interpreter = script.partition("\n")[0].removeprefix("#!").split()[:1] if script.startswith("#!") else []
    if interpreter and host.stat(interpreter[0]) is None:
        return (f"its interpreter {interpreter[0]} does not exist",)
    found = host.stat(path)
    if found is not None and not found.mode & ANY_EXECUTE_BIT:
        return (f"mode {found.mode:04o} has no execute bit",)
    return () if not done.err.startswith("[Errno") else (done.err.partition("] ")[2].partition(":")[0],)
