"""The GPU and the shared memory of a Compose service that somebody wrote, requested in overlay files of devkit's.

A request in the user's own file would stop the service on every host without a GPU. The overlay chooses one of several
files by a variable, as devkit's own dev containers do, and a host without a choice gets the one for the CPU.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from devkit.doctor.checks.project.containers import ProjectContainer
from devkit.doctor.checks.project.privileges import SHM_SIZE
from devkit.errors import DevkitError
from devkit.facts.project import GpuRequest, RequestForm
from devkit.formats.jsonc import JsonKind, load_jsonc, parse_jsonc
from devkit.probe.documents import DocumentNode, NodeKind, parse_jsonc_tree
from devkit.probe.project.compose import ComposeTree
from devkit.probe.project.devcontainer import find_compose_file_nodes
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import CDI_GPU
from devkit.release import __version__
from devkit.render.container.compose import render_gpu_files, validate_devices
from devkit.render.container.devcontainer import build_initialize_command
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.templates import render_template
from devkit.render.text_edits import remove_value, set_value
from devkit.solver.plan import Plan

SETTLED_BY_OVERLAY = ("PRJ005", "PRJ007", "PRJ011", "PRJ020")
"""Findings on a Compose service that the overlay settles: no request, one that only some editors honor, a required GPU,
shared memory of the engine's size."""
OVERLAY_FOLDER = f"{DEVCONTAINER_FOLDER}/devkit"
_GIT_IGNORE = "# Written by devkit. Host-specific files stay out of version control.\ngpu.local.yml*\n"
_GIT_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n"
_NO_GPU = "# Written by devkit: used if gpu.sh found no GPU.\nservices:\n  gpu:\n    environment: [DEVKIT_GPU=cpu]\n"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_OVERLAY_FILE = re.compile(r"(?:^|/)devkit/compose\.(?:[^/]+\.)?(?:gpu|reset)\.yml$")
_RESERVATIONS = ("deploy", "resources", "reservations", "devices")


@dataclass(frozen=True)
class ServiceOverlay:
    """The overlay of one dev container's service. `folder` is that of its Compose project.

    `devices` are the GPUs that its own files request, () for all. `removed` are the keys of the service that hold its
    own requests, with the values that take these away as YAML. `shm_size` is "" where the service states one.
    """

    dev: str
    service: str
    folder: str
    devices: tuple[str, ...]
    removed: Mapping[str, str]
    shm_size: str

    @property
    def files(self) -> tuple[str, ...]:
        """The Compose files to add to the dev container's list, by their paths in the project."""
        name = self.dev.removeprefix(f"{DEVCONTAINER_FOLDER}/").rpartition("/")[0]
        stem = f"{OVERLAY_FOLDER}/compose{'.' if name else ''}{name}"
        return (*([f"{stem}.reset.yml"] if self.removed else []), f"{stem}.gpu.yml")


def build_service_overlay(container: ProjectContainer, files: ProjectFiles, plan: Plan) -> ServiceOverlay | None:
    """Build the overlay of this dev container's service; None where it cannot be written.

    `files` show the project without devkit's own overlays.
    """
    dev, service = container.dev, container.service
    if dev is None or service is None or not dev.compose_files:
        return None
    folder = posixpath.dirname(dev.compose_files[0]) or "."
    if not _PLAIN_NAME.fullmatch(service.name) or not _PLAIN_FOLDER.fullmatch(folder):
        return None
    requests = [request for request in container.requests if not request.condition]
    names: dict[str, None] = {}
    for request in requests:
        ids = [name.rpartition("=")[2] for name in request.device_ids]
        # A number of GPUs means the first ones, as in Docker.
        names |= dict.fromkeys(ids or map(str, range(int(request.count)) if request.count.isdecimal() else ()))
    text = files.read(dev.path, "devcontainer.json") or ""
    trees = ComposeTree(files).resolve_services(find_compose_file_nodes(parse_jsonc_tree(text, file=dev.path)))
    node = next((tree.node for tree in trees if tree.name == service.name), None)
    if node is None:
        return None
    try:
        devices = validate_devices(() if "all" in names else tuple(names), plan.vendor.value)
        removed = dict(_remove_requests(requests, node))
    except DevkitError:
        return None  # A variable decides which GPUs, or what belongs to others would go: their author decides.
    shm_size = "" if any(each.name in ("shm_size", "ipc") for each in service.settings) else SHM_SIZE
    return ServiceOverlay(dev.path, service.name, folder, devices, removed, shm_size)


def _remove_requests(requests: list[GpuRequest], node: DocumentNode) -> Iterator[tuple[str, str]]:
    """Yield the keys of the service that hold these requests, with the values that remove them, as YAML.

    Raises: DevkitError where the same key holds something else that cannot be repeated.
    """
    forms = {request.form for request in requests}
    if RequestForm.RUNTIME in forms:
        yield "runtime", "!reset null"
    if RequestForm.GPUS_KEY in forms:
        yield "gpus", "!reset null"
    if RequestForm.CDI in forms:
        kept = [item for item in node.at("devices").items if not CDI_GPU.match(item.text)]
        if any(item.kind is not NodeKind.TEXT for item in kept):
            raise DevkitError("devices has items in the long form", "")
        texts = json.dumps([item.text for item in kept], ensure_ascii=False)
        yield "devices", f"!override {texts}" if kept else "!reset null"
    if RequestForm.RESERVATION in forms:
        ours = {(request.path, request.line) for request in requests if request.form is RequestForm.RESERVATION}
        if any((item.file, item.line) not in ours for item in node.at(*_RESERVATIONS).items):
            raise DevkitError("other devices are reserved together with the GPU", "")
        yield _RESERVATIONS[0], "!reset null"


def render_service_overlays(overlays: Iterable[ServiceOverlay], plan: Plan, *, for_windows: bool) -> Iterator[Artifact]:
    """Render the files of these overlays, which name the same GPUs."""
    devices = next((overlay.devices for overlay in overlays), None)
    if devices is None:
        return
    yield from render_gpu_files(plan, OVERLAY_FOLDER, devices=devices, for_windows=for_windows)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/gpu.none.yml", _NO_GPU)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitignore", _GIT_IGNORE)
    if for_windows:
        yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitattributes", _GIT_ATTRIBUTES)
    for overlay in overlays:
        for path in overlay.files:
            text = render_template(
                f"devcontainer/adopted/compose.{'reset' if path.endswith('.reset.yml') else 'gpu'}.yml.j2",
                devkit_version=__version__,
                overlay=overlay,
                folder=posixpath.relpath(OVERLAY_FOLDER, overlay.folder),
                gpu_file=posixpath.basename(overlay.files[-1]),
            )
            yield Artifact.from_text(path, text)


def add_overlay(text: str, overlay: ServiceOverlay, *, for_windows: bool) -> str:
    """Add the overlay to the Compose files of devcontainer.json, and the host's script to its initializeCommand.

    Raises: CannotEdit for a layout that does not allow it.
    """
    document = load_jsonc(text)
    ours = [posixpath.relpath(path, posixpath.dirname(overlay.dev) or ".") for path in overlay.files]
    named = document["dockerComposeFile"]
    if isinstance(named, str):
        text = set_value(text, ("dockerComposeFile",), [named, *ours])
    else:
        for place in reversed(range(len(named))):
            if is_overlay_file(named[place]) and named[place] not in ours:
                text = remove_value(text, ("dockerComposeFile", str(place)))
        for path in (path for path in ours if path not in named):
            text = set_value(text, ("dockerComposeFile", "-"), path)
    requirements = document.get("hostRequirements")
    if isinstance(requirements, dict) and "gpu" in requirements:
        # The dev container CLI would request the GPU a second time.
        text = remove_value(text, ("hostRequirements", *(("gpu",) if len(requirements) > 1 else ())))
    given = "" if overlay.folder == "." else overlay.folder
    script = build_initialize_command(OVERLAY_FOLDER, given, for_windows=for_windows)
    return _add_script(text, document.get("initializeCommand"), script)


def _add_script(text: str, command: object, ours: str) -> str:
    """Return devcontainer.json with the host's script in its initializeCommand, which is `command` by now."""
    if f"{OVERLAY_FOLDER}/gpu.sh" in json.dumps(command):
        return text
    if isinstance(command, dict) and command:
        return set_value(text, ("initializeCommand", "devkit-gpu"), ours)
    value: object = {"project": command, "devkit-gpu": ours} if command else ours
    if isinstance(command, str) and command:
        # The user's command may make the .env to which the script adds, so the script comes after it. Parentheses mean
        # the same to sh and to cmd.exe.
        value = f"({command}) && ({ours})"
    return set_value(text, ("initializeCommand",), value)


def hide_overlays(text: str) -> str:
    """Blank devkit's overlays in devcontainer.json, as it is read but never written: every line keeps its number."""
    try:
        members = parse_jsonc(text).members
    except ValueError:
        return text  # A finding about the file itself says what is wrong with it.
    named = next((member.value for member in members if member.key == "dockerComposeFile"), None)
    items = named.items if named is not None and named.kind is JsonKind.LIST else ()
    for before, item in pairwise(items):
        if is_overlay_file(item.text):
            text = text[: before.end] + re.sub(r"[^\r\n]", " ", text[before.end : item.end]) + text[item.end :]
    return text


def has_overlay(text: str) -> bool:
    """Return True for a devcontainer.json that names an overlay of devkit's."""
    return hide_overlays(text) != text


def is_overlay_file(name: object) -> bool:
    """Return True for an item of dockerComposeFile that is a file of devkit's."""
    return isinstance(name, str) and _OVERLAY_FILE.search(name) is not None
