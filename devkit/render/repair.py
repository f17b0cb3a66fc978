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
from devkit.doctor.report.report import Report
from devkit.errors import DevkitError
from devkit.reading import MAX_CONFIG_BYTES, read_bounded
from devkit.render.changes import Action, FileChange, replace_file
from devkit.render.files import Artifact, resolve_inside
from devkit.render.text_edits import CannotEdit, remove_value, set_value

_BY_HAND = "Change it manually."


@dataclass(frozen=True)
class FileEdit:
    """One file before and after. `target` is its path with links resolved."""

    path: str
    target: Path
    before: bytes
    after: bytes


def compute_edits(repairs: Iterable[Repair], project: Path, *, home: Path) -> tuple[FileEdit, ...]:
    """Compute the edits that the repairs make, one for each file. Reads the disk, writes nothing.

    Paths are in `home` when they are absolute or begin with a tilde, otherwise relative to `project`.
    Raises: DevkitError for a file that is not the user's, leads out of its folder, or does not allow the change.
    """
    edits: dict[Path, FileEdit] = {}
    for repair in repairs:
        target = resolve_inside(home if _is_in_home(repair) else project, repair.path.removeprefix("~/"))
        before = edits[target].before if target in edits else _read_own_file(repair.path, target)
        content = edits[target].after if target in edits else before
        edits[target] = FileEdit(repair.path, target, before, apply_repair(content, repair).encode())
    return tuple(edit for edit in edits.values() if edit.before != edit.after)


def compute_project_changes(report: Report, project: Path) -> tuple[tuple[FileChange, ...], list[str]]:
    """Compute the changes that repair the root findings in the project's own files, one for each file, and what is refused."""
    repairs: list[Repair] = []
    edits: tuple[FileEdit, ...] = ()
    refused = []
    for shown in report.roots:
        wanted = [each for each in shown.finding.fix.repairs if not _is_in_home(each)]
        try:
            edits = compute_edits([*repairs, *wanted], project, home=project)
            repairs += wanted
        except DevkitError as refusal:
            refused.append(f"{shown.check.code} cannot be repaired from here: {refusal}")
    changes = (FileChange(Action.UPDATE, Artifact(each.path, each.after), each.before) for each in edits)
    return tuple(changes), refused


def _is_in_home(repair: Repair) -> bool:
    return repair.path.startswith("~/") or Path(repair.path).is_absolute()


def _read_own_file(path: str, target: Path) -> bytes:
    try:
        owner, content = target.stat().st_uid, read_bounded(target, MAX_CONFIG_BYTES)
    except OSError as error:
        raise DevkitError(f"{path}: {(error.strerror or str(error)).lower()}", _BY_HAND) from None
    if hasattr(os, "geteuid") and owner != os.geteuid():
        raise DevkitError(f"{path}: belongs to another user (uid {owner})", _BY_HAND)
    return content


def apply_repair(content: bytes, repair: Repair) -> str:
    """Return the text of a file with the repair made. Raises DevkitError."""
    try:
        if repair.kind is RepairKind.REMOVE:
            return remove_value(content.decode(), repair.key)
        return set_value(content.decode(), repair.key, json.loads(repair.value))
    except (CannotEdit, UnicodeDecodeError) as error:
        raise DevkitError(f"{repair.path}: {error}", _BY_HAND) from None


def apply_edit(edit: FileEdit) -> str:
    """Make the change. Returns the command that undoes it. Raises DevkitError when the disk refuses."""
    kept = replace_file(edit.target, edit.before, edit.after)
    return shlex.join(["mv", str(kept), str(edit.target)])
