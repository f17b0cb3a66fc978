"""Golden files: a text that must be exactly this one. `make goldens` writes all of them; their diff is read in review."""

import difflib
import os
from pathlib import Path

WRITES = os.environ.get("DEVKIT_WRITE_GOLDENS") == "1"


def assert_golden(path: Path, text: str) -> None:
    """Fail where the file has another text, and show the difference; write it where goldens are written."""
    if WRITES:
        path.write_text(text, encoding="utf-8")
        return
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = difflib.unified_diff(golden.splitlines(), text.splitlines(), path.name, "now", lineterm="", n=1)
    assert text == golden, f"{path.name} differs; `make goldens` writes it:\n" + "\n".join(difference)
