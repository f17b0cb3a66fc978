"""The configuration of a dev container: devcontainer.json with its variables, merged with the metadata of its image.

Source: Development Containers Specification, https://containers.dev/implementors/json_reference/ and
https://containers.dev/implementors/spec/#merge-logic.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from devkit.errors import DevkitError
from devkit.formats.jsonc import InvalidJsonc, parse_jsonc
from devkit.probe.documents import get_object
from devkit.reading import MAX_CONFIG_BYTES, read_bounded
from devkit.text import join_words

LOCATIONS = (".devcontainer/devcontainer.json", ".devcontainer.json")
LOCAL_FOLDER_LABEL = "devcontainer.local_folder"
CONFIG_FILE_LABEL = "devcontainer.config_file"
METADATA_LABEL = "devcontainer.metadata"
"""Labels by which editors and the dev container CLI find the container of a folder, and know its settings."""
CREATE_HOOKS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
START_HOOK = "postStartCommand"
_HOOKS = (*CREATE_HOOKS, START_HOOK)
_METADATA_KEYS = (
    *_HOOKS,
    "remoteUser",
    "containerUser",
    "remoteEnv",
    "containerEnv",
    "userEnvProbe",
    "updateRemoteUserUID",
    "overrideCommand",
    "init",
    "privileged",
    "capAdd",
    "securityOpt",
    "mounts",
)
"""Keys of devcontainer.json that the label with the metadata holds, as far as starting and entering need them."""
_VARIABLE = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class DevContainer:
    """A folder with its devcontainer.json. `properties` are the file's, the variables of the host put in."""

    folder: Path
    file: Path
    properties: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name to show: that of the file, else the folder's."""
        return str(self.properties.get("name") or self.folder.name)

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which an editor finds the container of this folder."""
        return {LOCAL_FOLDER_LABEL: str(self.folder), CONFIG_FILE_LABEL: str(self.file)}

    @property
    def key(self) -> str:
        """A short text that tells this configuration from those of other folders."""
        return hashlib.sha256(str(self.file).encode(errors="surrogateescape")).hexdigest()[:12]

    @property
    def compose_files(self) -> tuple[Path, ...]:
        """The Compose files; empty for an image or a Dockerfile."""
        return tuple(self.file.parent / str(name) for name in list_texts(self.properties.get("dockerComposeFile")))

    @property
    def build(self) -> Mapping[str, Any]:
        """The properties under `build`, with the old names beside them; empty without a Dockerfile."""
        build = self.properties.get("build")
        found = dict(build) if isinstance(build, dict) else {}
        for old, new in (("dockerFile", "dockerfile"), ("context", "context")):
            if old in self.properties and new not in found:
                found[new] = self.properties[old]
        return found if "dockerfile" in found else {}

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile that devcontainer.json names itself."""
        return self.file.parent / str(self.build["dockerfile"]) if self.build else None

    @property
    def metadata(self) -> dict[str, Any]:
        """The properties that belong into the label with the metadata."""
        return {key: self.properties[key] for key in _METADATA_KEYS if key in self.properties}

    @property
    def workspace_mount(self) -> str:
        """The mount of the workspace, "" for Compose and where devcontainer.json says so."""
        if self.compose_files:
            return ""
        if "workspaceMount" in self.properties:
            return str(self.properties["workspaceMount"] or "")
        root = find_git_root(self.folder)
        return f"type=bind,source={root},target=/workspaces/{root.name}"

    @property
    def workspace_folder(self) -> str:
        """The folder inside in which work starts."""
        return _find_workspace_folder(self.folder, self.properties)


@dataclass(frozen=True)
class MergedSettings:
    """The settings of a container: those of its image's metadata, overridden or joined by devcontainer.json's."""

    remote_user: str
    container_user: str
    remote_env: Mapping[str, str | None]
    container_env: Mapping[str, str]
    user_env_probe: str
    updates_uid: bool
    overrides_command: bool | None
    init: bool
    privileged: bool
    cap_add: tuple[str, ...]
    security_opt: tuple[str, ...]
    mounts: tuple[Mapping[str, str], ...]
    entrypoints: tuple[str, ...]
    hooks: Mapping[str, tuple[Any, ...]]
    """Lifecycle command -> what the image and devcontainer.json want to run then, in this order."""


def find_dev_container(start: Path, config: Path | None = None, *, env: Mapping[str, str]) -> DevContainer:
    """Return the dev container of a folder, or of the nearest one above it.

    Raises:
        DevkitError: when there is none, when there are several to choose from, and for a file that cannot be read.
    """
    try:
        folder, file = _locate(start.resolve(), config)
    except PermissionError as error:
        raise DevkitError(
            f"cannot read {error.filename}: {error.strerror}", "Make it readable for this user."
        ) from None
    return read_dev_container(folder, file, env=env)


def _locate(start: Path, config: Path | None) -> tuple[Path, Path]:
    """Return the folder and its devcontainer.json."""
    if not start.is_dir():
        raise DevkitError(f"{start} is no directory", "Name the project's folder.")
    if config is not None:
        return start, config.resolve()
    for folder in (start, *start.parents):
        for location in LOCATIONS:
            if (folder / location).is_file():
                return folder, folder / location
        several = sorted(folder.glob(".devcontainer/*/devcontainer.json"))
        if len(several) > 1:
            names = join_words((str(file.relative_to(folder)) for file in several), "or")
            raise DevkitError(f"{folder} has {len(several)} dev containers", f"Choose one: --config {names}")
        if several:
            return folder, several[0]
    raise DevkitError(f"{start} has no dev container", f"Write one that fits this machine: devkit init {start}")


def read_dev_container(folder: Path, file: Path, *, env: Mapping[str, str]) -> DevContainer:
    """Read devcontainer.json with the variables of the host replaced. Raises DevkitError."""
    try:
        found = parse_jsonc(read_bounded(file, MAX_CONFIG_BYTES).decode()).to_python()
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Name a devcontainer.json that exists.") from None
    except (InvalidJsonc, UnicodeDecodeError) as error:
        raise DevkitError(f"{file} cannot be read: {error}", f"devkit doctor --project {folder}") from None
    if not isinstance(found, dict):
        raise DevkitError(f"{file} holds no object", f"devkit doctor --project {folder}")
    labels = {CONFIG_FILE_LABEL: str(file), LOCAL_FOLDER_LABEL: str(folder)}
    values = {
        "localWorkspaceFolder": str(folder),
        "localWorkspaceFolderBasename": folder.name,
        "devcontainerId": compute_devcontainer_id(labels),
    }
    properties = _replace_variables(found, values, env)
    inside = _find_workspace_folder(folder, properties)
    values = {"containerWorkspaceFolder": inside, "containerWorkspaceFolderBasename": PurePosixPath(inside).name}
    return DevContainer(folder, file, _replace_variables(properties, values, env))


def compute_devcontainer_id(labels: Mapping[str, str]) -> str:
    """Compute ${devcontainerId}. Source: https://containers.dev/implementors/spec/#devcontainerid-variable."""
    text = json.dumps(labels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    number, digits = int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()), ""
    while number:
        number, digit = divmod(number, 32)
        digits = "0123456789abcdefghijklmnopqrstuv"[digit] + digits
    return digits.rjust(52, "0")


def replace_container_variables(values: Mapping[str, str | None], env: Mapping[str, str]) -> dict[str, str]:
    """Put the container's environment into `${containerEnv:NAME}`; null leaves a variable out."""
    return {
        name: _VARIABLE.sub(
            lambda found: (
                env.get(found[1].partition(":")[2].partition(":")[0], "")
                if found[1].startswith("containerEnv:")
                else found[0]
            ),
            value,
        )
        for name, value in values.items()
        if value is not None
    }


def _replace_variables(value: Any, values: Mapping[str, str], env: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _replace_variables(each, values, env) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_variables(each, values, env) for each in value]
    if not isinstance(value, str):
        return value

    def replace(found: re.Match[str]) -> str:
        kind, _, rest = found[1].partition(":")
        if kind in ("localEnv", "env"):
            name, _, default = rest.partition(":")
            return env.get(name, default)
        return values.get(found[1], found[0])

    return _VARIABLE.sub(replace, value)


def find_git_root(folder: Path) -> Path:
    """Return the root of the folder's repository, else the folder: that is what is mounted."""
    return next((each for each in (folder, *folder.parents) if (each / ".git/config").is_file()), folder)


def _find_workspace_folder(folder: Path, properties: Mapping[str, Any]) -> str:
    if named := properties.get("workspaceFolder"):
        return str(named)
    if "dockerComposeFile" in properties:
        return "/"
    root = find_git_root(folder)
    return str(PurePosixPath("/workspaces", root.name, folder.relative_to(root).as_posix()))


def merge_settings(metadata: Sequence[Mapping[str, Any]]) -> MergedSettings:
    """Merge the entries of an image's metadata and devcontainer.json's, the last of which decides."""

    def last(key: str) -> Any:  # noqa: ANN401 - JSON
        return next((entry[key] for entry in reversed(metadata) if entry.get(key) is not None), None)

    def joined(key: str) -> dict[str, Any]:
        return {name: value for entry in metadata for name, value in get_object(entry, key).items()}

    mounts = {each.get("target", ""): each for entry in metadata for each in list_mounts(entry.get("mounts"))}
    hooks = {name: tuple(entry[name] for entry in metadata if entry.get(name)) for name in _HOOKS}
    return MergedSettings(
        remote_user=str(last("remoteUser") or ""),
        container_user=str(last("containerUser") or ""),
        remote_env={name: None if value is None else str(value) for name, value in joined("remoteEnv").items()},
        container_env={name: str(value) for name, value in joined("containerEnv").items()},
        user_env_probe=str(last("userEnvProbe") or "loginInteractiveShell"),
        updates_uid=last("updateRemoteUserUID") is not False,
        overrides_command=last("overrideCommand"),
        init=any(entry.get("init") for entry in metadata),
        privileged=any(entry.get("privileged") for entry in metadata),
        cap_add=_join_texts(metadata, "capAdd"),
        security_opt=_join_texts(metadata, "securityOpt"),
        mounts=tuple(mounts.values()),
        entrypoints=_join_texts(metadata, "entrypoint"),
        hooks=hooks,
    )


def parse_metadata(label: str | None) -> list[dict[str, Any]]:
    """Parse the label with the metadata; what is no JSON counts as none."""
    try:
        found = json.loads(label or "[]")
    except ValueError:
        return []
    return [entry for entry in (found if isinstance(found, list) else [found]) if isinstance(entry, dict)]


def list_commands(command: object) -> list[tuple[str, list[str]]]:
    """List the command lines of a lifecycle command, each with the name that it has in an object, "" otherwise."""
    if isinstance(command, dict):
        return [(str(name), words) for name, each in command.items() for _, words in list_commands(each)]
    if isinstance(command, str):
        return [("", ["/bin/sh", "-c", command])] if command.strip() else []
    words = [str(word) for word in command] if isinstance(command, list) else []
    return [("", words)] if words else []


def list_texts(value: object) -> list[str]:
    """List the texts of a value that may be one or several."""
    if isinstance(value, str):
        return [value]
    return [str(each) for each in value] if isinstance(value, list) else []


def _join_texts(metadata: Sequence[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for entry in metadata for text in list_texts(entry.get(key))))


_MOUNT_NAMES = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}


def list_mounts(value: object) -> Iterator[dict[str, str]]:
    """Yield mounts, given as objects or in the form of `docker run --mount`, by the long names of their keys."""
    for each in value if isinstance(value, list) else []:
        if isinstance(each, str) and each:
            pairs = (part.partition("=") for part in each.split(","))
            yield {_MOUNT_NAMES.get(key, key): text or "true" for key, _, text in pairs}
        elif isinstance(each, dict):
            yield {_MOUNT_NAMES.get(str(key), str(key)): str(text) for key, text in each.items()}
