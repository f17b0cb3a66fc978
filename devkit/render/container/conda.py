"""The environment of a conda project: micromamba makes it, and what uv installs goes into it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from devkit import __version__
from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.probe.dependencies.conda import DEFAULT_CHANNEL
from devkit.render.container.settings import ContainerSettings, require_safe
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.plan import Plan

CONDA_FILE = "conda.yaml"
"""What micromamba installs, beside the Dockerfile."""


@dataclass(frozen=True)
class CondaEnvironment:
    """The words of the Dockerfile that make the environment with micromamba. Without packages it is false."""

    image: str = ""

    def __bool__(self) -> bool:
        return bool(self.image)


def build_conda_environment(settings: ContainerSettings) -> CondaEnvironment:
    """Build the words of the Dockerfile. Raises DevkitError where no channel or no image with micromamba may be used."""
    packages = settings.dependencies.conda
    if not packages:
        return CondaEnvironment()
    if settings.uses_wheelhouse:
        named = ", ".join(package.spec for package in packages[:3])
        raise DevkitError(
            f"a wheelhouse holds no packages of conda, and this project needs {named}",
            "Name a base image that has them with --image, and leave the project's files out: --ignore-dependencies.",
        )
    version = next(row.version for row in load_tables().images.tools if row.name == "micromamba")
    image = settings.policy.resolve_mirror(f"mambaorg/micromamba:{require_safe('version', version)}")
    if not settings.policy.allows_image(image):
        raise DevkitError(
            f"{image} is not from a registry that policy.registries allows, and micromamba comes from it",
            "Name its mirror in policy.mirrors, or leave the project's files out: --ignore-dependencies.",
        )
    return CondaEnvironment(require_safe("base image", image))


def render_conda_file(plan: Plan, settings: ContainerSettings) -> Iterator[Artifact]:
    """Render the environment that micromamba makes: the project's, but for torch, with the plan's Python."""
    found = settings.dependencies
    if not found.conda:
        return
    channels = "".join(f"  - {json.dumps(name)}\n" for name in found.conda_channels or (DEFAULT_CHANNEL,))
    packages = "".join(f"  # {each.origin}\n  - {json.dumps(each.spec)}\n" for each in found.conda)
    yield Artifact.from_text(
        f"{DEVCONTAINER_FOLDER}/{CONDA_FILE}",
        f"# Written by devkit {__version__} from the project's own files; torch and CUDA come from the plan.\n"
        "# Change them there, then run `devkit init` again.\n"
        f"channels:\n{channels}dependencies:\n"
        f'  - {json.dumps(f"python={plan.python}")}\n  - "pip"\n{packages}',
    )
