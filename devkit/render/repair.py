"""The repairs of `devkit doctor --fix`: edits of JSON files that the user owns, computed before they are made.

Nothing here runs a program, and everything can be undone: the file as it was is kept in a copy beside it.
"""

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devkit.doctor.model import Repair, RepairKind
from devkit.render.changes import format_unified_diff, replace_file
from devkit.render.text_edits import CannotEdit, remove_value, set_value

MAX_EDITED_BYTES = 1 << 20


class CannotRepair(Exception):  # noqa: N818 - a refusal, not a bug
    """A file that must be changed by hand. The text begins with the file's name and gives the reason."""


@dataclass(frozen=True)
class FileEdit:
    """One file before and after. `target` is its path with links resolved."""

    path: str
    target: Path
    before: bytes
    after: bytes

    def format_diff(self) -> str:
        """Return a unified diff."""
        return format_unified_diff(self.path, self.before, self.after)


def compute_edits(repairs: Iterable[Repair], project: Path, *, home: Path) -> tuple[FileEdit, ...]:
    """Compute the edits that the repairs make, one for each file. Reads the disk, writes nothing.

    Paths are absolute, in `home` when they begin with a tilde, or relative to `project`.
    Raises: CannotRepair for a file that is not the user's, leads out of both folders, or does not allow the change.
    """
    edits: dict[Path, FileEdit] = {}
    for repair in repairs:
        target = _resolve_target(repair.path, project, home)
        edit = edits.get(target) or _read_target(repair.path, target)
        edits[target] = FileEdit(edit.path, target, edit.before, apply_repair(edit.after, repair).encode())
    return tuple(edit for edit in edits.values() if edit.before != edit.after)


def _resolve_target(path: str, project: Path, home: Path) -> Path:
    """Follow the path, which must end in the project or the user's home."""
    is_in_home = path.startswith("~/")
    named = home / path[2:] if is_in_home else project / path
    try:
        target = named.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise CannotRepair(f"{path}: cannot be followed: {error}") from error
    # A path in the project must stay in it; a link to elsewhere may be somebody else's file.
    is_in_project = Path(os.path.abspath(named)).is_relative_to(os.path.abspath(project))  # noqa: PTH100 - links stay
    root = project if is_in_project and not is_in_home else home
    if not target.is_relative_to(root.resolve()):
        raise CannotRepair(f"{path}: leads to {target}, which is outside of {root}")
    return target


def _read_target(path: str, target: Path) -> FileEdit:
    try:
        status = target.stat()
        content = target.read_bytes() if status.st_size <= MAX_EDITED_BYTES else None
    except OSError as error:
        raise CannotRepair(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise CannotRepair(f"{path}: belongs to another user (uid {status.st_uid})")
    if content is None:
        raise CannotRepair(f"{path}: is not a file of ordinary size")
    return FileEdit(path, target, content, content)


def apply_repair(content: bytes, repair: Repair) -> str:
    """Return the text of a file with the repair made. Raises CannotRepair."""
    try:
        if repair.kind is RepairKind.REMOVE:
            return remove_value(content.decode(), repair.key)
        return set_value(content.decode(), repair.key, json.loads(repair.value))
    except UnicodeDecodeError as error:
        raise CannotRepair(f"{repair.path}: is not UTF-8") from error
    except CannotEdit as error:
        raise CannotRepair(f"{repair.path}: {error}") from error


def apply_edit(edit: FileEdit) -> str:
    """Make the change. Returns the command that undoes it. Raises DevkitError when the disk refuses."""
    kept = replace_file(edit.target, edit.before, edit.after)
    return shlex.join(["mv", str(kept), str(edit.target)])
