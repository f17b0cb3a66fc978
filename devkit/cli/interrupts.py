"""Ctrl-C is not lost: where Python drops it, in a callback or finalizer where nobody can catch it, it comes again."""

import sys

AGAIN_S = 0.05
"""Not at once: it would be raised in the same callback, and dropped like the first."""


def keep_interrupts() -> None:
    """From now on an interrupt that was raised where Python can only print it is raised again a moment later."""
    told_by_python = sys.unraisablehook

    def told(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            told_by_python(unraisable)
            return
        import threading

        again = threading.Timer(AGAIN_S, _interrupt)
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
