"""`devkit bundle`: everything that the dev container is built from, for a place without a network."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devkit.cli import exits
from devkit.errors import DevkitError
from devkit.text import count_of, human_bytes

if TYPE_CHECKING:
    from devkit.render.bundle import Bundle
    from devkit.render.project import Project

SCHEMA = "devkit.bundle/1"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The folder to write, or one file if it ends with .tar. Default: NAME-bundle beside DIR.",
)
@click.option("--force", is_flag=True, help="Replace a bundle that is there.")
@click.option("--dry-run", is_flag=True, help="Say what would go in, and ask no engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def bundle(
    ctx: click.Context, directory: Path, *, output: Path | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Put everything that DIR's dev container is built from into one place, to build it where there is no network.

    That is the base image with its system packages, every wheel with its hash, and the project's files. load.sh in
    the bundle checks and loads it. An interrupted run is gone on with.
    """
    from devkit.render.bundle import bundle_of
    from devkit.render.choices import Choices
    from devkit.render.project import Inputs, open_project

    project = open_project(directory, Choices(wheelhouse=True), Inputs())
    contents = bundle_of(project)
    target = (output or project.root.parent / f"{project.root.name}-bundle").absolute()
    if dry_run:
        click.echo(_planned(contents, target, as_json=as_json))
        ctx.exit(exits.DONE)
    document = _made(project, contents, target, force=force)
    if as_json:
        click.echo(json.dumps({**document, "verdict": "written", "output": str(target)}, indent=2, ensure_ascii=False))
        return
    files = count_of(len(document["files"]) + 2, "file")
    click.echo(f"wrote {files}, {human_bytes(document['bytes'])}, to {target}")
    click.echo(f"SHA-256 of its SHA256SUMS, to compare where it is loaded: {document['sums_sha256']}")
    click.echo("Next: carry it over, and run `sh load.sh` in it there.")


def _made(project: "Project", contents: "Bundle", target: Path, *, force: bool) -> dict[str, Any]:
    from devkit.probe.host import LocalHost
    from devkit.verify.bundle import Workshop, make_bundle
    from devkit.verify.bundle_folder import growing_folder
    from devkit.verify.engine import working_engine
    from devkit.verify.process import interruptible

    netrc = _netrc(project)
    folder = growing_folder(target, force=force)
    try:
        with interruptible():
            return make_bundle(Workshop(contents, working_engine(LocalHost()), folder, netrc, _progress), target)
    except KeyboardInterrupt:
        _progress(f"What is done so far is kept in {folder}; the same command goes on with it.")
        raise


def _netrc(project: "Project") -> Path | None:
    """The file with the login for mirrors that this host names. Raises DevkitError when it is not there."""
    from devkit.render.dotenv import setting_in
    from devkit.render.folder import read_file
    from devkit.render.project import ENV_PATH

    settings = (read_file(project.root, ENV_PATH) or b"").decode(errors="surrogateescape")
    named = os.environ.get("DEVKIT_NETRC") or setting_in(settings, "DEVKIT_NETRC")
    if not named:
        return None
    path = project.root / Path(ENV_PATH).parent / named
    if not path.is_file():
        raise DevkitError(f"DEVKIT_NETRC names {named}, which is no file", "Correct it, or take it out.")
    return path


def _planned(contents: "Bundle", target: Path, *, as_json: bool) -> str:
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
        return json.dumps(document, indent=2, ensure_ascii=False)
    lines = [
        f"would bundle, for {' and '.join(contents.architectures)}:",
        f"  {contents.plan.base_image} with the system packages of the Dockerfile",
        f"  {count_of(len(contents.plan.packages), 'package')} of the plan and what they need, torch "
        f"{contents.plan.torch} ({contents.plan.variant}) among them",
        f"  {count_of(len(contents.files), 'file')} of the project",
        f"into {target}; nothing was written.",
    ]
    return "\n".join(lines)


def _progress(line: str) -> None:
    click.echo(line, err=True)
