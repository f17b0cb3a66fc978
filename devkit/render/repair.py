"""The repairs of `devkit doctor --fix`: edits of files that the user owns, computed before they are made.

Nothing here runs a program, and everything can be undone: the file as it was is kept in a copy beside it.
"""

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from devkit.doctor.model import Repair, RepairKind
from devkit.render.changes import format_unified_diff, make_directory, replace_file
from devkit.render.splice.compose_yaml import YAML
from devkit.render.splice.document import (
    CannotSplice,
    Shape,
    Syntax,
    copy_with_value,
    copy_without_value,
    find_nodes,
    remove_value,
    set_value,
)
from devkit.render.splice.jsonc import JSONC

MAX_EDITED_BYTES = 1 << 20
_SYNTAX: dict[str, Syntax] = {".json": JSONC, ".jsonc": JSONC, ".yml": YAML, ".yaml": YAML}


class CannotRepair(Exception):  # noqa: N818 - a refusal, not a bug
    """A file that must be changed by hand. The text begins with the file's name and gives the reason."""


@dataclass(frozen=True)
class FileEdit:
    """One file before and after. `target` is its path with links resolved; `before` is None for a directory."""

    path: str
    target: Path
    before: bytes | None
    after: bytes

    def format_diff(self) -> str:
        """Return a unified diff; for a directory, one line."""
        if self.before is None:
            return f"make the directory {self.path}"
        return format_unified_diff(self.path, self.before, self.after)


def compute_edits(repairs: Iterable[Repair], project: Path, *, home: Path) -> tuple[FileEdit, ...]:
    """Compute the edits that the repairs make, one for each file. Reads the disk, writes nothing.

    Paths are absolute, in `home` when they begin with a tilde, or relative to `project`.
    Raises: CannotRepair for a file that is not the user's, leads out of both folders, or does not allow the change.
    """
    edits: dict[Path, FileEdit] = {}
    for repair in repairs:
        target = _resolve_target(repair.path, project, home)
        if repair.kind is RepairKind.MAKE_DIRECTORY:
            if not target.is_dir():
                edits[target] = FileEdit(repair.path, target, None, b"")
            continue
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
    if content is None or b"\0" in content:
        raise CannotRepair(f"{path}: is not a text file of ordinary size")
    return FileEdit(path, target, content, content)


def apply_repair(content: bytes, repair: Repair) -> str:
    """Return the text of a file with the repair made. Raises CannotRepair."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CannotRepair(f"{repair.path}: is not UTF-8") from error
    try:
        if repair.kind is RepairKind.REPLACE:
            return _replace_line(text, repair)
        suffix = Path(repair.path).suffix.lower()
        if suffix == ".toml":
            return _edit_toml(text, repair)
        if suffix not in _SYNTAX:
            raise CannotRepair(f"{repair.path}: is of a format that is not edited")
        syntax = _SYNTAX[suffix]
        if repair.kind is RepairKind.REMOVE:
            return _remove_key(text, repair, syntax)
        return set_value(text, repair.key, json.loads(repair.value), syntax)
    except CannotSplice as error:
        raise CannotRepair(f"{repair.path}: {error}") from error


def _remove_key(text: str, repair: Repair, syntax: Syntax) -> str:
    """Remove a value. A list or an object that has comments besides those on its entries stays, as an empty one."""
    value = find_nodes(syntax.nodes(text), repair.key)[0][-1]
    if syntax.loads(text) != copy_without_value(syntax.loads(text), repair.key) and value.shape is not Shape.SCALAR:
        emptied = set_value(text, repair.key, [] if value.shape is Shape.ARRAY else {}, syntax)
        kept = find_nodes(syntax.nodes(emptied), repair.key)[0][-1]
        if any(syntax.comments(emptied[kept.start : kept.end])):
            return emptied
    return remove_value(text, repair.key, syntax)


def _replace_line(text: str, repair: Repair) -> str:
    """Replace the one line that equals the key, whatever its indentation, by the value; "" removes it."""
    lines = text.splitlines(keepends=True)
    wanted = repair.key[0].strip()
    numbers = [number for number, line in enumerate(lines) if line.strip() == wanted]
    if len(numbers) != 1:
        often = "does not occur" if not numbers else f"occurs {len(numbers)} times"
        raise CannotSplice(f"the line {wanted!r} {often}")
    (number,) = numbers
    line = lines[number]
    indent = line[: len(line) - len(line.lstrip())]
    end = line[len(line.rstrip("\r\n")) :]
    lines[number] = f"{indent}{repair.value.strip()}{end}" if repair.value.strip() else ""
    return "".join(lines)


def _edit_toml(text: str, repair: Repair) -> str:
    is_removal = repair.kind is RepairKind.REMOVE
    try:
        document = tomlkit.parse(text)
        before = document.unwrap()
        value = None if is_removal else json.loads(repair.value)
        wanted = copy_without_value(before, repair.key) if is_removal else copy_with_value(before, repair.key, value)
        table: Any = document
        for name in repair.key[:-1]:
            if name not in table:
                if is_removal:
                    return text
                table[name] = tomlkit.table()
            table = table[name]
        if is_removal:
            table.pop(repair.key[-1], None)
        else:
            table[repair.key[-1]] = value
        after = document.as_string()
        if tomlkit.parse(after).unwrap() != wanted:
            raise CannotSplice("its layout does not allow this change alone")
    except (TOMLKitError, KeyError, TypeError) as error:
        raise CannotSplice(f"it cannot be changed there: {error}") from error
    return after


def apply_edit(edit: FileEdit) -> str:
    """Make the change. Returns the command that undoes it. Raises DevkitError when the disk refuses."""
    if edit.before is None:
        make_directory(edit.target)
        return shlex.join(["rmdir", str(edit.target)])
    kept = replace_file(edit.target, edit.before, edit.after)
    return shlex.join(["mv", str(kept), str(edit.target)])
