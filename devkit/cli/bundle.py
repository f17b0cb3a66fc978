"""`devkit bundle`: everything that the dev container is built from, for a place without a network."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli.command import Command, OutputPath
from devkit.cli.dev_container import directory_argument
from devkit.cli.output import dump_json
from devkit.cli.runtime import hold_project
from devkit.cli.terminal import StepPrinter
from devkit.errors import DevkitError, ExitCode
from devkit.text import format_bytes, format_count, to_one_line

if TYPE_CHECKING:
    from devkit.render.project import DevkitProject
    from devkit.verify.bundle import Bundle

SCHEMA = "devkit.bundle/1"


@click.command(cls=Command)
@directory_argument
@click.option(
    "--output",
    metavar="PATH",
    type=OutputPath(path_type=Path),
    help="The folder to write, or one file if it ends with .tar. Default: NAME-bundle next to DIR.",
)
@click.option("--force", is_flag=True, help="Replace an existing bundle.")
@click.option("--dry-run", is_flag=True, help="List the contents without starting an engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def bundle(
    ctx: click.Context, directory: Path, *, output: Path | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Collect everything needed to build DIR's dev container without a network.

    The bundle contains the base image with its system packages, every wheel with its hash, and the project's files. The
    bundle's load.sh verifies and loads it. To resume an interrupted run, repeat the command.
    """
    from devkit.render.devkit_toml import ProjectSettings
    from devkit.render.project import open_project
    from devkit.verify.bundle import prepare_bundle

    if not dry_run:
        ctx.with_resource(hold_project(directory))
    project = open_project(directory, ProjectSettings(wheelhouse=True))
    contents = prepare_bundle(project)
    target = (output or project.root.parent / f"{project.root.name}-bundle").absolute()
    if dry_run:
        click.echo(_format_dry_run(contents, target, as_json=as_json))
        ctx.exit(ExitCode.DONE)
    document = _build(project, contents, target, force=force)
    if as_json:
        click.echo(dump_json({**document, "verdict": "written", "output": str(target)}))
        return
    files = format_count(len(document["files"]) + 2, "file")
    click.echo(f"wrote {files}, {format_bytes(document['bytes'])}, to {target}")
    click.echo(f"SHA-256 of its SHA256SUMS, to compare before loading: {document['sums_sha256']}")
    click.echo("Next: copy it to that machine, and run `sh load.sh` in it.")


def _build(project: "DevkitProject", contents: "Bundle", target: Path, *, force: bool) -> dict[str, Any]:
    from devkit.probe.host import LocalHost
    from devkit.verify.bundle import BundleBuilder, build_bundle, discard_unfinished, prepare_partial_folder
    from devkit.verify.dev_container import require_engine
    from devkit.verify.process import interrupt_on_termination

    netrc = _find_netrc(project)
    folder = prepare_partial_folder(target, force=force)
    try:
        with interrupt_on_termination(), contextlib.closing(StepPrinter()) as progress:
            return build_bundle(BundleBuilder(contents, require_engine(LocalHost()), folder, netrc, progress), target)
    except (KeyboardInterrupt, DevkitError, OSError):
        if not discard_unfinished(folder):
            click.echo(f"{folder} keeps the completed work; the same command resumes from there.", err=True)
        raise


def _find_netrc(project: "DevkitProject") -> Path | None:
    """Return the file with the login for mirrors that this host names. Raises DevkitError when it is not there."""
    from devkit.render.container.compose import parse_env_value
    from devkit.render.files import read_file
    from devkit.render.project import ENV_PATH

    settings = (read_file(project.root, ENV_PATH) or b"").decode(errors="surrogateescape")
    named = os.environ.get("DEVKIT_NETRC") or parse_env_value(settings, "DEVKIT_NETRC")
    if not named:
        return None
    path = project.root / Path(ENV_PATH).parent / named
    if not path.is_file():
        raise DevkitError(f"DEVKIT_NETRC is {named}, which is not a file", "Correct or remove it.")
    return path


def _format_dry_run(contents: "Bundle", target: Path, *, as_json: bool) -> str:
    if as_json:
        document = {
            "schema": SCHEMA,
            "verdict": "would-write",
            "output": str(target),
            "architectures": list(contents.architectures),
            "image": {"name": contents.image, "base": contents.plan.base_image},
            "packages": dict(contents.plan.packages),
            "files": [file.path for file in contents.files],
        }
        return dump_json(document)
    lines = [
        f"would bundle, for {' and '.join(contents.architectures)}:",
        f"  {contents.plan.base_image} with the Dockerfile's system packages",
        f"  {format_count(len(contents.plan.packages), 'package')} of the plan with their requirements, "
        f"including torch {contents.plan.torch} ({contents.plan.variant})",
        f"  {format_count(len(contents.files), 'file')} of the project",
        f"into {target}; nothing was written.",
    ]
    return "\n".join(map(to_one_line, lines))
