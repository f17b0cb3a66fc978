"""`devkit export`: the same plan and job, as files for engines that run on many machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.cli.changes import confirm, document_text, print_changes, print_clashes, touched
from devkit.cli.setting_flags import setting_options
from devkit.errors import DevkitError
from devkit.export.job import JobSettings
from devkit.export.targets import NAMES, summary_of, target_named
from devkit.text import count_of, wrapped

if TYPE_CHECKING:
    from devkit.cli.exporting import Answer
    from devkit.export.targets import Target

SCHEMA = "devkit.export/1"
_OUTPUT = click.Path(path_type=Path, file_okay=False)


class Targets(click.Group):
    """A command for each target, whose flags are made from its settings when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every target, the most used first."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The target's command; None for a name that none has, which Click reports."""
        return _command(target_named(cmd_name)) if cmd_name in NAMES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The targets, without loading any."""
        with formatter.section("Targets"):
            formatter.write_dl([(name, summary_of(name)) for name in NAMES])


@click.command(cls=Targets, invoke_without_command=True, subcommand_metavar="[TARGET]")
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
        ctx.exit(exits.WRONG_INPUT)
    from devkit.cli.exporting import drifted

    found = drifted(project)
    if as_json:
        document: dict[str, object] = {"verdict": "drifted" if found else "unchanged", "drifted": sorted(found)}
        click.echo(document_text(document, schema=SCHEMA))
    else:
        for name, changes in found.items():
            click.echo(f"{name}:")
            print_changes(changes, show_diff=True)
        click.echo(f"drifted: {', '.join(found)}" if found else "up to date: nothing to change.")
    ctx.exit(exits.ANSWER_IS_NO if found else exits.DONE)


def _command(target: "Target") -> click.Command:
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
        from devkit.cli.exporting import exported

        found = exported(target, directory, flags)
        if found.refusal is not None:
            _refuse(ctx, found, found.refusal, as_json=as_json)
        is_trial = flags["check"] or flags["dry_run"]
        _finish(ctx, found, is_trial=is_trial, as_json=as_json, flags=flags)

    return command


def _refuse(ctx: click.Context, found: "Answer", refusal: tuple[str, str], *, as_json: bool) -> None:
    message, hint = refusal
    if as_json:
        click.echo(document_text(found.document("refused") | {"message": message, "hint": hint}, schema=SCHEMA))
    else:
        click.echo(f"Error: {message}\n  {hint}", err=True)
    ctx.exit(exits.ANSWER_IS_NO)


def _finish(ctx: click.Context, found: "Answer", *, is_trial: bool, as_json: bool, flags: dict[str, Any]) -> None:
    from devkit.render.write import write

    changed = touched(found.all_changes)
    if not as_json:
        print_changes(found.all_changes, show_diff=flags["show_diff"] or flags["check"])
    if not is_trial:
        confirm(found.changes, yes=flags["yes"] or as_json)
        # The settings first: with them alone, the next run writes the same files.
        write(found.root, (found.choices,) if found.choices is not None else ())
        write(found.folder, found.changes)
    has_clashes = any(change.clashes for change in found.changes)
    verdict = "conflicts" if has_clashes else "unchanged"
    if changed and not has_clashes:
        verdict = "would-write" if is_trial else "written"
    if as_json:
        click.echo(document_text(found.document(verdict), schema=SCHEMA))
    else:
        print_clashes(found.changes, is_trial=is_trial)
        _print_end(found, len(changed), is_trial=is_trial)
    ctx.exit(exits.ANSWER_IS_NO if has_clashes or (flags["check"] and changed) else exits.DONE)


def _print_end(found: "Answer", changed: int, *, is_trial: bool) -> None:
    for note in found.notes:
        click.echo(wrapped(f"! note: {note}", width=80))
    if not changed:
        click.echo("up to date: nothing to change.")
        return
    verb = "would write" if is_trial else "wrote"
    kept = f", and {', '.join(found.kept)} in devkit.toml" if found.kept else ""
    click.echo(wrapped(f"{verb} {count_of(changed, 'file')} in {found.folder}{kept}", width=80))
    if not is_trial:
        click.echo("Next:" if found.root == Path.cwd() else f"Next, in {found.root}:")
        for step in found.next_steps:
            click.echo(f"  {step}")
