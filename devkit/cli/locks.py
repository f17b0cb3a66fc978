"""The flags that hold an image to exact files, and how a project gets its locks."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from devkit.render.container.settings import ContainerSettings
    from devkit.render.project import DevkitProject
    from devkit.solver.plan import Plan
    from devkit.verify.locking import PackageSources


@dataclass(frozen=True)
class LockOptions:
    """What to lock: True for everything, or `only` one part; False for nothing; None keeps what is locked."""

    lock: bool | None = None
    lock_only: str | None = None


_OPTIONS = (
    click.option(
        "--lock/--no-lock", default=None, help="Hold packages to their hashes, the base image to its digest. Needs uv."
    ),
    click.option("--lock-only", type=click.Choice(["python", "image"]), help="Lock this anew, and keep the other."),
)


def lock_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a Click command the flags of the locks; it receives them as one argument, `locking`."""

    @wraps(command)
    def with_locking(*args: Any, **values: Any) -> Any:  # noqa: ANN401 - whatever the command takes and returns
        given = {name: values.pop(name) for name in LockOptions.__dataclass_fields__}
        return command(*args, locking=LockOptions(**given), **values)

    wrapped: Callable[..., Any] = with_locking
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def lock_project(project: "DevkitProject", plan: "Plan", flags: LockOptions) -> "DevkitProject":
    """The project with the locks that the flags ask for. Asks indexes and registries, and writes nothing.

    Raises: DevkitError for what cannot be locked: half a lock would look like a whole one.
    """
    if not flags.lock and not flags.lock_only:
        return project if flags.lock is None else _unlocked(project)
    from devkit.render.container.image_locks import collect_lock_requirements
    from devkit.render.project import build_container_settings, read_image_locks
    from devkit.verify.locking import pin_image, resolve_lock
    from devkit.verify.process import interrupt_on_termination

    settings, locks = build_container_settings(project), read_image_locks(project.root)
    with interrupt_on_termination():
        if flags.lock_only != "image":
            click.echo("Locking the packages ...", err=True)
            sources = _sources(project, plan, settings)
            text = resolve_lock(
                collect_lock_requirements(plan, settings), sources, progress=lambda line: click.echo(line, err=True)
            )
            locks = replace(locks, python=text)
        if flags.lock_only != "python":
            click.echo(f"Asking for the digest of {plan.base_image} ...", err=True)
            locks = replace(locks, image=pin_image(plan.base_image, program=_engine(settings)))
    return replace(project, locks=locks)


def find_stale_locks(project: "DevkitProject", plan: "Plan", flags: LockOptions) -> dict[str, str]:
    """Why locks that lie in the project must be made anew, by their parts; {} where flags say what becomes of them."""
    if flags.lock is not None or flags.lock_only:
        return {}
    from devkit.render.container.image_locks import explain_stale_locks
    from devkit.render.project import build_container_settings, read_image_locks
    from devkit.solver.project import strip_line_numbers

    plan = strip_line_numbers(plan, project.dependencies)
    return explain_stale_locks(build_container_settings(project), plan, read_image_locks(project.root))


def choose_locks_to_renew(stale: dict[str, str]) -> LockOptions:
    """The flags that lock these parts anew."""
    return LockOptions(lock=True) if len(stale) > 1 else LockOptions(lock_only=next(iter(stale)))


def _unlocked(project: "DevkitProject") -> "DevkitProject":
    from devkit.render.container.image_locks import ImageLocks

    return replace(project, locks=ImageLocks())


def _engine(settings: "ContainerSettings") -> str:
    return settings.engine or next((name for name in ("docker", "podman") if shutil.which(name)), "docker")


def _sources(project: "DevkitProject", plan: "Plan", settings: "ContainerSettings") -> "PackageSources":
    from devkit.render.container.network import find_torch_index
    from devkit.render.project import find_wheelhouse
    from devkit.verify.locking import PackageSources

    wheelhouse: Path | None = find_wheelhouse(project) if settings.uses_wheelhouse else None
    return PackageSources(find_torch_index(plan, settings), settings.index, wheelhouse)
