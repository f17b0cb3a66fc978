"""`devkit init` and `devkit update` in a project with its own dev container: edited in place, never replaced."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from devkit.cli.changes import (
    WriteOptions,
    build_plan_fields,
    confirm_and_write,
    format_document,
    print_changes,
    print_warnings,
    require_expected,
    require_plan,
    select_changed,
)
from devkit.cli.output import print_wrapped
from devkit.cli.plan_options import solve_request
from devkit.errors import DevkitError, ExitCode
from devkit.facts.dependencies import NO_DEPENDENCIES, Framework
from devkit.solver.plan import Conflict, Plan, Request
from devkit.text import format_count, join_words

if TYPE_CHECKING:
    from devkit.render.adopt.adoption import Adoption, ExistingContainer
    from devkit.render.changes import FileChange
    from devkit.render.project import DevkitProject


_GENERATED_FILE_OPTIONS = frozenset({"assignments", "ca_certificate", "wheelhouse", "lock", "lock_only"})
"""Options about the contents of devkit's own files, by their names in Click."""
_VERSION_OPTIONS = frozenset({"torch", "cuda", "python", "image", "pins", "features"})


def adopt_existing_container(
    ctx: click.Context,
    project: "DevkitProject",
    request: Request,
    options: WriteOptions,
    *,
    is_check: bool = False,
    compose: Path | None = None,
    service: str | None = None,
) -> None:
    """Make the project's own dev container, if it has one, fit the request, and end the command.

    With `is_check` the command ends with 1 when there is something to change. With `compose` the dev container is made
    of a service in that Compose file first.
    """
    from devkit.render.project import find_foreign_devcontainers

    paths = find_foreign_devcontainers(project.root)
    new: dict[str, bytes] = {}
    if compose is not None:
        paths, new = _build_compose_dev_container(project, paths, compose, service)
    elif service is not None:
        raise DevkitError("--service needs --compose", "Also specify the Compose file: --compose FILE.")
    if not paths:
        return
    from devkit.render.adopt.adoption import compute_adopted_changes, format_torch_source, read_existing_container

    existing = read_existing_container(project.root, paths, project.dependencies, new=new)
    _refuse_options(ctx, _GENERATED_FILE_OPTIONS, f"this project already has a dev container, {paths[0]}")
    if not existing.needs_gpu and not new:
        _print_left_alone({path: format_torch_source(each) for path, each in existing.torch.items()}, options)
        ctx.exit(ExitCode.DONE)
    if not existing.takes_plan:
        path, source = next(iter(existing.torch.items()))
        _refuse_options(ctx, _VERSION_OPTIONS, f"the versions come from {path}, {format_torch_source(source)}")
    answer = _solve(project, existing, request)
    plan = require_plan(ctx, answer, schema=options.schema, as_json=options.as_json)
    changes, adoption = compute_adopted_changes(project, existing, plan, request.machines)
    require_expected(changes, options)
    if not options.as_json:
        _print_adoption(adoption, changes, options)
    confirm_and_write(project.root, changes, options)
    verdict, message = "written", f"{'wrote' if new else 'repaired'} {{yours}}, and wrote {{own}}."
    if not select_changed(changes):
        verdict, message = "unchanged", "unchanged: your dev container matches this plan."
    elif options.is_dry_run:
        verdict, message = "would-write", "would change {yours} and write {own}; nothing was written."
    if options.as_json:
        _print_document(adoption, changes, options, verdict=verdict)
    else:
        _print_end(changes, adoption, message)
    ctx.exit(ExitCode.ANSWER_IS_NO if is_check and select_changed(changes) else ExitCode.DONE)


def _print_adoption(adoption: "Adoption", changes: "tuple[FileChange, ...]", options: WriteOptions) -> None:
    """Print the torch of each dev container, the changes, and the steps left to the user."""
    plan = adoption.plan
    _print_torch({each.path: each.describe() for each in adoption.torch if plan.torch or each.source.is_known})
    if not plan.torch:
        print_wrapped(f"{plan.framework.label}: {plan.because('framework')}")
    print_warnings(plan if adoption.existing.takes_plan else replace(plan, warnings=()), wants_cpu=True)
    print_changes(changes, show_diff=options.shows_diff)
    for repair in adoption.repairs:
        did = "would repair" if options.is_dry_run else "repairs"
        print_wrapped(f"{did} {repair.code} in {repair.path}, which was: {repair.message}")
    for left in adoption.left:
        finding = left.finding
        print_wrapped(f"! left to you: {left.check.code} {finding.subject}: {finding.message}. {finding.fix.summary}")
        for line in adoption.list_lines(left):
            click.echo(f"    {line}")


def _print_document(
    adoption: "Adoption", changes: "tuple[FileChange, ...]", options: WriteOptions, *, verdict: str
) -> None:
    fields = build_plan_fields(adoption.plan, changes, shows_diff=options.shows_diff) | {
        "verdict": verdict,
        "repairs": [{"code": each.code, "path": each.path, "says": each.message} for each in adoption.repairs],
        "left": [
            {
                "code": each.check.code,
                "place": each.finding.subject,
                "message": each.finding.message,
                "lines": adoption.list_lines(each),
            }
            for each in adoption.left
        ],
        "containers": [
            {"path": each.path, "torch": each.describe(), "is_changed": each.is_changed} for each in adoption.torch
        ],
    }
    existing = adoption.existing
    if not existing.takes_plan and all(each.version != adoption.plan.torch for each in existing.torch.values()):
        del fields["plan"]  # No container has these versions.
    click.echo(format_document(fields, schema=options.schema))


def _print_end(changes: "tuple[FileChange, ...]", adoption: "Adoption", message: str) -> None:
    """Print what was done, with the files of the user and of devkit in its place, and what to do next."""
    from devkit.render.devkit_lock import LOCK_PATH
    from devkit.render.devkit_toml import DEVKIT_TOML

    own = {DEVKIT_TOML, LOCK_PATH, *(file.path for file in adoption.overlay_files)}
    changed = [change.path for change in select_changed(changes)]
    yours = [path for path in changed if path not in own]
    named = f"{format_count(len(yours), 'file')} of yours ({', '.join(yours)})" if yours else "none of your files"
    beside = f"{format_count(len(changed) - len(yours), 'file')} of devkit's own"
    print_wrapped(message.format(yours=named, own=beside))
    if yours and message.startswith(("repaired", "wrote")):
        click.echo("Next: read `git diff`, rebuild the container, and commit.")


def list_compose_offers(root: Path) -> list[str]:
    """List the Compose services with a GPU that could be opened instead, each with its command; none beside a dev container."""
    from devkit.render.files import DEVCONTAINER_FOLDER

    if (root / DEVCONTAINER_FOLDER).exists():
        return []
    from devkit.doctor.checks.loader import load_check
    from devkit.doctor.model import NotApplicable
    from devkit.probe.gather import gather_facts
    from devkit.probe.host import LocalHost

    with suppress(NotApplicable):
        facts = gather_facts(LocalHost(), only=("project",), project=str(root))
        findings = load_check("PRJ034").run(facts)
        return [f"note: {finding.message}. To open it: {finding.fix.commands[0]}" for finding in findings]
    return []


def _build_compose_dev_container(
    project: "DevkitProject", paths: tuple[str, ...], compose: Path, service: str | None
) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """Return the path and the text of the dev container to write. Raises DevkitError where there is one."""
    from devkit.render.adopt.dev_container import DEV_CONTAINER_PATH, render_compose_dev_container

    if paths or (project.root / DEV_CONTAINER_PATH).exists():
        raise DevkitError(
            f"--compose creates a dev container, but this project already has one: {[*paths, DEV_CONTAINER_PATH][0]}",
            "Move it elsewhere first, or omit --compose to keep it.",
        )
    text = render_compose_dev_container(project.root, project.settings.name, compose=compose, service=service)
    return (DEV_CONTAINER_PATH,), {DEV_CONTAINER_PATH: text}


def _refuse_options(ctx: click.Context, names: frozenset[str], because: str) -> None:
    """Raise DevkitError for options that would silently do nothing."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise DevkitError(
            f"{' and '.join(given)} would change nothing: {because}",
            "Omit it, or move that dev container elsewhere first, so that devkit writes its own.",
        )


def _print_left_alone(torch: Mapping[str, str], options: WriteOptions) -> None:
    if options.as_json:
        containers = [{"path": path, "torch": text, "is_changed": False} for path, text in torch.items()]
        fields: dict[str, object] = {"verdict": "unchanged", "files": [], "repairs": [], "left": []}
        click.echo(format_document(fields | {"containers": containers}, schema=options.schema))
        return
    _print_torch(torch)
    print_wrapped(
        "unchanged: your dev container requests no GPU and contains nothing that uses one. If it should have one, make "
        "it install torch for CUDA and request the GPU:"
    )
    click.echo('    "hostRequirements": { "gpu": "optional" }')


def _print_torch(torch: Mapping[str, str]) -> None:
    """Print the torch of each dev container, those with the same one together."""
    for text in dict.fromkeys(torch.values()):
        paths = join_words([path for path, each in torch.items() if each == text])
        print_wrapped(f"{paths}: {text}", hanging="  ")


def _solve(project: "DevkitProject", existing: "ExistingContainer", request: Request) -> Plan | Conflict:
    """Plan for the container: with its own torch where devkit does not choose it."""

    # Flags and devkit.toml override the project's own files; pins that an earlier run wrote there do not count.
    with_files = replace(
        request,
        image=request.image or existing.image or None,
        constraints=(*request.constraints, *existing.constraints),
    )
    found = project.dependencies
    if existing.takes_plan:
        needs = [each for each in found.needs if (each.path, each.name, each.specifier) not in existing.own_pins]
        return solve_request(with_files, replace(NO_DEPENDENCIES, needs=tuple(needs), python=found.python))
    framework, because = found.framework, found.framework_because
    if any(source.is_known for source in existing.torch.values()):
        framework = Framework.TORCH
    answer = solve_request(replace(with_files, framework=framework, framework_because=because))
    if isinstance(answer, Plan):
        return answer
    # Whatever the tables say of these versions, they stay: only the machines decide how the GPU is passed on.
    open_request = Request(machines=request.machines, vendor=request.vendor)
    return solve_request(replace(open_request, framework=framework, framework_because=because))
