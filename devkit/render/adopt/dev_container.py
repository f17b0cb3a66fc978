"""The edits of a devcontainer.json that somebody wrote: its GPU and its shared memory.

Each edit leaves a file alone that has what it gives, so that a second run changes nothing.
"""

import json
import posixpath
import re
from pathlib import Path

from devkit.doctor.checks.project.privileges import SHM_SIZE
from devkit.errors import DevkitError
from devkit.facts.project import Service
from devkit.formats.jsonc import load_jsonc, parse_jsonc
from devkit.probe.host import LocalHost
from devkit.probe.project.compose import read_compose_services
from devkit.probe.project.files import ProjectFiles
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.text_edits import remove_value, set_value
from devkit.text import join_words

_ONE_ITEM = re.compile(r"(--gpus|--shm-size|--runtime|--device)\s+(\S.*)")
_SEVERAL_GPUS = re.compile(r"^(--gpus=)?(device=[^\",]+,[^\"]+)$")
_OTHER_REQUEST = re.compile(r"--gpus|--runtime[= ]nvidia|nvidia\.com/gpu")
_MISSPELLED = ("gpus", "GPU", "nvidia", "cuda")


def request_gpu(text: str) -> str:
    """Request the GPU in a form that also starts on a host without one, and that engines and editors read.

    `--gpus all` becomes an optional GPU. Other requests in runArgs stay: hostRequirements cannot say them. JetBrains's
    tools ignore hostRequirements, so a file for them keeps its flag. Raises CannotEdit.
    """
    items = _list_run_args(text)
    for place, item in enumerate(items):
        spelled = _SEVERAL_GPUS.sub(r'\1"\2"', _ONE_ITEM.sub(r"\1=\2", item))
        if spelled != item:
            text, items[place] = set_value(text, ("runArgs", str(place)), spelled), spelled
    flags = [place for place, item in enumerate(items) if item == "--gpus=all"]
    pairs = [place for place in range(len(items) - 1) if items[place : place + 2] == ["--gpus", "all"]]
    places = sorted([*flags, *pairs, *(place + 1 for place in pairs)])
    others = " ".join(item for place, item in enumerate(items) if place not in places)
    if (
        len(flags) + len(pairs) > 1
        or _OTHER_REQUEST.search(others)
        or "jetbrains" in _read_object(text, "customizations")
    ):
        return text
    for place in reversed(places):
        text = remove_value(text, ("runArgs", str(place)))
    if places and len(places) == len(items):
        listed = next(member.value for member in parse_jsonc(text).members if member.key == "runArgs")
        # A comment in the list may be about items that somebody adds later.
        text = text if "/" in text[listed.start : listed.end] else remove_value(text, ("runArgs",))
    requirements = _read_object(text, "hostRequirements")
    gpu = requirements.get("gpu")
    if gpu is not True and gpu != "optional" and not isinstance(gpu, dict):
        text = set_value(text, ("hostRequirements", "gpu"), "optional")
    for name in (name for name in _MISSPELLED if name in requirements):
        text = remove_value(text, ("hostRequirements", name))
    return text


def set_shared_memory(text: str) -> str:
    """Give the container shared memory that suffices for loader workers. Raises CannotEdit."""
    items = _list_run_args(text)
    for place, item in enumerate(items):
        if re.match(r"--shm-size[= ]", item):
            return set_value(text, ("runArgs", str(place)), f"--shm-size={SHM_SIZE}")
        if item == "--shm-size" and place + 1 < len(items):
            return set_value(text, ("runArgs", str(place + 1)), SHM_SIZE)
    return set_value(text, ("runArgs", "-"), f"--shm-size={SHM_SIZE}")


def _list_run_args(text: str) -> list[str]:
    listed = load_jsonc(text).get("runArgs")
    return [str(item) for item in listed] if isinstance(listed, list) else []


def _read_object(text: str, key: str) -> dict[str, object]:
    """Return an object of devcontainer.json, an empty one where it has none of that name."""
    found = load_jsonc(text).get(key)
    return found if isinstance(found, dict) else {}


# A dev container made of a service in one of the project's own Compose files.

DEV_CONTAINER_PATH = f"{DEVCONTAINER_FOLDER}/devcontainer.json"


def render_compose_dev_container(root: Path, name: str, *, compose: Path, service: str | None) -> bytes:
    """Render the devcontainer.json of a service; without a `service`, of the only one that asks for a GPU.

    Raises: DevkitError for a file outside the project or without services, and for a service that it does not have.
    """
    path, services = _read_services(root, compose)
    chosen = _choose_service(services, service, path)
    # The service runs what it is released for: the editor needs a container that waits, and the project's files.
    folder = posixpath.dirname(path)
    sources = ((posixpath.normpath(posixpath.join(folder, each.source)), each.target) for each in chosen.mounts)
    mounted = next((target for source, target in sources if source == "."), "")
    folder = mounted or "/workspaces/${localWorkspaceFolderBasename}"
    document = {
        "name": name,
        "dockerComposeFile": posixpath.relpath(path, DEVCONTAINER_FOLDER),
        "service": chosen.name,
        "workspaceFolder": folder,
        **({} if mounted else {"mounts": [f"source=${{localWorkspaceFolder}},target={folder},type=bind"]}),
        "overrideCommand": True,
        "shutdownAction": "stopCompose",
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _read_services(root: Path, compose: Path) -> tuple[str, tuple[Service, ...]]:
    """Return the path of the file in the project, and its services."""
    files = ProjectFiles(LocalHost(), str(root.resolve()))
    path = files.within(str(compose if compose.is_absolute() else root.resolve() / compose))
    if path is None:
        raise DevkitError(f"{compose} is outside the project", f"Give a Compose file in {root}.")
    services = read_compose_services((path,), files)
    if not services:
        problem = next((each.problem for each in files.seen if each.path == path and each.problem), "")
        what = "does not exist" if not files.has(path) else problem or "has no services"
        raise DevkitError(f"{compose} {what}", "Give a Compose file of the project, relative to its folder.")
    return path, services


def _choose_service(services: tuple[Service, ...], name: str | None, path: str) -> Service:
    wanted = [each for each in services if (each.name == name if name else each.requests)]
    if len(wanted) == 1:
        return wanted[0]
    names = join_words([each.name for each in services])
    if name:
        raise DevkitError(f"{path} has no service {name!r}", f"It has {names}.")
    which = "several services ask" if wanted else "no service asks"
    raise DevkitError(f"{which} for a GPU in {path}", f"Choose one with --service: {names}.")
