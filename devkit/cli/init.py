"""`devkit init`: solve, render, show the changes, write them."""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from devkit.cli.changes import (
    WriteOptions,
    build_editor_fields,
    build_plan_fields,
    confirm_and_write,
    format_compile_costs,
    format_document,
    print_changes,
    print_choices,
    print_editor_reports,
    print_plan,
    print_system_packages,
    require_expected,
    require_plan,
    select_changed,
    write_feature,
)
from devkit.cli.command import Command, PathType, ProjectPath
from devkit.cli.existing_container import adopt_existing_container, list_compose_offers
from devkit.cli.locks import LockOptions, lock_options, lock_project
from devkit.cli.output import print_next, print_wrapped
from devkit.cli.plan import plan_with_packages, resolve_option
from devkit.cli.plan_options import (
    build_project_request,
    build_settings_from_options,
    container_options,
    plan_options,
    refuse_contradiction,
)
from devkit.cli.proof import describe_proof, find_unprovided, try_plan
from devkit.cli.runtime import hold_project
from devkit.compat.specifiers import canonicalize_name, satisfies
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import (
    SETTINGS_FILE,
    Dependencies,
    ImportedPackage,
    PackageRequirement,
    RequirementRole,
    Resolved,
)
from devkit.facts.values import Unknown
from devkit.probe.host import ask_git
from devkit.render.devkit_toml import REMOVED_SETTINGS, PathOptions, ProjectSettings
from devkit.solver.output import serialize_dependencies
from devkit.solver.plan import Conflict, Plan, Request
from devkit.text import format_count, join_some, join_words

if TYPE_CHECKING:
    from devkit.render.project import DevkitProject

SCHEMA = "devkit.init/1"
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Where Debian and Red Hat keep the certificates of the system."""

RENAMED_FLAGS = {
    f"--{name}": f"--set {key}="
    for name, key in (
        *(
            (name, name)
            for name in ("name", "index", "torch-index", "hub", "machine", "platform", "glibc", "gpu-runtime", "engine")
        ),
        ("device", "devices"),
        ("editor", "editors"),
    )
} | {"--sudo": "--set sudo=true", "--no-hold": "--set no_hold=true"}


def _check_folder(ctx: click.Context, _: click.Parameter, directory: Path) -> Path:
    """Return the folder. Raises DevkitError if it is the user's home and was not named, or is a requirement."""
    if not directory.exists() and re.search(r"[=<>]", directory.name):
        raise DevkitError(f"{directory} is not a folder", "Versions: --python V, --torch V or --pin NAME==V")
    if ctx.get_parameter_source("directory") is not ParameterSource.DEFAULT:
        return directory
    with contextlib.suppress(RuntimeError):  # no home is known
        if directory.resolve() == Path.home().resolve():
            raise DevkitError(
                f"{directory.resolve()} is your home folder, not a project",
                "Give the project's folder: devkit init my-project. To use the home folder: devkit init .",
            )
    return directory


@click.command(
    cls=Command,
    renamed=RENAMED_FLAGS,
    removed={"--profile": REMOVED_SETTINGS["profiles"], "--bake": REMOVED_SETTINGS["bake"]},
)
@click.argument(
    "directory", metavar="[DIR]", default=".", callback=_check_folder, type=PathType(path_type=Path, file_okay=False)
)
@plan_options(with_details=False)
@container_options
@lock_options
@click.option("--add-imports", "with_imports", is_flag=True, help="Also install imported packages that no file lists.")
@click.option(
    "--develop",
    is_flag=True,
    help="Install groups and extras for development and tests, and extras that programs import.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Try the plan: run the project's first program in a temporary environment, without your environment variables.",
)
@click.option("--compose", metavar="FILE", type=PathType(path_type=Path), help="Open a service from this Compose file.")
@click.option("--service", metavar="NAME", help="The service to open. Default: the only one that requests a GPU.")
@click.option("--yes", is_flag=True, help="Replace files without asking.")
@click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
@click.option("--diff", "show_diff", is_flag=True, help="Show every change line by line.")
@click.option("--expect", "digest", metavar="DIGEST", hidden=True, help="Write only what --dry-run --json called so.")
@click.option("--force", is_flag=True, help="Replace devkit's own files even if you edited them.")
@click.option("--as-feature", is_flag=True, help="Write only DIR/devkit, a dev container Feature that contains devkit.")
@resolve_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def init(
    ctx: click.Context,
    directory: Path,
    *,
    options: ProjectSettings,
    facts_files: tuple[str, ...],
    paths: PathOptions,
    ignore_dependencies: bool,
    assignments: tuple[str, ...],
    locking: LockOptions,
    with_imports: bool,
    develop: bool,
    prove: bool,
    compose: Path | None,
    service: str | None,
    yes: bool,
    dry_run: bool,
    show_diff: bool,
    digest: str | None,
    force: bool,
    as_feature: bool,
    no_resolve: bool,
    as_json: bool,
) -> None:
    """Write a dev container that fits this machine, or the machine that the flags describe.

    Settings are stored in DIR/devkit.toml; flags override them and are saved there.

    With --as-feature, set DIR to .devcontainer and add "features": {"./devkit": {}} to devcontainer.json, or publish it.
    """
    from devkit.probe.dependencies.imports import is_among
    from devkit.render.changes import require_root
    from devkit.render.project import compute_project_changes, open_project

    if as_feature:
        write_feature(ctx, directory, is_dry_run=dry_run, force=force, as_json=as_json)
    ProjectPath().convert(directory, next(each for each in ctx.command.params if each.name == "directory"), ctx)
    refuse_contradiction(options)
    is_new = not directory.exists()
    if not dry_run:
        require_root(Path(directory))
        ctx.with_resource(hold_project(directory))
    options = replace(options, ignore_dependencies=ignore_dependencies)
    opened = open_project(directory, build_settings_from_options(options, assignments), paths)
    before = project = choose_for_development(opened) if develop else opened
    request = build_project_request(project, facts_files=facts_files)
    writing = WriteOptions(SCHEMA, dry_run, is_confirmed=yes, shows_diff=show_diff, as_json=as_json, digest=digest)
    adopt_existing_container(ctx, project, request, writing, compose=compose, service=service)
    offers = list_compose_offers(project.root)
    add = partial(add_imports, is_wanted=with_imports, is_confirmed=yes, asks=not (dry_run or as_json))
    plan = partial(plan_with_packages, request, no_resolve=no_resolve)
    project, imports, planned = plan_with_imports(project, add, plan, opened if develop else None)
    answer = require_plan(ctx, planned, schema=SCHEMA, as_json=as_json)
    if answer.as_of and not project.settings.as_of:
        # Later changes of the code must not change what it is planned with.
        project = replace(project, settings=replace(project.settings, as_of=answer.as_of))
    project = project.for_plan(answer)
    imports = imports or find_missing_imports(project, answer)
    project, answer, needs = add_certain(project, answer, request, imports, no_resolve=no_resolve)
    added = [*map(_find_name, project.settings.packages)]
    imports = tuple(each for each in imports if not (each.name in answer.resolved or is_among(each.name, added)))
    if prove:
        project, answer = repair_by_proof(project, answer, request)
    guide = find_guide_packages(project, answer)
    proof = project.proof or describe_proof(project.root, project.dependencies, answer)
    project = lock_project(project, answer, locking)
    changes = compute_project_changes(project, answer, machines=request.machines, force=force)
    require_expected(changes, writing)
    if not as_json:
        print_plan(answer, proof, wants_cpu=project.settings.vendor == "cpu")
        print_summary(answer, project.dependencies, opened.dependencies)
        print_system_packages(answer, has_sudo=project.settings.sudo)
        if os.environ.get("UV_SYSTEM_CERTS") and not project.settings.ca_certificates:
            bundle = next(filter(os.path.exists, _BUNDLES), "company.pem")
            says = "uv trusts the package index by this machine's certificates, which the image does not have"
            print_wrapped(f"! warning: {says}: devkit init --ca-certificate {bundle}")
        click.echo("".join(f"{line}\n" for line in format_compile_costs(answer)), nl=False)
        if not project.settings.ignore_dependencies:
            print_choices(project.dependencies)
        print_added_packages(before, project, needs)
        print_imports(imports)
        offer_unknown(project, () if no_resolve else imports)
        print_guide(guide)
        print_changes(changes, show_diff=show_diff)
        print_editor_reports(project.settings)
    confirm_and_write(project.root, changes, writing)
    changed = select_changed(changes)
    if as_json:
        verdict = "unchanged" if not changed else "would-write" if dry_run else "written"
        fields = build_plan_fields(answer, changes, shows_diff=show_diff) | build_editor_fields(project.settings)
        fields |= serialize_dependencies(project.dependencies)
        fields["imports"] = [{"module": each.module, "name": each.name, "origin": each.origin} for each in imports]
        fields["guide"] = [{"requirement": each.text, "origin": each.origin} for each in guide]
        fields["proof"] = proof
        fields |= {"directory": str(project.root), "verdict": verdict}
        click.echo(format_document(fields, schema=SCHEMA))
        return
    files = format_count(len(changed), "file")
    if not changed:
        click.echo("unchanged: the dev container matches this plan.")
    elif dry_run:
        click.echo(f"would write {files}; nothing was written.")
        print_next(shlex.join(["devkit", "init", *(word for word in ctx.meta["words"] if word != "--dry-run")]))
    else:
        click.echo(f"wrote {files} to {'the new folder ' * is_new}{project.root}")
        for offer in offers:
            print_wrapped(offer, hanging="  ")
        shared = [each.path for each in changed if not each.artifact.is_local]
        print_wrapped(format_next_step(project.root, project.dependencies, imports, shared))


# Packages that a project's programs import and its files do not name: shown by `devkit init`, and added on a yes.

MAX_OFFERED = 5
MAX_ROUNDS = 3
"""Rounds of adding what packages import: what is added may import more."""
_BUILD_TOOLS = frozenset(("build", "cmake", "cython", "ninja", "packaging", "pybind11", "scikit-build-core"))


def add_imports(
    project: "DevkitProject",
    *,
    is_wanted: bool = False,
    is_confirmed: bool = False,
    asks: bool = False,
    is_for_work: bool = False,
) -> "tuple[DevkitProject, tuple[ImportedPackage, ...]]":
    """Return the project with the packages that its programs import but no file lists, and all of them.

    A project whose files ask for no package is looked at always, with a question on a terminal, unless everything
    `is_confirmed`. In any other it takes the user's own flag, `is_wanted`, because most of what it imports without naming
    it comes with what it names.
    """
    from devkit.probe.project.reader import read_local_imports

    dependencies = project.dependencies
    if project.settings.ignore_dependencies or (dependencies.asks_for_packages and not is_wanted):
        return project, ()
    found = read_local_imports(str(project.root), dependencies, is_for_work=is_for_work)
    popular = confirm_popular(project, [each.module for each in found if not each.name])
    found = tuple(each if each.name else replace(each, name=popular.get(each.module, "")) for each in found)
    is_accepted = is_wanted or is_confirmed
    # Whether torchaudio needs its decoder depends on the release that is planned.
    known = [each for each in found if each.name and not _is_decoder(each)]
    if asks and known and not is_accepted and sys.stdin.isatty():
        shown = join_words([f"{_format_requirement(each)} ({each.origin})" for each in known])
        print_wrapped(f"No file here lists the packages to install. The programs import {shown}.")
        is_accepted = click.confirm("Install them, too?", default=True)
    if not is_accepted or not known:
        return project, found
    return project.with_packages(map(_format_requirement, known)), found


def confirm_popular(project: "DevkitProject", modules: Iterable[str]) -> dict[str, str]:
    """Return those of the modules that one of the most downloaded packages has, with all that the programs use of them."""
    from devkit.probe.project.reader import confirm_packages

    names = load_tables().imports.popular_distributions()
    return confirm_packages(str(project.root), {each: names[each] for each in modules if each in names})


def plan_with_imports(
    project: "DevkitProject",
    add: "Callable[..., tuple[DevkitProject, tuple[ImportedPackage, ...]]]",
    plan: Callable[..., Plan | Conflict],
    without: "DevkitProject | None",
) -> "tuple[DevkitProject, tuple[ImportedPackage, ...], Plan | Conflict]":
    """Plan a project with what its programs import, but for what a conflict names; return both, and all that they import.

    `without` is a project before the choices for work on it, which count unless they do not fit; None without such.
    """
    added, imports = add(project, is_for_work=without is not None)
    while isinstance(planned := plan(added.dependencies, added.root, added.settings, is_last=False), Conflict):
        named = {canonicalize_name(name) for each in planned.blockers for name in re.findall(r"[\w.-]+\w", each.says)}
        packages, own = added.settings.packages, project.settings.packages
        kept = tuple(each for each in packages if each in own or _find_name(each) not in named)
        if kept == packages:
            break
        added = project.with_settings(replace(project.settings, packages=kept))
    if without is None and isinstance(planned, Conflict):
        planned = plan(added.dependencies, added.root, added.settings)
    if without is None or not isinstance(planned, Conflict):
        return added, imports, planned
    chosen = sorted(project.settings.extras, key=lambda extra: canonicalize_name(extra) not in named)
    for extra in (each for each in chosen if each not in without.dependencies.extras):
        kept = tuple(each for each in project.settings.extras if each != extra)
        less = project.with_settings(replace(project.settings, extras=kept))
        brings = {need.name for need in project.dependencies.needs} - {need.name for need in less.dependencies.needs}
        if brings & named:
            return plan_with_imports(less, add, plan, without)
    says = f"not used: --develop, which does not fit: {planned.blockers[0].says}"
    added, imports, planned = plan_with_imports(without, add, plan, None)
    if not isinstance(planned, Conflict):
        planned = replace(planned, warnings=(*planned.warnings, says))
    return added, imports, planned


def repair_by_proof(project: "DevkitProject", plan: Plan, request: Request) -> "tuple[DevkitProject, Plan]":
    """Try the plan; return the project with what helped and with what the proof says, and its plan."""
    tried = try_plan(project, plan)
    repaired = project.with_packages(tried.added) if tried.added else project
    if tried.added:
        planned = plan_with_packages(request, repaired.dependencies, repaired.root, repaired.settings)
        if isinstance(planned, Conflict):
            says = f"what helps does not fit the plan: {planned.blockers[0].says}"
            tried, repaired = replace(tried, failures=(*tried.failures, says)), project
        else:
            repaired, plan = repaired.for_plan(planned), planned
    return replace(repaired, proof=tried.describe(plan.resolved.items())), plan


def _find_name(requirement: str) -> str:
    return canonicalize_name(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def choose_for_development(project: "DevkitProject") -> "DevkitProject":
    """Return the project with what those who work on it install besides."""
    from devkit.probe.project.reader import find_development_choice

    chosen, dependencies = find_development_choice(str(project.root), project.dependencies), project.dependencies
    extras = tuple(dict.fromkeys((*dependencies.extras, *chosen.extras))) if chosen.extras else project.settings.extras
    groups = tuple(dict.fromkeys((*project.settings.groups, *chosen.groups)))
    return project.with_settings(replace(project.settings, extras=extras, groups=groups))


def add_certain(
    project: "DevkitProject",
    plan: Plan,
    request: Request,
    imports: tuple[ImportedPackage, ...],
    *,
    no_resolve: bool,
) -> "tuple[DevkitProject, Plan, list[ImportedPackage]]":
    """Add what is sure of what programs import and no file names, as far as there is a plan with it, of the same day.

    Sure are torchvision, torchaudio and its decoder, what the guide installs as well, what the programs that it runs import at
    once, and what the packages import that programs use. The guide may be older than the files beside it, or newer than the
    code. Returns the project, its plan, and what was added for the guide's programs and for packages.
    """
    from devkit.probe.project.reader import find_listing_extra, read_local_imports

    dependencies = project.dependencies
    is_open = dependencies.asks_for_packages and not dependencies.is_locked
    if project.settings.ignore_dependencies or not is_open:
        return project, plan, []
    known = read_local_imports(str(project.root), dependencies)
    sure = [each for each in known if each.name in ("torchvision", "torchaudio") or each.guide]
    is_without = satisfies(plan.resolved.get("torchaudio", "0"), ">=2.9")
    sure += [each for each in imports if _is_decoder(each) and is_without]
    add = partial(_add_if_fits, request=request, no_resolve=no_resolve)
    project, plan = (
        add(project, plan, sure) or add(project, plan, [each for each in sure if not each.guide]) or (project, plan)
    )
    needs: list[ImportedPackage] = []
    for _ in range(MAX_ROUNDS):
        if not (found := find_package_needs(project, plan)):
            break
        listed = find_listing_extra(str(project.root), project.dependencies, [each.name for each in found])
        # What does not fit with the rest may fit alone. An extra knows the versions of what it lists.
        tries = [*([(found, listed)] if listed else []), (found, "")]
        tries += [([each], "") for each in found[: len(found) > 1 and MAX_ROUNDS]]
        added = next(((*done, each) for each, extra in tries if (done := add(project, plan, each, extra=extra))), None)
        if added is None:
            break
        project, plan, brought = added
        needs += brought
    return project, plan, needs


def _is_decoder(package: ImportedPackage) -> bool:
    """Return whether it is what torchaudio reads files with since 2.9."""
    return package.module == "torchaudio" != package.name


def _add_if_fits(
    project: "DevkitProject",
    plan: Plan,
    found: list[ImportedPackage],
    *,
    request: Request,
    no_resolve: bool,
    extra: str = "",
) -> "tuple[DevkitProject, Plan] | None":
    """Return the project with these packages, or with the extra that lists them, and its plan.

    None if it has them already, or no plan of the same day does.
    """
    more = project.with_packages(map(_format_requirement, found))
    if extra:
        more = project.with_settings(replace(project.settings, extras=(*project.dependencies.extras, extra)))
    if more.settings == project.settings:
        return None
    planned = plan_with_packages(
        request, more.dependencies, more.root, more.settings, no_resolve=no_resolve, is_last=False
    )
    if isinstance(planned, Conflict) or (plan.as_of and not planned.as_of):
        return None
    return more.for_plan(planned), planned


def find_package_needs(project: "DevkitProject", plan: Plan) -> list[ImportedPackage]:
    """Find what the guide's programs import at once, and the packages that programs use, and nothing in the plan provides.

    Only known names count, of the most downloaded packages too. Where the guide installs a package with the same module, it is that one.
    """
    from devkit.probe.dependencies.imports import is_among
    from devkit.probe.project.reader import read_local_guide

    if not isinstance(plan.resolution, Resolved):
        return []
    found = find_unprovided(project.root, project.dependencies, plan, plan.resolution)
    names = load_tables().imports.distributions(with_compiled=True)
    own = {each[0] for each in found.own} - names.keys()
    names |= confirm_popular(project, (each[0] for each in found.needed if each[0] in own))
    needs = [
        ImportedPackage(module, names[module], path, line) for module, path, line in found.needed if module in names
    ]
    guide = read_local_guide(str(project.root), project.dependencies) if needs else ()
    return [
        replace(each, guide=next((need for need in guide if is_among(each.name, [need.name])), None)) for each in needs
    ]


def find_missing_imports(project: "DevkitProject", plan: Plan) -> tuple[ImportedPackage, ...]:
    """Find what a project with dependency files imports and uv's resolution lacks; nothing where that is not known.

    What conda installs is not in that resolution. What no distribution is known for is mostly a module of the project's.
    """
    from devkit.probe.project.reader import read_local_imports

    dependencies = project.dependencies
    if (
        not isinstance(plan.resolution, Resolved)
        or dependencies.is_locked
        or not dependencies.files
        or dependencies.conda
    ):
        return ()
    resolved = dict(plan.resolution.packages)
    found = read_local_imports(str(project.root), dependencies)
    limits = load_tables().imports.limits()
    return tuple(
        each
        for each in found
        if each.name
        and not (each.name in resolved and satisfies(resolved[each.name], limits.get(each.name, "")))
        and (not _is_decoder(each) or satisfies(resolved.get("torchaudio", "0"), ">=2.9"))
    )


def find_guide_packages(project: "DevkitProject", plan: Plan) -> tuple[PackageRequirement, ...]:
    """Find what the project's guide has its reader install and the image will not have, as far as that is known."""
    from devkit.probe.project.reader import read_local_guide

    dependencies = project.dependencies
    if not dependencies.asks_for_packages or project.settings.ignore_dependencies:
        return ()
    found = read_local_guide(str(project.root), dependencies)
    local = {canonicalize_name(each.place.rpartition("/")[2]) for each in dependencies.local}
    present = plan.resolved.keys() | dict(plan.packages).keys() | _BUILD_TOOLS | local
    return tuple(need for need in found if need.name not in present and not need.name.endswith("-windows"))


def _format_requirement(package: ImportedPackage) -> str:
    if package.guide:
        return package.guide.text
    return f"{package.name}{load_tables().imports.limits().get(package.name, '')}"


def print_imports(found: tuple[ImportedPackage, ...]) -> None:
    """Print packages that are imported but not installed, with the flag or the setting that installs them."""
    for is_known, how in (
        (True, "--add-imports installs them and records them in devkit.toml"),
        (False, "devkit's tables do not list their packages; add them under [project] packages in devkit.toml"),
    ):
        of_kind = [
            f"{_format_requirement(each) or each.module} ({each.origin})"
            for each in found
            if bool(each.name) is is_known
        ]
        if of_kind:
            print_wrapped(f"imported but not listed in any file: {join_some(of_kind)}; {how}")


def offer_unknown(project: "DevkitProject", found: tuple[ImportedPackage, ...]) -> None:
    """Print the command that adds packages of which only the index knows, by the names of the modules; none is installed unasked."""
    from devkit.probe.project.reader import confirm_packages

    unknown = {each.module: canonicalize_name(each.module) for each in found if not each.name}
    named = [*confirm_packages(str(project.root), dict(islice(unknown.items(), MAX_OFFERED))).values()]
    if named:
        says = "Anybody can register a name, so look at them first. To add them:"
        print_wrapped(f"the package index has {join_words(named)}, which devkit has not checked. {says}")
        setting = f"packages={','.join((*project.settings.packages, *named))}"
        click.echo(f"  {shlex.join(['devkit', 'init', '--set', setting])}")


def print_added_packages(before: "DevkitProject", project: "DevkitProject", needs: list[ImportedPackage]) -> None:
    """Print the packages that were added to devkit.toml, and who names or imports them; `needs` are those of other packages."""
    from devkit.probe.project.reader import read_local_guide

    for extra in project.settings.extras:
        if extra not in (*before.settings.extras, *before.dependencies.extras):
            listed = {need.name for need in project.dependencies.needs if need.path != SETTINGS_FILE}
            named = join_words([f"{each.name} (imported by {each.origin})" for each in needs if each.name in listed])
            print_wrapped(f"added: the extra {extra}, which lists {named}; [project] extras in devkit.toml")
    added = [each for each in project.settings.packages if each not in before.settings.packages]
    if not added:
        return
    says = {need.text: f"{need.origin} installs it" for need in read_local_guide(str(before.root), before.dependencies)}
    says |= {_format_requirement(each): f"imported by {each.origin}" for each in needs}
    texts = [f"{each} ({says[each]})" if each in says else each for each in added]
    listed = {need.name for need in before.dependencies.needs if need.role is not RequirementRole.CONSTRAINT}
    for is_listed, because in (
        (False, "which programs import but no file lists"),
        (True, "because the proof fails with other releases"),
    ):
        if shown := [
            text for each, text in zip(added, texts, strict=True) if (_find_name(each) in listed) is is_listed
        ]:
            print_wrapped(f"added: {join_words(shown)}, {because}; [project] packages in devkit.toml")


def print_guide(found: tuple[PackageRequirement, ...]) -> None:
    """Print what the guide installs and the image will not have."""
    if found:
        named = join_some([f"{need.name}{need.specifier} ({need.origin})" for need in found])
        print_wrapped(f"installed only by the guide: {named}; add what you need to [project] packages in devkit.toml")


# What `devkit init` read of a project, what the image gets, and the flags that choose something else.


def print_summary(plan: Plan, dependencies: Dependencies, before: Dependencies) -> None:
    """Print the files that count, the packages that they lead to, and how to choose others.

    `before` are the dependencies without what this command adds to devkit.toml.
    """
    if files := [each for each in dependencies.files if each in before.files or each != SETTINGS_FILE]:
        named = join_some(files)
        is_said = [dependencies.because.removeprefix("the project has ")] == files
        named += f", because {dependencies.because}" if dependencies.because and not is_said else ""
        named += f", and not {join_words(dependencies.set_aside)}" if dependencies.set_aside else ""
        other = "use a different file with --requirements FILE, or none with --ignore-dependencies"
        print_wrapped(f"read: {named}; {other}")
    versions = "--torch V, --python V, --image REF and --pin NAME==V select others, and devkit.toml stores them"
    if plan.as_of:
        says = f"as of {plan.as_of}: packages released by then, and torch from that time, as far as the GPUs allow"
        print_wrapped(f"{says}; --as-of latest selects the newest versions")
    print_wrapped(f"installs: {join_words(_list_installed(plan, dependencies))}; {versions}")


def _list_installed(plan: Plan, dependencies: Dependencies) -> Iterator[str]:
    yield from (f"{name} {version}" for name, version in plan.packages)
    if dependencies.is_locked:
        yield f"the packages in {dependencies.lock}"
        return
    named = format_count(len(plan.project_packages), "package")
    if isinstance(plan.resolution, Unknown):
        yield f"the project's packages (not checked: {plan.resolution.reason})"
    elif isinstance(plan.resolution, Resolved) and plan.project_packages:
        yield f"{named} that the project lists, {len(plan.resolution.packages)} in all after uv resolves them"


def format_next_step(
    root: Path, dependencies: Dependencies, imports: Sequence[ImportedPackage], written: Sequence[str]
) -> str:
    """Format what to do with the files that were written, and the choices that this project leaves open."""
    available = dependencies.available
    builds = {each.choice for each in dependencies.torch_builds}
    flags = [f"--extra {name}" for name in available.extras if f"--extra {name}" not in builds][:1]
    flags += [f"--group {name}" for name in available.groups if f"--group {name}" not in builds][:1]
    flags += ["--add-imports"] if any(each.name for each in imports) else []
    more = f" To install more first: {join_words([f'`devkit init {flag}`' for flag in flags], 'or')}." if flags else ""
    # A rule of the project's own, such as .gitignore:12, may keep the dev container out of version control.
    hidden = ask_git(root, "check-ignore", *written).out.splitlines()[:1]
    found = ask_git(root, "check-ignore", "--verbose", *hidden)
    rule = ":".join(found.out.partition("\t")[0].split(":")[:2]) if hidden and found.code == 0 else ""
    commit = f"commit the files (`git add --force`, because {rule} ignores them)" if rule else "commit the files"
    here = Path.cwd()
    where = "" if root == here else f" {shlex.quote(str(root.relative_to(here) if here in root.parents else root))}"
    return f"Next: {commit}, then start the container (`devkit up{where}` or your editor) or prove it (`devkit verify{where}`).{more}"
