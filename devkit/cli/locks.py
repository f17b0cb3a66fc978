"""Image locks: exact package hashes and the base image's digest, and the options that make them."""

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devkit.cli.command import group_options
from devkit.cli.terminal import StepPrinter
from devkit.errors import DevkitError

if TYPE_CHECKING:
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan


@dataclass(frozen=True)
class LockOptions:
    """The parts to lock: all for True, one by `lock_only`, none for False. None keeps the locks that are there."""

    lock: bool | None = None
    lock_only: str | None = None

    def __post_init__(self) -> None:
        if self.lock is False and self.lock_only:
            raise DevkitError("--no-lock and --lock-only contradict each other", "Remove one of them.")


lock_options = group_options(
    (
        click.option(
            "--lock/--no-lock", default=None, help="Lock packages by hash and the base image by digest. Needs uv."
        ),
        click.option("--lock-only", type=click.Choice(["python", "image"]), help="Renew only this lock."),
    ),
    LockOptions,
    "locking",
    title="Dev container",
)
"""Decorates a Click command, which receives the options as one argument, `locking`."""


def lock_project(project: "DevkitProject", plan: "Plan", options: LockOptions) -> "DevkitProject":
    """Return the project with the locks that the options call for. Queries indexes and registries, writes nothing.

    Raises DevkitError for what cannot be locked: half a lock would look like a whole one.
    """
    from devkit.render.container.image_locks import ImageLocks, collect_lock_requirements, collect_tool_requirements

    if not options.lock and not options.lock_only:
        return project if options.lock is None else replace(project, locks=ImageLocks())
    from devkit.facts.dependencies import IndexUse, RequirementRole
    from devkit.render.container.packages import list_bound_packages
    from devkit.render.container.settings import find_torch_index
    from devkit.render.project import build_container_settings, find_wheelhouse, read_image_locks
    from devkit.verify.locking import PackageSources, pin_image, resolve_lock
    from devkit.verify.process import interrupt_on_termination

    if options.lock_only != "image":
        plan.require_torch("a lock of the packages")
    settings, locks = build_container_settings(project), read_image_locks(project.root)
    with interrupt_on_termination(), closing(StepPrinter()) as progress:
        if options.lock_only != "image":
            progress("Locking the packages …")
            wheelhouse: Path | None = find_wheelhouse(project) if settings.uses_wheelhouse else None
            own, bound = list_bound_packages(project.dependencies, roles=tuple(RequirementRole))
            others = (
                each for each in project.dependencies.indexes if each.is_third_party and each.use is IndexUse.EXTRA
            )
            own += [{"name": each.name, "url": each.url} if each.name else {"url": each.url} for each in others]
            own = list({str(each["url"]): each for each in reversed(own)}.values())
            sources = PackageSources(find_torch_index(plan, settings), settings.index, wheelhouse, own, bound)
            python, tools = (
                resolve_lock(wanted, sources, progress=progress)
                for wanted in (collect_lock_requirements(plan, settings), collect_tool_requirements(plan, settings))
            )
            locks = replace(locks, python=python, tools=tools)
        if options.lock_only != "python":
            progress(f"Resolving the digest of {plan.base_image} …")
            engine = next((name for name in ("docker", "podman") if shutil.which(name)), "docker")
            locks = replace(locks, image=pin_image(plan.base_image, program=settings.engine or engine))
    return replace(project, locks=locks)


def find_stale_locks(project: "DevkitProject", plan: "Plan", options: LockOptions) -> dict[str, str]:
    """Return the reason why each stale lock must be renewed, by part; {} where options already decide about locks."""
    if options.lock is not None or options.lock_only:
        return {}
    from devkit.render.container.image_locks import explain_stale_locks
    from devkit.render.project import build_container_settings, read_image_locks
    from devkit.solver.project import strip_line_numbers

    plan = strip_line_numbers(plan, project.dependencies)
    return explain_stale_locks(build_container_settings(project), plan, read_image_locks(project.root))
