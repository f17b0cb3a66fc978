"""The only access to the machine. Probes receive a `Host`; tests pass a recorded one."""

import atexit
import codecs
import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar

from devkit.facts.values import Unknown

# Programs run in their own groups, which are killed at a deadline, so that none holds up devkit, and when devkit ends,
# so that none that hangs outlives it: in `_kill_live`, or by `_Guard` where a signal ends devkit.

NOT_FOUND = 127
NOT_EXECUTABLE = 126
TIMED_OUT = 124
_T = TypeVar("_T")
CALL_DEADLINE_S = 5.0

MAX_OUTPUT_BYTES = 4 << 20
"""What is kept of each stream; a program that prints more is still drained, so that it does not block."""

SYSTEM_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The PATH that systemd gives to a daemon that sets none."""
_OF_PYTHON = dict.fromkeys(("PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONMALLOC", "PYTHONTRACEMALLOC"), "")
"""Settings for somebody who debugs this process: they make every Python below it many times slower. Empty is unset."""
ASK_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit", "-C")
"""Before a folder: what a stranger's .git/config names as its file monitor is not run, and no such file is read within a work tree."""
_SLICE_S = 0.05
_GRACE_S = 0.1
_LONGEST_START_S = 2.0
_SHARE_OF_PROGRAMS = 0.8
"""The rest of an examination is for killing those that hang, and for what comes after them."""


@dataclass(frozen=True)
class ProgramResult:
    """A finished command: its exit status and what it printed. 127 is "no such program", 124 "took too long"."""

    code: int
    out: str
    err: str


class _Tap(threading.Thread):
    """Empties one stream in the background and keeps its beginning."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = bytearray()
        self.start()

    def run(self) -> None:
        with self._stream:
            while chunk := self._stream.read(65536):
                self._kept += chunk[: max(0, MAX_OUTPUT_BYTES - len(self._kept))]

    def text(self) -> str:
        """Return what has come so far, as text with plain line ends."""
        return bytes(self._kept).decode(errors="replace").replace("\r\n", "\n")


def run_program(
    argv: Sequence[str],
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> ProgramResult:
    """Run `argv` without a shell, in the C locale and its own process group, for at most `deadline_s` seconds.

    At the deadline the group gets SIGKILL and the call returns what was printed so far, with code 124. A child that
    cannot die, because a wedged driver holds it in the kernel, is left to a background thread. Ctrl-C kills it too.
    A negative code is the signal that ended the program. `environment` is added to `inherited`, by default all of this
    process's own variables. Another thread that sets `stop` brings the deadline forward.
    """
    try:
        process = _start(argv, {**(os.environ if inherited is None else inherited), **(environment or {})})
    except (FileNotFoundError, NotADirectoryError) as error:
        return ProgramResult(NOT_FOUND, "", str(error))
    except (OSError, ValueError) as error:  # no argument can hold a null byte
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            raise
        _raise_if_exhausted(error)
        return ProgramResult(NOT_EXECUTABLE, "", str(error))
    taps: tuple[_Tap, ...] = ()
    ends_at = time.monotonic() + deadline_s
    try:
        taps = tuple(_Tap(stream) for stream in (process.stdout, process.stderr) if stream is not None)
        # Streams end with the program, unless it left a child behind that holds them.
        for tap in taps:
            while tap.is_alive() and (left_s := ends_at - time.monotonic()) > 0 and process.poll() is None:
                if stop is not None and stop.is_set():
                    ends_at = 0.0
                tap.join(min(_SLICE_S, left_s))
        process.wait(max(0.0, ends_at - time.monotonic()))
        ended = True
    except subprocess.TimeoutExpired:
        ended = False
    except BaseException:
        _kill_group(process)
        raise
    if ended:
        _forget(process)
    code = process.returncode if ended else TIMED_OUT
    _end_group(process, taps, ended=ended)
    out, err = (tap.text() for tap in taps)
    return ProgramResult(code, out, err)


def ask_git(root: Path, *words: str) -> ProgramResult:
    """Ask git about the repository around `root`, which may be a stranger's: nothing that its settings name is run.

    No missing object is fetched, by a command that they name. A repository in which git hangs is not queried again.
    """
    if root in _SILENT_REPOSITORIES:
        return ProgramResult(TIMED_OUT, "", "")
    no_transport = {"GIT_ALLOW_PROTOCOL": "none"}
    done = run_program([*ASK_GIT, str(root), *words], deadline_s=CALL_DEADLINE_S, environment=no_transport)
    if done.code == TIMED_OUT:
        _SILENT_REPOSITORIES.add(root)
    return done


_SILENT_REPOSITORIES: set[Path] = set()


def _start(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The program, started and noted. Raises OSError when it cannot be, and when this process is leaving."""
    environment = {**variables, "LC_ALL": "C", "LANGUAGE": "C", **_OF_PYTHON}
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        # Windows looks into the working folder first, which may be a stranger's project.
        os.environ["NODEFAULTCURRENTDIRECTORYINEXEPATH"] = "1"
    else:
        # Users' PATH often lacks the system directories where modinfo, ldconfig and dkms live. What is relative in it
        # would be looked for in the working folder, which may be a stranger's project.
        folders = (*environment.get("PATH", os.defpath).split(os.pathsep), *SYSTEM_PROGRAM_FOLDERS)
        environment["PATH"] = os.pathsep.join(folder for folder in folders if folder.startswith("/"))
        modules = environment.get("PYTHONPATH", "").split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(folder for folder in modules if folder.startswith("/"))
        # Its plug-ins are programs.
        if not environment.get("DOCKER_CONFIG", "/").startswith("/"):
            del environment["DOCKER_CONFIG"]
    with _STARTING:
        if _ENDING.is_set():
            raise InterruptedError("this process is leaving")
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
            creationflags=flags,
        )
        _LIVE.add(process)
        _GUARD.watch(process.pid)
    return process


def _forget(process: subprocess.Popen[bytes]) -> None:
    """Take a program that has ended off the lists of those to kill: another process may get its number."""
    _LIVE.discard(process)
    _GUARD.forget(process.pid)


def _end_group(process: subprocess.Popen[bytes], taps: tuple[_Tap, ...], *, ended: bool) -> None:
    """Collect what is still in the streams, and kill what is left in the group; within `_GRACE_S` or so."""
    if ended:
        _join(taps)
    if not ended or any(tap.is_alive() for tap in taps):
        _kill_group(process)
        _join(taps)
    if ended:
        return
    try:
        process.wait(_GRACE_S / 2)
    except subprocess.TimeoutExpired:
        threading.Thread(target=_await_death, args=[process], daemon=True).start()
    else:
        _forget(process)


def _await_death(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    _forget(process)


def _join(taps: tuple[_Tap, ...]) -> None:
    ends_at = time.monotonic() + _GRACE_S
    for tap in taps:
        tap.join(max(0.0, ends_at - time.monotonic()))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty


class _Guard:
    """Kills the groups of the programs that still run when this process ends, however it ends.

    A shell reads the groups' numbers from a pipe that only this process writes to, and kills what is on its list when
    the pipe ends, which even SIGKILL does not prevent. A program does not have to help, as it would with
    PR_SET_PDEATHSIG: nvidia-smi hangs in a wedged driver as well as devkit's own children, and what it started has to
    end with it. Python could only set that between fork and exec, which is not safe beside threads. A program that
    started in the microseconds before a SIGKILL is not on the list yet, and stays.
    """

    _SCRIPT = """
trap '' HUP INT TERM
cd /
live=" "
while read -r action group; do
    case $action in
    watch) live="$live$group " ;;
    forget) live="${live%% "$group" *} ${live#* "$group" }" ;;
    esac
done
for group in $live; do kill -KILL "-$group"; done
"""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._owner = 0

    def watch(self, group: int) -> None:
        """Kill this group at the end, unless it is forgotten before."""
        # A fork has no list: its parent ends what it starts.
        if self._owner != os.getpid():
            self._start()
        self._tell("watch", group)

    def forget(self, group: int) -> None:
        """Leave a group alone from now on; it has ended."""
        self._tell("forget", group)

    def _start(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._owner, self._pipe = os.getpid(), None
        if sys.platform == "win32":
            return
        try:
            read_end, write_end = os.pipe()
        except OSError:
            return
        nowhere = ((os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_WRONLY, 0) for each in (1, 2))
        actions = [(os.POSIX_SPAWN_DUP2, read_end, 0), *nowhere]
        try:
            os.posix_spawn("/bin/sh", ["sh", "-c", self._SCRIPT], {}, file_actions=actions, setpgroup=0)
        except OSError:  # such as an image without a shell; the programs still end with a devkit that leaves regularly
            os.close(write_end)
        else:
            # A guard that was stopped must hold up nothing.
            os.set_blocking(write_end, False)
            self._pipe = write_end
        finally:
            os.close(read_end)

    def _tell(self, action: str, group: int) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):  # somebody killed the guard
                os.write(self._pipe, f"{action} {group}\n".encode())


_GUARD = _Guard()
_LIVE: set[subprocess.Popen[bytes]] = set()
_ENDING = threading.Event()
"""Set when this process leaves: a probe's thread may still start its next program at that moment."""

_STARTING = threading.Lock()
"""Held while a program starts and is noted, so that none is alive and not in `_LIVE` when they are killed."""


@atexit.register
def _kill_live() -> None:
    # Children have their own session, so Ctrl-C at the terminal does not reach them.
    _ENDING.set()
    # A start that the kernel holds up must not hold up the exit, too; a busy machine takes a while for any.
    _STARTING.acquire(timeout=_LONGEST_START_S)
    for process in list(_LIVE):
        _kill_group(process)


def _raise_if_exhausted(error: OSError | RuntimeError | ValueError) -> None:
    """Raise an error that says nothing of the machine that is read: this process may open no more files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise error


MAX_FILE_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 20
"""Files under /proc/sys refuse to be read by 4 MiB or more at once. Source: Linux, fs/proc/proc_sysctl.c."""


@dataclass(frozen=True)
class Stat:
    """The result of `stat`, as far as probes need it. `kind`: file, directory, character, socket, other."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    device: str = ""
    """Major and minor number of a device node: "195:255"."""


class Host(Protocol):
    """Reads a machine without changing it. Paths are absolute.

    No method raises for what the machine lacks; OSError is raised where this process may open no more files.
    """

    def run(
        self, argv: Sequence[str], *, deadline_s: float | None = None, without: Collection[str] = ()
    ) -> ProgramResult:
        """Run a program without a shell, in the C locale, and kill it with SIGKILL at the deadline (default: the host's own).

        `without` names variables of the environment that it does not get.
        """

    def read(self, path: str) -> str | None:
        """Read the text of a file, or None when it cannot be read."""

    def list(self, path: str) -> tuple[str, ...]:
        """List sorted names in a directory, empty when there is none."""

    def stat(self, path: str) -> Stat | None:
        """Return the path's kind and owner, following links; None when it does not exist."""

    def link(self, path: str) -> str | None:
        """Return the absolute path that `path` resolves to through symbolic links; None when it does not exist."""

    def open_error(self, path: str) -> str:
        """Return how opening `path` for reading and writing ends: "open", or the errno name such as "ENOENT" or "EPERM"."""

    def is_writable(self, path: str) -> bool:
        """Return whether this user may create files in the directory `path`."""

    def is_withheld(self, path: str) -> bool:
        """Return whether the kernel's device rules, not the mode of `path`, keep this process from it; it is not opened."""

    def free_bytes(self, path: str) -> int | None:
        """Return space left for this user on the file system of `path`; None when it cannot be read."""

    def free_files(self, path: str) -> int | None:
        """Return how many more files the file system of `path` can hold; None where it does not count them."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables of this process."""

    @property
    def python(self) -> str:
        """The Python interpreter that devkit runs in."""


def decode_text(content: bytes) -> str:
    """Decode a file's text: UTF-8 unless a mark at its beginning says UTF-16, as Windows's own editors and shell write it."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace")
    return content.removeprefix(codecs.BOM_UTF8).decode(errors="replace")


def _read(reading: Callable[[], _T]) -> _T | None:
    """Take a reading; None where the machine refuses it. Raises OSError where this process may open no more files."""
    try:
        return reading()
    except (OSError, RuntimeError, ValueError) as error:
        _raise_if_exhausted(error)
        return None


def _read_regular_file(path: str) -> str | None:
    # A named pipe where a file should be would hold up its reader.
    no_wait = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait)) as file:
        # A named pipe reads as empty, and a device such as /dev/zero without an end: neither is a file of settings.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        content = bytearray()
        while len(content) < MAX_FILE_BYTES and (chunk := file.read(_CHUNK_BYTES)):
            content += chunk
        return decode_text(bytes(content))


_OPEN_IN_CHILD = """
import errno, os, sys
try:
    os.close(os.open(sys.argv[1], os.O_RDWR | os.O_CLOEXEC))
except OSError as error:
    print(errno.errorcode.get(error.errno, error.errno))
else:
    print("open")
"""


class LocalHost:
    """The machine that this process runs on. Implements `Host`, which describes its methods."""

    def run(
        self, argv: Sequence[str], *, deadline_s: float | None = None, without: Collection[str] = ()
    ) -> ProgramResult:
        inherited = {name: value for name, value in os.environ.items() if name not in without} if without else None
        return run_program(argv, deadline_s=CALL_DEADLINE_S if deadline_s is None else deadline_s, inherited=inherited)

    def read(self, path: str) -> str | None:
        """Read the text of a file, at most its first 32 MiB; None when it cannot be read."""
        return _read(lambda: _read_regular_file(path))

    def list(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(entry.name for entry in _read(lambda: [*Path(path).iterdir()]) or ()))

    def stat(self, path: str) -> Stat | None:
        found = _read(Path(path).stat)
        if found is None:
            return None
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFCHR: "character", stat.S_IFSOCK: "socket"}
        return Stat(
            kinds.get(stat.S_IFMT(found.st_mode), "other"),
            stat.S_IMODE(found.st_mode),
            found.st_uid,
            found.st_gid,
            found.st_size,
            f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISCHR(found.st_mode) else "",
        )

    def link(self, path: str) -> str | None:
        return _read(lambda: str(Path(path).resolve(strict=True)))

    def open_error(self, path: str) -> str:
        """Return how opening `path` for reading and writing ends: "open", or the errno name such as "ENOENT" or "EPERM".

        A device is opened in a child process: a wedged driver may never return from it. That is "ETIMEDOUT".
        """
        found = self.stat(path)
        if found is None or found.kind != "character":
            try:
                os.close(os.open(path, os.O_RDWR))
            except OSError as error:
                _raise_if_exhausted(error)
                return errno.errorcode.get(error.errno or 0, str(error.errno))
            return "open"
        done = self.run([self.python, "-I", "-S", "-c", _OPEN_IN_CHILD, path], deadline_s=2.0)
        if done.code == TIMED_OUT:
            return "ETIMEDOUT"
        return done.out.strip() or f"the opener ended with status {done.code}"

    def is_writable(self, path: str) -> bool:
        return _read(lambda: Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)) or False

    def is_withheld(self, path: str) -> bool:
        found = _read(Path(path).stat)
        if found is None:
            return False
        # Source: Linux, fs/namei.c: inode_permission() asks the device rules of the control group, which access() calls.
        everyone = stat.S_IROTH | stat.S_IWOTH
        is_open = sys.platform != "win32" and (os.geteuid() == 0 or found.st_mode & everyone == everyone)
        return is_open and stat.S_ISCHR(found.st_mode) and not os.access(path, os.R_OK | os.W_OK)

    def free_bytes(self, path: str) -> int | None:
        import shutil

        return _read(lambda: shutil.disk_usage(path).free)

    def free_files(self, path: str) -> int | None:
        if sys.platform == "win32":
            return None
        found = _read(lambda: os.statvfs(path))
        # Btrfs and 9p make inodes as they need them, and say 0 of 0.
        return found.f_favail if found is not None and found.f_files else None

    @property
    def env(self) -> Mapping[str, str]:
        return os.environ

    @property
    def python(self) -> str:
        return sys.executable


class CachingHost(LocalHost):
    """This machine for one examination: a program that several probes ask is run once, and all get its answer.

    A program without its own deadline gets half of the time that is left: one that hangs costs what it would have
    said, and not the rest of the probe that ran it.
    """

    def __init__(self, *, deadline_s: float = CALL_DEADLINE_S) -> None:
        self._ends_at = time.monotonic() + deadline_s * _SHARE_OF_PROGRAMS
        self._guard = threading.Lock()
        self._locks: dict[tuple[object, ...], threading.Lock] = {}
        self._done: dict[tuple[object, ...], ProgramResult] = {}

    def run(
        self, argv: Sequence[str], *, deadline_s: float | None = None, without: Collection[str] = ()
    ) -> ProgramResult:
        """Run a program as `LocalHost` does, or hand out what it answered before."""
        key = (*argv, frozenset(without))
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._done:
                half_s = max(0.0, self._ends_at - time.monotonic()) / 2
                limit_s = half_s if deadline_s is None else deadline_s
                self._done[key] = super().run(argv, deadline_s=limit_s, without=without)
            return self._done[key]


class HurriedHost(LocalHost):
    """This machine for as long as a deadline leaves: what is asked later is not answered in time."""

    def __init__(self, *, deadline_s: float) -> None:
        self._ends_at = time.monotonic() + deadline_s

    def run(
        self, argv: Sequence[str], *, deadline_s: float | None = None, without: Collection[str] = ()
    ) -> ProgramResult:
        """Run a program as `LocalHost` does, at most for the time that is left."""
        left_s = max(0.0, self._ends_at - time.monotonic())
        return super().run(argv, deadline_s=min(left_s, deadline_s or left_s), without=without)


def explain_failure(argv: Sequence[str], done: ProgramResult, reason: str, *, is_lost: bool = False) -> Unknown:
    """Return why a program gave no reading: the reason, or that it took too long, and the reading is lost.

    `is_lost`: so it is with whatever else the program answered.
    """
    if done.code == TIMED_OUT:
        return Unknown(f"`{' '.join(argv)}` did not answer in time", is_lost=True)
    return Unknown(reason, is_lost=is_lost)
