"""Reads the services of a Compose project. Source: Compose specification, "services" and "deploy"."""

from collections.abc import Iterator
from dataclasses import replace

from devkit.facts.project import Service
from devkit.facts.project_parts import Build, GpuRequest, Mount, RequestForm, Setting, Variable
from devkit.probe.compose_tree import ComposeTree, ServiceTree
from devkit.probe.documents import Kind, Node
from devkit.probe.mounts import CDI_GPU, mount_of_node
from devkit.probe.project_files import ProjectFiles
from devkit.probe.secret_names import matters, shown, variable

NAMES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
"""Where Compose looks by itself, the first that exists. Source: Compose specification, "The Compose file"."""
OVERRIDES = (
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
_LISTS = ("security_opt", "cap_add", "profiles")
_RESERVED = ("deploy", "resources", "reservations", "devices")


def default_files(files: ProjectFiles) -> tuple[str, ...]:
    """The Compose file of the project's folder and its override, as far as they exist."""
    found = [name for name in NAMES if files.has(name)][:1]
    overrides = [name for name in OVERRIDES if files.has(name)][:1] if found else []
    return (*found, *overrides)


def read_services(named: tuple[Node | str, ...], files: ProjectFiles) -> tuple[Service, ...]:
    """The services of these files, later ones over earlier ones, `extends` and `include` followed."""
    paths = tuple(
        path
        for name in named
        if (path := files.within(_text(name), beside=name.file if isinstance(name, Node) else "")) is not None
    )
    return tuple(_service(tree, paths, files) for tree in ComposeTree(files).services(named))


def _text(name: Node | str) -> str:
    return name.text if isinstance(name, Node) else name


def _service(tree: ServiceTree, paths: tuple[str, ...], files: ProjectFiles) -> Service:
    node = tree.node
    limits = node.at("deploy", "resources", "limits", "devices")
    return Service(
        name=tree.name,
        files=paths,
        path=node.file,
        line=node.line,
        image=_plain(node.at("image"), "image"),
        build=_build(node.at("build"), files),
        requests=tuple(_requests(tree)),
        mounts=tuple(_mounts(node.at("volumes"), files)),
        variables=tuple(one for one in _variables(node.at("environment")) if matters(one)),
        settings=tuple(_settings(node)),
        misplaced_devices=Setting("devices", "", limits.file, limits.line) if limits else None,
    )


def _plain(node: Node, name: str) -> Setting | None:
    return Setting(name, shown(node.text), node.file, node.line) if node.is_plain else None


def _build(node: Node, files: ProjectFiles) -> Build | None:
    if not node or node.at("dockerfile_inline"):
        return None
    context_node = node.at("context")
    context_text = context_node.text or (node.text if node.is_plain else ".")
    context = files.within(context_text, beside=context_node.file or node.file)
    name = node.at("dockerfile").text or "Dockerfile"
    path = files.within(f"{context}/{name}") if context is not None and not name.startswith("/") else None
    return Build(
        dockerfile=path or name,
        context=context if context is not None else context_text,
        target=node.at("target").text,
        args=tuple(replace(one, place="build argument") for one in _variables(node.at("args")) if matters(one)),
        path=node.file,
        line=node.line,
    )


def build_values_of(named: tuple[Node | str, ...], files: ProjectFiles) -> dict[str, str]:
    """Build arguments with plain values, for the Dockerfile's own reading; they never become facts."""
    nodes = [tree.node.at("build", "args") for tree in ComposeTree(files).services(named)]
    pairs = [(name, value) for node in nodes for name, value, _ in _pairs(node)]
    return {name: value for name, value in pairs if value is not None and "$" not in value}


def _pairs(node: Node) -> Iterator[tuple[str, str | None, Node]]:
    """Names and values of a mapping, or of a list of NAME=value; later ones of a list win."""
    for name, value in node.fields.items():
        yield name, value.text if value.kind is not Kind.NULL else None, value
    last = {item.text.partition("=")[0]: item for item in node.items if item.is_plain}
    for name, item in last.items():
        _, has_value, value_text = item.text.partition("=")
        yield name, value_text if has_value else None, item


def _variables(node: Node) -> Iterator[Variable]:
    for name, value, where in _pairs(node):
        yield variable(name, value, place="environment", path=where.file, line=where.line)


def _settings(node: Node) -> Iterator[Setting]:
    for name, called in _PLAIN.items():
        value = node.at(name)
        if value.is_plain:
            yield Setting(called, value.text, value.file, value.line)
    for name in _LISTS:
        for item in node.at(name).items:
            yield Setting(name, item.text, item.file, item.line)


def _mounts(node: Node, files: ProjectFiles) -> Iterator[Mount]:
    """Volumes, the later of two on one target."""
    found = [mount for item in node.items if (mount := mount_of_node(item, files)) is not None]
    yield from {mount.target: mount for mount in found}.values()


def _requests(tree: ServiceTree) -> Iterator[GpuRequest]:
    """Every request, those behind a variable with its text as their condition."""
    for node in (tree.node, *tree.others):
        for request in _requests_in(node, tree):
            is_other = node is not tree.node
            condition = tree.chosen.get(request.path, next(iter(tree.chosen.values()), "") if is_other else "")
            yield replace(request, condition=condition)


def _requests_in(node: Node, tree: ServiceTree) -> Iterator[GpuRequest]:
    reserved = node.at(*_RESERVED)
    for item in reserved.items:
        place = (*_key(item, tree), *_RESERVED, _index(item, reserved))
        request = _request(item, RequestForm.RESERVATION, place)
        if _is_for_gpus(request):
            yield request
    gpus = node.at("gpus")
    if gpus.is_plain:
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


def _key(item: Node, tree: ServiceTree) -> tuple[str, str]:
    """The service in the file of `item`, which may go by another name there."""
    return ("services", tree.names.get(item.file, tree.name))


def _index(item: Node, among: Node) -> str:
    """The place of an item within its own file's list, as a repair of that file names it."""
    return str([other for other in among.items if other.file == item.file].index(item))


def _request(item: Node, form: RequestForm, key: tuple[str, ...]) -> GpuRequest:
    capabilities = item.at("capabilities")
    listed = tuple(one.text for one in capabilities.items) or ((capabilities.text,) if capabilities.is_plain else ())
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


def _is_for_gpus(request: GpuRequest) -> bool:
    """Whether a reserved device is a GPU of NVIDIA: by capability, driver or name; one without a driver may be."""
    is_cdi_gpu = any(CDI_GPU.match(name) for name in request.device_ids)
    asks = {"gpu", "nvidia", "compute"} & set(request.capabilities or ())
    return bool(asks) or request.driver == "nvidia" or is_cdi_gpu or not (request.capabilities or request.driver)
