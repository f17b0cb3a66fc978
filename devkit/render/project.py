"""A project's folder: its settings, and the changes that write its dev container."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.probe.project.reader import read_local_dependencies
from devkit.reading import MAX_CONFIG_BYTES, read_named_file
from devkit.render.changes import FileChange, compute_changes, is_unfinished, read_known_files
from devkit.render.container.compose import parse_env_value, render_devcontainer_compose, set_env_value
from devkit.render.container.devcontainer import render_editor_files
from devkit.render.container.image import render_ignore_files, render_image_files
from devkit.render.container.image_locks import (
    IMAGE_LOCK_PATH,
    PYTHON_LOCK_PATH,
    TOOLS_LOCK_PATH,
    ImageLocks,
    apply_image_locks,
    parse_image_locks,
    render_image_locks,
)
from devkit.render.container.packages import CONSTRAINTS, INSTALLER, parse_constraint_hashes
from devkit.render.container.settings import (
    ContainerSettings,
    DevkitSource,
    FromCheckout,
    parse_certificates,
    render_empty_netrc,
    slugify,
    validate_mirror,
    validate_project_name,
)
from devkit.render.devkit_lock import read_project_lock, render_lock
from devkit.render.devkit_toml import (
    DEVKIT_TOML,
    PathOptions,
    ProjectSettings,
    parse_devkit_toml,
    render_devkit_toml,
    validate_packages,
)
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, list_files, read_file
from devkit.render.text_edits import update_gitignore
from devkit.render.wheel import find_devkit_source
from devkit.solver.plan import Machine, Plan
from devkit.solver.project import select_torch_build, strip_line_numbers, validate_choice

CERTIFICATES_PATH = f"{DEVCONTAINER_FOLDER}/certificates/ca.crt"
ENV_PATH = f"{DEVCONTAINER_FOLDER}/.env"
_SINGLE = ".devcontainer.json"
_DEV_CONTAINER = re.compile(rf"{re.escape(DEVCONTAINER_FOLDER)}/(?:[^/]+/)?devcontainer\.json")

RENDERERS: tuple[Callable[[Plan, ContainerSettings], Iterable[Artifact]], ...] = (
    render_editor_files,
    render_image_files,
    render_devcontainer_compose,
    render_ignore_files,
    render_empty_netrc,
    render_image_locks,
)
"""Every function that renders files of a dev container."""


_NO_FLAGS, _NO_PATHS = ProjectSettings(), PathOptions()


@dataclass(frozen=True)
class DevkitProject:
    """A project's folder, and its settings with the command line's in their place.

    `locks` replace those of the folder; None keeps them. `dependencies` are the project's own packages. `proof` says how
    its plan was tried; "" keeps what devkit.lock says of the same packages.
    """

    root: Path
    settings: ProjectSettings
    path_options: PathOptions
    locks: ImageLocks | None = None
    dependencies: Dependencies = NO_DEPENDENCIES
    proof: str = ""

    def with_settings(self, settings: ProjectSettings) -> "DevkitProject":
        """Return the project with other settings, and the dependencies that they choose."""
        return replace(self, settings=settings, dependencies=_read_dependencies(self.root, settings))

    def with_packages(self, requirements: Iterable[str]) -> "DevkitProject":
        """Return the project with these requirements added to its settings."""
        packages = tuple(dict.fromkeys((*self.settings.packages, *requirements)))
        return self.with_settings(replace(self.settings, packages=packages))

    def for_plan(self, plan: Plan) -> "DevkitProject":
        """Return the project with the dependencies that the plan takes of it."""
        return replace(self, dependencies=select_torch_build(self.dependencies, plan))


def open_project(
    directory: Path, overrides: ProjectSettings = _NO_FLAGS, path_options: PathOptions = _NO_PATHS
) -> DevkitProject:
    """Read the project's settings. The folder itself may be missing, its parent may not.

    Raises: DevkitError for a folder that cannot take files, a name that no format can hold, an invalid devkit.toml, and
    invalid `path_options`.
    """
    root = _validate_folder(directory)
    if root.exists() and is_unfinished(root):
        raise DevkitError(
            f"an earlier devkit was interrupted while it wrote to {root}",
            f"To finish it, run: devkit init {shlex.quote(str(root))}",
        )
    written = read_file(root, DEVKIT_TOML)
    settings = (parse_devkit_toml(written) if written is not None else ProjectSettings()).with_flags(overrides)
    name = validate_project_name(settings.name or root.name or "project")
    if path_options.ca_certificate is not None:
        settings = replace(settings, ca_certificates=CERTIFICATES_PATH)
    if path_options.wheelhouse is not None:
        _validate_wheelhouse(path_options.wheelhouse)
        settings = replace(settings, wheelhouse=True)
    validate_packages(settings)
    settings = replace(settings, name=name)
    return DevkitProject(root, settings, path_options, dependencies=_read_dependencies(root, settings))


def _read_dependencies(root: Path, settings: ProjectSettings) -> Dependencies:
    if settings.ignore_dependencies:
        return NO_DEPENDENCIES
    dependencies = read_local_dependencies(str(root), settings.choice)
    validate_choice(settings.choice, dependencies)
    return dependencies


def find_foreign_devcontainers(root: Path) -> tuple[str, ...]:
    """Find the project's own devcontainer.json files; none where devkit wrote one of them.

    Raises: DevkitError when a file leads out of the project, and for a lock that cannot be read.
    """
    found = [path for path in list_files(root, DEVCONTAINER_FOLDER) if _DEV_CONTAINER.fullmatch(path)]
    if read_file(root, _SINGLE) is not None:
        found.insert(0, _SINGLE)
    known = read_known_files(root).files if found else {}
    return () if any(path in known for path in found) else tuple(found)


def compute_project_changes(
    project: DevkitProject,
    plan: Plan,
    *,
    machines: tuple[Machine, ...] = (),
    force: bool = False,
    may_conflict: bool = False,
    source: DevkitSource | None = None,
) -> tuple[FileChange, ...]:
    """Compute the changes that generate the dev container for this plan. Reads the disk, writes nothing.

    `force`, `may_conflict` and what is raised are as in `compute_changes`. `source` is the place from which the image
    installs devkit, by default the one this devkit came from.
    """
    plan = strip_line_numbers(plan, project.dependencies)
    locks = read_image_locks(project.root) if project.locks is None else project.locks
    settings = apply_image_locks(build_container_settings(project, source=source), plan, locks)
    constraints = (read_file(project.root, f"{DEVCONTAINER_FOLDER}/{CONSTRAINTS}") or b"").decode(errors="replace")
    settings = replace(settings, hashes=parse_constraint_hashes(constraints))
    artifacts = render_devcontainer(plan, settings)
    written = read_project_lock(project.root)
    ignore_files, ignored = update_gitignore(project.root, (), written.ignored)
    proof = project.proof or (written.proof if written.proof and written.is_for(plan) else "")
    generated = (*artifacts, render_lock(plan, artifacts, machines, ignored=ignored, proof=proof))
    edited = [*render_user_files(project), *ignore_files]
    return compute_changes(project.root, generated, edited, force=force, may_conflict=may_conflict)


def render_devcontainer(plan: Plan, settings: ContainerSettings) -> tuple[Artifact, ...]:
    """Render every generated file, sorted by path; the same input gives the same bytes.

    Raises: DevkitError for a value that one of the files cannot hold.
    """
    artifacts = [artifact for render in RENDERERS for artifact in render(plan, settings)]
    return tuple(sorted(artifacts, key=lambda artifact: artifact.path))


def render_user_files(project: DevkitProject) -> Sequence[Artifact]:
    """Render the user's own files that settings change: devkit.toml, and .env where a wheelhouse is named."""
    written = read_file(project.root, DEVKIT_TOML)
    edited = [Artifact.from_text(DEVKIT_TOML, render_devkit_toml(project.settings, written))]
    if project.path_options.wheelhouse is not None:
        content = read_file(project.root, ENV_PATH) or b""
        path = str(project.path_options.wheelhouse.resolve())
        text = set_env_value(content.decode(errors="surrogateescape"), "DEVKIT_WHEELHOUSE", path)
        edited.append(Artifact(ENV_PATH, text.encode(errors="surrogateescape"), 0o600))
    return edited


def build_container_settings(project: DevkitProject, *, source: DevkitSource | None = None) -> ContainerSettings:
    """Build the validated settings of the container, without the locks. Raises DevkitError."""
    settings = project.settings
    if source is None and settings.install_from not in ("", "checkout"):
        raise DevkitError(
            f"{DEVKIT_TOML}: devkit.install_from is {settings.install_from!r}", 'Use "checkout", or remove it.'
        )
    return ContainerSettings(
        name=settings.name,
        slug=slugify(settings.name),
        source=source or (FromCheckout() if settings.install_from else find_devkit_source()),
        certificates=_read_certificates(project),
        uses_wheelhouse=settings.wheelhouse,
        index=validate_mirror("index", settings.index),
        torch_index=validate_mirror("torch_index", settings.torch_index),
        hub=validate_mirror("hub", settings.hub),
        engine=settings.engine,
        devices=settings.devices,
        sudo=settings.sudo,
        editors=settings.editors,
        for_windows=is_for_windows(project),
        dependencies=project.dependencies,
    )


def is_for_windows(project: DevkitProject) -> bool:
    """Return True where a Windows host starts the container: as target.platform says, else as here or in devkit.lock."""
    if project.settings.platform:
        return project.settings.platform == "windows"
    written = read_project_lock(project.root).files
    return sys.platform == "win32" or any(path.endswith("/gpu.ps1") for path in written)


def read_image_locks(root: Path) -> ImageLocks:
    """Read the locks of a project. Raises DevkitError when they are damaged."""
    return parse_image_locks(*(read_file(root, path) for path in (PYTHON_LOCK_PATH, IMAGE_LOCK_PATH, TOOLS_LOCK_PATH)))


def find_wheelhouse(project: DevkitProject) -> Path:
    """Find the folder of wheels for a build on this host. Raises DevkitError when there is none."""
    environment = (read_file(project.root, ENV_PATH) or b"").decode(errors="surrogateescape")
    named = os.environ.get("DEVKIT_WHEELHOUSE") or parse_env_value(environment, "DEVKIT_WHEELHOUSE") or "wheelhouse"
    folder = project.path_options.wheelhouse or project.root / DEVCONTAINER_FOLDER / named
    _validate_wheelhouse(folder)
    return folder.resolve()


def _validate_folder(directory: Path) -> Path:
    root = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would replace the name of a linked folder
    if root.exists() and not root.is_dir():
        raise DevkitError(f"{directory} is a file, not a directory", "Give the project's directory.")
    parent = root if root.exists() else root.parent
    if not parent.is_dir():
        raise DevkitError(f"{parent} does not exist", f"Create it first: mkdir -p {root}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DevkitError(f"{parent} is read-only for this user", "Choose a directory that you can write to.")
    return root


def _validate_wheelhouse(directory: Path) -> None:
    if not os.path.isdir(directory):  # noqa: PTH112 - is_dir() fails for a name that no file system takes
        raise DevkitError(f"the wheelhouse {directory} is not a directory", "Give a directory of .whl files.")
    if not any(directory.glob("*.whl")):
        raise DevkitError(
            f"the wheelhouse {directory} contains no wheel",
            f"Fill it on a machine with a network: `devkit bundle` does this for this project. Or run: pip download --dest {directory} "
            f"{INSTALLER}\n{DEVCONTAINER_FOLDER}/wheels/*.whl, and every package that {DEVCONTAINER_FOLDER}/Dockerfile installs.",
        )


def _read_certificates(project: DevkitProject) -> str:
    given = project.path_options.ca_certificate
    if given is not None:
        content: bytes | None = read_named_file(given, MAX_CONFIG_BYTES, "Name a PEM file.")
        shown = str(given)
    elif project.settings.ca_certificates:
        shown = project.settings.ca_certificates
        content = read_file(project.root, shown)
    else:
        return ""
    if content is None:
        raise DevkitError(
            f"{DEVKIT_TOML} refers to {shown}, which does not exist",
            "Pass --ca-certificate FILE, or remove network.ca_certificates.",
        )
    return parse_certificates(content, shown_as=shown)
