"""The GPU of a Compose service that somebody wrote, requested in overlay files of devkit's.

A request in the user's own file would stop the service on every host without a GPU. The overlay chooses one of several
files by a variable, as devkit's own dev containers do, and a host without a choice gets the one for the CPU.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from devkit.doctor.checks.project.containers import ProjectContainer, format_location, require_project_containers
from devkit.doctor.checks.project.gpu_requests import find_gpu_host_requirement
from devkit.doctor.checks.project.privileges import SHM_SIZE
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
from devkit.release import __version__
from devkit.render.container.compose import render_gpu_files, validate_devices
from devkit.render.container.devcontainer import build_initialize_command
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.render.splice.document import CannotSplice, remove_value, set_value
from devkit.render.splice.jsonc import JSONC, load_jsonc
from devkit.render.templates import render_template
from devkit.solver.plan import Plan

SETTLED_BY_OVERLAY = ("PRJ005", "PRJ007", "PRJ011", "PRJ020")
"""Findings on a Compose service that the overlay settles: no request, one that only some editors honor, a required GPU,
shared memory of the engine's size."""
OVERLAY_FOLDER = f"{DEVCONTAINER_FOLDER}/devkit"
_GIT_IGNORE = "# Written by devkit. What differs from host to host stays out of version control.\ngpu.local.yml*\n"
_GIT_ATTRIBUTES = "# Written by devkit.\n* text eol=lf\n"
_NO_GPU = "# Written by devkit: what the service extends where gpu.sh found no GPU.\nservices:\n  gpu:\n    environment: [DEVKIT_GPU=cpu]\n"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9._/-]+", re.ASCII)
_OVERLAY_FILE = re.compile(r"(?:^|/)devkit/compose\.(?:[^/]+\.)?(?:gpu|reset)\.yml$")
_RESERVATIONS = ("deploy", "resources", "reservations", "devices")


@dataclass(frozen=True)
class OverlayFiles:
    """The texts of devcontainer.json files by path, devkit's own files, and paths to keep out of version control."""

    texts: dict[str, bytes]
    own: tuple[Artifact, ...]
    local: tuple[str, ...]


class ServiceOverlays:
    """The overlays of one project, chosen while checks and repairs take turns. `read` gives the present file."""

    def __init__(
        self, root: Path, plan: Plan, paths: tuple[str, ...], read: Callable[[str], bytes], *, for_windows: bool
    ) -> None:
        self._root = root
        self._for_windows = for_windows
        self._plan = plan
        self._paths = paths
        self._read = read
        self._chosen: dict[str, tuple[str, ...]] = {}

    def read_texts_without_overlays(self) -> Iterator[tuple[str, str]]:
        """Yield each devcontainer.json without devkit's overlays: checks and repairs see the user's own."""
        for path in self._paths:
            try:
                now = self._read(path).decode()
                without = remove_overlays(now)
            except (UnicodeDecodeError, ValueError, CannotSplice):
                continue  # A finding about the file itself says what is wrong with it.
            if without != now:
                yield path, without

    def choose_existing(self, facts: Facts, host: Host) -> None:
        """Choose every dev container that has its overlay from an earlier run."""
        for container in _find_containers(facts):
            if container.dev is not None and has_overlay(self._read(container.dev.path)):
                self.choose(container, host)

    def choose(self, container: ProjectContainer, host: Host) -> bool:
        """Choose the dev container for an overlay. Returns False where none can be written."""
        overlay = self._build(container, host)
        # All overlays share the files for each way to pass on GPUs, and these name the GPUs.
        if overlay is None or any(
            devices != overlay.devices for dev, devices in self._chosen.items() if dev != overlay.dev
        ):
            return False
        self._chosen[overlay.dev] = overlay.devices
        return True

    def settles(self, reported: ReportedFinding, facts: Facts) -> bool:
        """Return True for a finding that a chosen overlay settles, or one on a service that is no dev container."""
        if reported.check.code not in SETTLED_BY_OVERLAY:
            return False
        containers = self.find_containers(reported, facts)
        if not containers:
            services = [container for container in _find_containers(facts) if container.dev is None]
            return any(reported.finding.subject in _list_subjects(service) for service in services)
        return any(container.dev is not None and container.dev.path in self._chosen for container in containers)

    def find_containers(self, reported: ReportedFinding, facts: Facts) -> list[ProjectContainer]:
        """Find the dev containers of Compose that the finding is about."""
        return [
            container
            for container in _find_containers(facts)
            if container.dev is not None
            and container.is_compose
            and reported.finding.subject in _list_subjects(container)
        ]

    def render(self, facts: Facts, host: Host) -> OverlayFiles:
        """Render each devcontainer.json with its overlay in the list, and devkit's own files."""
        chosen = [each for each in _find_containers(facts) if each.dev is not None and each.dev.path in self._chosen]
        overlays = tuple(overlay for each in chosen if (overlay := self._build(each, host)) is not None)
        texts = {overlay.dev: self._add(overlay).encode() for overlay in overlays}
        local = dict.fromkeys(posixpath.normpath(f"{overlay.folder}/.env") for overlay in overlays)
        return OverlayFiles(
            texts, tuple(render_service_overlays(overlays, self._plan, for_windows=self._for_windows)), tuple(local)
        )

    def _add(self, overlay: "ServiceOverlay") -> str:
        return add_overlay(self._read(overlay.dev).decode(), overlay, for_windows=self._for_windows)

    def _build(self, container: ProjectContainer, host: Host) -> "ServiceOverlay | None":
        overlay = build_service_overlay(container, ProjectFiles(host, str(self._root)), self._plan)
        if overlay is None:
            return None
        try:
            self._add(overlay)
        except (UnicodeDecodeError, CannotSplice):
            return None
        return overlay


def _find_containers(facts: Facts) -> tuple[ProjectContainer, ...]:
    try:
        return require_project_containers(facts)
    except NotApplicable:
        return ()


def _list_subjects(container: ProjectContainer) -> set[str]:
    """Return the subjects of findings about the container's GPU."""
    requirement = find_gpu_host_requirement(container)
    located = ((container.location,), container.requests, (requirement,) if requirement else ())
    return {format_location(each.path, each.line) for group in located for each in group}


@dataclass(frozen=True)
class ServiceOverlay:
    """The overlay of one dev container's service. `folder` is that of its Compose project.

    `devices` are the GPUs that its own files request, () for all. `changed` and `reserved` remove its own requests:
    keys of the service with their values as YAML, and the reserved devices that are no GPUs. `shm_size` is "" where the
    service states one.
    """

    dev: str
    service: str
    folder: str
    devices: tuple[str, ...]
    changed: Mapping[str, str]
    reserved: str
    shm_size: str

    @property
    def files(self) -> tuple[str, ...]:
        """The Compose files to add to the dev container's list, by their paths in the project."""
        name = self.dev.removeprefix(f"{DEVCONTAINER_FOLDER}/").rpartition("/")[0]
        stem = f"{OVERLAY_FOLDER}/compose{'.' if name else ''}{name}"
        reset = (f"{stem}.reset.yml",) if self.changed or self.reserved else ()
        return (*reset, f"{stem}.gpu.yml")


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
    try:
        devices = validate_devices(() if "all" in names else tuple(names), plan.vendor.value)
    except DevkitError:
        return None  # A variable decides which GPUs: they must not become all of them.
    changed, reserved = _remove_requests(requests, _find_service(dev, service.name, files))
    shm_size = "" if container.settings("shm_size", "ipc") else SHM_SIZE
    return ServiceOverlay(dev.path, service.name, folder, devices, changed, reserved, shm_size)


def _find_service(dev: DevContainer, name: str, files: ProjectFiles) -> ServiceTree | None:
    text = files.read(dev.path, "devcontainer.json")
    if text is None:
        return None
    trees = ComposeTree(files).resolve_services(find_compose_file_nodes(parse_jsonc_tree(text, file=dev.path)))
    return next((tree for tree in trees if tree.name == name), None)


def _remove_requests(requests: list[GpuRequest], tree: ServiceTree | None) -> tuple[dict[str, str], str]:
    """Return the keys of the service that remove these requests, with values as YAML, and the reserved devices."""
    if tree is None:
        return {}, ""
    forms = {request.form for request in requests}
    changed: dict[str, str] = {}
    if RequestForm.RUNTIME in forms:
        changed["runtime"] = "!reset null"
    if RequestForm.GPUS_KEY in forms:
        changed["gpus"] = "!reset null"
    if RequestForm.CDI in forms:
        kept = [item for item in tree.node.at("devices").items if not CDI_GPU.match(item.text)]
        changed["devices"] = _override(kept)
    if RequestForm.RESERVATION not in forms:
        return changed, ""
    ours = {(request.path, request.line) for request in requests if request.form is RequestForm.RESERVATION}
    kept = [item for item in tree.node.at(*_RESERVATIONS).items if (item.file, item.line) not in ours]
    return changed, _override(kept)


def _override(items: list[DocumentNode]) -> str:
    values = [_to_value(item) for item in items]
    return f"!override {json.dumps(values, ensure_ascii=False)}" if values else "!reset null"


def _to_value(node: DocumentNode) -> object:
    if node.kind is NodeKind.OBJECT:
        return {name: _to_value(value) for name, value in node.fields.items()}
    if node.kind is NodeKind.LIST:
        return [_to_value(item) for item in node.items]
    if node.kind is NodeKind.TEXT:
        return node.text
    return json.loads(node.text.lower()) if node.text else None


def render_service_overlays(
    overlays: tuple[ServiceOverlay, ...], plan: Plan, *, for_windows: bool
) -> Iterator[Artifact]:
    """Render the files of these overlays."""
    if not overlays:
        return
    yield from render_gpu_files(plan, OVERLAY_FOLDER, devices=overlays[0].devices, for_windows=for_windows)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/gpu.none.yml", _NO_GPU)
    yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitignore", _GIT_IGNORE)
    if for_windows:
        yield Artifact.from_text(f"{OVERLAY_FOLDER}/.gitattributes", _GIT_ATTRIBUTES)
    for overlay in overlays:
        *reset, gpu = overlay.files
        context: dict[str, object] = {"devkit_version": __version__, "service": overlay.service}
        path = posixpath.relpath(OVERLAY_FOLDER, overlay.folder)
        text = render_template(
            "devcontainer/adopted/compose.gpu.yml.j2", folder=path, shm_size=overlay.shm_size, **context
        )
        yield Artifact.from_text(gpu, text)
        context |= {"changed": overlay.changed, "reserved": overlay.reserved, "gpu_file": posixpath.basename(gpu)}
        for each in reset:
            yield Artifact.from_text(each, render_template("devcontainer/adopted/compose.reset.yml.j2", **context))


def add_overlay(text: str, overlay: ServiceOverlay, *, for_windows: bool) -> str:
    """Add the overlay to the Compose files of devcontainer.json, and the host's script to its initializeCommand.

    Raises: CannotSplice for a layout that does not allow it.
    """
    ours = [posixpath.relpath(path, posixpath.dirname(overlay.dev) or ".") for path in overlay.files]
    text = remove_overlays(text, keeping=tuple(ours))
    document = load_jsonc(text)
    named = document["dockerComposeFile"]
    files = [named] if isinstance(named, str) else list(named)
    wanted = [*files, *(path for path in ours if path not in files)]
    if wanted != files:
        text = set_value(text, ("dockerComposeFile",), wanted, JSONC)
    requirements = document.get("hostRequirements")
    if isinstance(requirements, dict) and "gpu" in requirements:
        # The dev container CLI would request the GPU a second time.
        key = ("hostRequirements",) if len(requirements) == 1 else ("hostRequirements", "gpu")
        text = remove_value(text, key, JSONC)
    given = "" if overlay.folder == "." else overlay.folder
    script = build_initialize_command(OVERLAY_FOLDER, given, for_windows=for_windows)
    return _add_script(text, document.get("initializeCommand"), script)


def _add_script(text: str, command: object, ours: str) -> str:
    """Return devcontainer.json with the host's script in its initializeCommand, which is `command` by now."""
    if f"{OVERLAY_FOLDER}/gpu.sh" in json.dumps(command):
        return text
    key: tuple[str, ...] = ("initializeCommand",)
    value: object = ours
    if isinstance(command, dict) and command:
        key = (*key, "devkit-gpu")
    elif isinstance(command, str) and command:
        # The user's command may make the .env to which the script adds, so the script comes after it. Parentheses mean
        # the same to sh and to cmd.exe.
        value = f"({command}) && ({ours})"
    elif command:
        value = {"project": command, "devkit-gpu": ours}
    return set_value(text, key, value, JSONC)


def remove_overlays(text: str, *, keeping: tuple[str, ...] = ()) -> str:
    """Remove the overlays from the list of Compose files in devcontainer.json. Raises CannotSplice."""
    named = load_jsonc(text).get("dockerComposeFile")
    for place in reversed(range(len(named) if isinstance(named, list) else 0)):
        if is_overlay_file(named[place]) and named[place] not in keeping:
            text = remove_value(text, ("dockerComposeFile", str(place)), JSONC)
    return text


def has_overlay(content: bytes) -> bool:
    """Return True for a devcontainer.json that names an overlay of devkit's."""
    return b"devkit/compose." in content


def is_overlay_file(name: object) -> bool:
    """Return True for an item of dockerComposeFile that is a file of devkit's."""
    return isinstance(name, str) and _OVERLAY_FILE.search(name) is not None
