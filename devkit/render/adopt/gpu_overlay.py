"""The GPU of a Compose service that somebody wrote, asked for in files of devkit's that Compose lays over theirs.

A request in their own file would stop the service on every host without a GPU. The overlay chooses one of several files
by a variable, as devkit's own dev containers do, and a host without an answer gets the one for the CPU.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from devkit import __version__
from devkit.doctor.checks.project_units import Unit
from devkit.errors import DevkitError
from devkit.facts.project import DevContainer
from devkit.facts.project_parts import GpuRequest, RequestForm
from devkit.probe.compose_tree import ComposeTree, ServiceTree
from devkit.probe.devcontainer_json import compose_names
from devkit.probe.documents import Kind, Node, read_jsonc
from devkit.probe.mounts import CDI_GPU
from devkit.probe.project_files import ProjectFiles
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.compose import gpu_artifacts
from devkit.render.devcontainer import initialize_command
from devkit.render.overlays import checked_devices
from devkit.render.resources import rendered
from devkit.render.splice import remove_value, set_value
from devkit.render.splice_json import JSON
from devkit.render.splice_json import loads as read_json
from devkit.solver.model import Plan

OVERLAY_FOLDER = f"{FOLDER}/devkit"
_IGNORED = (
    "# Written by devkit. What differs from host to host stays out of version control.\ngpu.*.local.yml\n.*.new\n"
)
_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_RESERVED = ("deploy", "resources", "reservations", "devices")


@dataclass(frozen=True)
class Overlay:
    """What is laid over the service of one dev container. `folder` is that of its Compose project.

    `devices` are the GPUs that its own files ask for, () for all. `changed` and `reserved` take its own requests away:
    keys of the service with their values as YAML, and the reserved devices that are no GPUs.
    """

    dev: str
    service: str
    folder: str
    devices: tuple[str, ...]
    changed: Mapping[str, str]
    reserved: str

    @property
    def files(self) -> tuple[str, ...]:
        """The Compose files to add to the dev container's list, by their paths in the project."""
        name = self.dev.removeprefix(f"{FOLDER}/").rpartition("/")[0]
        stem = f"{OVERLAY_FOLDER}/compose{'.' if name else ''}{name}"
        reset = (f"{stem}.reset.yml",) if self.changed or self.reserved else ()
        return (*reset, f"{stem}.gpu.yml")


def overlay_of(unit: Unit, files: ProjectFiles, plan: Plan) -> Overlay | None:
    """What to lay over the service of this dev container; None where that cannot be written down.

    `files` show the project as it is without devkit's own overlays.
    """
    if unit.dev is None or unit.service is None or not unit.dev.compose_files:
        return None
    folder = posixpath.dirname(unit.dev.compose_files[0]) or "."
    if not _PLAIN_NAME.fullmatch(unit.service.name) or not _PLAIN_FOLDER.fullmatch(folder):
        return None
    asked = [request for request in unit.requests if not request.condition]
    tree = _tree(unit.dev, unit.service.name, files)
    try:
        devices = checked_devices(_named(asked), plan.vendor.value)
    except DevkitError:
        return None  # A variable decides which GPUs: they must not become all of them.
    changed, reserved = _without(asked, tree) if tree else ({}, "")
    return Overlay(unit.dev.path, unit.service.name, folder, devices, changed, reserved)


def overlay_artifacts(overlays: tuple[Overlay, ...], plan: Plan) -> Iterator[Artifact]:
    """The files that belong to these overlays."""
    if not overlays:
        return
    yield from gpu_artifacts(plan, OVERLAY_FOLDER, devices=overlays[0].devices)
    yield Artifact.text(f"{OVERLAY_FOLDER}/.gitignore", _IGNORED)
    yield Artifact.text(f"{OVERLAY_FOLDER}/.gitattributes", _ATTRIBUTES)
    for overlay in overlays:
        *reset, gpu = overlay.files
        known = {"devkit_version": __version__, "service": overlay.service}
        path = posixpath.relpath(OVERLAY_FOLDER, overlay.folder)
        yield Artifact.text(gpu, rendered("devcontainer/guest/compose.gpu.yml.j2", folder=path, **known))
        for each in reset:
            taken = {"changed": overlay.changed, "reserved": overlay.reserved, "gpu_file": posixpath.basename(gpu)}
            yield Artifact.text(each, rendered("devcontainer/guest/compose.reset.yml.j2", **taken, **known))


def with_overlay(text: str, overlay: Overlay) -> str:
    """devcontainer.json with the overlay behind its Compose files, and the host's script before its start.

    Raises: CannotSplice for a layout that does not allow it.
    """
    text = without_overlays(text, keeping=tuple(_beside(overlay.dev, path) for path in overlay.files))
    document = read_json(text)
    named = document["dockerComposeFile"]
    files = [named] if isinstance(named, str) else list(named)
    wanted = [*files, *(path for path in (_beside(overlay.dev, each) for each in overlay.files) if path not in files)]
    if wanted != files:
        text = set_value(text, ("dockerComposeFile",), wanted, JSON)
    text = _without_wish(text, document)
    key, command = _with_script(document.get("initializeCommand"), overlay.folder)
    return set_value(text, key, command, JSON) if key else text


def without_overlays(text: str, *, keeping: tuple[str, ...] = ()) -> str:
    """devcontainer.json without the overlays in its list of Compose files. Raises CannotSplice."""
    named = read_json(text).get("dockerComposeFile")
    for place in reversed(range(len(named) if isinstance(named, list) else 0)):
        if is_overlay(named[place]) and named[place] not in keeping:
            text = remove_value(text, ("dockerComposeFile", str(place)), JSON)
    return text


def lists_overlay(content: bytes) -> bool:
    """Whether a devcontainer.json names an overlay of devkit's."""
    return b"devkit/compose." in content


def is_overlay(name: object) -> bool:
    """Whether an item of dockerComposeFile is a file of devkit's."""
    return (
        isinstance(name, str) and re.search(r"(?:^|/)devkit/compose\.(?:[^/]+\.)?(?:gpu|reset)\.yml$", name) is not None
    )


def _beside(dev: str, path: str) -> str:
    return posixpath.relpath(path, posixpath.dirname(dev) or ".")


def _without_wish(text: str, document: dict[str, object]) -> str:
    """Without hostRequirements.gpu, by which the dev container tool would ask a second time."""
    wishes = document.get("hostRequirements")
    if not isinstance(wishes, dict) or "gpu" not in wishes:
        return text
    return remove_value(text, ("hostRequirements",) if len(wishes) == 1 else ("hostRequirements", "gpu"), JSON)


def _with_script(command: object, folder: str) -> tuple[tuple[str, ...], object]:
    """What to set so that the host's script runs as well, and where; no place where it runs already."""
    key = ("initializeCommand",)
    ours = initialize_command(
        OVERLAY_FOLDER, "" if folder == "." else folder, env_path=posixpath.normpath(f"{folder}/.env")
    )
    if f"{OVERLAY_FOLDER}/gpu.sh" in json.dumps(command):
        return (), None
    if not command:
        return key, ours
    if isinstance(command, str):
        # What is there may make the .env that the script adds to, so the script comes after it. Parentheses mean the
        # same to sh and to cmd.exe.
        return key, f"({command}) && ({ours})"
    if isinstance(command, dict):
        return (*key, "devkit-gpu"), ours
    return key, {"project": command, "devkit-gpu": ours}


def _tree(dev: DevContainer, service: str, files: ProjectFiles) -> ServiceTree | None:
    text = files.read(dev.path, "devcontainer.json")
    if text is None:
        return None
    trees = ComposeTree(files).services(compose_names(read_jsonc(text, file=dev.path)))
    return next((tree for tree in trees if tree.name == service), None)


def _named(asked: list[GpuRequest]) -> tuple[str, ...]:
    """The GPUs that these requests name; a number of them means the first ones, as Docker counts them."""
    names: dict[str, None] = {}
    for request in asked:
        ids = [name.rpartition("=")[2] for name in request.device_ids]
        counted = range(int(request.count)) if request.count.isdecimal() else ()
        names |= dict.fromkeys(ids or map(str, counted))
    return () if "all" in names else tuple(names)


def _without(asked: list[GpuRequest], tree: ServiceTree) -> tuple[dict[str, str], str]:
    """What takes these requests out of the service: keys with their values as YAML, and the reserved devices."""
    forms = {request.form for request in asked}
    changed: dict[str, str] = {}
    if RequestForm.RUNTIME in forms:
        changed["runtime"] = "!reset null"
    if RequestForm.GPUS_KEY in forms:
        changed["gpus"] = "!reset null"
    if RequestForm.CDI in forms:
        kept = [item for item in tree.node.at("devices").items if not CDI_GPU.match(item.text)]
        changed["devices"] = _replacing(kept)
    if RequestForm.RESERVATION not in forms:
        return changed, ""
    ours = {(request.path, request.line) for request in asked if request.form is RequestForm.RESERVATION}
    kept = [item for item in tree.node.at(*_RESERVED).items if (item.file, item.line) not in ours]
    return changed, _replacing(kept)


def _replacing(items: list[Node]) -> str:
    values = [_plain(item) for item in items]
    return f"!override {json.dumps(values, ensure_ascii=False)}" if values else "!reset null"


def _plain(node: Node) -> object:
    """A node as the value that it stands for."""
    if node.kind is Kind.OBJECT:
        return {name: _plain(value) for name, value in node.fields.items()}
    if node.kind is Kind.LIST:
        return [_plain(item) for item in node.items]
    if node.kind is Kind.TEXT:
        return node.text
    return json.loads(node.text.lower()) if node.text else None
