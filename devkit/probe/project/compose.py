"""The services of a Compose project, merged as Compose does. Source: Compose specification, "services" and "deploy"."""

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from devkit.facts.project import Build, GpuRequest, RequestForm, Service, Setting, Variable
from devkit.facts.secrets import redact_tokens
from devkit.probe.documents import ABSENT, DocumentNode, InvalidDocument, NodeKind, parse_env, parse_yaml_tree
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import (
    CDI_GPU,
    build_variable,
    is_relevant,
    parse_mount_node,
    replace_variables,
)

REPLACED_LISTS = ("command", "entrypoint", "test")
"""Lists that Compose replaces instead of appending. Source: Compose specification, "Merge", exceptions."""
MAX_EXTENDS = 10

COMPOSE_NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
"""Where Compose looks by default, the first that exists. Source: Compose specification, "The Compose file"."""
COMPOSE_FILE = re.compile(r"(?:docker-)?compose[\w.-]*\.ya?ml")
"""How people name Compose files."""
OVERRIDE_NAMES = (
    "compose.override.yaml",
    "compose.override.yml",
    "docker-compose.override.yaml",
    "docker-compose.override.yml",
)
_PLAIN = {
    "ipc": "ipc",
    "shm_size": "shm_size",
    "privileged": "privileged",
    "user": "user",
    "pid": "pid",
    "network_mode": "network",
    "userns_mode": "userns",
}
_RESERVED = ("deploy", "resources", "reservations", "devices")


@dataclass(frozen=True)
class ServiceTree:
    """One service with everything merged. `chosen` maps a file that a variable chooses to that variable's text.

    `names` holds what the service is called in each file.
    """

    name: str
    node: DocumentNode
    chosen: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


class ComposeTree:
    """The files of a Compose project as one tree. Each is read once; broken and missing ones are remembered by `ProjectFiles`."""

    def __init__(self, files: ProjectFiles) -> None:
        self._files = files
        self._read: dict[str, DocumentNode] = {}
        self._listed: list[str] = []

    def resolve_services(self, named: Iterable[DocumentNode | str]) -> tuple[ServiceTree, ...]:
        """Resolve the services of the files, later files over earlier ones."""
        roots = [self._root(name) for name in named]
        self._listed = [root.file for root in roots if root]
        together: dict[str, ServiceTree] = {}
        for root in [inner for outer in roots for inner in (*self._included(outer, 0), outer)]:
            for name, node in root.at("services").fields.items():
                tree = self._extended(name, node, 0)
                before = together.get(name)
                if before is not None:
                    tree = ServiceTree(
                        name,
                        merge_compose_nodes(before.node, tree.node),
                        before.chosen | tree.chosen,
                        before.names | tree.names,
                    )
                together[name] = tree
        return tuple(tree for tree in together.values() if tree.node.fields)

    def find_base(self, file: str) -> str:
        """Return the file whose folder the paths in a file are relative to: for each of the list, the first one.

        Source: Docker, "Merge Compose files": "all paths in the files are relative to the base Compose file".
        """
        return self._listed[0] if file in self._listed else file

    def _root(self, name: DocumentNode | str) -> DocumentNode:
        """The whole document of a file, absent when there is none or it is broken."""
        if isinstance(name, DocumentNode):
            text, beside, line = name.text.replace("${localWorkspaceFolder}", self._files.folder), name.file, name.line
        else:
            text, beside, line = name, "", 0
        path = self._files.within(text, beside=beside)
        if path is not None and path in self._read:
            return self._read[path]
        content = self._files.read(text, "compose", named_by=beside, line=line)
        root = ABSENT
        if content is not None and path is not None:
            try:
                root = parse_yaml_tree(content, file=path)
            except InvalidDocument as error:
                self._files.broken(path, error.problem, error.line)
            services = root.at("services")
            if services and services.kind is not NodeKind.OBJECT:
                self._files.broken(path, "services is not a mapping", services.line)
                root = ABSENT
        if path is not None:
            self._read[path] = root
        return root

    def _included(self, root: DocumentNode, depth: int) -> Iterator[DocumentNode]:
        if depth > MAX_EXTENDS:
            return
        for item in root.at("include").items:
            paths = item.at("path").items or (item.at("path") or item,)
            for node in paths:
                if node.is_scalar:
                    inner = self._root(node)
                    yield from self._included(inner, depth + 1)
                    yield inner

    def _extended(self, name: str, node: DocumentNode, depth: int) -> ServiceTree:
        """A service over the one that it extends, which a variable in the file's name may choose."""
        extends = node.at("extends")
        if not extends or depth > MAX_EXTENDS:
            return ServiceTree(name, node, names={node.file: name})
        wanted, file = extends.at("service").text or extends.text, extends.at("file")
        is_chosen = "$" in file.text
        root = self._read.get(node.file, ABSENT)
        if file:
            start = self.find_base(file.file)
            folder = posixpath.join(self._files.folder, posixpath.dirname(start)) if start != file.file else ""
            # Compose takes variables from the process, and from .env beside its first file.
            beside = posixpath.dirname(self._listed[0]) if self._listed else ""
            values = parse_env(self._files.read(posixpath.join(beside, ".env"), ".env") or "") if is_chosen else {}
            path = replace_variables(file.text, {**values, **self._files.host.env})
            root = self._root(replace(file, text=posixpath.join(folder, path)))
        if not root.at("services", wanted):
            return ServiceTree(name, node, names={node.file: name})
        base = self._extended(wanted, root.at("services", wanted), depth + 1)
        chosen = base.chosen | ({base.node.file: file.text} if is_chosen else {})
        # The lines of the service are those of the file that names it, not of what it extends.
        whole = replace(merge_compose_nodes(base.node, node), file=node.file, line=node.line)
        return ServiceTree(name, whole, chosen, base.names | {node.file: name})


def find_default_compose_files(files: ProjectFiles) -> tuple[str, ...]:
    """Find the Compose file of the project's folder and its override."""
    found = [name for name in COMPOSE_NAMES if files.has(name)][:1]
    overrides = [name for name in OVERRIDE_NAMES if files.has(name)][:1] if found else []
    return (*found, *overrides)


def read_compose_services(named: tuple[DocumentNode | str, ...], files: ProjectFiles) -> tuple[Service, ...]:
    """Read the services of these files, later ones over earlier ones, `extends` and `include` followed."""
    pairs = ((name.text, name.file) if isinstance(name, DocumentNode) else (name, "") for name in named)
    paths = tuple(path for text, beside in pairs if (path := files.within(text, beside=beside)) is not None)
    services, project = [], ComposeTree(files)
    for tree in project.resolve_services(named):
        node = tree.node
        image = node.at("image")
        volumes = node.at("volumes").items
        based = [parse_mount_node(replace(each, file=project.find_base(each.file)), files) for each in volumes]
        mounts = [replace(mount, path=each.file) for mount, each in zip(based, volumes, strict=True) if mount]
        services.append(
            Service(
                name=tree.name,
                files=paths,
                path=node.file,
                line=node.line,
                image=Setting("image", redact_tokens(image.text), image.file, image.line) if image.is_scalar else None,
                build=_build(node.at("build"), project, files),
                # Those behind a variable have its text as their condition.
                requests=tuple(
                    replace(request, condition=tree.chosen.get(request.path, "")) for request in _requests(node, tree)
                ),
                # Of two volumes on one target the later counts.
                mounts=tuple({mount.target: mount for mount in mounts}.values()),
                variables=tuple(one for one in _variables(node.at("environment")) if is_relevant(one)),
                settings=(
                    *(
                        Setting(called, value.text, value.file, value.line)
                        for name, called in _PLAIN.items()
                        if (value := node.at(name)).is_scalar
                    ),
                    *(
                        Setting(name, item.text, item.file, item.line)
                        for name in ("security_opt", "cap_add", "profiles")
                        for item in node.at(name).items
                    ),
                    *(
                        Setting("extends", file.text, file.file, file.line)
                        for file in (node.at("extends", "file"),)
                        if "$" in file.text
                    ),
                ),
            )
        )
    return tuple(services)


def _build(node: DocumentNode, project: ComposeTree, files: ProjectFiles) -> Build | None:
    if not node or node.at("dockerfile_inline"):
        return None
    context_node = node.at("context")
    context_text = context_node.text or (node.text if node.is_scalar else ".")
    context = files.within(context_text, beside=project.find_base(context_node.file or node.file))
    name = node.at("dockerfile").text or "Dockerfile"
    path = files.within(f"{context}/{name}") if context is not None and not name.startswith("/") else None
    outside = name if name.startswith("/") else f"{context_text}/{name}"
    return Build(
        dockerfile=path or outside,
        context=context if context is not None else context_text,
        target=node.at("target").text,
        args=tuple(replace(one, place="build argument") for one in _variables(node.at("args")) if is_relevant(one)),
        path=node.file,
        line=node.line,
    )


def _variables(node: DocumentNode) -> Iterator[Variable]:
    for name, value, where in _pairs(node):
        yield build_variable(name, value, place="environment", path=where.file, line=where.line)


def _pairs(node: DocumentNode) -> Iterator[tuple[str, str | None, DocumentNode]]:
    """Names and values of a mapping, or of a list of NAME=value; later ones of a list win."""
    for name, value in node.fields.items():
        yield name, value.text if value.kind is not NodeKind.NULL else None, value
    last = {item.text.partition("=")[0]: item for item in node.items if item.is_scalar}
    for name, item in last.items():
        _, has_value, value_text = item.text.partition("=")
        yield name, value_text if has_value else None, item


def _requests(node: DocumentNode, tree: ServiceTree) -> Iterator[GpuRequest]:
    reserved = node.at(*_RESERVED)
    for item in reserved.items:
        place = (*_key(item, tree), *_RESERVED, _index(item, reserved))
        request = _request(item, RequestForm.RESERVATION, place)
        # A reserved device is a GPU of NVIDIA by capability, driver or name; one without a driver may be.
        is_cdi_gpu = any(CDI_GPU.match(name) for name in request.device_ids)
        asks = {"gpu", "nvidia", "compute"} & set(request.capabilities or ())
        if asks or request.driver == "nvidia" or is_cdi_gpu or not (request.capabilities or request.driver):
            yield request
    gpus = node.at("gpus")
    if gpus.is_scalar:
        yield GpuRequest(RequestForm.GPUS_KEY, gpus.file, gpus.line, (*_key(gpus, tree), "gpus"), count=gpus.text)
    for item in gpus.items:
        yield _request(item, RequestForm.GPUS_KEY, (*_key(item, tree), "gpus", _index(item, gpus)))
    devices = node.at("devices")
    for item in devices.items:
        if CDI_GPU.match(item.text):
            entry = (*_key(item, tree), "devices", _index(item, devices))
            yield GpuRequest(RequestForm.CDI, item.file, item.line, entry, driver="cdi", device_ids=(item.text,))
    runtime = node.at("runtime")
    if runtime.text == "nvidia":
        key = (*_key(runtime, tree), "runtime")
        yield GpuRequest(RequestForm.RUNTIME, runtime.file, runtime.line, key, driver="nvidia")


def _key(item: DocumentNode, tree: ServiceTree) -> tuple[str, str]:
    """The service in the file of `item`, which may go by another name there."""
    return ("services", tree.names.get(item.file, tree.name))


def _index(item: DocumentNode, among: DocumentNode) -> str:
    """The place of an item within its own file's list, as a repair of that file names it."""
    return str([other for other in among.items if other.file == item.file].index(item))


def _request(item: DocumentNode, form: RequestForm, key: tuple[str, ...]) -> GpuRequest:
    capabilities = item.at("capabilities")
    listed = tuple(one.text for one in capabilities.items) or ((capabilities.text,) if capabilities.is_scalar else ())
    return GpuRequest(
        form=form,
        path=item.file,
        line=item.line,
        key=key,
        driver=item.at("driver").text,
        count=item.at("count").text,
        device_ids=tuple(one.text for one in item.at("device_ids").items),
        capabilities=None if form is RequestForm.GPUS_KEY and not listed else listed,
    )


def read_compose_build_args(named: tuple[DocumentNode | str, ...], files: ProjectFiles) -> dict[str, str]:
    """Build arguments with plain values, for the Dockerfile's own reading; they never become facts."""
    nodes = [tree.node.at("build", "args") for tree in ComposeTree(files).resolve_services(named)]
    pairs = [(name, value) for node in nodes for name, value, _ in _pairs(node)]
    return {name: value for name, value in pairs if value is not None and "$" not in value}


def merge_compose_nodes(base: DocumentNode, over: DocumentNode) -> DocumentNode:
    """Merge `over` into `base` as Compose does: mappings join, lists append, scalars replace.

    Source: Compose specification, "Merge Compose files"; tags !reset and !override since Compose 2.24.
    """
    if over.tag == "!reset":
        return ABSENT
    if over.tag == "!override" or not base:
        return over
    if base.kind is NodeKind.LIST and over.kind is NodeKind.LIST:
        return replace(over, items=(*base.items, *over.items))
    if base.kind is NodeKind.OBJECT and over.kind is NodeKind.OBJECT:
        fields = dict(base.fields)
        for name, value in over.fields.items():
            fields[name] = (
                value
                if name in REPLACED_LISTS and not value.tag
                else merge_compose_nodes(fields.get(name, ABSENT), value)
            )
        return replace(over, fields=fields)
    return over if over.kind is not NodeKind.ABSENT else base
