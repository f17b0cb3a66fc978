"""The GPU of a Compose service that somebody wrote, asked for in files of devkit's that Compose lays over theirs.

A request in their own file would stop the service on every host without a GPU. The overlay chooses one of several files
by a variable, as devkit's own dev containers do, and a host without an answer gets the one for the CPU.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from devkit import __version__
from devkit.doctor.checks.project.containers import ProjectContainer, format_location, require_project_containers
from devkit.doctor.checks.project.gpu_requests import find_gpu_host_requirement
from devkit.doctor.model import NotApplicable
from devkit.doctor.report.report import ReportedFinding
from devkit.errors import DevkitError
from devkit.facts.model import Facts
from devkit.facts.project import DevContainer, GpuRequest, RequestForm
from devkit.probe.documents import DocumentNode, NodeKind, parse_jsonc_tree
from devkit.probe.host import Host
from devkit.probe.project.compose import ComposeTree, ServiceTree
from devkit.probe.project.devcontainer import find_compose_file_nodes
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import CDI_GPU
from devkit.render.container.compose import render_gpu_files, validate_devices
from devkit.render.container.devcontainer import build_initialize_command
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.splice.document import CannotSplice, remove_value, set_value
from devkit.render.splice.jsonc import JSONC, load_jsonc
from devkit.render.templates import render_template
from devkit.solver.plan import Plan

OVERLAY_FOLDER = f"{DEVCONTAINER_FOLDER}/devkit"
_IGNORED = (
    "# Written by devkit. What differs from host to host stays out of version control.\ngpu.*.local.yml\n.*.new\n"
)
_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_RESERVED = ("deploy", "resources", "reservations", "devices")


@dataclass(frozen=True)
class ServiceOverlay:
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
        name = self.dev.removeprefix(f"{DEVCONTAINER_FOLDER}/").rpartition("/")[0]
        stem = f"{OVERLAY_FOLDER}/compose{'.' if name else ''}{name}"
        reset = (f"{stem}.reset.yml",) if self.changed or self.reserved else ()
        return (*reset, f"{stem}.gpu.yml")


def build_service_overlay(unit: ProjectContainer, files: ProjectFiles, plan: Plan) -> ServiceOverlay | None:
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
        devices = validate_devices(_named(asked), plan.vendor.value)
    except DevkitError:
        return None  # A variable decides which GPUs: they must not become all of them.
    changed, reserved = _without(asked, tree) if tree else ({}, "")
    return ServiceOverlay(unit.dev.path, unit.service.name, folder, devices, changed, reserved)


def render_service_overlays(overlays: tuple[ServiceOverlay, ...], plan: Plan) -> Iterator[Artifact]:
    """The files that belong to these overlays."""
    if not overlays:
        return
    yield from render_gpu_files(plan, OVERLAY_FOLDER, devices=overlays[0].devices)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitignore", _IGNORED)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitattributes", _ATTRIBUTES)
    for overlay in overlays:
        *reset, gpu = overlay.files
        known = {"devkit_version": __version__, "service": overlay.service}
        path = posixpath.relpath(OVERLAY_FOLDER, overlay.folder)
        yield Artifact.from_text(gpu, render_template("devcontainer/guest/compose.gpu.yml.j2", folder=path, **known))
        for each in reset:
            taken = {"changed": overlay.changed, "reserved": overlay.reserved, "gpu_file": posixpath.basename(gpu)}
            yield Artifact.from_text(each, render_template("devcontainer/guest/compose.reset.yml.j2", **taken, **known))


def add_overlay(text: str, overlay: ServiceOverlay) -> str:
    """devcontainer.json with the overlay behind its Compose files, and the host's script before its start.

    Raises: CannotSplice for a layout that does not allow it.
    """
    text = remove_overlays(text, keeping=tuple(_beside(overlay.dev, path) for path in overlay.files))
    document = load_jsonc(text)
    named = document["dockerComposeFile"]
    files = [named] if isinstance(named, str) else list(named)
    wanted = [*files, *(path for path in (_beside(overlay.dev, each) for each in overlay.files) if path not in files)]
    if wanted != files:
        text = set_value(text, ("dockerComposeFile",), wanted, JSONC)
    text = _without_wish(text, document)
    key, command = _with_script(document.get("initializeCommand"), overlay.folder)
    return set_value(text, key, command, JSONC) if key else text


def remove_overlays(text: str, *, keeping: tuple[str, ...] = ()) -> str:
    """devcontainer.json without the overlays in its list of Compose files. Raises CannotSplice."""
    named = load_jsonc(text).get("dockerComposeFile")
    for place in reversed(range(len(named) if isinstance(named, list) else 0)):
        if is_overlay_file(named[place]) and named[place] not in keeping:
            text = remove_value(text, ("dockerComposeFile", str(place)), JSONC)
    return text


def has_overlay(content: bytes) -> bool:
    """Whether a devcontainer.json names an overlay of devkit's."""
    return b"devkit/compose." in content


def is_overlay_file(name: object) -> bool:
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
    return remove_value(text, ("hostRequirements",) if len(wishes) == 1 else ("hostRequirements", "gpu"), JSONC)


def _with_script(command: object, folder: str) -> tuple[tuple[str, ...], object]:
    """What to set so that the host's script runs as well, and where; no place where it runs already."""
    key = ("initializeCommand",)
    ours = build_initialize_command(
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
    trees = ComposeTree(files).resolve_services(find_compose_file_nodes(parse_jsonc_tree(text, file=dev.path)))
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


def _replacing(items: list[DocumentNode]) -> str:
    values = [_plain(item) for item in items]
    return f"!override {json.dumps(values, ensure_ascii=False)}" if values else "!reset null"


def _plain(node: DocumentNode) -> object:
    """A node as the value that it stands for."""
    if node.kind is NodeKind.OBJECT:
        return {name: _plain(value) for name, value in node.fields.items()}
    if node.kind is NodeKind.LIST:
        return [_plain(item) for item in node.items]
    if node.kind is NodeKind.TEXT:
        return node.text
    return json.loads(node.text.lower()) if node.text else None


# Which dev containers get devkit's overlay for their GPU, while their files are judged and changed in turns.

SETTLED_BY_OVERLAY = ("PRJ005", "PRJ007", "PRJ011")
"""Findings on a Compose service that the overlay settles: no request, one that only some editors hear, a hard one."""


@dataclass(frozen=True)
class OverlayFiles:
    """The texts of devcontainer.json files by path, devkit's own files, and paths to keep out of version control."""

    texts: dict[str, bytes]
    own: tuple[Artifact, ...]
    local: tuple[str, ...]


class ServiceOverlays:
    """The overlays of one project. `text` gives each file as it would be."""

    def __init__(self, root: Path, plan: Plan, paths: tuple[str, ...], text: Callable[[str], bytes]) -> None:
        self._root = root
        self._plan = plan
        self._paths = paths
        self._text = text
        self._chosen: dict[str, tuple[str, ...]] = {}

    def read_texts_without_overlays(self) -> Iterator[tuple[str, str]]:
        """Each devcontainer.json without devkit's overlays: what is judged and repaired is the user's own."""
        for path in self._paths:
            try:
                now = self._text(path).decode()
                before = remove_overlays(now)
            except (UnicodeDecodeError, ValueError, CannotSplice):
                continue  # What is wrong with it is said of the file itself.
            if before != now:
                yield path, before

    def choose_existing(self, facts: Facts, host: Host) -> None:
        """Choose every dev container that has its overlay from an earlier run."""
        for unit in _units(facts):
            if unit.dev is not None and has_overlay(self._text(unit.dev.path)):
                self.choose(unit, host)

    def settles(self, shown: ReportedFinding, facts: Facts) -> bool:
        """Whether this is a finding that a chosen overlay settles, or one on a service that is no dev container."""
        if shown.check.code not in SETTLED_BY_OVERLAY:
            return False
        units = self.find_units(shown, facts)
        if not units:
            return _is_of_service(shown, facts)
        return any(unit.dev is not None and unit.dev.path in self._chosen for unit in units)

    def find_units(self, shown: ReportedFinding, facts: Facts) -> list[ProjectContainer]:
        """The dev containers of Compose that the finding is about."""
        return [
            unit
            for unit in _units(facts)
            if unit.dev is not None and unit.is_compose and shown.finding.subject in _subjects(unit)
        ]

    def choose(self, unit: ProjectContainer, host: Host) -> bool:
        """Take the dev container among those with an overlay, where one can be written."""
        overlay = self._made(unit, host)
        # All overlays share the files for each way to a GPU, and these name the GPUs.
        if overlay is None or any(
            devices != overlay.devices for dev, devices in self._chosen.items() if dev != overlay.dev
        ):
            return False
        self._chosen[overlay.dev] = overlay.devices
        return True

    def render(self, facts: Facts, host: Host) -> "OverlayFiles":
        """Each devcontainer.json with its overlay in the list, and devkit's own files."""
        chosen = [unit for unit in _units(facts) if unit.dev is not None and unit.dev.path in self._chosen]
        overlays = tuple(overlay for unit in chosen if (overlay := self._made(unit, host)) is not None)
        texts = {overlay.dev: add_overlay(self._text(overlay.dev).decode(), overlay).encode() for overlay in overlays}
        local = dict.fromkeys(posixpath.normpath(f"{overlay.folder}/.env") for overlay in overlays)
        return OverlayFiles(texts, tuple(render_service_overlays(overlays, self._plan)), tuple(local))

    def _made(self, unit: ProjectContainer, host: Host) -> ServiceOverlay | None:
        overlay = build_service_overlay(unit, ProjectFiles(host, str(self._root)), self._plan)
        if overlay is None:
            return None
        try:
            add_overlay(self._text(overlay.dev).decode(), overlay)
        except (UnicodeDecodeError, CannotSplice):
            return None
        return overlay


def _units(facts: Facts) -> tuple[ProjectContainer, ...]:
    try:
        return require_project_containers(facts)
    except NotApplicable:
        return ()


def _subjects(unit: ProjectContainer) -> set[str]:
    wish = find_gpu_host_requirement(unit)
    places = [(unit.location.path, unit.location.line), *((one.path, one.line) for one in unit.requests)]
    return {format_location(path, line) for path, line in places} | (
        {format_location(wish.path, wish.line)} if wish else set()
    )


def _is_of_service(shown: ReportedFinding, facts: Facts) -> bool:
    subjects = [_subjects(unit) for unit in _units(facts) if unit.dev is None]
    return any(shown.finding.subject in each for each in subjects)
