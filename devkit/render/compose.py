"""The Compose file, its overlays for each way to a GPU, and the host's script that chooses among them."""

from collections.abc import Iterator

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.mirrors import may_need_login
from devkit.render.profiles import profile_services, profile_volumes
from devkit.render.resources import rendered
from devkit.render.settings import Settings
from devkit.solver.model import Plan

GPU_MODES = ("cpu", "nvidia", "cdi", "podman")
"""The ways to give a container its GPU; gpu.<mode>.yml holds each."""


def compose_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What Compose reads, and the script that writes its .env."""
    for name in ("docker-compose.yml", *(f"gpu.{mode}.yml" for mode in GPU_MODES)):
        yield Artifact.text(f"{FOLDER}/{name}", _from_template(name, plan, settings))
    yield Artifact.text(f"{FOLDER}/gpu.sh", _from_template("gpu.sh", plan, settings), 0o755)


def _from_template(name: str, plan: Plan, settings: Settings) -> str:
    return rendered(
        f"devcontainer/{name}.j2",
        devkit_version=__version__,
        slug=settings.slug,
        uses_wheelhouse=settings.uses_wheelhouse,
        may_need_login=may_need_login(settings),
        profile_services=profile_services(plan, settings),
        profile_volumes=profile_volumes(settings),
    )
