"""The Compose file, its overlays for each way to a GPU, and the host's script that chooses among them."""

from collections.abc import Iterator, Sequence

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
    known = _known(plan, settings.engine) | {"slug": settings.slug}
    yield Artifact.text(f"{FOLDER}/docker-compose.yml", _compose_file(plan, settings, known))
    yield from gpu_artifacts(plan, FOLDER, engine=settings.engine, devices=settings.devices, slug=settings.slug)


def gpu_artifacts(
    plan: Plan, folder: str, *, engine: str = "", devices: Sequence[str] = (), slug: str = ""
) -> Iterator[Artifact]:
    """Each way to the GPU as a service to extend, and the script that chooses among them, in two languages.

    Without a `slug` they stand beside a Compose project of somebody else's, whose .env they write into.
    Raises: DevkitError for an engine or a GPU's name that does not exist.
    """
    named = checked_devices(devices, plan.vendor.value, engine)
    known = _known(plan, engine)
    for overlay in overlays_of(plan, engine):
        name = f"gpu.{overlay.mode}.yml"
        text = rendered(f"devcontainer/{name}.j2", naming=overlay.naming(named), **known)
        yield Artifact.text(f"{folder}/{name}", text)
    known |= {"slug": slug, "is_guest": not slug}
    yield Artifact.text(f"{folder}/gpu.sh", rendered("devcontainer/gpu.sh.j2", **known), 0o755)
    yield Artifact.text(f"{folder}/gpu.ps1", rendered("devcontainer/gpu.ps1.j2", **known))


def _known(plan: Plan, engine: str) -> dict[str, object]:
    overlays = overlays_of(plan, engine)
    return {
        "devkit_version": __version__,
        "vendor": plan.vendor.value,
        "engine": engine,
        "overlays": overlays,
        "modes": [overlay.mode for overlay in overlays],
    }


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
