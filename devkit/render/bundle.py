"""What a bundle for a place without a network is made from: the project's files, and the texts around them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.change import Action
from devkit.render.dependencies import BUILT_FOR_TORCH, lock_readers, project_packages
from devkit.render.folder import read_file
from devkit.render.installation import installation
from devkit.render.lock import LOCK_PATH, digest, read_lock
from devkit.render.locked_plan import locked_plan
from devkit.render.mirrors import mirror_variables, torch_index
from devkit.render.plain import reason_comment
from devkit.render.project import Project, project_changes, project_settings
from devkit.render.resources import rendered
from devkit.render.settings import Settings
from devkit.render.wheel import devkit_wheel
from devkit.solver.model import Plan

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""A processor's name in a plan -> its name to engines."""

_OFFLINE_PART = "\nFROM prepared\n"


@dataclass(frozen=True)
class Bundle:
    """The texts of a bundle, before anything is built or downloaded.

    `files` are the project's, by their paths in it; `wheels_dockerfile` has the stages `prepared`, `listing` and
    `wheels`, and reads the project's own lists below `root`. `image` is the prepared image's name without the
    architecture at its end.
    """

    plan: Plan
    name: str
    image: str
    files: tuple[Artifact, ...]
    wheels_dockerfile: str
    root: Path

    @property
    def architectures(self) -> tuple[str, ...]:
        """The processors it is for, as engines call them."""
        return tuple(ARCHITECTURES[machine] for machine in self.plan.architectures)

    def texts(self) -> tuple[Artifact, ...]:
        """load.sh and README.txt."""
        values = {"devkit_version": __version__, "architectures": self.architectures, "plan": self.plan}
        return (
            Artifact.text("load.sh", rendered("bundle/load.sh.j2", image=self.image, **values), 0o755),
            Artifact.text("README.txt", rendered("bundle/README.txt.j2", name=self.name, **values)),
        )


def bundle_of(project: Project) -> Bundle:
    """The bundle of a project as devkit.lock has it, with the user's edits of its files.

    The files are those that `devkit init` would write for a build from a wheelhouse: the image takes devkit from the
    wheel beside them. `project.choices.wheelhouse` must be set.
    Raises: DevkitError for a project without a lock, and where edits and that form of the files clash.
    """
    content = read_file(project.root, LOCK_PATH)
    if content is None:
        raise DevkitError(
            f"{project.root} has no {LOCK_PATH}, so there is nothing to bundle", f"Run `devkit init {project.root}`."
        )
    lock = read_lock(content)
    plan, source = locked_plan(lock.plan), devkit_wheel()
    changes = project_changes(project, plan, machines=lock.machines, source=source)
    files = tuple(change.artifact for change in changes if change.action is not Action.REMOVE)
    settings = project_settings(project, source=source)
    is_locked = any(file.path == f"{FOLDER}/requirements.lock" for file in files)
    dockerfile = next(file.content.decode() for file in files if file.path == f"{FOLDER}/Dockerfile")
    wheels = _wheels_dockerfile(plan, settings, dockerfile, is_locked=is_locked)
    tag = f"localhost/devkit-base/{settings.slug}:{digest(wheels.encode())[:12]}"
    return Bundle(
        plan, project.choices.name, tag, (*files, *_requests(project.root, plan, settings)), wheels, project.root
    )


def _requests(root: Path, plan: Plan, settings: Settings) -> Iterator[Artifact]:
    """The project's own lists of packages, which the build reads from beside .devcontainer."""
    for path in project_packages(plan, settings, installation(plan, settings)).files:
        content = read_file(root, path)
        if content is None:
            raise DevkitError(f"{path} is gone", "Run `devkit init` again, so that nothing asks for it.")
        yield Artifact(path, content)


def _wheels_dockerfile(plan: Plan, settings: Settings, dockerfile: str, *, is_locked: bool) -> str:
    prepared, found, _ = dockerfile.partition(_OFFLINE_PART)
    if not found:
        raise DevkitError(
            f"{FOLDER}/Dockerfile has lost its line {_OFFLINE_PART.strip()!r}",
            "Put it back before the instructions that install Python packages, or run `devkit init --force`.",
        )
    online = replace(settings, uses_wheelhouse=False)
    install = installation(plan, online)
    return rendered(
        "bundle/wheels.Dockerfile.j2",
        plan=plan,
        prepared=prepared.rstrip(),
        because=lambda field: reason_comment(plan, field),
        install=install,
        mounts=install.mounts.replace("/root/.cache/uv", "/root/.cache/pip").replace("-uv", "-pip"),
        project=project_packages(plan, online, install),
        tools=lock_readers(settings),
        built_for_torch=BUILT_FOR_TORCH,
        mirrors=mirror_variables(settings),
        torch_index=torch_index(plan, settings),
        is_locked=is_locked,
    )
