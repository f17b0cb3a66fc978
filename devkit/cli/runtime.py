"""The process of a command: its interrupts, its lock on a folder, and the date."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

RERAISE_AFTER_S = 0.05
"""Not at once: it would be raised in the same callback, and dropped like the first."""


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


def hold_project(folder: Path) -> AbstractContextManager[None]:
    """Keep other writers out of a folder for the rest of a command, as in `ctx.with_resource(hold_project(folder))`.

    A command reads the files that it will replace, so two of them must not run side by side. Waiting is a line on
    standard error; raises DevkitError when the other writer takes longer than ten seconds.
    """
    import click

    from devkit.folder_lock import hold_folder

    return hold_folder(folder, report_wait=lambda line: click.echo(line, err=True))


def measure_memory_gb() -> int:
    """Measure the memory of this machine, in whole GiB; 0 where the system does not say."""
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    except (AttributeError, OSError, ValueError):
        return 0


def today() -> str:
    """Return today's date in UTC, ISO 8601. The only clock of the commands: the solver reads none."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()
