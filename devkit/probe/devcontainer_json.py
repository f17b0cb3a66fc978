"""Reads devcontainer.json. Source: containers.dev, "Dev Container metadata reference"."""

from collections.abc import Iterator

from devkit.facts.dockerfile import Install
from devkit.facts.project import DevContainer
from devkit.facts.project_parts import Build, Command, HostRequirement, Key, Mount, Setting, Variable
from devkit.probe import run_args, shell_lines
from devkit.probe.documents import Kind, Node
from devkit.probe.mounts import mount_of_node
from devkit.probe.project_files import ProjectFiles
from devkit.probe.secret_names import matters, shown, variable

PLAIN_KEYS = ("remoteUser", "containerUser", "updateRemoteUserUID", "privileged", "init", "overrideCommand")
NAMED_LIKE_COMPOSE = {"securityOpt": "security_opt", "capAdd": "cap_add"}
LIFECYCLE = (
    "initializeCommand",
    "onCreateCommand",
    "updateContentCommand",
    "postCreateCommand",
    "postStartCommand",
    "postAttachCommand",
)
_LOCAL_FOLDER = "${localWorkspaceFolder}"


def read_dev_container(root: Node, files: ProjectFiles) -> DevContainer:
    """What a parsed devcontainer.json says about images, GPUs, mounts, users and commands."""
    arguments = root.at("runArgs")
    return DevContainer(
        path=root.file,
        image=_setting(root, "image"),
        build=_build(root, files),
        compose_files=tuple(
            found for node in _one_or_more(root.at("dockerComposeFile")) if (found := _path(node, files)) is not None
        ),
        service=root.at("service").text,
        run_args=run_args.arguments_of(arguments),
        run_args_line=arguments.line if arguments else 0,
        host_requirements=tuple(_host_requirements(root.at("hostRequirements"), "")),
        requests=tuple(run_args.requests_of(arguments)),
        mounts=(*_mounts(root, files), *run_args.mounts_of(arguments, files)),
        variables=tuple(one for one in (*_variables(root), *run_args.variables_of(arguments)) if matters(one)),
        keys=tuple(Key(name, root.file, node.line) for name, node in root.fields.items()),
        settings=(*_settings(root), *run_args.settings_of(arguments)),
        commands=tuple(_commands(root)),
        features=tuple(
            Setting(name, node.at("cudaVersion").text or node.at("version").text, root.file, node.line)
            for name, node in root.at("features").fields.items()
        ),
        installs=tuple(_installs(root)),
        build_args_not_text=tuple(
            Key(name, root.file, node.line)
            for name, node in root.at("build", "args").fields.items()
            if node.kind is not Kind.TEXT
        ),
    )


def compose_names(root: Node) -> tuple[Node, ...]:
    """The values of dockerComposeFile."""
    return _one_or_more(root.at("dockerComposeFile"))


def _one_or_more(node: Node) -> tuple[Node, ...]:
    return node.items or ((node,) if node.is_plain else ())


def _path(node: Node, files: ProjectFiles) -> str | None:
    return files.within(node.text.replace(_LOCAL_FOLDER, files.folder), beside=node.file)


def _setting(root: Node, name: str) -> Setting | None:
    node = root.at(name)
    return Setting(name, shown(node.text), node.file, node.line) if node.is_plain else None


def _build(root: Node, files: ProjectFiles) -> Build | None:
    # The top level's own dockerFile and context are older than `build`, and still read.
    build = root.at("build")
    name = build.at("dockerfile") or root.at("dockerFile")
    if not name:
        return None
    context = build.at("context") or root.at("context")
    folder = root.file.rpartition("/")[0] or "."
    return Build(
        dockerfile=_path(name, files) or name.text,
        context=(_path(context, files) or context.text) if context else folder,
        target=build.at("target").text,
        args=tuple(
            found
            for key, node in build.at("args").fields.items()
            if matters(found := variable(key, node.text, place="build argument", path=root.file, line=node.line))
        ),
        path=root.file,
        line=name.line,
    )


def build_values(root: Node) -> dict[str, str]:
    """Build arguments with their values, for the Dockerfile's own reading; they never become facts."""
    return {key: node.text for key, node in root.at("build", "args").fields.items() if node.is_plain}


def _host_requirements(node: Node, above: str) -> Iterator[HostRequirement]:
    for name, value in node.fields.items():
        full = f"{above}{name}"
        yield HostRequirement(full, value.kind.value, value.text, value.file, value.line)
        yield from _host_requirements(value, f"{full}.")


def _mounts(root: Node, files: ProjectFiles) -> Iterator[Mount]:
    for node in root.at("mounts").items:
        found = mount_of_node(node, files)
        if found is not None:
            yield found


def _variables(root: Node) -> Iterator[Variable]:
    for place in ("containerEnv", "remoteEnv"):
        for name, node in root.at(place).fields.items():
            if node.kind is not Kind.NULL:
                yield variable(name, node.text, place=place, path=root.file, line=node.line)


def _settings(root: Node) -> Iterator[Setting]:
    for name in PLAIN_KEYS:
        node = root.at(name)
        if node.is_plain:
            yield Setting(name, node.text, root.file, node.line)
    for name, compose_name in NAMED_LIKE_COMPOSE.items():
        for node in root.at(name).items:
            yield Setting(compose_name, node.text, root.file, node.line)


def _texts(node: Node) -> Iterator[str]:
    """The shell texts of a lifecycle command: one, or several side by side; a list is one command's words."""
    if node.is_plain:
        yield node.text
    elif node.items:
        yield " ".join(item.text for item in node.items)
    for value in node.fields.values():
        yield from _texts(value)


def _commands(root: Node) -> Iterator[Command]:
    for stage in LIFECYCLE:
        node = root.at(stage)
        if node:
            uses = [use for text in _texts(node) for use in shell_lines.gpu_uses_of(shell_lines.commands_of(text))]
            yield Command(stage, root.file, node.line, "nvidia-smi" in uses or "torch.cuda" in uses)


def _installs(root: Node) -> Iterator[Install]:
    for stage in LIFECYCLE[1:]:
        node = root.at(stage)
        for text in _texts(node):
            commands = shell_lines.commands_of(text)
            yield from shell_lines.installs_of(commands, path=root.file, line=node.line, text=text)
