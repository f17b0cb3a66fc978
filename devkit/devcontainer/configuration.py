"""The devcontainer.json of a folder, and whether devkit can start its container without the dev container CLI.

Source: Development Containers Specification, https://containers.dev/implementors/json_reference/.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.formats.jsonc import InvalidJsonc, format_json_error, parse_jsonc
from devkit.probe.documents import get_object, parse_yaml
from devkit.probe.host import LocalHost
from devkit.probe.project.compose import COMPOSE_NAMES
from devkit.reading import MAX_CONFIG_BYTES, read_bounded
from devkit.release import GENERATED_MARK
from devkit.text import join_words

LOCATIONS = (".devcontainer/devcontainer.json", ".devcontainer.json")
LOCAL_FOLDER_LABEL = "devcontainer.local_folder"
CONFIG_FILE_LABEL = "devcontainer.config_file"
"""Labels by which editors and the dev container CLI find the container of a folder."""
_CLI_ONLY = (
    *("features", "mounts", "containerEnv", "containerUser", "runServices", "overrideCommand"),
    *("init", "privileged", "capAdd", "securityOpt"),
)
"""Properties that change the container itself: plain Compose knows nothing of them."""
_VARIABLE = re.compile(
    r"\$\{(localEnv|env|localWorkspaceFolder|localWorkspaceFolderBasename)(?::(\w+))?(?::([^}]*))?\}"
)
_OTHER_VARIABLE = re.compile(r"\$\{(?:container|devcontainerId)")


@dataclass(frozen=True)
class DevContainer:
    """A folder with its devcontainer.json. `properties` are the file's, with the host's variables replaced.

    Without one, `file` is the folder's Compose file, and the service the first that asks for a GPU.
    """

    folder: Path
    file: Path
    properties: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name to show: the file's, else the folder's."""
        return str(self.properties.get("name") or self.folder.name)

    @property
    def compose_files(self) -> tuple[Path, ...]:
        """The Compose files; empty for an image or a Dockerfile."""
        named = self.properties.get("dockerComposeFile")
        names = named if isinstance(named, list) else [named] if named else []
        return tuple(self.file.parent / str(each) for each in names)

    @property
    def is_compose_project(self) -> bool:
        """True for a folder that has a Compose file and no devcontainer.json."""
        return self.file.name in COMPOSE_NAMES

    @cached_property
    def is_generated(self) -> bool:
        """True if Compose alone can make the container: devkit wrote the Compose file, or there is nothing else."""
        if self.is_compose_project:
            return True
        needed = {key: value for key, value in self.properties.items() if key != "customizations"}
        needs_cli = any(map(needed.get, _CLI_ONLY)) or _OTHER_VARIABLE.search(json.dumps(needed))
        if needs_cli or not self.compose_files or needed.get("updateRemoteUserUID") is not False:
            return False
        head = LocalHost().read(str(self.compose_files[0])) or ""
        return GENERATED_MARK in head[:200]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the container: Compose's for a generated one, else those of the dev container CLI."""
        if not self.is_generated:
            return {LOCAL_FOLDER_LABEL: str(self.folder), CONFIG_FILE_LABEL: str(self.file)}
        folder = self.folder if self.is_compose_project else self.compose_files[0].parent
        service = self.properties.get("service")
        return {"com.docker.compose.project.working_dir": str(folder), "com.docker.compose.service": str(service)}


class NoDevContainerError(DevkitError):
    """Neither a folder nor one above it has a dev container."""


def find_dev_container(
    start: Path, config: Path | None = None, *, env: Mapping[str, str], takes_compose: bool = False
) -> DevContainer:
    """Return the dev container of a folder, or of the nearest one above it; with `takes_compose` else its Compose project.

    Raises DevkitError when there is none, when there are several to choose from, and for a file that cannot be read.
    """
    try:
        try:
            folder, file = _locate(start.resolve(), config)
        except NoDevContainerError:
            if not takes_compose or (project := _find_compose_project(start.resolve())) is None:
                raise
            return project
        found = parse_jsonc(read_bounded(file, MAX_CONFIG_BYTES).decode()).to_python()
    except OSError as error:
        hint = "Give a devcontainer.json that this user can read."
        raise DevkitError(f"cannot read {error.filename}: {error.strerror}", hint) from None
    except (InvalidJsonc, UnicodeDecodeError) as error:
        raise DevkitError(
            f"{file} cannot be read: {format_json_error(error)}", f"devkit doctor --project {folder}"
        ) from None
    if not isinstance(found, dict):
        raise DevkitError(f"{file} is not a JSON object", f"devkit doctor --project {folder}")
    return DevContainer(folder, file, _replace_variables(found, folder, env))


def _locate(start: Path, config: Path | None) -> tuple[Path, Path]:
    """Return the folder and its devcontainer.json."""
    if config is not None:
        if config.suffix in (".yml", ".yaml"):
            hint = "Leave --config out: devkit finds the devcontainer.json, which names its Compose files."
            raise DevkitError(f"{config} is a Compose file, not a devcontainer.json", hint)
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
    raise NoDevContainerError(f"{start} has no dev container", f"Write one that fits this machine: devkit init {start}")


def _find_compose_project(folder: Path) -> DevContainer | None:
    file = next((folder / name for name in COMPOSE_NAMES if (folder / name).is_file()), None)
    if file is None:
        return None
    try:
        content = parse_yaml(read_bounded(file, MAX_CONFIG_BYTES).decode())
    except ValueError:
        content = {}  # what is wrong with it, Compose says
    services = get_object(content if isinstance(content, dict) else {}, "services")
    names = sorted(services, key=lambda name: not re.search("nvidia|gpu", str(services[name])))
    return DevContainer(folder, file, {"service": names[0]} if names else {})


def _replace_variables(document: object, folder: Path, env: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Put in the variables of the host."""
    values = {"localWorkspaceFolder": str(folder), "localWorkspaceFolderBasename": folder.name}

    def replace(found: re.Match[str]) -> str:
        value = env.get(found[2], found[3] or "") if found[2] else values.get(found[1], "")
        return json.dumps(value)[1:-1]

    return json.loads(_VARIABLE.sub(replace, json.dumps(document)))
