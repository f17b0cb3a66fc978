"""The journal of a run that writes several files: what it will do and what was there, on the disk before the first change.

A run that is killed leaves its journal. The next command rolls back what was only prepared, and finishes what had begun.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from devkit.facts.decode import decode_fields
from devkit.render.files import get_staging_path

JOURNAL_PATH = get_staging_path(Path("journal")).name
NEXT_JOURNAL_PATH = get_staging_path(Path("journal-next")).name
SCHEMA = "devkit.journal/1"


@dataclass(frozen=True)
class Step:
    """One file: the Git ids of its content before and after; "" for no file."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Journal:
    """The steps of a run. `is_staged` says that every new file lies whole beside its target, so that the run can be finished.

    `folder` is the inode of the project's folder: a journal that came with a clone is somebody else's, and not followed.
    `made` are folders that the run made, relative to the project.
    """

    folder: int
    steps: tuple[Step, ...]
    made: tuple[str, ...] = ()
    is_staged: bool = False


def format_journal(journal: Journal) -> bytes:
    """Format a journal as JSON."""
    return json.dumps({"schema": SCHEMA, **asdict(journal)}, indent=1).encode()


def parse_journal(content: bytes) -> Journal | None:
    """Parse a journal; None for one that is torn, whose run had changed nothing yet."""
    try:
        document = json.loads(content)
        if document.pop("schema") != SCHEMA:
            return None
        steps = tuple(Step(**decode_fields(each, Step)) for each in document.pop("steps"))
        return Journal(steps=steps, **decode_fields(document, Journal))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def describe_end(journal: Journal, done: Sequence[str], kept: Sequence[str]) -> str:
    """Describe in a line what became of a run that was killed."""
    if not journal.is_staged:
        return "an earlier devkit was interrupted before it changed a file; its prepared files were removed"
    text = f"finished the changes of an interrupted devkit: {', '.join(done) or 'nothing was left to do'}"
    return text + (f"; left unchanged, because they were edited since: {', '.join(kept)}" if kept else "")
