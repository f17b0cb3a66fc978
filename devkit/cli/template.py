"""`devkit template`: write folders that can be published as dev container Templates."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli import exits
from devkit.cli.changes import conflict_text, document_text, print_changes, touched
from devkit.text import count_of

if TYPE_CHECKING:
    from devkit.render.artifact import Artifact
    from devkit.solver.model import Conflict

SCHEMA = "devkit.template/1"


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="ID", help="Write this Template alone, such as pytorch-cuda. Repeat.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def template(
    ctx: click.Context, directory: Path, *, only: tuple[str, ...], dry_run: bool, force: bool, as_json: bool
) -> None:
    """Write a folder in DIR for each Template: what `devkit init` writes, with options for the project's name.

    Publish them with the dev container CLI: devcontainer templates publish DIR --namespace OWNER/NAME
    """
    from devkit.render.template_folder import TEMPLATES, template_changes, template_named
    from devkit.render.write import write
    from devkit.solver.model import Conflict

    artifacts: list[Artifact] = []
    for each in [template_named(name) for name in only] or TEMPLATES:
        made = _rendered(each.id)
        if isinstance(made, Conflict):
            click.echo(conflict_text(made, schema=SCHEMA, as_json=as_json))
            ctx.exit(exits.ANSWER_IS_NO)
        artifacts += made
    changes = template_changes(directory.absolute(), artifacts, force=force)
    if not dry_run:
        write(directory.absolute(), changes)
    if as_json:
        files = [{"path": change.path, "action": str(change.action)} for change in changes]
        click.echo(document_text({"directory": str(directory), "files": files}, schema=SCHEMA))
        return
    print_changes(changes, show_diff=False)
    verb = "would write" if dry_run else "wrote"
    click.echo(f"{verb} {count_of(len(touched(changes)), 'file')} in {directory}")


def _rendered(template_id: str) -> "list[Artifact] | Conflict":
    from dataclasses import replace

    from devkit.cli.planning import answer_to, request_of_project
    from devkit.render.project import Inputs, Project
    from devkit.render.template_folder import source_for_templates, template_artifacts, template_named
    from devkit.render.wheel import devkit_source
    from devkit.solver.model import Conflict

    chosen = template_named(template_id)
    request = request_of_project(Project(Path(), replace(chosen.choices, name="my-project"), Inputs()))
    answer = answer_to(request)
    if isinstance(answer, Conflict):
        return answer
    return list(template_artifacts(chosen, answer, source_for_templates(devkit_source()), request.machines))
