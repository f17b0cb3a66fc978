"""`devkit init`: solve, render, show the changes, write them."""

import shutil
from pathlib import Path

import click

from devkit.cli.changes import (
    WriteOptions,
    build_editor_fields,
    build_image_fields,
    build_plan_fields,
    confirm_and_write,
    format_compile_costs,
    format_document,
    print_changes,
    print_choices,
    print_editor_reports,
    print_image_size,
    print_plan,
    print_system_packages,
    require_plan,
    select_changed,
)
from devkit.cli.existing_container import list_compose_offers, repair_existing_container
from devkit.cli.imports import add_imports, find_missing_imports, print_imports
from devkit.cli.locks import LockOptions, lock_options, lock_project
from devkit.cli.options.plan import (
    ContainerOptions,
    PlanOptions,
    build_project_request,
    build_settings_from_options,
    container_options,
    plan_options,
)
from devkit.cli.resolution import plan_with_packages, resolve_option
from devkit.cli.runtime import hold_project
from devkit.cli.summary import format_next_step, print_summary
from devkit.solver.output import serialize_dependencies
from devkit.text import format_count, wrap_text

SCHEMA = "devkit.init/1"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@plan_options
@container_options
@lock_options
@click.option("--add-imports", "with_imports", is_flag=True, help="Install what its programs import and no file names.")
@click.option("--compose", metavar="FILE", type=click.Path(path_type=Path), help="Open a service of this Compose file.")
@click.option("--service", metavar="NAME", help="That service. Default: the only one that asks for a GPU.")
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
@click.option("--force", is_flag=True, help="Replace devkit's own files even where they were edited.")
@click.option("--report", is_flag=True, help="Say how large the built image is, and what made it so.")
@resolve_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def init(
    ctx: click.Context,
    directory: Path,
    *,
    options: PlanOptions,
    container: ContainerOptions,
    locking: LockOptions,
    with_imports: bool,
    compose: Path | None,
    service: str | None,
    yes: bool,
    dry_run: bool,
    show_diff: bool,
    force: bool,
    report: bool,
    no_resolve: bool,
    as_json: bool,
) -> None:
    """Write a dev container that fits this machine, or the one that the flags describe.

    Settings are kept in DIR/devkit.toml; flags override them and are recorded there.
    """
    from devkit.render.changes import require_root
    from devkit.render.project import compute_project_changes, open_project

    if not dry_run:
        require_root(Path(directory))
        ctx.with_resource(hold_project(directory))
    project = open_project(directory, build_settings_from_options(options, container), container.paths)
    request = build_project_request(project, facts=options.facts)
    writing = WriteOptions(SCHEMA, is_dry_run=dry_run, is_confirmed=yes, shows_diff=show_diff, as_json=as_json)
    repair_existing_container(ctx, project, request, writing, no_resolve=no_resolve, compose=compose, service=service)
    offers = list_compose_offers(project.root)
    width = shutil.get_terminal_size().columns
    asks = not (dry_run or as_json)
    project, imports = add_imports(project, is_wanted=with_imports, is_confirmed=yes, asks=asks, width=width)
    planned = plan_with_packages(request, project.dependencies, project.root, project.settings, no_resolve=no_resolve)
    answer = require_plan(ctx, planned, schema=SCHEMA, as_json=as_json)
    project = project.for_plan(answer)
    imports = imports or find_missing_imports(project, answer)
    project = lock_project(project, answer, locking)
    changes = compute_project_changes(project, answer, machines=request.machines, force=force)
    if not as_json:
        print_plan(answer, wants_cpu=project.settings.vendor == "cpu")
        print_summary(answer, project.dependencies)
        print_system_packages(answer, has_sudo=project.settings.sudo)
        click.echo("".join(f"{line}\n" for line in format_compile_costs(answer)), nl=False)
        if not project.settings.ignore_dependencies:
            print_choices(project.dependencies)
        print_imports(imports, width=width)
        print_changes(changes, show_diff=show_diff)
        print_editor_reports(project.settings)
    confirm_and_write(project.root, changes, writing)
    changed = select_changed(changes)
    if as_json:
        verdict = "unchanged" if not changed else "would-write" if dry_run else "written"
        fields = build_plan_fields(answer, changes) | build_editor_fields(project.settings)
        fields |= serialize_dependencies(project.dependencies)
        fields["imports"] = [{"module": each.module, "name": each.name, "origin": each.origin} for each in imports]
        fields |= {"directory": str(project.root), "verdict": verdict}
        fields |= build_image_fields(project.root) if report else {}
        click.echo(format_document(fields, schema=SCHEMA))
        return
    files = format_count(len(changed), "file")
    if not changed:
        click.echo("unchanged: the dev container is as this plan wants it.")
    elif dry_run:
        click.echo(f"would write {files}; nothing was written.")
    else:
        click.echo(f"wrote {files} to {project.root}")
        for offer in offers:
            click.echo(wrap_text(offer, width=width, hanging="  "))
        click.echo(wrap_text(format_next_step(project.root, project.dependencies, imports), width=width))
    if report:
        print_image_size(project.root)
