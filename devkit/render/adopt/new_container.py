"""A dev container made of a service in one of the project's own Compose files."""

import json
import posixpath
from pathlib import Path

from devkit.errors import DevkitError
from devkit.facts.project import Service
from devkit.probe.host import LocalHost
from devkit.probe.project.compose import read_compose_services
from devkit.probe.project.files import ProjectFiles
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.text import join_words

DEV_CONTAINER_PATH = f"{DEVCONTAINER_FOLDER}/devcontainer.json"
_FOLDER = "${localWorkspaceFolder}"


def render_compose_dev_container(root: Path, name: str, *, compose: Path, service: str | None) -> bytes:
    """Render the devcontainer.json of a service; without a `service`, of the only one that asks for a GPU.

    Raises: DevkitError for a file outside of the project or without services, and for a service that it does not have.
    """
    path, services = _read_services(root, compose)
    chosen = _choose(services, service, path)
    # The service runs what it is released for: the editor needs a container that waits, and the project's files.
    mounted = next((each.target for each in chosen.mounts if _is_project(each.source, path)), "")
    folder = mounted or "/workspaces/${localWorkspaceFolderBasename}"
    document = {
        "name": name,
        "dockerComposeFile": posixpath.relpath(path, DEVCONTAINER_FOLDER),
        "service": chosen.name,
        "workspaceFolder": folder,
        "mounts": [] if mounted else [f"source={_FOLDER},target={folder},type=bind"],
        "overrideCommand": True,
        "shutdownAction": "stopCompose",
    }
    kept = {key: value for key, value in document.items() if value != []}
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()


def _read_services(root: Path, compose: Path) -> tuple[str, tuple[Service, ...]]:
    """Return the path of the file in the project, and its services."""
    files = ProjectFiles(LocalHost(), str(root.resolve()))
    path = files.within(str(compose if compose.is_absolute() else root.resolve() / compose))
    if path is None:
        raise DevkitError(f"{compose} is outside of the project", f"Name a Compose file in {root}.")
    services = read_compose_services((path,), files)
    if not services:
        problem = next((each.problem for each in files.seen if each.path == path and each.problem), "")
        what = "does not exist" if not files.has(path) else problem or "has no services"
        raise DevkitError(f"{compose} {what}", "Name a Compose file of the project, relative to its folder.")
    return path, services


def _choose(services: tuple[Service, ...], name: str | None, path: str) -> Service:
    wanted = [each for each in services if (each.name == name if name else each.requests)]
    if len(wanted) == 1:
        return wanted[0]
    names = join_words([each.name for each in services])
    if name:
        raise DevkitError(f"{path} has no service {name!r}", f"It has {names}.")
    which = "several services ask" if wanted else "no service asks"
    raise DevkitError(f"{which} for a GPU in {path}", f"Choose one with --service: {names}.")


def _is_project(source: str, compose: str) -> bool:
    return posixpath.normpath(posixpath.join(posixpath.dirname(compose), source)) == "."
