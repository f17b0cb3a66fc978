"""`devkit export`: the same plan and job, as files for Kubernetes, Slurm and launchers."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.changes import (
    NO_DIFF,
    confirm_replacing,
    format_document,
    print_changes,
    print_merge_conflicts,
    select_changed,
)
from devkit.cli.command import OUTPUT_FOLDER, Command, collect_setting_flags, setting_options
from devkit.cli.dev_container import directory_argument
from devkit.cli.output import print_next, print_wrapped
from devkit.cli.runtime import hold_project
from devkit.errors import DevkitError, ExitCode
from devkit.export.job_settings import (
    JOB_TABLE,
    ExportSettings,
    JobSettings,
    describe_setting,
    read_export_settings,
    select_flags_to_store,
    validate_job_settings,
)
from devkit.export.targets import TARGETS, ExportTarget, load_target
from devkit.facts.settings import SettingInfo, describe_settings, format_flag
from devkit.probe.documents import parse_toml
from devkit.reading import MAX_DOCUMENT_BYTES, read_bounded
from devkit.render.container.settings import slugify
from devkit.render.devkit_toml import DEVKIT_TOML
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file, resolve_inside
from devkit.render.toml_tables import parse_assignments, set_toml_values
from devkit.solver.plan import Plan
from devkit.text import format_bytes, format_count, suggest
from devkit.workload.finetune.settings import FinetuneSettings, read_settings_file, validate_finetune_settings

if TYPE_CHECKING:
    from devkit.export.task_builder import ExportedProject, TaskAndEstimate
    from devkit.render.changes import FileChange
    from devkit.render.devkit_lock import DevkitLock
    from devkit.render.project import DevkitProject

SCHEMA = "devkit.export/1"
_HUB_DATA = re.compile(r"[A-Za-z0-9][\w-]*/[\w-]+", re.ASCII)
DEPLOY_FOLDER = "deploy"
"""The folder of exported files in the project, with a folder for each target."""


class TargetGroup(click.Group):
    """A group with a command for each target, whose flags are made from its settings when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every target, the most used first."""
        return list(TARGETS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build the target's command; None for an unknown name, which Click reports."""
        return _build_command(load_target(cmd_name)) if cmd_name in TARGETS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the list of targets, without loading any."""
        with formatter.section("Targets"):
            formatter.write_dl(list(TARGETS.items()))


@click.group(cls=TargetGroup, subcommand_metavar="TARGET")
def export() -> None:
    """Export the solved environment and the fine-tuning job to an engine that runs on many machines.

    Settings come from [job] in devkit.toml, and target settings from [job.TARGET]; flags override them.
    Resources come from the memory estimate; devkit rejects a job that cannot fit.
    """


class _TargetCommand(Command):
    """A target's command: words after two dashes are the command that the job runs, and its help has sections."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags before the dashes, and keep the words after them."""
        words: tuple[str, ...] = ()
        if "--" in args:
            at = args.index("--")
            args, words = args[:at], tuple(args[at + 1 :])
            if not words:
                raise DevkitError("the command after -- is missing", "Example: -- python train.py")
        rest = super().parse_args(ctx, args)
        ctx.params["command"] = words
        ctx.meta["words"] += ("--", *words) if words else ()
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the words after the dashes in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND …]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the flags by topic, and the settings that have no flag."""
        super().format_options(ctx, formatter)
        with formatter.section("Settings without a flag, for --set"):
            known = _describe_without_flag(load_target(self.name or ""))
            formatter.write_dl([(name, info.meaning) for name, (_, info) in known.items()])


def _describe_without_flag(target: ExportTarget) -> dict[str, tuple[Any, SettingInfo]]:
    found = describe_settings(JobSettings) | describe_settings(target.settings)
    return {name: each for name, each in found.items() if not each[1].has_flag and name != "command"}


def _list_old_flags(target: ExportTarget) -> dict[str, str]:
    old: dict[str, str] = {}
    for name, (hint, _) in _describe_without_flag(target).items():
        flag = format_flag(name)
        switch = {flag: f"--set {name}=true", f"--no-{flag[2:]}": f"--set {name}=false"}
        old |= switch if hint is bool else {flag: f"--set {name}="}
    return old


def _build_command(target: ExportTarget) -> click.Command:
    @click.command(
        cls=_TargetCommand,
        name=target.name,
        help=TARGETS[target.name],
        renamed=_list_old_flags(target),
        removed=NO_DIFF,
    )
    @directory_argument
    @setting_options(JobSettings)
    @setting_options(target.settings, title=f"Only for {target.name}")
    @click.option("--set", "assignments", metavar="NAME=VALUE", multiple=True, help="Any other setting.")
    @click.option(
        "--output",
        metavar="DIR",
        type=OUTPUT_FOLDER,
        help=f"Write to this folder, and do not store this run's flags in devkit.toml.  [default: DIR/deploy/{target.name}]",
    )
    @click.option(
        "--force",
        is_flag=True,
        help="Write the job even if it does not fit according to the estimate, and discard edits.",
    )
    @click.option(
        "--check", is_flag=True, help="Print the difference without writing it, and exit with 1 if there is one."
    )
    @click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
    @click.option("--yes", is_flag=True, help="Replace files without asking.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
    @click.pass_context
    def command(ctx: click.Context, /, *, directory: Path, as_json: bool, **flags: Any) -> None:  # noqa: ANN401
        from devkit.render.changes import is_unfinished

        if not (flags["check"] or flags["dry_run"]):
            ctx.with_resource(hold_project(directory))
        given = {
            **parse_assignments(flags["assignments"], JobSettings, target.settings, without="command"),
            **collect_setting_flags(JobSettings, flags),
            **collect_setting_flags(target.settings, flags),
        }

        if flags["settings"] and given.get("command"):
            raise DevkitError("--settings and the command after -- contradict each other", "Remove one of them.")

        def plan() -> "ExportResult":
            return plan_export(target, directory, given, output=flags["output"], force=flags["force"])

        result = plan()
        if not (flags["check"] or flags["dry_run"]) and is_unfinished(result.folder):
            # What a killed export had begun decides what is left to change.
            with hold_project(result.folder):
                result = plan()
        if result.refusal is not None:
            message, hint = result.refusal
            if as_json:
                document = result.to_document("refused") | {"message": message, "hint": hint}
                click.echo(format_document(document, schema=SCHEMA))
            else:
                click.echo(f"Error: {message}\n  {hint}", err=True)
            ctx.exit(ExitCode.ANSWER_IS_NO)
        _finish(ctx, result, flags, as_json=as_json)

    return command


def _finish(ctx: click.Context, result: "ExportResult", flags: dict[str, Any], *, as_json: bool) -> None:
    """Show, confirm and write the changes, and end the command."""
    is_dry_run = flags["check"] or flags["dry_run"]
    # The settings first: with them alone, the next run writes the same files.
    settings = (result.settings_change,) if result.settings_change is not None else ()
    changed = select_changed((*settings, *result.changes))
    if not as_json:
        print_wrapped(_describe_fit(result.task))
        print_changes((*settings, *result.changes), show_diff=flags["check"])
    if not is_dry_run:
        from devkit.render.changes import write_changes

        confirm_replacing(result.changes, yes=flags["yes"] or as_json)
        write_changes(result.root, settings)
        write_changes(result.folder, result.changes)
    has_conflicts = any(change.conflicts for change in result.changes)
    if as_json:
        verdict = "unchanged" if not changed else "would-write" if is_dry_run else "written"
        document = result.to_document("conflicts" if has_conflicts else verdict)
        click.echo(format_document(document, schema=SCHEMA))
    else:
        print_merge_conflicts(result.changes, is_dry_run=is_dry_run)
        _print_end(result, len(changed), is_dry_run=is_dry_run)
    ctx.exit(ExitCode.ANSWER_IS_NO if has_conflicts or (flags["check"] and changed) else ExitCode.DONE)


def _describe_fit(built: "TaskAndEstimate") -> str:
    """Describe in one line what the job runs on, and whether its memory suffices there."""
    task, needs = built.task, built.needs
    gpus = f"{task.accelerator.count} x {task.accelerator.name or 'any GPU'}" if task.accelerator.count else "the CPU"
    where = f"{format_count(task.nodes, 'node')} with {gpus}{' each' if task.nodes > 1 else ''}"
    if needs is None or needs.gpu is None or needs.verdict is None:
        return f"memory not estimated; {where}"
    sizes = f"{format_bytes(needs.peak_bytes)} of {format_bytes(needs.gpu.memory_bytes)}"
    return f"{needs.verdict.value.replace('-', ' ')}: {sizes} on each GPU; {where}"


def _print_end(result: "ExportResult", changed: int, *, is_dry_run: bool) -> None:
    for each in result.settings.stored:
        click.echo(f"  {each}")
    for note in result.notes:
        print_wrapped(f"! note: {note}")
    if not changed:
        click.echo("up to date: nothing to change.")
        return
    verb = "would write" if is_dry_run else "wrote"
    stored = f", and {', '.join(result.stored_settings)} in devkit.toml" if result.stored_settings else ""
    print_wrapped(f"{verb} {format_count(changed, 'file')} in {result.folder}{stored}")
    if is_dry_run:
        words = click.get_current_context().meta["words"]
        kept = [word for word in words if word not in ("--dry-run", "--check")]
        command = ["--", *result.settings.job.command] if result.task.task.is_own_command else []
        print_next(shlex.join(["devkit", "export", result.target, *kept, *command]))
    else:
        click.echo("Next:" if result.root == Path.cwd() else f"Next, in {result.root}:")
        for step in result.next_steps:
            click.echo(f"  {step}")


@dataclass(frozen=True)
class ExportResult:
    """The result of one export, before it is written.

    `settings_change` is the change to the project's devkit.toml, None where no flag is to be stored there;
    `stored_settings` names those flags. `refusal` is message and hint where the job does not fit, unless forced.
    """

    target: str
    root: Path
    folder: Path
    task: "TaskAndEstimate"
    settings: ExportSettings
    changes: "tuple[FileChange, ...]" = ()
    settings_change: "FileChange | None" = None
    stored_settings: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: tuple[str, str] | None = None

    def to_document(self, verdict: str) -> dict[str, object]:
        """Return the JSON document, devkit.export/1."""
        needs = self.task.needs
        estimate = needs and {"verdict": needs.verdict, "device_peak_bytes": vars(needs.estimate.device_peak_bytes)}
        return {
            "verdict": verdict,
            "target": self.target,
            "output": str(self.folder),
            "task": asdict(self.task.task),
            "estimate": estimate,
            "kept": list(self.stored_settings),
            "stored": [{"setting": old.name, "value": old.value, "where": old.where} for old in self.settings.stored],
            "files": [{"path": change.path, "action": str(change.action)} for change in self.changes],
            "notes": list(self.notes),
            "next": list(self.next_steps),
        }


def plan_export(
    target: ExportTarget, directory: Path, given: Mapping[str, Any], *, output: Path | None = None, force: bool = False
) -> ExportResult:
    """Compute what exporting to the target would write. Raises DevkitError for input that cannot be a job.

    Args:
        target: the target.
        directory: the project's folder.
        given: the settings that flags gave.
        output: another folder for the files, in which case no flag is stored.
        force: true to write a job that does not fit, and to replace files with edits.
    """
    from devkit.export.task_builder import build_task
    from devkit.render.changes import RefusalTexts, compute_change, compute_changes
    from devkit.render.devkit_lock import parse_locked_plan, read_project_lock, render_lock
    from devkit.render.project import open_project

    project = open_project(directory)
    root, lock = project.root, read_project_lock(project.root)
    content = read_file(root, DEVKIT_TOML) or b""
    document = parse_toml(content.decode("utf-8-sig"))
    settings = read_export_settings(document, content.decode("utf-8-sig"), target, given)
    try:
        validate_job_settings(settings.job)
        target.validate(settings.target, settings.job.nodes)
        _require_settings(project, lock, target, settings, document)
        plan = parse_locked_plan(lock.plan)  # the image is built by that one
        if settings.job.settings and not settings.job.command:
            plan.require_torch("devkit finetune")
        project = project.for_plan(plan)
        exported = load_exported_project(project, plan, settings.job)
        folder = _find_folder(project, target, settings, output)
        # Relative to the project, wherever the command runs: files may name it.
        shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
        task = build_task(exported, settings.job, target.validate_name)
        if task.refusal is not None and not force:
            return ExportResult(target.name, root, folder, task, settings, refusal=task.refusal, notes=task.task.notes)
        rendered = target.render(task.task, settings.target, shown.as_posix())
    except DevkitError as error:
        words = f"{error.message} {error.hint}".replace("--set ", "--").split()
        places = [
            f"({each.name}: {each.where})"
            for each in settings.stored
            if not {format_flag(each.name), f"--{each.name}"}.isdisjoint(words)
        ]
        raise DevkitError(error.message, " ".join((error.hint, *places))) from error
    texts = RefusalTexts(
        foreign_files=f"{folder} contains files that devkit did not write",
        move_away="Move them elsewhere, or choose another folder with --output.",
        keep_edits="Move the changes that you need to [job] in devkit.toml or to your own file, or pass --force to discard them.",
    )
    own_lock = render_lock(plan, rendered.artifacts, lock.machines, target=target.name)
    artifacts = (*rendered.artifacts, own_lock)
    stored = {} if output else select_flags_to_store(document, target, given)
    settings_change = None
    if stored:
        comments = {path: describe_setting(path[-1], target).removesuffix(".") for path in stored}
        written = set_toml_values(content or None, stored, comments, shown_as=DEVKIT_TOML)
        settings_change = compute_change(root, Artifact(DEVKIT_TOML, written))
    return ExportResult(
        target=target.name,
        root=root,
        folder=folder,
        task=task,
        settings=settings,
        changes=compute_changes(folder, artifacts, (), force=force, may_conflict=True, texts=texts),
        settings_change=settings_change,
        stored_settings=tuple(".".join(path) for path in stored),
        next_steps=rendered.next_steps,
        notes=(*task.task.notes, *rendered.notes),
    )


def load_exported_project(project: "DevkitProject", plan: Plan, job: JobSettings) -> "ExportedProject":
    """Load what of the project the exporters need: settings of the run, model and sizes, as far as they are here.

    Raises DevkitError for settings of the run that are missing or wrong.
    """
    from devkit.export.task_builder import ExportedProject
    from devkit.render.project import build_container_settings

    if job.command or not job.settings:
        return ExportedProject(build_container_settings(project), plan, finetune=None, config=None)
    path = project.root / job.settings
    if not path.is_file():
        is_other = "is not a file" if path.exists() else f"does not exist in {project.root}"
        lacks = "is a folder, not a TOML file" if path.is_dir() else is_other
        near = [os.path.relpath(each) for each in path.parent.glob("*.toml") if each.name != DEVKIT_TOML]
        hint = "Give the path of the devkit finetune settings in the project, because the job sees only the project."
        raise DevkitError(f"{job.settings} {lacks}", suggest(near, hint))
    finetune = FinetuneSettings(**read_settings_file(path))
    try:
        validate_finetune_settings(finetune)
    except DevkitError as error:
        raise DevkitError(f"{job.settings}: {error.message}", error.hint) from error
    folder = project.root / finetune.model
    is_local = folder.is_dir()
    named = (*finetune.data, *finetune.eval_data)
    hub_data = tuple(each for each in named if _HUB_DATA.fullmatch(each) and not (project.root / each).exists())
    local = [project.root / each for each in (*finetune.data, *finetune.eval_data)] + ([folder] if is_local else [])
    return ExportedProject(
        project=build_container_settings(project),
        plan=plan,
        finetune=finetune,
        config=_read_model_config(folder, finetune.model),
        is_local_model=is_local,
        project_bytes=sum(_measure(each) for each in local),
        hub_data=hub_data,
    )


def _read_model_config(folder: Path, model: str) -> Mapping[str, Any] | None:
    """Return the model's config.json, from its folder or the catalog; None where neither has it. No network."""
    from devkit.estimate.shape import find_model

    try:
        config: Mapping[str, Any] = json.loads(read_bounded(folder / "config.json", MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        known = find_model(model)
        return known.config if known is not None else None
    return config


def _measure(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 for a path that does not exist here."""
    try:
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        return sum(each.stat().st_size for each in files)
    except OSError:
        return 0


def _require_settings(
    project: "DevkitProject",
    lock: "DevkitLock",
    target: ExportTarget,
    settings: ExportSettings,
    document: Mapping[str, Any],
) -> None:
    """Raise DevkitError that names everything that a job lacks, with the commands that end in the export."""
    missing, steps, words = [], [], ["devkit", "export", target.name]
    if not lock.files or lock.target:
        missing.append(f"no dev container's devkit.lock exists in {project.root}")
        steps.append("devkit init")
    if not settings.job.image and target.needs_image(settings.target):
        missing.append("the job cannot build an image, and none was given")
        image = _find_of_another_target(document, "image")
        if not image:
            image = f"registry.example.org/{slugify(project.settings.name)}:1"
            docker = f"(cd {DEVCONTAINER_FOLDER} && DEVKIT_UID=1000 DEVKIT_GID=1000 docker buildx bake --push --set dev.tags={image} dev)"
            podman = f"podman build --tag {image} {DEVCONTAINER_FOLDER} && podman push {image}"
            steps.append(podman if project.settings.engine == "podman" else docker)
        words += ["--image", image]
    if not settings.job.settings and not settings.job.command:
        missing.append("the job has no command or settings to run")
        words += ["--settings", _find_of_another_target(document, "settings") or "run.toml"]
    if missing:
        # As they were typed, flags of the last release included.
        typed = click.get_current_context(silent=True)
        words += typed.meta.get("words", ()) if typed else ()
        hint = " && \\\n".join([*steps, shlex.join(words)])
        own = "" if settings.job.command else "\nTo run your own command instead of --settings: -- python train.py"
        raise DevkitError("; ".join(missing), f"{hint}{own}")


def _find_of_another_target(document: Mapping[str, Any], name: str) -> str:
    """Return the setting of the first target that has it in devkit.toml; "" without one."""
    tables = document.get(JOB_TABLE, {})
    return next((str(tables[each][name]) for each in TARGETS if name in tables.get(each, {})), "")


def _find_folder(project: "DevkitProject", target: ExportTarget, settings: ExportSettings, output: Path | None) -> Path:
    """Return the folder of the target's files: --output, relative to here, else that of devkit.toml."""
    from devkit.render.devkit_lock import read_project_lock

    default = settings.output or f"{DEPLOY_FOLDER}/{target.name}"
    if output is None:
        # A stranger may have written devkit.toml, and made a folder of the project a link.
        resolve_inside(project.root, default)
    folder = Path(os.path.normpath(output.absolute() if output is not None else project.root / default))
    lock = read_project_lock(folder) if folder.is_dir() else None
    if lock is not None and lock.files and lock.target != target.name:
        content = f"the files of {lock.target}" if lock.target else "a project's dev container"
        raise DevkitError(f"{folder} holds {content}", "Use a separate folder for each target with --output.")
    return folder
