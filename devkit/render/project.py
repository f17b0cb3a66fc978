"""A project's folder: what it asks for, and what writing its dev container would change."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.dependencies import NO_DEPENDENCIES, Dependencies
from devkit.facts.policy import NO_POLICY
from devkit.probe.dependencies import dependencies_in
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.artifacts import devcontainer_artifacts
from devkit.render.certificates import certificates_in
from devkit.render.change import Change, changes_for
from devkit.render.choices import CHOICES_PATH, Choices, choices_text, read_choices
from devkit.render.dotenv import setting_in, with_setting
from devkit.render.folder import read_file
from devkit.render.ignore_lines import with_ignored
from devkit.render.lock import lock_artifact, read_lock_in
from devkit.render.locks import IMAGE_LOCK_PATH, PYTHON_LOCK_PATH, Locks, locks_in, with_locks
from devkit.render.mirrors import checked_mirror
from devkit.render.names import checked_name, slug_of
from devkit.render.policy import check_indexes
from devkit.render.settings import DevkitSource, FromCheckout, Settings
from devkit.render.wheel import devkit_source
from devkit.solver.model import Machine, Plan
from devkit.solver.project import without_lines

CERTIFICATES_PATH = f"{FOLDER}/certificates/ca.crt"
ENV_PATH = f"{FOLDER}/.env"


@dataclass(frozen=True)
class Inputs:
    """Files outside the project that the user named on the command line."""

    ca_certificate: Path | None = None
    wheelhouse: Path | None = None


@dataclass(frozen=True)
class Project:
    """A project's folder, and its choices with the command line's in their place.

    `locks` take the place of those that lie in the folder; None keeps them. `dependencies` are its own packages.
    """

    root: Path
    choices: Choices
    inputs: Inputs
    locks: Locks | None = None
    dependencies: Dependencies = NO_DEPENDENCIES


def open_project(directory: Path, flags: Choices, inputs: Inputs) -> Project:
    """Read the project's choices. The folder itself may be missing, its parent may not.

    Raises: DevkitError for a folder that cannot take files, a name no format can carry, a wrong devkit.toml, and
    for `inputs` that are not what they should be.
    """
    root = _usable(directory)
    written = read_file(root, CHOICES_PATH)
    choices = (read_choices(written) if written is not None else Choices()).with_flags(flags)
    name = checked_name(choices.name or root.name or "project")
    if inputs.ca_certificate is not None:
        choices = replace(choices, ca_certificates=CERTIFICATES_PATH)
    if inputs.wheelhouse is not None:
        _check_wheelhouse(inputs.wheelhouse)
        choices = replace(choices, wheelhouse=True)
    check_indexes(choices)
    dependencies = NO_DEPENDENCIES if choices.ignore_dependencies else dependencies_in(str(root))
    return Project(root, replace(choices, name=name), inputs, dependencies=dependencies)


def project_changes(
    project: Project,
    plan: Plan,
    *,
    machines: tuple[Machine, ...] = (),
    force: bool = False,
    may_clash: bool = False,
    source: DevkitSource | None = None,
) -> tuple[Change, ...]:
    """What generating the dev container for this plan would change. Reads the disk, writes nothing.

    `machines` are those that the plan is for, `source` is where the image takes devkit from, by default where this
    devkit came from; `force` and `may_clash` are as for `changes_for`.
    Raises: DevkitError as `changes_for` does.
    """
    plan = without_lines(plan, project.dependencies)
    locks = kept_locks(project.root) if project.locks is None else project.locks
    settings = with_locks(project_settings(project, source=source), plan, locks)
    artifacts = devcontainer_artifacts(plan, settings)
    ignore_files, ignored = with_ignored(project.root, (), read_lock_in(project.root).ignored)
    generated = (*artifacts, lock_artifact(plan, artifacts, machines, ignored=ignored))
    edited = [*own_settings(project), *ignore_files]
    return changes_for(project.root, generated, edited, force=force, may_clash=may_clash)


def project_settings(project: Project, *, source: DevkitSource | None = None) -> Settings:
    """What the project asks of its container besides the plan and the locks. Raises DevkitError."""
    choices = project.choices
    return Settings(
        name=choices.name,
        slug=slug_of(choices.name),
        source=source or _source(choices),
        certificates=_certificates(project),
        uses_wheelhouse=choices.wheelhouse,
        index=checked_mirror("index", choices.index),
        torch_index=checked_mirror("torch_index", choices.torch_index),
        hub=checked_mirror("hub", choices.hub),
        engine=choices.engine,
        devices=choices.devices,
        editors=choices.editors,
        profiles=choices.profiles,
        policy=choices.policy or NO_POLICY,
        dependencies=project.dependencies,
    )


def _usable(directory: Path) -> Path:
    root = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would replace the name of a linked folder
    if root.exists() and not root.is_dir():
        raise DevkitError(f"{directory} is a file, not a directory", "Name the project's directory.")
    holder = root if root.exists() else root.parent
    if not holder.is_dir():
        raise DevkitError(f"{holder} does not exist", f"Create it first: mkdir -p {root}")
    if not os.access(holder, os.W_OK | os.X_OK):
        raise DevkitError(f"{holder} is read-only for this user", "Choose a directory that you may write to.")
    return root


def _check_wheelhouse(directory: Path) -> None:
    if not os.path.isdir(directory):  # noqa: PTH112 - is_dir() fails for a name that no file system takes
        raise DevkitError(f"the wheelhouse {directory} is not a directory", "Name a directory of .whl files.")
    if not any(directory.glob("*.whl")):
        raise DevkitError(
            f"the wheelhouse {directory} holds no wheel",
            "Run this without --wheelhouse first. Then fill the folder where there is a network, with torch from the\n"
            f"index that the header of {FOLDER}/requirements.txt names: pip download --dest {directory} -r "
            f"{FOLDER}/requirements.txt {FOLDER}/wheels/*.whl",
        )


def kept_locks(root: Path) -> Locks:
    """The locks that lie in a project. Raises DevkitError when they are damaged."""
    return locks_in(read_file(root, PYTHON_LOCK_PATH), read_file(root, IMAGE_LOCK_PATH))


def wheelhouse_of(project: Project) -> Path:
    """The folder of wheels that a build on this host takes. Raises DevkitError when it is none."""
    environment = (read_file(project.root, ENV_PATH) or b"").decode(errors="surrogateescape")
    named = os.environ.get("DEVKIT_WHEELHOUSE") or setting_in(environment, "DEVKIT_WHEELHOUSE") or "wheelhouse"
    folder = project.inputs.wheelhouse or project.root / FOLDER / named
    _check_wheelhouse(folder)
    return folder.resolve()


def _source(choices: Choices) -> DevkitSource:
    if choices.install_from not in ("", "checkout"):
        raise DevkitError(
            f"{CHOICES_PATH}: devkit.install_from is {choices.install_from!r}", 'It can be "checkout", or left out.'
        )
    return FromCheckout() if choices.install_from else devkit_source()


def _certificates(project: Project) -> str:
    given = project.inputs.ca_certificate
    if given is not None:
        try:
            content: bytes | None = given.read_bytes()
        except OSError as error:
            raise DevkitError(f"cannot read {given}: {error.strerror}", "Name a PEM file.") from None
        shown = str(given)
    elif project.choices.ca_certificates:
        shown = project.choices.ca_certificates
        content = read_file(project.root, shown)
    else:
        return ""
    if content is None:
        raise DevkitError(
            f"{CHOICES_PATH} names {shown}, which does not exist",
            "Pass --ca-certificate FILE, or take network.ca_certificates out.",
        )
    return certificates_in(content, shown_as=shown)


def own_settings(project: Project) -> Sequence[Artifact]:
    """The user's own files that choices and inputs change: devkit.toml, and .env where a wheelhouse is named."""
    written = read_file(project.root, CHOICES_PATH)
    edited = [Artifact.text(CHOICES_PATH, choices_text(project.choices, written))]
    if project.inputs.wheelhouse is not None:
        content = read_file(project.root, ENV_PATH) or b""
        path = str(project.inputs.wheelhouse.resolve())
        text = with_setting(content.decode(errors="surrogateescape"), "DEVKIT_WHEELHOUSE", path)
        edited.append(Artifact(ENV_PATH, text.encode(errors="surrogateescape"), 0o600))
    return edited
