"""A plan and the project's own dev container, as changes of files."""

import json
from dataclasses import replace
from pathlib import Path

from devkit.render.adopt.adoption import Adoption, adoption_of
from devkit.render.adopt.existing import Existing
from devkit.render.artifact import Artifact
from devkit.render.change import Change, changes_for
from devkit.render.folder import read_file
from devkit.render.ignore_lines import with_ignored
from devkit.render.lock import LOCK_PATH, lock_artifact
from devkit.render.project import Project, own_settings
from devkit.solver.model import Machine, Plan


def adopted_changes(
    project: Project, existing: Existing, plan: Plan, machines: tuple[Machine, ...]
) -> tuple[tuple[Change, ...], Adoption]:
    """What making the project's own dev container fit the plan would change. Reads the disk, writes nothing.

    Raises: DevkitError for files that cannot be read or do not parse.
    """
    adoption = adoption_of(project.root, existing.paths, plan, machines, existing.lock)
    repaired = dict(existing.lock.repaired)
    for made in adoption.made:
        repaired[made.path] = tuple(sorted({*repaired.get(made.path, ()), made.code}))
    texts = [Artifact(path, content) for path, content in sorted(adoption.texts.items())]
    ignore_files, ignored = with_ignored(project.root, adoption.local, existing.lock.ignored)
    lock = _kept_lock(project.root, lock_artifact(plan, adoption.own, machines, repaired, ignored=ignored))
    edited = [*own_settings(project), *ignore_files, *texts]
    return changes_for(project.root, (*adoption.own, lock), edited, adopts=True), adoption


def _kept_lock(root: Path, lock: Artifact) -> Artifact:
    """The lock as it lies in the project where only the words of reasons differ.

    A reason names the line of a pin, and a repair may move that line: nothing was decided anew.
    """
    before = read_file(root, LOCK_PATH)
    is_same = before is not None and _without_words(before) == _without_words(lock.content)
    return replace(lock, content=before) if before is not None and is_same else lock


def _without_words(content: bytes) -> object:
    document = json.loads(content)
    reasons = document.get("plan", {}).get("reasons", [])
    document.get("plan", {})["reasons"] = [{**reason, "because": ""} for reason in reasons]
    return document
