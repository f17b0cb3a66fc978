"""`devkit export`: the same plan and job, as files for engines that run on many machines."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exit_codes
from devkit.cli.changes import confirm_replacing, format_document, print_changes, print_merge_conflicts, select_changed
from devkit.cli.options.settings import collect_setting_flags, setting_options
from devkit.errors import DevkitError
from devkit.export.job_settings import (
    ExportOptions,
    ExportSettings,
    JobSettings,
    describe_setting,
    read_export_settings,
    select_flags_to_store,
)
from devkit.export.targets import TARGET_NAMES, ExportContext, ExportTarget, find_target_summary, load_target
from devkit.text import format_count, wrap_text

if TYPE_CHECKING:
    from devkit.export.targets import ExportTarget
    from devkit.export.task_builder import ExportedProject, TaskAndEstimate
    from devkit.render.changes import FileChange
    from devkit.render.devkit_lock import DevkitLock
    from devkit.render.files import Artifact
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan

SCHEMA = "devkit.export/1"
_OUTPUT = click.Path(path_type=Path, file_okay=False)


class TargetGroup(click.Group):
    """A command for each target, whose flags are made from its settings when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every target, the most used first."""
        return list(TARGET_NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The target's command; None for a name that none has, which Click reports."""
        return _command(load_target(cmd_name)) if cmd_name in TARGET_NAMES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The targets, without loading any."""
        with formatter.section("Targets"):
            formatter.write_dl([(name, find_target_summary(name)) for name in TARGET_NAMES])


@click.command(cls=TargetGroup, invoke_without_command=True, subcommand_metavar="[TARGET]")
@click.option("--check", is_flag=True, help="Say whether what was exported is up to date; exit 1 when it is not.")
@click.option("--project", metavar="DIR", default=".", type=_OUTPUT, help="The project, with --check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with --check.")
@click.pass_context
def export(ctx: click.Context, *, check: bool, project: Path, as_json: bool) -> None:
    """Carry the solved environment and the fine-tuning job to an engine that runs on many machines.

    Settings come from the table [job] of devkit.toml, those of one target from [job.TARGET]; flags win. The memory
    estimate says what the job needs; one that cannot fit is refused.
    """
    if ctx.invoked_subcommand is not None:
        if check or as_json or project != Path():
            raise DevkitError(
                "--check, --json and --project before a target are for all targets together",
                f"Give them after it: devkit export {ctx.invoked_subcommand} DIR --check",
            )
        return
    if not check:
        if as_json or project != Path():
            raise DevkitError("--json and --project are for --check", "Add --check, or name a target before them.")
        click.echo(ctx.get_help())
        ctx.exit(exit_codes.WRONG_INPUT)

    found = find_drifted_targets(project)
    if as_json:
        document: dict[str, object] = {"verdict": "drifted" if found else "unchanged", "drifted": sorted(found)}
        click.echo(format_document(document, schema=SCHEMA))
    else:
        for name, changes in found.items():
            click.echo(f"{name}:")
            print_changes(changes, show_diff=True)
        click.echo(f"drifted: {', '.join(found)}" if found else "up to date: nothing to change.")
    ctx.exit(exit_codes.ANSWER_IS_NO if found else exit_codes.DONE)


def _command(target: "ExportTarget") -> click.Command:
    @click.command(name=target.name, help=target.summary)
    @click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
    @setting_options(JobSettings)
    @setting_options(target.settings)
    @click.option(
        "--output",
        metavar="DIR",
        type=_OUTPUT,
        help=f"Write there once, and keep no flags in devkit.toml.  [default: DIR/deploy/{target.name}]",
    )
    @click.option("--force", is_flag=True, help="Write a job that the estimate says cannot fit, and lose your edits.")
    @click.option("--check", is_flag=True, help="Write nothing; print the difference and exit 1 when there is one.")
    @click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
    @click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
    @click.option("--yes", is_flag=True, help="Replace files without asking.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @click.pass_context
    def command(ctx: click.Context, /, *, directory: Path, as_json: bool, **flags: Any) -> None:  # noqa: ANN401

        found = plan_export(target, directory, flags)
        if found.refusal is not None:
            _refuse(ctx, found, found.refusal, as_json=as_json)
        is_trial = flags["check"] or flags["dry_run"]
        _finish(ctx, found, is_trial=is_trial, as_json=as_json, flags=flags)

    return command


def _refuse(ctx: click.Context, found: "ExportResult", refusal: tuple[str, str], *, as_json: bool) -> None:
    message, hint = refusal
    if as_json:
        click.echo(format_document(found.document("refused") | {"message": message, "hint": hint}, schema=SCHEMA))
    else:
        click.echo(f"Error: {message}\n  {hint}", err=True)
    ctx.exit(exit_codes.ANSWER_IS_NO)


def _finish(ctx: click.Context, found: "ExportResult", *, is_trial: bool, as_json: bool, flags: dict[str, Any]) -> None:
    from devkit.render.changes import write_changes

    changed = select_changed(found.all_changes)
    if not as_json:
        print_changes(found.all_changes, show_diff=flags["show_diff"] or flags["check"])
    if not is_trial:
        confirm_replacing(found.changes, yes=flags["yes"] or as_json)
        # The settings first: with them alone, the next run writes the same files.
        write_changes(found.root, (found.choices,) if found.choices is not None else ())
        write_changes(found.folder, found.changes)
    has_clashes = any(change.conflicts for change in found.changes)
    verdict = "conflicts" if has_clashes else "unchanged"
    if changed and not has_clashes:
        verdict = "would-write" if is_trial else "written"
    if as_json:
        click.echo(format_document(found.document(verdict), schema=SCHEMA))
    else:
        print_merge_conflicts(found.changes, is_trial=is_trial)
        _print_end(found, len(changed), is_trial=is_trial)
    ctx.exit(exit_codes.ANSWER_IS_NO if has_clashes or (flags["check"] and changed) else exit_codes.DONE)


def _print_end(found: "ExportResult", changed: int, *, is_trial: bool) -> None:
    for note in found.notes:
        click.echo(wrap_text(f"! note: {note}", width=80))
    if not changed:
        click.echo("up to date: nothing to change.")
        return
    verb = "would write" if is_trial else "wrote"
    kept = f", and {', '.join(found.kept)} in devkit.toml" if found.kept else ""
    click.echo(wrap_text(f"{verb} {format_count(changed, 'file')} in {found.folder}{kept}", width=80))
    if not is_trial:
        click.echo("Next:" if found.root == Path.cwd() else f"Next, in {found.root}:")
        for step in found.next_steps:
            click.echo(f"  {step}")


# What a job of a project is to train, as far as it is known on this machine: settings, model, sizes.


def load_exported_project(project: "DevkitProject", plan: "Plan", job: JobSettings) -> "ExportedProject":
    """The project as the exporters see it. Raises DevkitError for settings of the run that are not there or wrong."""
    from devkit.export.task_builder import ExportedProject
    from devkit.render.project import build_container_settings
    from devkit.workload.finetune.settings import FinetuneSettings, read_settings_file, validate_finetune_settings

    if not job.settings:
        raise DevkitError(
            "nothing says what the job shall train", "Name the settings of devkit finetune: --settings run.toml"
        )
    path = project.root / job.settings
    if not path.is_file():
        raise DevkitError(
            f"there is no file {job.settings} in {project.root}",
            "Name the settings of devkit finetune by their path in the project, which is what the job sees.",
        )
    finetune = validate_finetune_settings(FinetuneSettings(**read_settings_file(path)))
    folder = project.root / finetune.model
    is_local = folder.is_dir()
    local = [project.root / each for each in (*finetune.data, *finetune.eval_data)] + ([folder] if is_local else [])
    return ExportedProject(
        project=build_container_settings(project),
        plan=plan,
        finetune=finetune,
        config=_config(folder, finetune.model),
        is_local_model=is_local,
        project_bytes=sum(_size(each) for each in local),
    )


def _config(folder: Path, model: str) -> Mapping[str, Any] | None:
    """The model's config.json, from its folder or the catalogue; None where neither has it. No network."""
    from devkit.estimate.model_catalog import find_model

    try:
        found: Mapping[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        known = find_model(model)
        return known.config if known is not None else None
    return found


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; 0 for what is not here."""
    try:
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        return sum(each.stat().st_size for each in files)
    except OSError:
        return 0


# From a project's folder and flags to the files of one target, and what writing them would change.

DEPLOY_FOLDER = "deploy"
"""Where exported files go, in the project: a folder for each target."""


@dataclass(frozen=True)
class ExportResult:
    """What one export would do. `refusal` is a message and a hint where the estimate says no, and nobody forced it.

    `choices` is the change to the project's devkit.toml, None where no flag is to be kept there; `kept` names them.
    """

    target: str
    root: Path
    folder: Path
    made: "TaskAndEstimate"
    changes: "tuple[FileChange, ...]" = ()
    choices: "FileChange | None" = None
    kept: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None

    @property
    def all_changes(self) -> "tuple[FileChange, ...]":
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


def plan_export(
    target: ExportTarget, directory: Path, flags: Mapping[str, Any], *, judges: bool = True
) -> ExportResult:
    """What exporting to the target would write. Raises DevkitError for input that cannot be a job.

    Unless it `judges`, a job that does not fit is written all the same, as somebody decided before.
    """
    from devkit.export.task_builder import build_task

    project, plan, lock = _planned(directory)
    text, document = _toml(project)
    typed = ExportOptions(collect_setting_flags(JobSettings, flags), collect_setting_flags(target.settings, flags))
    wishes = read_export_settings(document, text, target, typed)
    _require_image(project, target, wishes)
    subject = load_exported_project(project, plan, wishes.job)
    made = build_task(subject, wishes.job)
    folder = _folder(project, target, wishes, flags.get("output"))
    if judges and made.refusal is not None and not flags.get("force"):
        return ExportResult(target.name, project.root, folder, made, refusal=made.refusal, notes=made.task.notes)
    context = ExportContext(plan, subject.project, _shown(folder, project.root))
    rendered = target.render(made.task, wishes.own, context)
    changes = _changes(folder, plan, target, rendered.artifacts, lock, force=bool(flags.get("force")))
    values = {} if flags.get("output") else select_flags_to_store(document, target, typed)
    return ExportResult(
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


def find_drifted_targets(directory: Path) -> "dict[str, tuple[FileChange, ...]]":
    """The targets whose files are not what the project's settings ask for now, by name; only those exported before."""
    from devkit.cli.changes import select_changed
    from devkit.render.devkit_lock import LOCK_PATH

    project, _, _ = _planned(directory)
    text, document = _toml(project)
    found = {}
    for name in TARGET_NAMES:
        target = load_target(name)
        folder = _folder(project, target, read_export_settings(document, text, target, ExportOptions({}, {})), None)
        if (folder / LOCK_PATH).is_file():
            try:
                changes = plan_export(target, directory, {}, judges=False).changes
            except DevkitError as error:
                raise DevkitError(f"{name}: {error.message}", error.hint) from error
            if select_changed(changes):
                found[name] = changes
    return found


def _planned(directory: Path) -> "tuple[DevkitProject, Plan, DevkitLock]":
    """The project and the plan that its image is built by, which is that of devkit.lock."""
    from devkit.render.devkit_lock import parse_locked_plan, read_project_lock
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.render.project import PathOptions, open_project

    if not directory.is_dir():
        raise DevkitError(f"{directory} is no directory", "Name the project's folder.")
    project = open_project(directory, ProjectSettings(), PathOptions())
    lock = read_project_lock(project.root)
    if not lock.files or lock.target:
        raise DevkitError(
            f"there is no devkit.lock of a dev container in {project.root}",
            f"Write a dev container first: devkit init {directory}",
        )
    return project, parse_locked_plan(lock.plan), lock


def _toml(project: "DevkitProject") -> tuple[str, dict[str, Any]]:
    from devkit.render.devkit_toml import DEVKIT_TOML
    from devkit.render.files import read_file

    text = (read_file(project.root, DEVKIT_TOML) or b"").decode("utf-8-sig")
    return text, tomllib.loads(text)


def _require_image(project: "DevkitProject", target: ExportTarget, wishes: ExportSettings) -> None:
    from devkit.render.container.settings import slugify
    from devkit.render.files import DEVCONTAINER_FOLDER as CONTAINER

    if wishes.job.image or not target.needs_image(wishes.own):
        return
    name = f"registry.example.org/{slugify(project.settings.name)}:1"
    bake = f"{CONTAINER}/docker-bake.hcl"
    publish = f'docker buildx bake --file {bake} --push --set "*.tags={name}"'
    if not (project.root / bake).is_file():
        publish = f"podman build --tag {name} {CONTAINER} && podman push {name}"
    raise DevkitError(
        "no image is named, and the job runs where nobody builds one",
        f"Publish this project's, then name it: --image {name}\n{publish}",
    )


def _folder(project: "DevkitProject", target: ExportTarget, wishes: ExportSettings, typed: Path | None) -> Path:
    """Where the target's files go: where --output says, from here; else devkit.toml, from the project."""
    from devkit.render.devkit_lock import read_project_lock

    usual = project.root / (wishes.output or f"{DEPLOY_FOLDER}/{target.name}")
    folder = Path(os.path.normpath(typed.absolute() if typed is not None else usual))
    if folder.is_file():
        raise DevkitError(f"{folder} is a file", "Name a folder with --output.")
    lock = read_project_lock(folder) if folder.is_dir() else None
    if lock is not None and lock.files and lock.target != target.name:
        whose = f"the files of {lock.target}" if lock.target else "a project's dev container"
        raise DevkitError(f"{folder} holds {whose}", "Give each target a folder of its own with --output.")
    return folder


def _shown(folder: Path, root: Path) -> str:
    """The folder as it is typed in the project's: the same wherever the command runs, so that files may name it."""
    return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()


def _changes(
    folder: Path,
    plan: "Plan",
    target: ExportTarget,
    artifacts: "tuple[Artifact, ...]",
    lock: "DevkitLock",
    *,
    force: bool,
) -> "tuple[FileChange, ...]":
    from devkit.render.changes import RefusalTexts, compute_changes
    from devkit.render.devkit_lock import render_lock

    texts = RefusalTexts(
        foreign_files=f"{folder} holds files that devkit did not write",
        move_away="Move them away, or write elsewhere with --output.",
        keep_edits="Put what you need into [job] of devkit.toml or a file of your own, or pass --force to lose it.",
    )
    own = render_lock(plan, artifacts, lock.machines, target=target.name)
    return compute_changes(folder, (*artifacts, own), (), force=force, may_conflict=True, texts=texts)


def _choices(
    project: "DevkitProject", target: ExportTarget, values: "Mapping[tuple[str, ...], object]"
) -> "FileChange | None":
    """The change to devkit.toml that keeps typed flags; None where there is nothing to keep."""
    from devkit.render.changes import compute_change
    from devkit.render.devkit_toml import DEVKIT_TOML
    from devkit.render.files import Artifact, read_file
    from devkit.render.toml_tables import set_toml_values

    if not values:
        return None
    comments = {path: describe_setting(path, target).removesuffix(".") for path in values}
    written = set_toml_values(read_file(project.root, DEVKIT_TOML), values, comments, shown_as=DEVKIT_TOML)
    return compute_change(project.root, Artifact(DEVKIT_TOML, written))


def _estimate(made: "TaskAndEstimate") -> dict[str, object] | None:
    need = made.need
    if need is None:
        return None
    return {"verdict": need.verdict, "device_peak_bytes": vars(need.estimate.device_peak_bytes)}
