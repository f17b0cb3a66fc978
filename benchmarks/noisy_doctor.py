"""`devkit doctor` as a program, on a machine with a GPU that works, under conditions that are none of its fault.

Each condition hides, breaks, limits or hangs one thing. It fails where devkit crashes (a traceback, its bug line, a
signal), takes more than 5 s beyond what a start takes, calls a machine healthy although a check for problems that
passed in quiet could not be made, or finds a problem where nothing is wrong. Needs root on Linux, and gcc.

    python -m benchmarks.noisy_doctor [WORD_IN_A_NAME…] [--record]
"""

import contextlib
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.machine import record, versions
from tests.gpu_machine import DEVKIT, GPU, HOME, LIBRARIES, PROJECT, VARIABLES, gpu_machine, on_machine

LIMIT_S = 5.0
ANSWERS = ("nvidiactl open", "libcuda loaded", "nvml loaded", "gpus 1", "end")
"""What a container with a GPU prints, in place of an engine, which this machine does not have."""
AT_ONCE = 2
SLOW_PYTHON = ("PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONTRACEMALLOC")
"""Settings that make Python itself many times slower."""
REPORT = "/run/devkit-report.json"
BUG_LINES = ("Traceback (most recent call last)", "bug in devkit", "Fatal Python error", "Segmentation fault")


class Effect(StrEnum):
    """What a condition leaves of the machine."""

    NOTHING = "nothing is wrong with the machine, and all of it can be read: no problem, and not incomplete"
    HIDDEN = "something cannot be read: never healthy with fewer checks for problems than in quiet, and no problem"
    BROKEN = "something is wrong, or is gone: never healthy with fewer checks for problems than in quiet"
    ABSENT = "something that a healthy machine need not have is gone: healthy or incomplete"
    NO_REPORT = "the report cannot be printed or is interrupted: no crash"


@dataclass(frozen=True)
class Condition:
    """How a machine differs from the quiet one: shell commands on it, variables, and the command around devkit."""

    name: str
    effect: Effect
    noise: str = ""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    around: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ("--json",)
    signal: int = 0
    after_s: float = 0.3
    exit_codes: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Result:
    """How a condition ended; `faults` is empty where it ended well."""

    name: str
    effect: Effect
    code: int
    verdict: str
    lost: tuple[str, ...]
    wall_s: float
    faults: tuple[str, ...]


# --- the conditions ---------------------------------------------------------------------------------------------------


def shell(script: str) -> tuple[str, ...]:
    """Run `script` before devkit, whose command is its "$@"."""
    return ("sh", "-c", f"{script}", "sh")


def list_streams() -> Iterator[Condition]:
    """Closed, full and broken standard streams, and no terminal."""
    for name, redirection in (
        ("standard output is closed", ">&-"),
        ("standard error is closed", "2>&-"),
        ("standard input is closed", "<&-"),
        ("all streams are closed", "<&- >&- 2>&-"),
        ("standard output and error are closed", ">&- 2>&-"),
        ("standard error is full", "2>/dev/full"),
        ("standard input is endless", "</dev/zero"),
        ("standard output is read-only", "1</dev/null"),
    ):
        codes = (2,) if "read-only" in name else (0, 1)
        around = shell(f'exec "$@" {redirection}')
        yield Condition(name, Effect.NO_REPORT, around=around, arguments=(), exit_codes=codes)
    yield Condition(
        "standard output is full", Effect.NO_REPORT, around=shell('exec "$@" >/dev/full'), arguments=(), exit_codes=(2,)
    )
    yield Condition(
        "the report's file is full", Effect.NO_REPORT, arguments=("--output", "/dev/full"), exit_codes=(0, 2)
    )
    yield Condition(
        "the facts' file is full", Effect.NO_REPORT, arguments=("--save-facts", "/dev/full"), exit_codes=(0, 2)
    )
    for reader in ("head -c 1", "true", "head -1"):
        # sh has no pipefail; the exit status of devkit is what is judged.
        script = f'{{ "$@"; echo $? >/run/code; }} | {reader}; exit $(cat /run/code)'
        yield Condition(f"the pipe's reader is `{reader}`", Effect.NO_REPORT, around=shell(script), arguments=())
    for term in (
        "",
        "dumb",
        "xterm-256color",
        "vt100",
        "linux",
        "screen.xterm",
        "no-such-terminal",
        "\x1b[31m",
        "x" * 4000,
    ):
        yield Condition(
            f"TERM={term[:20]!r} on a terminal",
            Effect.NOTHING,
            variables={"TERM": term},
            around=terminal(80),
            arguments=(),
        )
    for columns in ("1", "10", "20", "0", "-5", "many", "100000"):
        yield Condition(
            f"COLUMNS={columns}", Effect.NOTHING, variables={"COLUMNS": columns}, around=terminal(80), arguments=()
        )
    for width in (1, 10, 5000):
        yield Condition(f"a terminal of {width} columns", Effect.NOTHING, around=terminal(width), arguments=())
    yield Condition("no terminal at all", Effect.NOTHING, around=("setsid", "--wait"))
    yield Condition("no colors wanted", Effect.NOTHING, variables={"NO_COLOR": "1"}, around=terminal(80), arguments=())


def terminal(columns: int) -> tuple[str, ...]:
    """Run devkit on a terminal of this width."""
    inner = f'stty cols {columns} 2>/dev/null; exec "$@"'
    return ("python3", "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)", *shell(inner))


def list_folders() -> Iterator[Condition]:
    """Folders that are empty, unreadable or gone, and the current directory."""
    for folder in ("/proc", "/sys", "/etc", "/var", "/dev", "/sys/bus/pci/devices", "/proc/driver", "/sys/module"):
        yield Condition(f"{folder} is empty", Effect.BROKEN, f"mount -t tmpfs -o mode=755 tmpfs $root{folder}")
    yield Condition("/run is empty", Effect.BROKEN, "mount -t tmpfs tmpfs $root/run")
    for folder in ("/etc/cdi", "/etc/nvidia-container-runtime", "/etc/docker"):
        yield Condition(f"{folder} is empty", Effect.ABSENT, f"mount -t tmpfs tmpfs $root{folder}")
    for folder in (
        "/var/lib",
        "/var/log",
        "/sys/class",
        "/sys/devices",
        "/sys/kernel",
        "/sys/fs",
        "/home",
        "/opt",
        "/tmp",
    ):
        keep = f"; mkdir -p $root{PROJECT}" if folder == "/home" else ""
        yield Condition(f"{folder} is empty", Effect.HIDDEN, f"mount -t tmpfs -o size=99g tmpfs $root{folder}{keep}")
    yield Condition(
        "/proc, /sys and /dev are empty", Effect.BROKEN, "for f in proc sys dev; do mount -t tmpfs tmpfs $root/$f; done"
    )
    yield Condition(
        "/proc and /etc are empty", Effect.BROKEN, "for f in proc etc; do mount -t tmpfs tmpfs $root/$f; done"
    )
    yield Condition("/usr/bin holds env and Python alone", Effect.BROKEN, keep_programs("env", "python3", "sh"))
    yield Condition(
        "/usr/sbin is empty", Effect.BROKEN, "mount -t tmpfs tmpfs $root/usr/sbin", around=("/usr/bin/env",)
    )
    yield Condition(
        "everything is read-only", Effect.BROKEN, "mount -o remount,ro $root || mount -o remount,ro,bind $root"
    )
    yield Condition(
        "/dev/null is gone", Effect.BROKEN, "mount -t overlay o -o lowerdir=$state/nonull:$root/dev $root/dev"
    )
    yield Condition("/dev/shm is gone", Effect.NOTHING, "umount $root/dev/shm")
    yield Condition("/tmp is not writable", Effect.NOTHING, "mount -t tmpfs -o ro tmpfs $root/tmp")
    yield Condition(
        "the current directory is deleted",
        Effect.NO_REPORT,
        around=shell('mkdir /home/gone; cd /home/gone; rmdir /home/gone; exec "$@"'),
        exit_codes=(0, 1, 2),
    )
    yield Condition(
        "the current directory is unreadable",
        Effect.HIDDEN,
        around=shell('mkdir -m 0 /home/closed; cd /home/closed; exec "$@"'),
    )
    yield Condition(
        "the current directory has a name of bytes",
        Effect.NOTHING,
        around=shell(r'd=$(printf "/home/a\377b"); cp -a . "$d"; cd "$d"; exec "$@"'),
    )
    yield Condition("the current directory is /", Effect.NOTHING, around=shell('cd /; exec "$@"'))
    yield Condition("the current directory is /proc", Effect.BROKEN, around=shell('cd /proc; exec "$@"'))
    yield Condition(
        "the current directory is deep",
        Effect.NOTHING,
        around=shell('for i in $(seq 300); do mkdir d12345678; cd d12345678; done; exec "$@"'),
    )
    yield Condition(
        "the current directory has 20 000 files",
        Effect.NOTHING,
        around=shell('mkdir many; cd many; seq 20000 | xargs touch; exec "$@"'),
    )
    yield Condition(
        "the current directory links to itself",
        Effect.NOTHING,
        around=shell('ln -s . loop; ln -s b a; ln -s a b; exec "$@"'),
    )


def keep_programs(*names: str) -> str:
    """Hide every program of /usr/bin but `names`."""
    keep = " ".join(f"$root/usr/bin/{name}" for name in names)
    return f"mkdir $state/written/b; cp -L {keep} $state/written/b; mount --bind $state/written/b $root/usr/bin"


def list_limits() -> Iterator[Condition]:
    """Limits on what a process may use."""
    for kilobytes in (60_000, 100_000, 150_000, 200_000, 300_000, 500_000, 1_000_000, 4_000_000):
        effect = Effect.HIDDEN if kilobytes < 1_000_000 else Effect.NOTHING
        yield limited(f"-v {kilobytes}", effect, exit_codes=(0, 1, 2))
    for files in (6, 7, 8, 12, 16, 32, 64, 256):
        yield limited(f"-n {files}", Effect.HIDDEN if files < 64 else Effect.NOTHING, exit_codes=(0, 1, 2))
    for processes in (0, 1, 2, 4, 8, 16, 64):
        yield Condition(
            f"ulimit -u {processes}",
            Effect.HIDDEN,
            variables={"HOME": "/tmp"},
            around=(*shell(f'ulimit -u {processes}; exec "$@"'), *as_user(54321)),
            exit_codes=(0, 1, 2),
        )
    for blocks in (0, 1, 8):
        yield limited(f"-f {blocks}", Effect.NOTHING)
    for seconds in (1, 2, 10):
        yield limited(f"-t {seconds}", Effect.NOTHING if seconds > 1 else Effect.NO_REPORT, exit_codes=(0, 1, -9, -24))
    for kilobytes in (256, 512, 1024):
        yield limited(f"-s {kilobytes}", Effect.NOTHING)
    yield limited("-c 0", Effect.NOTHING)
    yield limited("-l 0", Effect.NOTHING)
    yield Condition("the lowest priority", Effect.NOTHING, around=("nice", "-n", "19"))
    yield Condition("one processor", Effect.NOTHING, around=("taskset", "1"))
    yield Condition("an umask of 777", Effect.NOTHING, around=shell('umask 777; exec "$@"'))


def limited(limit: str, effect: Effect, exit_codes: tuple[int, ...] = (0, 1)) -> Condition:
    """Run devkit under one limit of the shell."""
    return Condition(f"ulimit {limit}", effect, around=shell(f'ulimit {limit}; exec "$@"'), exit_codes=exit_codes)


def as_user(number: int) -> tuple[str, ...]:
    """Run devkit as an ordinary user."""
    return ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups")


PROGRAMS = {
    "modinfo": "/usr/bin/modinfo",
    "ldconfig": "/usr/sbin/ldconfig",
    "uname": "/usr/bin/uname",
    "getconf": "/usr/bin/getconf",
    "nvidia-ctk": "/usr/bin/nvidia-ctk",
    "docker": "/usr/bin/docker",
    "docker-compose": "/usr/libexec/docker/cli-plugins/docker-compose",
    "dockerd": "/usr/bin/dockerd",
    "journalctl": "/usr/bin/journalctl",
    "dkms": "/usr/bin/dkms",
    "the project's Python": "/usr/bin/python3.12",
}
"""Every program that doctor starts on the quiet machine."""

MISCHIEF = {
    "hangs": "exec sleep 60",
    "hangs and ignores signals": "trap '' TERM INT HUP; sleep 60",
    "leaves a child that holds its streams": "sleep 60 & exit 0",
    "prints slowly": "while :; do echo 580; sleep 0.2; done",
    "prints garbage": "echo '%%%% !!! \\\\x {[('",
    "prints binary": "head -c 100000 /dev/urandom",
    "prints 1 GB": "head -c 1000000000 /dev/zero",
    "prints another language": "echo 'Fehler: Datei nicht gefunden - ошибка: 失敗しました' >&2; exit 1",
    "prints nothing": "exit 0",
    "ends with 1": "exit 1",
    "is killed": "kill -9 $$",
    "prints long numbers": "head -c 200000 /dev/zero | tr '\\\\0' 9",
    "prints terminal escapes": "printf '\\\\033[2J\\\\033]0;x\\\\007 580.95.05\\\\r\\\\n'",
}


def list_programs() -> Iterator[Condition]:
    """Programs that hang, print anything, or are gone."""
    for name, path in PROGRAMS.items():
        for trick, script in MISCHIEF.items():
            yield Condition(f"{name} {trick}", Effect.BROKEN, write_program(path, script))
        # The engine's own and ldconfig, which the toolkit's settings name, are missed when they are gone.
        gone = Effect.BROKEN if name.startswith(("docker", "ldconfig")) else Effect.ABSENT
        yield Condition(f"{name} is gone", gone, f"rm -f $root{path}")
        yield Condition(f"{name} may not be executed", gone, f"rm -f $root{path}; echo x >$root{path}")
        yield Condition(f"{name} is a folder", gone, f"rm -f $root{path}; mkdir -p $root{path}")
    everything = "; ".join(write_program(path, "exec sleep 60") for path in PROGRAMS.values())
    yield Condition("every program hangs", Effect.BROKEN, everything)
    every = "; ".join(write_program(path, MISCHIEF["prints binary"]) for path in PROGRAMS.values())
    yield Condition("every program prints binary", Effect.BROKEN, every)


def write_program(path: str, script: str) -> str:
    """Put a script in a program's place."""
    # A short docker is taken for a script that hands over to another program, and not asked for its version.
    padding = f": '{' ' * 20_000}'\n" if path.endswith("/docker") else ""
    content = shlex.quote(f"#!/bin/sh\n{padding}{script}\n".replace("\\\\", "\\"))
    return f"rm -f $root{path}; printf %s {content} >$root{path}; chmod 755 $root{path}"


def list_environments() -> Iterator[Condition]:
    """Variables, locales and users."""
    for locale in (
        "C",
        "POSIX",
        "C.UTF-8",
        "de_DE.UTF-8",
        "ja_JP.eucJP",
        "tr_TR.UTF-8",
        "",
        "no_SUCH",
        "\xff",
        "x" * 3000,
    ):
        yield Condition(f"LANG={locale[:20]!r}", Effect.NOTHING, variables={"LANG": locale, "LC_ALL": locale})
    for locale in ("C", "de_DE.ISO-8859-1"):
        named = {"LANG": locale, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        yield Condition(f"LANG={locale}, without UTF-8", Effect.NOTHING, variables=named, arguments=())
    for name, value, effect in (
        ("PATH", "", Effect.NOTHING),
        ("PATH", None, Effect.NOTHING),
        ("PATH", "/nowhere", Effect.NOTHING),
        ("PATH", ":::.:", Effect.NOTHING),
        ("PATH", "/usr/bin:" * 3000, Effect.NOTHING),
        ("HOME", None, Effect.ABSENT),
        ("HOME", "", Effect.ABSENT),
        ("HOME", "relative", Effect.NOTHING),
        ("HOME", "/nowhere", Effect.NOTHING),
        ("HOME", "/etc/passwd", Effect.BROKEN),
        ("HOME", "/proc", Effect.BROKEN),
        ("USER", None, Effect.NOTHING),
        ("TMPDIR", "/nowhere", Effect.BROKEN),
        ("TMPDIR", "/proc", Effect.BROKEN),
        ("TZ", "Mars/Phobos", Effect.NOTHING),
        ("PYTHONIOENCODING", "ascii", Effect.NOTHING),
        ("PYTHONIOENCODING", "utf-16", Effect.NO_REPORT),
        ("PYTHONDONTWRITEBYTECODE", "1", Effect.NOTHING),
        ("PYTHONUNBUFFERED", "1", Effect.NOTHING),
        ("PYTHONOPTIMIZE", "2", Effect.NOTHING),
        ("PYTHONWARNINGS", "error", Effect.NOTHING),
        ("PYTHONDEVMODE", "1", Effect.HIDDEN),
        ("PYTHONHASHSEED", "0", Effect.NOTHING),
        ("PYTHONINTMAXSTRDIGITS", "0", Effect.NOTHING),
        ("PYTHONTRACEMALLOC", "1", Effect.HIDDEN),
        ("PYTHONMALLOC", "debug", Effect.HIDDEN),
        ("PYTHONFAULTHANDLER", "1", Effect.NOTHING),
        ("PYTHONSTARTUP", "/etc/passwd", Effect.NOTHING),
        ("PYTHONUTF8", "0", Effect.NOTHING),
        ("LD_LIBRARY_PATH", "/nowhere:" * 100, Effect.NOTHING),
        ("LD_PRELOAD", "/nowhere/lib.so", Effect.NOTHING),
        ("LANGUAGE", "de:fr", Effect.NOTHING),
        ("CLICOLOR_FORCE", "1", Effect.NOTHING),
        ("BIG", "x" * 100_000, Effect.NOTHING),
        ("DOCKER_HOST", "nonsense://", Effect.BROKEN),
        ("DOCKER_HOST", "unix:///nowhere.sock", Effect.BROKEN),
        ("DOCKER_HOST", "tcp://10.255.255.1:2375", Effect.BROKEN),
        ("DOCKER_HOST", "ssh://nobody@nowhere", Effect.BROKEN),
        ("DOCKER_CONTEXT", "no-such", Effect.BROKEN),
        ("DOCKER_CONFIG", "/nowhere", Effect.NOTHING),
        ("DOCKER_CONFIG", "/etc/passwd", Effect.NOTHING),
        ("XDG_CONFIG_HOME", "/nowhere", Effect.NOTHING),
        ("XDG_RUNTIME_DIR", "/nowhere", Effect.NOTHING),
        ("NVML_STUB_FAIL", "nvmlInit_v2=hang", Effect.BROKEN),
        ("NVML_STUB_FAIL", "nvmlInit_v2=segv", Effect.BROKEN),
        ("NVML_STUB_FAIL", "nvmlDeviceGetName=hang", Effect.BROKEN),
        ("NVML_STUB_FAIL", "nvmlDeviceGetMemoryInfo=hang", Effect.BROKEN),
        ("NVML_STUB_FAIL", "nvmlDeviceGetUUID=999", Effect.BROKEN),
        ("NVML_STUB_GPUS", "0", Effect.BROKEN),
    ):
        shown = "is not set" if value is None else f"= {value[:30]!r}"
        yield Condition(f"{name} {shown}", effect, variables={name: value})
    yield Condition(
        "no variables at all", Effect.NOTHING, around=("env", "-i", f"PYTHONPATH={VARIABLES['PYTHONPATH']}")
    )
    for number in (65534, 54321):
        yield Condition(f"user {number}", Effect.HIDDEN, variables={"HOME": "/tmp"}, around=as_user(number))
    yield Condition(
        "user 54321 and /proc with hidepid",
        Effect.HIDDEN,
        "mount -o remount,hidepid=2 $root/proc || true",
        {"HOME": "/tmp"},
        around=as_user(54321),
    )
    yield Condition("no capabilities", Effect.HIDDEN, around=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    yield Condition("no new privileges", Effect.NOTHING, around=("setpriv", "--no-new-privs"))
    yield Condition("Python without site packages of the user", Effect.NOTHING, variables={"PYTHONNOUSERSITE": "1"})


def list_files() -> Iterator[Condition]:
    """Settings that are broken, of another kind, endless, or unreadable."""
    forms = {
        "is a FIFO": "rm -rf {0}; mkfifo {0}",
        "is a folder": "rm -rf {0}; mkdir {0}",
        "is /dev/zero": "rm -rf {0}; ln -s /dev/zero {0}",
        "is /dev/random": "rm -rf {0}; ln -s /dev/urandom {0}",
        "is a link to itself": "rm -rf {0}; ln -s {0} {0}",
        "is a broken link": "rm -rf {0}; ln -s /nowhere {0}",
        "is empty": "rm -rf {0}; : >{0}",
        "is binary": "rm -rf {0}; head -c 100000 /dev/urandom >{0}",
        "has 40 MB": "rm -rf {0}; head -c 40000000 /dev/zero | tr '\\0' ' ' >{0}",
        "is nested deep": "rm -rf {0}; head -c 200000 /dev/zero | tr '\\0' '[' >{0}",
        "may not be read": "chmod 0 {0}",
        "is broken JSON": "echo '{{\"a\": ' >{0}",
    }
    for path in (
        "/etc/docker/daemon.json",
        "/etc/cdi/nvidia.json",
        "/etc/nvidia-container-runtime/config.toml",
        f"{HOME}/.docker/config.json",
        "/etc/os-release",
        "/etc/group",
        f"{PROJECT}/compose.yaml",
        f"{PROJECT}/.devcontainer/devcontainer.json",
        f"{PROJECT}/requirements.txt",
        f"{PROJECT}/pyproject.toml",
    ):
        for form, script in forms.items():
            prepare = f"mkdir -p $root{Path(path).parent}; [ -e $root{path} ] || : >$root{path}; "
            around = as_user(54321) if form == "may not be read" else ()
            variables = {"HOME": "/tmp"} if around and not path.startswith(HOME) else {}
            # Programs take these for an absent file, and all of the files may be absent.
            is_needed = path.endswith(("devcontainer.json", "compose.yaml"))
            is_absent = form in ("is a link to itself", "is a broken link", "is empty") and not is_needed
            effect = Effect.ABSENT if is_absent else Effect.BROKEN
            yield Condition(f"{path} {form}", effect, prepare + script.format(f"$root{path}"), variables, around)
    for path in (
        "/proc/meminfo",
        "/proc/mounts",
        "/proc/self/status",
        "/proc/stat",
        "/proc/self/limits",
        "/proc/version",
    ):
        for form, source in (("is empty", "/dev/null"), ("is binary", "/bin/true"), ("is endless", "/dev/zero")):
            yield Condition(f"{path} {form}", Effect.HIDDEN, around=shell(f'mount --bind {source} {path}; exec "$@"'))
    for path in ("sys/module/nvidia/version", "proc/driver/nvidia/version", f"sys/bus/pci/devices/{GPU}/vendor"):
        for form, source in (("is empty", "/dev/null"), ("is binary", "/bin/true"), ("is endless", "/dev/zero")):
            yield Condition(f"/{path} {form}", Effect.BROKEN, f"mount --bind {source} $root/{path}")
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        yield Condition(
            f"{name} is text", Effect.BROKEN, f"rm $root{LIBRARIES}/{name}; echo x >$root{LIBRARIES}/{name}"
        )
        yield Condition(f"{name} is empty", Effect.BROKEN, f"rm $root{LIBRARIES}/{name}; : >$root{LIBRARIES}/{name}")
        yield Condition(
            f"{name} is a FIFO", Effect.BROKEN, f"rm $root{LIBRARIES}/{name}; mkfifo $root{LIBRARIES}/{name}"
        )
    yield Condition("the machine has 300 CDI files", Effect.NOTHING, many_specifications(300))


def many_specifications(count: int) -> str:
    """Add specifications of another vendor's devices."""
    spec = '{"cdiVersion": "0.5.0", "kind": "acme.com/x%d", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
    return f"for i in $(seq {count}); do printf {shlex.quote(spec)} $i >$root/etc/cdi/acme$i.json; done"


SOCKETS: Mapping[str, bytes | None] = {
    "never answers": None,
    "hangs up": b"",
    "answers garbage": b"\x00\xff\x13garbage\n" * 50,
    "answers HTTP 500": b"HTTP/1.1 500 Oh no\r\nContent-Length: 2\r\n\r\n{}",
    "answers a web page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    "answers a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "answers null": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
    "answers deep JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100000,
    "answers half": b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
    "redirects to itself": b"HTTP/1.1 302 Found\r\nLocation: /version\r\nContent-Length: 0\r\n\r\n",
    "answers without an end": b"HTTP/1.1 200 OK\r\nContent-Length: 90000000000\r\n\r\n" + b" " * (64 << 20),
}


def list_sockets() -> Iterator[Condition]:
    """An engine's socket that is something else."""
    for number, trick in enumerate(SOCKETS):
        yield Condition(
            f"the engine's socket {trick}", Effect.BROKEN, variables={"DOCKER_HOST": f"unix:///run/socket{number}"}
        )
    for form, script in (
        ("is a file", ": >$root/run/s"),
        ("is a folder", "mkdir -p $root/run/s"),
        ("is a FIFO", "[ -e $root/run/s ] || mkfifo $root/run/s"),
        ("is gone", "rm -rf $root/run/s"),
    ):
        own = "mount -t tmpfs tmpfs $root/run; "
        yield Condition(f"the engine's socket {form}", Effect.BROKEN, own + script, {"DOCKER_HOST": "unix:///run/s"})


def list_signals() -> Iterator[Condition]:
    """Signals while probes run, and before."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for after_s in (0.02, 0.1, 0.25, 0.5, 1.5):
            yield Condition(
                f"{number.name} after {after_s} s",
                Effect.NO_REPORT,
                write_program("/usr/bin/nvidia-ctk", "exec sleep 60"),
                signal=number,
                after_s=after_s,
                exit_codes=(0, 1, 130, -number, -signal.SIGINT),
            )
    for number in (signal.SIGPIPE, signal.SIGWINCH, signal.SIGCHLD, signal.SIGCONT):
        yield Condition(f"{number.name} while it runs", Effect.NOTHING, signal=number)
    for ignored in ("INT", "TERM", "HUP", "PIPE", "CHLD"):
        yield Condition(
            f"SIG{ignored} is ignored from the start", Effect.NOTHING, around=shell(f"trap '' {ignored}; exec \"$@\"")
        )


LISTS: tuple[Callable[[], Iterator[Condition]], ...] = (
    list_streams,
    list_folders,
    list_limits,
    list_programs,
    list_environments,
    list_files,
    list_sockets,
    list_signals,
)


# --- running and judging ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quiet:
    """The machine without noise: the checks for problems that pass, and how long a start takes."""

    passed: frozenset[str]
    wall_s: float


def examine(state: Path, condition: Condition, quiet: Quiet | None) -> Result:
    """Run devkit under one condition and judge how it ended."""
    variables = {**VARIABLES, **condition.variables}
    named = [f"{name}={value}" for name, value in variables.items() if value is not None]
    # Between the machine and devkit, programs are found whatever PATH the condition gives devkit.
    words = ("/usr/bin/env", "-i", *named, *condition.around, *DEVKIT, "doctor", *condition.arguments)
    around_path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME}
    started = time.monotonic()
    process = subprocess.Popen(
        on_machine(state, *words, noise=condition.noise),
        env=around_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    if condition.signal:
        time.sleep(condition.after_s)
        process.send_signal(condition.signal)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    wall_s = time.monotonic() - started
    texts = out.decode(errors="replace"), err.decode(errors="replace")
    document = read_document(texts[0])
    faults = tuple(judge(condition, process.returncode, wall_s, texts, document, quiet))
    return Result(
        condition.name,
        condition.effect,
        process.returncode,
        read_verdict(texts[0], document),
        tuple(each["reason"] for each in document.get("lost", ())),
        round(wall_s, 2),
        faults,
    )


def read_document(out: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        document = json.loads(out)
        if isinstance(document, dict):
            return document
    return {}


def read_verdict(out: str, document: Mapping[str, Any]) -> str:
    """The verdict of either form of the report; "" where there is none."""
    words = {"healthy": "healthy", "incomplete": "incomplete", "problem": "problems", "warning": "warnings"}
    shown = "".join(out.split())
    found = [(shown.find(word), verdict) for word, verdict in words.items() if word in shown]
    return str(document.get("verdict") or (min(found)[1] if found else ""))


def judge(
    condition: Condition,
    code: int,
    wall_s: float,
    texts: tuple[str, str],
    document: Mapping[str, Any],
    quiet: Quiet | None,
) -> Iterator[str]:
    """Yield what is wrong with how a condition ended."""
    # Python prints one itself for a signal that comes before its first line of devkit.
    starts = condition.signal == signal.SIGINT and not any("devkit/__main__.py" in text for text in texts)
    for line in BUG_LINES[1:] if starts else BUG_LINES:
        if any(line in text for text in texts):
            yield f"crash: {line!r}"
    if code not in condition.exit_codes:
        yield f"exit code {code}: {' '.join(texts[1].split())[-200:]}"
    if quiet is not None and wall_s > LIMIT_S + quiet.wall_s and not condition.name.startswith(SLOW_PYTHON):
        yield f"{wall_s:.1f} s"
    if condition.effect is Effect.NO_REPORT or code not in (0, 1):
        return
    yield from judge_verdict(condition.effect, read_verdict(texts[0], document), document, quiet)


def judge_verdict(effect: Effect, verdict: str, document: Mapping[str, Any], quiet: Quiet | None) -> Iterator[str]:
    """Yield what is wrong with a verdict."""
    if not verdict:
        yield "no verdict"
    if verdict == "problems" and effect in (Effect.NOTHING, Effect.HIDDEN, Effect.ABSENT):
        yield f"false problem: {document.get('root_causes')}"
    lost = [each["reason"] for each in document.get("lost", ())]
    if verdict == "incomplete" and effect is Effect.NOTHING:
        yield f"incomplete: {lost}"
    gone = sorted(quiet.passed - list_judged(document)) if quiet is not None and document else []
    # What a container did not need is a note.
    is_told = any(each["status"] == "found" for each in document.get("outcomes", ()))
    if verdict == "healthy" and effect is not Effect.ABSENT and gone and not is_told:
        yield f"false healthy: {len(gone)} checks were not made: {', '.join(gone[:6])}"
    for each in document.get("outcomes", ()):
        if each["status"] == "crashed":
            yield f"check {each['code']} crashed: {each['reason']}"


def list_judged(document: Mapping[str, Any], *statuses: str) -> frozenset[str]:
    return frozenset(
        each["code"] for each in document["outcomes"] if each["status"] in (statuses or ("passed", "found"))
    )


def find_quiet(state: Path) -> Quiet:
    """Run devkit without noise. Raises RuntimeError where the machine is not healthy then."""
    from devkit.doctor.model import Severity
    from devkit.doctor.registry import BY_CODE

    done = examine(state, Condition("quiet", Effect.NOTHING), None)
    if done.verdict != "healthy" or done.faults:
        raise RuntimeError(f"the quiet machine is not healthy: {done}")
    words = on_machine(state, *DEVKIT, "doctor", "--json")
    document = json.loads(subprocess.run(words, env=VARIABLES, capture_output=True, check=True).stdout)
    # CTK014 reads a process called dockerd, which another engine of this machine may have.
    # CTK013 and ENG017 are of trials: where there was none, the last line says so in place of "healthy".
    errors = {code for code, check in BY_CODE.items() if check.worst is Severity.ERROR} - {"CTK014", "CTK013", "ENG017"}
    return Quiet(list_judged(document, "passed") & errors, done.wall_s)


@contextlib.contextmanager
def broken_sockets(folder: Path) -> Iterator[None]:
    """Serve every socket of `SOCKETS` for the block."""
    listeners = []
    for number, reply in enumerate(SOCKETS.values()):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / f"socket{number}"))
        listener.listen()
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, reply), daemon=True).start()
    try:
        yield
    finally:
        for listener in listeners:
            # Closing alone does not wake up the thread that waits for a connection.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def serve(listener: socket.socket, reply: bytes | None) -> None:
    """Answer every connection with `reply`; None never answers."""
    held = contextlib.ExitStack()
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            held.close()
            return
        held.enter_context(connection)
        if reply is not None:
            with contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(reply)
                connection.close()


def main() -> int:
    """Run every condition, or those with a word of the command line in their name; print the faults and record."""
    wanted = [word for word in sys.argv[1:] if word != "--record"]
    conditions = [one for make in LISTS for one in make() if not wanted or any(word in one.name for word in wanted)]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with (
        tempfile.TemporaryDirectory(prefix="devkit-noisy-") as scratch,
        gpu_machine(Path(scratch, "m"), container=ANSWERS) as state,
    ):
        Path(scratch).chmod(0o755)
        (state / "run/docker.sock").chmod(0o666)
        (state / "nonull").mkdir()
        os.mknod(state / "nonull/null", 0o020000)
        quiet = find_quiet(state)
        with broken_sockets(state / "run"), ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(lambda one: examine(state, one, quiet), conditions))
    for result in results:
        if wanted or result.faults:
            ending = f"exit {result.code}, {result.verdict or 'no verdict'}, {result.wall_s} s"
            print(f"{result.name}: {ending}; {'; '.join(result.faults) or 'good'}")
            for reason in result.lost if wanted else ():
                print(f"    lost: {reason}")
    good = sum(not result.faults for result in results)
    print(f"{good} of {len(results)} conditions ended well; quiet takes {quiet.wall_s} s")
    if "--record" in sys.argv:
        path = record(
            "noisy_doctor",
            {
                "versions": versions("devkit-gpu", "click", "docker", "nvidia-ml-py"),
                "quiet_s": quiet.wall_s,
                "at_once": AT_ONCE,
                "conditions": len(results),
                "ended_well": good,
                "verdicts": Counter(result.verdict or "none" for result in results),
                "longest_s": max(result.wall_s for result in results),
                "faults": {result.name: result.faults for result in results if result.faults},
            },
        )
        print(f"recorded in {path}")
    return int(good < len(results))


if __name__ == "__main__":
    sys.exit(main())
