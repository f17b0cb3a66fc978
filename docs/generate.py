"""Writes docs/checks and docs/failures.md from the checks. With --check, only says whether they are up to date."""

import sys
from pathlib import Path

import failure_table
from check_pages import render_check_index, render_check_page

from devkit.doctor.registry import CHECKS

FOLDER = Path(__file__).parent / "checks"


def pages() -> dict[Path, str]:
    """Every page by its path."""
    written = {FOLDER / f"{check.code}.md": render_check_page(check) for check in CHECKS}
    table = failure_table.render_failures()
    return {FOLDER.parent / "failures.md": table, FOLDER / "README.md": render_check_index(CHECKS), **written}


def stale() -> list[Path]:
    """Pages that are missing, out of date, or of a check that is gone."""
    wanted = pages()
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return changed + [path for path in sorted(FOLDER.glob("*.md")) if path not in wanted]


def main() -> int:
    """Write what is stale, or only name it."""
    outdated = stale()
    if "--check" in sys.argv[1:]:
        for path in outdated:
            sys.stderr.write(f"out of date: {path.name}; run python docs/generate.py\n")
        return 1 if outdated else 0
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for path in outdated:
        if path in wanted:
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
