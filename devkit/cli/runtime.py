"""The process of a command: its interrupts, its streams, its lock on a folder, and the date."""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RERAISE_AFTER_S = 0.05
"""Not at once: it would be raised in the same callback, and dropped like the first."""
_MIN_DRAWN_COLUMNS = 60


def is_drawn(stream: TextIO) -> bool:
    """Say if rich draws on a stream: a wide terminal that is not dumb and has its signs, or where FORCE_COLOR is set."""
    if os.environ.get("TERM") == "dumb":
        return False
    has_signs = (stream.encoding or "utf-8").lower().startswith("utf")
    # Tables are wide; the steps on standard error are one line each.
    is_wide = stream is sys.stderr or shutil.get_terminal_size().columns >= _MIN_DRAWN_COLUMNS
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and has_signs and is_wide)


def reraise_dropped_interrupts() -> None:
    """Raise Ctrl-C again a moment later where Python can only print it, in a callback or a finalizer."""
    default_hook = sys.unraisablehook

    def reraise_later(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            default_hook(unraisable)
            return
        import _thread
        import signal
        import threading

        def interrupt() -> None:
            if sys.platform == "win32":
                _thread.interrupt_main()
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        timer = threading.Timer(RERAISE_AFTER_S, interrupt)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = reraise_later


class _File(io.FileIO):
    """A standard stream that discards output after an error, such as a reader that leaves; the command continues."""

    def __init__(self, stream: TextIO, until: type[OSError]) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream, self._until = stream, until  # the stream would close its file when nothing refers to it

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data) or 0
        except self._until:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def drop_refused_errors() -> None:
    """Keep a command running if writing to standard error fails, as on a full disk."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        file, codec = io.BufferedWriter(_File(sys.stderr, OSError)), sys.stderr
        sys.stderr = io.TextIOWrapper(file, encoding=codec.encoding, errors=codec.errors, line_buffering=True)


@contextlib.contextmanager
def hold_project(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder for the rest of a command, as in `ctx.with_resource(hold_project(folder))`.

    A command reads the files that it will replace, so two of them must not run side by side. Waiting is a line on
    standard error; raises DevkitError when the other writer takes longer than ten seconds. `devkit init | head` writes
    all files.
    """
    import click

    from devkit.folder_lock import hold_folder

    with hold_folder(folder, report_wait=lambda line: click.echo(line, err=True)):
        if folder.is_dir():
            from devkit.render.changes import finish_writes

            if line := finish_writes(folder):
                click.echo(line, err=True)
        if sys.stdout is not sys.__stdout__ or sys.stdout is None or sys.stdout.isatty():
            yield
            return
        pipe = io.BufferedWriter(_File(sys.stdout, BrokenPipeError))
        output = io.TextIOWrapper(pipe, encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        with contextlib.redirect_stdout(output), contextlib.closing(output):
            yield


def measure_memory_gb() -> int:
    """Measure the memory of this machine, in whole GiB; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    except (AttributeError, OSError, ValueError):
        return 0


def today() -> str:
    """Return today's date in UTC, ISO 8601. The only clock of the commands: the solver reads none."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()
