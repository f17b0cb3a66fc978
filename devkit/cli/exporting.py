"""From a project's folder and flags to the files of one target, and what writing them would change."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.cli.setting_flags import given_flags
from devkit.errors import DevkitError
from devkit.export.job import JobSettings
from devkit.export.targets import NAMES, Context, Target, target_named
from devkit.render.settings_values import Source, values_in

if TYPE_CHECKING:
    from devkit.export.making import Exported
    from devkit.export.need import Need
    from devkit.export.task import Task
    from devkit.render.artifact import Artifact
    from devkit.render.change import Change
    from devkit.render.project import Project
    from devkit.solver.model import Machine, Plan

FOLDER = "deploy"
"""Where exported files go, in the project: a folder for each target."""


@dataclass(frozen=True)
class Answer:
    """What one export would do. `refusal` is a message and a hint where the estimate says no, and nobody forced it."""

    target: str
    folder: Path
    task: "Task"
    need: "Need | None"
    changes: "tuple[Change, ...]" = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None

    def document(self, verdict: str) -> dict[str, object]:
        """The same as JSON: devkit.export/1."""
        estimate = self.need.estimate if self.need is not None else None
        return {
            "verdict": verdict,
            "target": self.target,
            "output": str(self.folder),
            "task": asdict(self.task),
            "estimate": None
            if estimate is None
            else {
                "verdict": self.need.verdict if self.need is not None else None,
                "device_peak_bytes": vars(estimate.device_peak_bytes),
            },
            "files": [{"path": change.path, "action": str(change.action)} for change in self.changes],
            "notes": list(self.notes),
            "next": list(self.next_steps),
        }


def exported(target: Target, directory: Path, flags: Mapping[str, Any]) -> Answer:
    """What exporting to the target would write. Raises DevkitError for input that cannot be a job."""
    from devkit.export.making import task_of

    project, plan, machines = _planned(directory)
    document, text = _toml(project)
    job, own = _settings(document, text, target, flags)
    subject = _subject(project, plan, job)
    made = task_of(subject, job)
    task, need = made.task, made.need
    folder = (flags.get("output") or project.root / FOLDER / target.name).absolute()
    refusal = None if flags.get("force") else made.refusal
    if refusal is not None:
        return Answer(target.name, folder, task, need, refusal=refusal)
    rendered = target.render(task, own, Context(plan, subject.project))
    changes = _changes(folder, plan, rendered.artifacts, machines, force=bool(flags.get("force")))
    notes = (*task.notes, *rendered.notes)
    return Answer(target.name, folder, task, need, changes, rendered.next_steps, notes)


def drifted(directory: Path) -> "dict[str, tuple[Change, ...]]":
    """The targets whose files are not what the project's settings ask for now, by name; only those exported before."""
    from devkit.cli.changes import touched
    from devkit.render.lock import LOCK_PATH

    found = {}
    for name in NAMES:
        if (directory / FOLDER / name / LOCK_PATH).is_file():
            changes = exported(target_named(name), directory, {"force": False}).changes
            if touched(changes):
                found[name] = changes
    return found


def _planned(directory: Path) -> "tuple[Project, Plan, tuple[Machine, ...]]":
    """The project and its plan, for the machines of devkit.lock."""
    from devkit.cli.planning import answer_to, request_of_project
    from devkit.render.choices import Choices
    from devkit.render.lock import read_lock_in
    from devkit.render.project import Inputs, open_project
    from devkit.solver.model import Conflict

    project = open_project(directory, Choices(), Inputs())
    lock = read_lock_in(project.root)
    if not lock.files:
        raise DevkitError(
            f"there is no devkit.lock in {project.root}", f"Write a dev container first: devkit init {directory}"
        )
    request = request_of_project(project, machines=lock.machines)
    answer = answer_to(request, project.dependencies)
    if isinstance(answer, Conflict):
        raise DevkitError("there is no plan for this project any more", "See why: devkit update --check")
    return project, answer, request.machines


def _toml(project: "Project") -> tuple[dict[str, Any], str]:
    from devkit.render.choices import CHOICES_PATH
    from devkit.render.folder import read_file

    text = (read_file(project.root, CHOICES_PATH) or b"").decode("utf-8-sig")
    return tomllib.loads(text), text


def _settings(
    document: Mapping[str, Any], text: str, target: Target, flags: Mapping[str, Any]
) -> tuple[JobSettings, Any]:
    """[job] and [job.TARGET], with the flags in their place."""
    job = dict(document.get("job", {}))
    tables = {name: job.pop(name) for name in NAMES if name in job}
    source = Source("devkit.toml", text, ("job",))
    wishes = values_in(job, JobSettings, source) | given_flags(JobSettings, flags)
    inner = Source("devkit.toml", text, ("job", target.table))
    own = values_in(tables.get(target.table, {}), target.settings, inner) | given_flags(target.settings, flags)
    return JobSettings(**wishes), target.settings(**own)


def _subject(project: "Project", plan: "Plan", job: JobSettings) -> "Exported":
    from devkit.export.making import Exported
    from devkit.render.project import project_settings
    from devkit.workload.finetune.settings import FinetuneSettings, checked
    from devkit.workload.finetune.settings_file import read_settings

    if not job.settings:
        raise DevkitError(
            "nothing says what the job shall train", "Name the settings of devkit finetune: --settings run.toml"
        )
    finetune = checked(FinetuneSettings(**read_settings(project.root / job.settings)))
    folder = project.root / finetune.model
    return Exported(project_settings(project), plan, finetune, _config(folder, finetune.model), folder.is_dir())


def _config(folder: Path, model: str) -> Mapping[str, Any] | None:
    """The model's config.json, from its folder or the catalogue; None where neither has it. No network."""
    import json

    from devkit.estimate.catalogue import find_model

    try:
        found: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        known = find_model(model)
        return known.config if known is not None else None
    return found


def _changes(
    folder: Path,
    plan: "Plan",
    artifacts: "tuple[Artifact, ...]",
    machines: "tuple[Machine, ...]",
    *,
    force: bool,
) -> "tuple[Change, ...]":
    from devkit.render.change import changes_for
    from devkit.render.lock import lock_artifact

    return changes_for(folder, (*artifacts, lock_artifact(plan, artifacts, machines)), (), force=force, may_clash=True)
