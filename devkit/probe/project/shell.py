"""Shell commands in Dockerfiles and lifecycle commands: the compilers, folders, users and GPUs that they involve."""

import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from devkit.facts.project import MadeUser
from devkit.formats.shell import ShellCommand, command_from_words, parse_commands
from devkit.probe.documents import parse_words

_COMPILER = re.compile(
    r"^(?:gcc|g\+\+|clang|build-essential|build-base|gcc-c\+\+|gcc_linux-64|gxx_linux-64|compilers|c-compiler|gxx)"
    r"(?:-\d+)?(?:[=<>].*)?$"
)
_NVCC = re.compile(
    r"(?:\S+::)?(?:nvidia-)?cuda(?:-(?:toolkit|nvcc|compiler|minimal-build|devel|\d+)[\w.-]*|toolkit-dev)?(?:[=<>].*)?"
    r"|nvidia-cuda-nvcc[\w-]*(?:[=<>].*)?|\S*cuda_[\d.]+_\S*\.run"
)
_DRIVER = re.compile(
    r"(?:nvidia-(?:driver|utils|dkms|headless|kernel|compute-utils)|libnvidia-(?!container)[a-z]+|cuda-drivers|xserver-xorg-video-nvidia"
    r"|libcuda1|akmod-nvidia|nvidia-open)(?:[-:=][\w.:~+*-]*)?|\S*NVIDIA-Linux-\S+\.run"
)
_SYSTEM_INSTALLER = re.compile(r"^(?:apt-get|apt|dnf|microdnf|yum|apk|zypper|conda|mamba|micromamba|pacman)$")
_OPEN_MODE = re.compile(r"(?:[ugoa]*[goa])?[+=]\w*w\w*|[0-7]*(?:[2367][0-7]|[0-7][2367])")
_REPAIRS = re.compile(r"\b(?:sudo|su|doas|gosu|su-exec|setpriv|chown|chmod|chroot|unshare|ssh|docker)\b|\s-w\s")
_REDIRECTION = re.compile(r"\d?>>?\|?(?!&)(.*)", re.DOTALL)
_MOVES = re.compile(r"<<|\b(?:cd|pushd)\b")
_DEPTHS = {"if": 1, "fi": -1, "case": 1, "esac": -1}
_PYTHON = re.compile(r"^\s*(?:import|from)\s+\w|^#!.*python|\b(?:open|print)\(", re.MULTILINE)
_PYTHON_WRITES = re.compile(
    r"^(?:os\.(?:makedirs|mkdir)\(\s*[\"']([^\"']+)[\"']|(?:with\s|\w+\s*=\s*)?open\(\s*[\"']([^\"']+)[\"']\s*,\s*(?:mode=)?[\"'][wax])",
    re.MULTILINE,
)
"""At the top level of a script, where nothing decides whether they run."""
_TORCH_CUDA = re.compile(
    r"torch\.cuda\.(?:is_available|device_count|current_device|get_device\w*|init)\b"
    r"|\.cuda\(\)|device\s*=\s*['\"]cuda|\.to\(['\"]cuda"
)
_FAILS_WITHOUT = re.compile(
    r"\bassert\b|\braise\b|exit\(|\.cuda\(\)|current_device|get_device|device\s*=|\.to\(|cuda\.init"
)


@lru_cache(maxsize=256)  # a command reads its project several times
def parse_shell_text(text: str) -> tuple[ShellCommand, ...]:
    """Parse a shell text, or a JSON list with the words of one command, as Dockerfiles and dev containers have both."""
    words = parse_words(text)
    return tuple(parse_commands(text) if words is None else command_from_words(words))


def find_compilers(commands: Iterable[ShellCommand]) -> tuple[str, ...]:
    """Find packages with a C compiler, where the commands install system packages at all."""
    commands = tuple(commands)
    if not any(_SYSTEM_INSTALLER.match(command.program) for command in commands):
        return ()
    return tuple(word for command in commands for word in command.values[1:] if _COMPILER.match(word))


def find_nvcc_packages(commands: Iterable[ShellCommand]) -> tuple[str, ...]:
    """Find packages with CUDA's compiler that the commands install, NVIDIA's installer included."""
    return tuple(word for command in commands for word in command.values if _NVCC.fullmatch(word))


def find_driver_packages(commands: Iterable[ShellCommand]) -> tuple[str, ...]:
    """Find packages of the NVIDIA driver that the commands install, NVIDIA's installer included."""
    return tuple(
        word
        for command in commands
        for word in (
            command.values if _SYSTEM_INSTALLER.match(command.program) else (*command.values[:2], command.program)
        )
        if _DRIVER.fullmatch(word)
    )


def find_programs(commands: Iterable[ShellCommand]) -> tuple[str, ...]:
    """Find the programs that the commands run, each once."""
    return tuple(dict.fromkeys(command.program for command in commands))


def find_created_folders(commands: Iterable[ShellCommand], *, as_user: bool, folder: str = "") -> tuple[str, ...]:
    """Find folders that the commands give to a user or let others write; those only created count when a user runs them.

    `folder` is where they run; with "" only absolute paths are found.
    """
    found = []
    for command in commands:
        words = command.values[1:]
        sets_owner = any(word.startswith(("--owner", "--group", "-o", "-g")) for word in words)
        opens = command.program == "chmod" and any(_OPEN_MODE.fullmatch(word) for word in words)
        changes_owner = command.program == "chown" or (command.program == "install" and sets_owner)
        if command.program in ("useradd", "adduser"):
            found += [value for option, value in pairwise(words) if option in ("-d", "-h", "--home", "--home-dir")]
        elif opens or changes_owner or (as_user and command.program in ("mkdir", "install")):
            names = [word for word in words if not word.startswith("-")][command.program in ("chown", "chmod") :]
            found += [
                posixpath.normpath(posixpath.join(folder, name)) for name in names if name.startswith("/") or folder
            ]
    return tuple(found)


def find_written_paths(text: str) -> Iterator[str]:
    """Yield the paths that a text in shell or Python surely writes to, a folder that it makes with a slash at its end.

    A text that changes owners, modes or its user yields nothing, and relative paths of one that changes its folder are left
    out, as is what a condition decides.
    """
    if _REPAIRS.search(text):
        return
    yield from (f"{found[1]}/" if found[1] else found[2] for found in _PYTHON_WRITES.finditer(text))
    depth, before = 0, ""
    for command in () if _PYTHON.search(text) else parse_shell_text(text):
        depth += _DEPTHS.get(command.program, 0)
        is_certain = depth <= 0 and not command.is_forgiven and before not in ("[", "[[", "test")
        before, words, names = command.program, iter(command.values[1:]), []
        for word in words:
            if found := _REDIRECTION.fullmatch(word):
                names.append(found[1] or next(words, ""))
            elif command.program in ("mkdir", "touch", "tee") and not word.startswith(("-", "<")):
                names.append(f"{word}/" if command.program == "mkdir" else word)
        for name in filter(None, names if is_certain else ()):
            if name.startswith(("/", "~", "$")) or not _MOVES.search(text):
                yield name


def find_created_users(commands: Iterable[ShellCommand], *, line: int) -> Iterator[MadeUser]:
    """Yield the users that the commands create."""
    for command in commands:
        if command.program not in ("useradd", "adduser") or len(command.words) < 2:
            continue
        uid = re.search(r"(?:--uid|-[a-zA-Z]*u)[= ]?(\d+|\$\{?\w+\}?)", " ".join(command.values))
        names = [word for word in command.values[1:] if re.fullmatch(r"[a-z_$][\w${}-]*", word)]
        is_first = command.program == "adduser" and names[-1:] != [command.values[-1]]
        if names:
            yield MadeUser(names[0] if is_first else names[-1], uid[1] if uid else "", line)


def removes_users(commands: Iterable[ShellCommand]) -> bool:
    """Return whether a user of the base image is removed or renamed."""
    renaming = {"-l", "--login", "-u", "--uid"}
    return any(
        command.program in ("userdel", "deluser")
        or (command.program == "usermod" and not renaming.isdisjoint(command.values))
        for command in commands
    )


def find_gpu_uses(commands: Iterable[ShellCommand], *, heredoc: str = "") -> Iterator[str]:
    """Yield what the commands need a GPU for: "nvidia-smi", or "torch.cuda" where a missing GPU ends the program."""
    for command in commands:
        if command.is_forgiven:
            continue
        if command.program == "nvidia-smi":
            yield "nvidia-smi"
        text = f"{' '.join(command.values)} {heredoc}" if "python" in command.values[0] else ""
        if _TORCH_CUDA.search(text):
            yield "torch.cuda" if _FAILS_WITHOUT.search(text) else "torch.cuda, printed"
