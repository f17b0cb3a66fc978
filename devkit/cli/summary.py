"""What `devkit init` read of a project, what the image gets, and the flags that choose something else."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.facts.resolution import Resolved
from devkit.facts.values import Unknown
from devkit.probe.host import LocalHost
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.text import format_count, join_words, wrap_text

if TYPE_CHECKING:
    from devkit.facts.dependencies import Dependencies, ImportedPackage
    from devkit.solver.plan import Plan

_MAX_NAMED = 8


def print_summary(plan: "Plan", dependencies: "Dependencies") -> None:
    """Print the files that count, the packages that they lead to, and how to choose others."""
    width = shutil.get_terminal_size().columns
    if dependencies.files:
        named = join_words(_shorten(dependencies.files))
        other = "another list with --requirements FILE, none with --ignore-dependencies"
        click.echo(wrap_text(f"read: {named}; {other}", width=width))
    versions = "--torch V, --python V, --image REF and --pin NAME==V choose others, and devkit.toml keeps them"
    click.echo(wrap_text(f"installs: {join_words(_list_installed(plan, dependencies))}; {versions}", width=width))


def _list_installed(plan: "Plan", dependencies: "Dependencies") -> Iterator[str]:
    yield from (f"{name} {version}" for name, version in plan.packages)
    if dependencies.is_locked:
        yield f"what {dependencies.lock} holds"
        return
    named = format_count(len(plan.project_packages), "package")
    if isinstance(plan.resolution, Unknown):
        yield f"the project's packages (not checked: {plan.resolution.reason})"
    elif isinstance(plan.resolution, Resolved) and plan.project_packages:
        yield f"{named} that the project names, {len(plan.resolution.packages)} in all as uv resolves them"


def format_next_step(root: Path, dependencies: "Dependencies", imports: "Sequence[ImportedPackage]") -> str:
    """Format what to do with the files, and the choices that this project leaves open."""
    available = dependencies.available
    builds = {each.choice for each in dependencies.torch_builds}
    flags = [f"--extra {name}" for name in available.extras if f"--extra {name}" not in builds][:1]
    flags += [f"--group {name}" for name in available.groups if f"--group {name}" not in builds][:1]
    flags += [f"--requirements {path}" for path in available.requirements[:1]]
    flags += ["--add-imports"] if any(each.name for each in imports) else []
    more = f" To install more first: {join_words([f'`devkit init {flag}`' for flag in flags], 'or')}." if flags else ""
    rule = _find_ignore_rule(root)
    commit = f"commit them (`git add --force`, because {rule} ignores them)" if rule else "commit them"
    return f"Next: {commit}, then open the folder in its container, or prove it with `devkit verify`.{more}"


def _find_ignore_rule(root: Path) -> str:
    """Find the line of the project's own that keeps the dev container out of version control: ".gitignore:12", "" for none."""
    path = f"{DEVCONTAINER_FOLDER}/devcontainer.json"
    found = LocalHost().run(["git", "-C", str(root), "check-ignore", "--verbose", path])
    return ":".join(found.out.partition("\t")[0].split(":")[:2]) if found.code == 0 else ""


def _shorten(names: Sequence[str]) -> list[str]:
    more = len(names) - _MAX_NAMED
    return [*names[:_MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
