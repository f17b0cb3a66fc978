"""The Compose file, its overlays for each way to a GPU, and the host's script that chooses among them."""

from collections.abc import Iterator

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.dependencies import has_files_of_project
from devkit.render.mirrors import may_need_login
from devkit.render.overlays import checked_devices, overlays_of
from devkit.render.profiles import profile_services, profile_volumes
from devkit.render.resources import rendered
from devkit.render.settings import Settings
from devkit.solver.model import Plan


def compose_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """What Compose reads, and the script that writes its .env, once for POSIX shells and once for Windows.

    Raises: DevkitError for an engine or a GPU's name that does not exist.
    """
    devices = checked_devices(settings.devices, plan.vendor.value, settings.engine)
    overlays = overlays_of(plan, settings.engine)
    known: dict[str, object] = {
        "devkit_version": __version__,
        "slug": settings.slug,
        "vendor": plan.vendor.value,
        "engine": settings.engine,
        "overlays": overlays,
        "modes": [overlay.mode for overlay in overlays],
    }
    yield Artifact.text(f"{FOLDER}/docker-compose.yml", _compose_file(plan, settings, known))
    for overlay in overlays:
        name = f"gpu.{overlay.mode}.yml"
        text = rendered(f"devcontainer/{name}.j2", naming=overlay.naming(devices), **known)
        yield Artifact.text(f"{FOLDER}/{name}", text)
    yield Artifact.text(f"{FOLDER}/gpu.sh", rendered("devcontainer/gpu.sh.j2", **known), 0o755)
    yield Artifact.text(f"{FOLDER}/gpu.ps1", rendered("devcontainer/gpu.ps1.j2", **known))


def _compose_file(plan: Plan, settings: Settings, known: dict[str, object]) -> str:
    return rendered(
        "devcontainer/docker-compose.yml.j2",
        uses_wheelhouse=settings.uses_wheelhouse,
        uses_project=has_files_of_project(settings),
        may_need_login=may_need_login(settings),
        profile_services=profile_services(plan, settings),
        profile_volumes=profile_volumes(settings),
        **known,
    )
