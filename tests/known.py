"""Texts that tests bring about, held to the file of known ones beside them: any other text fails the test, and is shown.

`DEVKIT_ADD_KNOWN=1 pytest …` in one process adds the new ones; a file that is removed before is written anew.
"""

import os
from functools import cache
from pathlib import Path

ADDS = "DEVKIT_ADD_KNOWN"


@cache
def _read(path: Path) -> set[str]:
    return set(path.read_text(encoding="utf-8").strip("\n").split("\n\n")) if path.exists() else set()


def assert_known(path: Path, texts: set[str]) -> None:
    """Fail for a text that the file doesn't have. A text has no empty line."""
    new = texts - _read(path)
    if new and os.environ.get(ADDS):
        _read(path).update(new)
        path.write_text("\n\n".join(sorted(_read(path))) + "\n", encoding="utf-8")
        return
    assert not new, f"not in {path.name}; {ADDS}=1 adds it:\n\n" + "\n\n".join(sorted(new))
