"""Ctrl-C is not lost: where Python drops it, in a callback or finalizer where nobody can catch it, it comes again."""

import importlib.util
import sys

from devkit.errors import DevkitError

RERAISE_AFTER_S = 0.05
"""Not at once: it would be raised in the same callback, and dropped like the first."""


def reraise_dropped_interrupts() -> None:
    """From now on an interrupt that was raised where Python can only print it is raised again a moment later."""
    told_by_python = sys.unraisablehook

    def told(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            told_by_python(unraisable)
            return
        import threading

        again = threading.Timer(RERAISE_AFTER_S, _interrupt)
        again.daemon = True
        again.start()

    sys.unraisablehook = told


def _interrupt() -> None:
    import _thread
    import signal
    import threading

    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


# The one clock of the commands: version tables carry a day, and the solver reads none.


def today() -> str:
    """The day it is in UTC, ISO 8601."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


# The packages that training and generating need, which devkit itself does not.

REQUIRED_PACKAGES = ("torch", "transformers", "peft", "accelerate")


def require_workload_extra() -> None:
    """Raise DevkitError where one of them is not installed."""
    for name in REQUIRED_PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise DevkitError(f"{name} is not installed for {sys.executable}", "pip install 'devkit-gpu[workload]'")
