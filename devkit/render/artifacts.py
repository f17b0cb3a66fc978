"""A plan and its settings, as the files of a dev container."""

from collections.abc import Callable, Iterable

from devkit.render.artifact import Artifact
from devkit.render.bake import bake_artifacts
from devkit.render.compose import compose_artifacts
from devkit.render.devcontainer import editor_artifacts
from devkit.render.dockerfile import image_artifacts
from devkit.render.ignored import ignore_artifacts
from devkit.render.locks import lock_artifacts
from devkit.render.mirrors import login_artifacts
from devkit.render.profiles import profile_artifacts
from devkit.render.settings import Settings
from devkit.render.variables import env_example_artifacts
from devkit.solver.model import Plan

PARTS: tuple[Callable[[Plan, Settings], Iterable[Artifact]], ...] = (
    editor_artifacts,
    image_artifacts,
    compose_artifacts,
    bake_artifacts,
    profile_artifacts,
    env_example_artifacts,
    ignore_artifacts,
    login_artifacts,
    lock_artifacts,
)
"""Every unit that renders files of a dev container."""


def devcontainer_artifacts(plan: Plan, settings: Settings) -> tuple[Artifact, ...]:
    """Every file that devkit generates, in the order of their paths; the same input gives the same bytes.

    Raises: DevkitError when a value could not stand in one of the files.
    """
    artifacts = [artifact for part in PARTS for artifact in part(plan, settings)]
    return tuple(sorted(artifacts, key=lambda artifact: artifact.path))
