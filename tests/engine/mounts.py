"""Remove folders in which something may still be mounted."""

import re
from collections.abc import Iterator
from pathlib import Path

from .commands import run

_ESCAPED = re.compile(r"\\([0-7]{3})")


def delete(folder: Path) -> None:
    """Remove a folder and nothing that is mounted in it: a half-made root file system has this machine's devices."""
    unmount_below(folder)
    run(["rm", "-rf", "--one-file-system", folder], expect=None)


def unmount_below(folder: Path) -> None:
    """Detach what is mounted on the folder or below it, the innermost first."""
    for target in reversed(list(_mounted_below(folder))):
        run(["umount", "--lazy", target], expect=None)


def _mounted_below(folder: Path) -> Iterator[Path]:
    """Mount points in the order of mounting. A line's fifth field is the path, with spaces as \\040 (man 5 proc)."""
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        target = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]))
        if target == folder or folder in target.parents:
            yield target
