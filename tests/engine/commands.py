"""Run a program and show what it said when it fails."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class CommandError(AssertionError):
    """A program ended with another status than the caller expects; the text holds all it printed."""


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    deadline_s: float = 600.0,
    expect: int | None = 0,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` without a shell. `expect=None` accepts every status. Raises CommandError, also at the deadline."""
    line = " ".join(map(str, argv))
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = b"".join(part for part in (late.stdout, late.stderr) if isinstance(part, bytes)).decode(errors="replace")
        raise CommandError(f"`{line}` did not end within {deadline_s:.0f} s\n{said[-4000:]}") from None
    if expect is not None and done.returncode != expect:
        raise CommandError(
            f"`{line}` ended with {done.returncode}, expected {expect}\n"
            f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-12000:]}"
        )
    return done


def environment(**changes: str | Path) -> dict[str, str]:
    """This process's environment with `changes`."""
    return os.environ | {name: str(value) for name, value in changes.items()}
