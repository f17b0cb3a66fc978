"""The file with which a build server publishes the image: for every processor, with SBOM and provenance.

Compose has keys for both since 2.39, and so would refuse the file before; and since Docker's own builder refuses to
attest anything with its classic image store, a Compose file that asks for it would stop the build on most machines.
Sources: https://docs.docker.com/compose/releases/release-notes/, https://docs.docker.com/build/metadata/attestations/.
"""

from collections.abc import Iterator

from devkit import __version__
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.dependencies import has_files_of_project
from devkit.render.mirrors import may_need_login
from devkit.render.resources import rendered
from devkit.render.settings import Settings
from devkit.solver.model import Plan

_PLATFORMS = {"x86_64": '"linux/amd64"', "aarch64": '"linux/arm64"'}


def bake_artifacts(plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """docker-bake.hcl, unless the project is for Podman alone, which has no buildx."""
    if settings.engine == "podman":
        return
    text = rendered(
        "devcontainer/docker-bake.hcl.j2",
        devkit_version=__version__,
        slug=settings.slug,
        platforms=[_PLATFORMS[machine] for machine in plan.architectures if machine in _PLATFORMS],
        uses_wheelhouse=settings.uses_wheelhouse,
        uses_project=has_files_of_project(settings),
        may_need_login=may_need_login(settings),
    )
    yield Artifact.text(f"{FOLDER}/docker-bake.hcl", text)
