"""compose.yml, and one overlay for each way in which an engine passes on GPUs."""

from devkit import __version__
from devkit.export.docker.mounts import mounts_of
from devkit.export.docker.options import all_mounts, device_numbers, variables_of
from devkit.export.quoting import compose_text, one_line
from devkit.export.task import USER_ID, Role, Task
from devkit.render.artifact import Artifact
from devkit.render.resources import rendered
from devkit.solver.model import Vendor


def compose_artifacts(task: Task, *, context: str, user: str) -> tuple[Artifact, ...]:
    """The files. Values stand in them as Compose reads them back, dollars doubled."""
    ways = _ways(task)
    mounts = all_mounts(task)
    text = rendered(
        "launchers/docker-compose.yml.j2",
        devkit_version=__version__,
        task=task,
        context=one_line(context),
        ways=ways,
        user=user,
        owner=user or f"{USER_ID}:{USER_ID}",
        variables=variables_of(task),
        mounts=mounts,
        volumes=[each for each in mounts if not each.is_folder],
        owned=[each for each in mounts if each.is_new],
        copies_project=mounts_of(task)[Role.DATA].is_new,
        compose=compose_text,
    )
    overlays = (
        Artifact.text(
            f"compose.{way}.yml",
            rendered("launchers/docker-gpu.yml.j2", devkit_version=__version__, way=way, devices=device_numbers(task)),
        )
        for way in ways
    )
    return (Artifact.text("compose.yml", text), *overlays)


def _ways(task: Task) -> tuple[str, ...]:
    """The ways to a GPU, the usual one first; () for a job without."""
    if not task.accelerator.count:
        return ()
    return ("rocm",) if task.accelerator.vendor is Vendor.ROCM else ("nvidia", "cdi")
