"""The contents of a bundle for a place without a network: the project's files, and the texts around them."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.release import __version__
from devkit.render.changes import Action
from devkit.render.container.network import build_mirror_variables, find_torch_index
from devkit.render.container.packages import (
    BUILT_FOR_TORCH,
    DEVKIT_PYTHON,
    build_install_commands,
    build_project_install_commands,
    find_export_tools,
)
from devkit.render.container.settings import ContainerSettings, format_reason_comment
from devkit.render.devkit_lock import LOCK_PATH, parse_lock, parse_locked_plan
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file
from devkit.render.project import DevkitProject, build_container_settings, compute_project_changes
from devkit.render.templates import render_template
from devkit.render.wheel import build_devkit_wheel
from devkit.solver.plan import Plan

OCI_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architecture in a plan -> its name in OCI images."""

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
        """The architectures of its images, by their OCI names."""
        return tuple(OCI_ARCHITECTURES[machine] for machine in self.plan.architectures)

    def render_texts(self) -> tuple[Artifact, ...]:
        """Render load.sh and README.txt."""
        values = {"devkit_version": __version__, "architectures": self.architectures, "plan": self.plan}
        return (
            Artifact.from_text("load.sh", render_template("bundle/load.sh.j2", image=self.image, **values), 0o755),
            Artifact.from_text("README.txt", render_template("bundle/README.txt.j2", name=self.name, **values)),
        )


def prepare_bundle(project: DevkitProject) -> Bundle:
    """Prepare the bundle of a project from its devkit.lock, with the user's edits of its files.

    The files are those that `devkit init` would write for a build from a wheelhouse: the image installs devkit from the
    wheel beside them. `project.settings.wheelhouse` must be set.
    Raises: DevkitError for a project without a lock, and where edits and that form of the files conflict.
    """
    content = read_file(project.root, LOCK_PATH)
    if content is None:
        raise DevkitError(
            f"{project.root} has no {LOCK_PATH}, so nothing can be bundled", f"Run `devkit init {project.root}`."
        )
    lock = parse_lock(content)
    plan, source = parse_locked_plan(lock.plan), build_devkit_wheel()
    plan.require_torch("a bundle")
    project = project.for_plan(plan)
    changes = compute_project_changes(project, plan, machines=lock.machines, source=source)
    files = tuple(change.artifact for change in changes if change.action is not Action.REMOVE)
    settings = build_container_settings(project, source=source)
    is_locked = any(file.path == f"{DEVCONTAINER_FOLDER}/requirements.lock" for file in files)
    dockerfile = next(file.content.decode() for file in files if file.path == f"{DEVCONTAINER_FOLDER}/Dockerfile")
    wheels = _render_wheels_dockerfile(plan, settings, dockerfile, is_locked=is_locked)
    image = f"localhost/devkit-base/{settings.slug}:{hashlib.sha256(wheels.encode()).hexdigest()[:12]}"
    # The build also reads the project's own requirement files, which are beside .devcontainer.
    requirement_files = []
    for path in build_project_install_commands(plan, settings, build_install_commands(plan, settings)).files:
        content = read_file(project.root, path)
        if content is None:
            raise DevkitError(f"{path} is gone", "Run `devkit init` again to remove the need for it.")
        requirement_files.append(Artifact(path, content))
    return Bundle(plan, project.settings.name, image, (*files, *requirement_files), wheels, project.root)


def _render_wheels_dockerfile(plan: Plan, settings: ContainerSettings, dockerfile: str, *, is_locked: bool) -> str:
    prepared, found, _ = dockerfile.partition(_OFFLINE_PART)
    if not found:
        raise DevkitError(
            f"{DEVCONTAINER_FOLDER}/Dockerfile no longer has the line {_OFFLINE_PART.strip()!r}",
            "Put it back before the instructions that install Python packages, or run `devkit init --force`.",
        )
    online = replace(settings, uses_wheelhouse=False)
    install = build_install_commands(plan, online)
    return render_template(
        "bundle/wheels.Dockerfile.j2",
        plan=plan,
        prepared=prepared.rstrip(),
        because=lambda field: format_reason_comment(plan, field),
        install=install,
        mounts=install.mounts.replace("/root/.cache/uv", "/root/.cache/pip").replace("-uv", "-pip"),
        project=build_project_install_commands(plan, online, install),
        tools=find_export_tools(settings),
        built_for_torch=BUILT_FOR_TORCH,
        mirrors=build_mirror_variables(settings),
        devkit_python=DEVKIT_PYTHON,
        torch_index=find_torch_index(plan, settings),
        is_locked=is_locked,
    )
