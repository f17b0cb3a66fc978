"""From a project's folder and flags to the files of one target, and what writing them would change."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.cli.export_subject import subject_of
from devkit.cli.setting_flags import given_flags
from devkit.errors import DevkitError
from devkit.export.job import JobSettings
from devkit.export.table import Typed, Wishes, kept, meaning_of, wishes_in
from devkit.export.targets import NAMES, Context, Target, target_named

if TYPE_CHECKING:
    from devkit.export.making import Made
    from devkit.render.artifact import Artifact
    from devkit.render.change import Change
    from devkit.render.lock import Lock
    from devkit.render.project import Project
    from devkit.solver.model import Plan

FOLDER = "deploy"
"""Where exported files go, in the project: a folder for each target."""


@dataclass(frozen=True)
class Answer:
    """What one export would do. `refusal` is a message and a hint where the estimate says no, and nobody forced it.

    `choices` is the change to the project's devkit.toml, None where no flag is to be kept there; `kept` names them.
    """

    target: str
    root: Path
    folder: Path
    made: "Made"
    changes: "tuple[Change, ...]" = ()
    choices: "Change | None" = None
    kept: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None

    @property
    def all_changes(self) -> "tuple[Change, ...]":
        """Those of the project's own settings first."""
        return (*((self.choices,) if self.choices is not None else ()), *self.changes)

    def document(self, verdict: str) -> dict[str, object]:
        """The same as JSON: devkit.export/1."""
        return {
            "verdict": verdict,
            "target": self.target,
            "output": str(self.folder),
            "task": asdict(self.made.task),
            "estimate": _estimate(self.made),
            "kept": list(self.kept),
            "files": [{"path": change.path, "action": str(change.action)} for change in self.changes],
            "notes": list(self.notes),
            "next": list(self.next_steps),
        }


def exported(target: Target, directory: Path, flags: Mapping[str, Any], *, judges: bool = True) -> Answer:
    """What exporting to the target would write. Raises DevkitError for input that cannot be a job.

    Unless it `judges`, a job that does not fit is written all the same, as somebody decided before.
    """
    from devkit.export.making import task_of

    project, plan, lock = _planned(directory)
    text, document = _toml(project)
    typed = Typed(given_flags(JobSettings, flags), given_flags(target.settings, flags))
    wishes = wishes_in(document, text, target, typed)
    _require_image(project, target, wishes)
    subject = subject_of(project, plan, wishes.job)
    made = task_of(subject, wishes.job)
    folder = _folder(project, target, wishes, flags.get("output"))
    if judges and made.refusal is not None and not flags.get("force"):
        return Answer(target.name, project.root, folder, made, refusal=made.refusal, notes=made.task.notes)
    context = Context(plan, subject.project, _shown(folder, project.root))
    rendered = target.render(made.task, wishes.own, context)
    changes = _changes(folder, plan, target, rendered.artifacts, lock, force=bool(flags.get("force")))
    values = {} if flags.get("output") else kept(document, target, typed)
    return Answer(
        target=target.name,
        root=project.root,
        folder=folder,
        made=made,
        changes=changes,
        choices=_choices(project, target, values),
        kept=tuple(".".join(path) for path in values),
        next_steps=rendered.next_steps,
        notes=(*made.task.notes, *rendered.notes),
    )


def drifted(directory: Path) -> "dict[str, tuple[Change, ...]]":
    """The targets whose files are not what the project's settings ask for now, by name; only those exported before."""
    from devkit.cli.changes import touched
    from devkit.render.lock import LOCK_PATH

    project, _, _ = _planned(directory)
    text, document = _toml(project)
    found = {}
    for name in NAMES:
        target = target_named(name)
        folder = _folder(project, target, wishes_in(document, text, target, Typed({}, {})), None)
        if (folder / LOCK_PATH).is_file():
            try:
                changes = exported(target, directory, {}, judges=False).changes
            except DevkitError as error:
                raise DevkitError(f"{name}: {error.message}", error.hint) from error
            if touched(changes):
                found[name] = changes
    return found


def _planned(directory: Path) -> "tuple[Project, Plan, Lock]":
    """The project and the plan that its image is built by, which is that of devkit.lock."""
    from devkit.render.choices import Choices
    from devkit.render.lock import read_lock_in
    from devkit.render.locked_plan import locked_plan
    from devkit.render.project import Inputs, open_project

    if not directory.is_dir():
        raise DevkitError(f"{directory} is no directory", "Name the project's folder.")
    project = open_project(directory, Choices(), Inputs())
    lock = read_lock_in(project.root)
    if not lock.files or lock.target:
        raise DevkitError(
            f"there is no devkit.lock of a dev container in {project.root}",
            f"Write a dev container first: devkit init {directory}",
        )
    return project, locked_plan(lock.plan), lock


def _toml(project: "Project") -> tuple[str, dict[str, Any]]:
    from devkit.render.choices import CHOICES_PATH
    from devkit.render.folder import read_file

    text = (read_file(project.root, CHOICES_PATH) or b"").decode("utf-8-sig")
    return text, tomllib.loads(text)


def _require_image(project: "Project", target: Target, wishes: Wishes) -> None:
    from devkit.render.artifact import FOLDER as CONTAINER
    from devkit.render.names import slug_of

    if wishes.job.image or not target.needs_image(wishes.own):
        return
    name = f"registry.example.org/{slug_of(project.choices.name)}:1"
    bake = f"{CONTAINER}/docker-bake.hcl"
    publish = f'docker buildx bake --file {bake} --push --set "*.tags={name}"'
    if not (project.root / bake).is_file():
        publish = f"podman build --tag {name} {CONTAINER} && podman push {name}"
    raise DevkitError(
        "no image is named, and the job runs where nobody builds one",
        f"Publish this project's, then name it: --image {name}\n{publish}",
    )


def _folder(project: "Project", target: Target, wishes: Wishes, typed: Path | None) -> Path:
    """Where the target's files go: where --output says, from here; else devkit.toml, from the project."""
    from devkit.render.lock import read_lock_in

    usual = project.root / (wishes.output or f"{FOLDER}/{target.name}")
    folder = Path(os.path.normpath(typed.absolute() if typed is not None else usual))
    if folder.is_file():
        raise DevkitError(f"{folder} is a file", "Name a folder with --output.")
    lock = read_lock_in(folder) if folder.is_dir() else None
    if lock is not None and lock.files and lock.target != target.name:
        whose = f"the files of {lock.target}" if lock.target else "a project's dev container"
        raise DevkitError(f"{folder} holds {whose}", "Give each target a folder of its own with --output.")
    return folder


def _shown(folder: Path, root: Path) -> str:
    """The folder as it is typed in the project's: the same wherever the command runs, so that files may name it."""
    return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()


def _changes(
    folder: Path, plan: "Plan", target: Target, artifacts: "tuple[Artifact, ...]", lock: "Lock", *, force: bool
) -> "tuple[Change, ...]":
    from devkit.render.change import Wording, changes_for
    from devkit.render.lock import lock_artifact

    wording = Wording(
        stranger=f"{folder} holds files that devkit did not write",
        move_away="Move them away, or write elsewhere with --output.",
        keep_edits="Put what you need into [job] of devkit.toml or a file of your own, or pass --force to lose it.",
    )
    own = lock_artifact(plan, artifacts, lock.machines, target=target.name)
    return changes_for(folder, (*artifacts, own), (), force=force, may_clash=True, wording=wording)


def _choices(project: "Project", target: Target, values: "Mapping[tuple[str, ...], object]") -> "Change | None":
    """The change to devkit.toml that keeps typed flags; None where there is nothing to keep."""
    from devkit.render.artifact import Artifact
    from devkit.render.change import change_of
    from devkit.render.choices import CHOICES_PATH
    from devkit.render.folder import read_file
    from devkit.render.toml_values import with_values

    if not values:
        return None
    comments = {path: meaning_of(path, target).removesuffix(".") for path in values}
    written = with_values(read_file(project.root, CHOICES_PATH), values, comments, shown_as=CHOICES_PATH)
    return change_of(project.root, Artifact(CHOICES_PATH, written))


def _estimate(made: "Made") -> dict[str, object] | None:
    need = made.need
    if need is None:
        return None
    return {"verdict": need.verdict, "device_peak_bytes": vars(need.estimate.device_peak_bytes)}
