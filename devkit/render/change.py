"""What a run would do to the files of a project: new, joined with the user's edits, unchanged, gone; or refused."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.folder import files_below, read_file, staging_path
from devkit.render.ignore_lines import IGNORE_FILES, joined_ignore_file
from devkit.render.lock import LOCK_PATH, Lock, Written, digest, read_lock

if TYPE_CHECKING:
    from devkit.render.merge import Clash


class Action(StrEnum):
    """What a run does to one file."""

    CREATE = "create"
    UPDATE = "update"
    MERGE = "merge"
    UNCHANGED = "unchanged"
    REMOVE = "remove"


@dataclass(frozen=True)
class Change:
    """One file, before and after. `before` is None for a new file; a removed one keeps its artifact's path.

    `clashes` are the places where the user's edits and devkit's changes meet.
    """

    action: Action
    artifact: Artifact
    before: bytes | None
    clashes: "tuple[Clash, ...]" = ()

    @property
    def path(self) -> str:
        """Relative to the project, with forward slashes."""
        return self.artifact.path

    def diff(self) -> str:
        """A unified diff, "" when nothing changes."""
        after = b"" if self.action is Action.REMOVE else self.artifact.content
        return unified_diff(self.path, self.before or b"", after)


@dataclass(frozen=True)
class Wording:
    """What refusals say of files that are not as devkit left them, and what they advise."""

    stranger: str = "this project has a dev container that devkit did not write"
    move_away: str = f"Move it away, such as with: mv {FOLDER} {FOLDER}.mine. Then run this again and compare."
    keep_edits: str = "Move your changes to devkit.toml or to a file of your own, or pass --force to lose them."


OF_DEV_CONTAINERS = Wording()


@dataclass(frozen=True)
class Known:
    """What devkit wrote into a project before: every version that the lock and a killed run's lock name, by path."""

    files: dict[str, list[Written]]
    was_written: bool

    def is_ours(self, path: str, content: bytes) -> bool:
        """Whether the file is as devkit left it."""
        return digest(content) in {written.sha256 for written in self.files.get(path, ())}

    def text_of(self, path: str) -> str | None:
        """What devkit wrote there last, None where no lock tells."""
        return next((written.text for written in self.files.get(path, ()) if written.text is not None), None)


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """How `before` becomes `after`; one line for files that are not text."""
    if before == after:
        return ""
    import difflib

    try:
        old, new = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return f"{path}: binary files differ"
    return "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))


def changes_for(
    root: Path,
    generated: Sequence[Artifact],
    edited: Sequence[Artifact],
    *,
    force: bool = False,
    may_clash: bool = False,
    adopts: bool = False,
    wording: Wording = OF_DEV_CONTAINERS,
) -> tuple[Change, ...]:
    """What writing these files would do. Reads the disk, writes nothing.

    `generated` are devkit's own, the lock last among them; what the user changed in them since is joined with what
    changes now. `edited` are the user's files, already joined. With `force`, devkit's own files lose the user's edits.
    With `may_clash` edits that meet devkit's changes are left for the user to resolve. With `adopts` the project has a
    dev container of its own, which `edited` repairs.
    Raises: DevkitError, with the difference, for a file that devkit did not write, for edits that cannot be joined,
    and for conflicts of an earlier run that nobody has resolved.
    """
    known = known_files(root)
    plain = [change_of(root, artifact) for artifact in edited]
    own = [_own_change(root, artifact, known, force=force) for artifact in generated]
    paths = {artifact.path for artifact in generated if artifact.path != LOCK_PATH}
    refused = [change for change in own if change.action is Action.UPDATE and not _may_replace(change, known, force)]
    strangers = [] if known.was_written or adopts else _strangers(root, paths)
    if refused or strangers:
        _refuse(refused, strangers, wording, was_written=known.was_written)
    clashing = [change for change in own if change.clashes]
    if clashing and not may_clash:
        _refuse_clashes(clashing)
    return (*plain, *own, *_stale(root, known, paths))


def known_files(root: Path) -> Known:
    """What devkit wrote into a project. Raises DevkitError for a lock that cannot be read."""
    locks: list[Lock] = []
    content = read_file(root, LOCK_PATH)
    if content is not None:
        locks.append(read_lock(content))
    # A killed run leaves its lock staged, perhaps half written; then nothing was renamed yet.
    journal = read_file(root, staging_path(Path(LOCK_PATH)).name)
    if journal is not None:
        with contextlib.suppress(DevkitError):
            locks.append(read_lock(journal))
    files: dict[str, list[Written]] = {}
    for lock in locks:
        for path, written in lock.files.items():
            files.setdefault(path, []).append(written)
    return Known(files, bool(locks) or journal is not None)


def change_of(root: Path, artifact: Artifact) -> Change:
    """What writing one file would do, whoever wrote what is there."""
    before = read_file(root, artifact.path)
    if before is None:
        return Change(Action.CREATE, artifact, None)
    return Change(Action.UNCHANGED if before == artifact.content else Action.UPDATE, artifact, before)


def _own_change(root: Path, artifact: Artifact, known: Known, *, force: bool) -> Change:
    change = change_of(root, artifact)
    if change.before is not None and artifact.path in IGNORE_FILES and artifact.path not in known.files:
        joined_file = joined_ignore_file(change.before, artifact.content)
        action = Action.UNCHANGED if joined_file == change.before else Action.MERGE
        return Change(action, Artifact(artifact.path, joined_file, artifact.mode), change.before)
    base = known.text_of(artifact.path)
    if change.before is None or change.action is not Action.UPDATE or _may_replace(change, known, force):
        return change
    from devkit.render.merge import is_unresolved, merged

    if is_unresolved(change.before):
        raise DevkitError(
            f"{artifact.path} still holds a conflict of an earlier run",
            "Decide between its marked parts, take the markers out, and run this again.",
        )
    joined = merged(artifact.path, base=base, mine=change.before, theirs=artifact.content) if base is not None else None
    if joined is None:
        return change
    action = Action.UNCHANGED if joined.content == change.before else Action.MERGE
    return Change(action, Artifact(artifact.path, joined.content, artifact.mode), change.before, joined.clashes)


def _may_replace(change: Change, known: Known, force: bool) -> bool:
    if change.path == LOCK_PATH:
        return True
    return change.path in known.files and (force or known.is_ours(change.path, change.before or b""))


def _strangers(root: Path, own: set[str]) -> list[str]:
    """Dev container files in a project that devkit has not written to yet."""
    local = (f"{FOLDER}/.env", f"{FOLDER}/wheelhouse/")
    single = [".devcontainer.json"] if read_file(root, ".devcontainer.json") is not None else []
    return single + [path for path in files_below(root, FOLDER) if path not in own and not path.startswith(local)]


def _stale(root: Path, known: Known, own: set[str]) -> Iterable[Change]:
    for path in sorted(known.files):
        before = None if path in own else read_file(root, path)
        if before is not None and known.is_ours(path, before):
            yield Change(Action.REMOVE, Artifact(path, b""), before)


def _refuse(refused: Sequence[Change], strangers: Sequence[str], wording: Wording, *, was_written: bool) -> None:
    names = ", ".join([*(change.path for change in refused), *strangers])
    said = "changed since devkit wrote it" if was_written else wording.stranger
    advice = wording.keep_edits if was_written else wording.move_away
    raise DevkitError(f"{said}: {names}", "\n".join([advice, *(change.diff() for change in refused)]))


def _refuse_clashes(clashing: Sequence[Change]) -> None:
    names = ", ".join(change.path for change in clashing)
    lines = ["Run devkit update to have both and decide, or pass --force to lose yours."]
    for change in clashing:
        for clash in change.clashes:
            lines += [f"{change.path}, {clash.place}, devkit would write:", *_indented(clash.wanted)]
    raise DevkitError(f"your changes and devkit's meet in {names}", "\n".join(lines))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
