"""The flags that hold an image to exact files, and how a project gets its locks."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from devkit.render.project import Project
    from devkit.render.settings import Settings
    from devkit.solver.model import Plan
    from devkit.verify.locking import Sources


@dataclass(frozen=True)
class LockFlags:
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
        given = {name: values.pop(name) for name in LockFlags.__dataclass_fields__}
        return command(*args, locking=LockFlags(**given), **values)

    wrapped: Callable[..., Any] = with_locking
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def with_asked_locks(project: "Project", plan: "Plan", flags: LockFlags) -> "Project":
    """The project with the locks that the flags ask for. Asks indexes and registries, and writes nothing.

    Raises: DevkitError for what cannot be locked: half a lock would look like a whole one.
    """
    if not flags.lock and not flags.lock_only:
        return project if flags.lock is None else _unlocked(project)
    from devkit.render.project import kept_locks, project_settings
    from devkit.render.python_lock import wanted
    from devkit.verify.locking import locked_image, locked_python
    from devkit.verify.process import interruptible

    settings, locks = project_settings(project), kept_locks(project.root)
    with interruptible():
        if flags.lock_only != "image":
            click.echo("Locking the packages ...", err=True)
            sources = _sources(project, plan, settings)
            text = locked_python(wanted(plan, settings), sources, progress=lambda line: click.echo(line, err=True))
            locks = replace(locks, python=text)
        if flags.lock_only != "python":
            click.echo(f"Asking for the digest of {plan.base_image} ...", err=True)
            locks = replace(locks, image=locked_image(plan.base_image, program=_engine(settings)))
    return replace(project, locks=locks)


def stale_reasons(project: "Project", plan: "Plan", flags: LockFlags) -> dict[str, str]:
    """Why locks that lie in the project must be made anew, by their parts; {} where flags say what becomes of them."""
    if flags.lock is not None or flags.lock_only:
        return {}
    from devkit.render.locks import stale_locks
    from devkit.render.project import kept_locks, project_settings
    from devkit.solver.project import without_lines

    plan = without_lines(plan, project.dependencies)
    return stale_locks(project_settings(project), plan, kept_locks(project.root))


def renewal(stale: dict[str, str]) -> LockFlags:
    """The flags that lock these parts anew."""
    return LockFlags(lock=True) if len(stale) > 1 else LockFlags(lock_only=next(iter(stale)))


def _unlocked(project: "Project") -> "Project":
    from devkit.render.locks import Locks

    return replace(project, locks=Locks())


def _engine(settings: "Settings") -> str:
    return settings.engine or next((name for name in ("docker", "podman") if shutil.which(name)), "docker")


def _sources(project: "Project", plan: "Plan", settings: "Settings") -> "Sources":
    from devkit.render.mirrors import torch_index
    from devkit.render.project import wheelhouse_of
    from devkit.verify.locking import Sources

    wheelhouse: Path | None = wheelhouse_of(project) if settings.uses_wheelhouse else None
    return Sources(torch_index(plan, settings), settings.index, wheelhouse)
