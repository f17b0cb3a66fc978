"""The edits of files that somebody wrote: GPU and shared memory of a devcontainer.json, torch in Dockerfile and requirements.

Each edit changes no other byte, and leaves a file alone that has what it gives, so that a second run changes nothing.
"""

import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from devkit.doctor.checks.project.containers import TORCH_PACKAGES, ProjectContainer
from devkit.doctor.checks.project.privileges import SHM_SIZE
from devkit.errors import DevkitError
from devkit.facts.project import Service
from devkit.formats.jsonc import load_jsonc, parse_jsonc
from devkit.formats.shell import REQUIREMENT_FILE_OPTIONS, PackageInstall, find_package_install, parse_commands
from devkit.probe.host import LocalHost
from devkit.probe.project.compose import read_compose_services
from devkit.probe.project.dockerfile import parse_instructions
from devkit.probe.project.files import ProjectFiles
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.text_edits import TextEdit, apply_text_edits, remove_value, set_value
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


_TORCH = re.compile(r"torch(?P<extras>\[[^\]]*\])?(?P<specifier>==[\w.!+-]+)?", re.IGNORECASE)
_REQUIREMENT_LINE = re.compile(r"\s*([\w.-]+(?:\[[^\]]*\])?(?:==[\w.+!-]+)?)(?=\s*(?:[;#\\]|$))")
_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl[^\s\"']*")


@dataclass(frozen=True)
class TorchPin:
    """The torch of a plan: its version, the variant such as cu126, and the index of that variant.

    A requirement without a version gets it, and one with a specifier of `before`, which earlier runs wrote.
    """

    version: str
    variant: str
    index: str
    before: Collection[str] = ()

    def pin(self, text: str, *, with_variant: bool) -> str | None:
        """Return the requirement with the plan's version; None for another package, and for a version of the user's."""
        found = _TORCH.fullmatch(text)
        if found is None or (found["specifier"] and found["specifier"] not in self.before):
            return None
        return f"torch{found['extras'] or ''}=={self.version}{f'+{self.variant}' if with_variant else ''}"


def pin_container(container: ProjectContainer, pin: TorchPin, read: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the Dockerfile of a container, and its requirement files in .devcontainer, with torch pinned: path and text.

    `read` gives the present text of a file.
    """
    if container.dockerfile is None:
        return
    lists = [
        requirement
        for install in container.installs
        for requirement in install.requirements
        if requirement.name in TORCH_PACKAGES and requirement.path.endswith((".txt", ".in"))
    ]
    own = {requirement.path for requirement in lists if is_dev_container_file(requirement.path)}
    yield from ((path, pin_requirements(read(path), pin)) for path in sorted(own))
    # A file elsewhere may serve a production image: the command that installs it names the version instead.
    files = {each.path.rpartition("/")[2]: each.path in own for each in lists if each.name == "torch"}
    yield container.dockerfile.path, pin_dockerfile(read(container.dockerfile.path), pin, files=files)


def is_dev_container_file(path: str) -> bool:
    """Return True for a file that serves dev containers alone: only these are edited."""
    return path == f"{DEVCONTAINER_FOLDER}.json" or path.startswith(f"{DEVCONTAINER_FOLDER}/")


def pin_requirements(text: str, pin: TorchPin) -> str:
    """Pin torch in a requirement file; comments and markers stay."""
    edits, start = [], 0
    for line in text.splitlines(keepends=True):
        found = _REQUIREMENT_LINE.match(line.rstrip("\r\n"))
        pinned = pin.pin(found[1], with_variant=False) if found else None
        if found and pinned:
            edits.append(TextEdit(start + found.start(1), start + found.end(1), pinned))
        start += len(line)
    return apply_text_edits(text, edits)


def pin_dockerfile(text: str, pin: TorchPin, *, files: Mapping[str, bool] = MappingProxyType({})) -> str:
    """Pin torch in every pip and uv command that installs it, with its index.

    `files` are the names of requirement files with torch in them, each with whether its own line names the version:
    otherwise the command that installs the file does.
    """
    edits: list[TextEdit] = []
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    instructions = list(parse_instructions(text))
    for each, following in zip(instructions, [*instructions[1:], None], strict=False):
        if each.keyword == "RUN":
            end = starts[following.line - 1] if following else len(text)
            for command in parse_commands(text, starts[each.line - 1], end):
                install = find_package_install(command)
                if install is not None and install.tool in ("pip", "uv") and install.verb.value == "install":
                    edits += _pin_install(install, pin, files)
    return apply_text_edits(text, edits)


def _pin_install(install: PackageInstall, pin: TorchPin, files: Mapping[str, bool]) -> Iterator[TextEdit]:
    names = {name.rpartition("/")[2] for name in install.option_values(*REQUIREMENT_FILE_OPTIONS)} & files.keys()
    is_pip = install.tool == "pip"
    is_named = False
    for word in install.packages:
        pinned = pin.pin(word.value, with_variant=is_pip)
        if pinned is not None:
            is_named = True
            if pinned != word.value:
                quote = word.text[0] if word.text[0] in "\"'" and word.text[-1] == word.text[0] else ""
                yield TextEdit(word.start, word.end, f"{quote}{pinned}{quote}")
    if names or is_named:
        yield from _set_torch_index(install, pin)
    if not is_named and not all(files[name] for name in names):
        yield TextEdit(install.verb.end, install.verb.end, f" {pin.pin('torch', with_variant=is_pip)}")


def _set_torch_index(install: PackageInstall, pin: TorchPin) -> Iterator[TextEdit]:
    for name, value in install.options:
        word = value or name
        if _TORCH_URL.search(word.text):
            yield TextEdit(word.start, word.end, _TORCH_URL.sub(pin.index, word.text))
            return
        if name.value.startswith("--torch-backend"):
            joined = "--torch-backend=" if "=" in name.value else ""
            yield TextEdit(word.start, word.end, f"{joined}{pin.variant}")
            return
    is_uv = install.tool == "uv"
    added = f"--torch-backend={pin.variant}" if is_uv else f"--extra-index-url {pin.index}"
    yield TextEdit(install.verb.end, install.verb.end, f" {added}")
