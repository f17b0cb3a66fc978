"""devcontainer.json and the `docker run` options in its runArgs.

Source: containers.dev, "Dev Container metadata reference"
"""

import re
from collections.abc import Iterator

from devkit.facts.project import (
    Build,
    Command,
    DevContainer,
    GpuRequest,
    HostRequirement,
    Install,
    Key,
    Mount,
    RequestForm,
    RunArgument,
    Setting,
    Variable,
)
from devkit.facts.values import record
from devkit.probe.documents import DocumentNode, NodeKind
from devkit.probe.project import gpu_packages, shell
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import (
    CDI_GPU,
    blank_secrets,
    build_variable,
    is_relevant,
    parse_mount,
    parse_mount_node,
)

# runArgs, item by item as the engine's command line reads them.
_SETTINGS = {
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--pid": "pid",
    "--user": "user",
    "-u": "user",
    "--network": "network",
    "--net": "network",
    "--userns": "userns",
    "--security-opt": "security_opt",
    "--cap-add": "cap_add",
}
_NAME_AND_VALUE = re.compile(r"^([^=\s]*)(=|\s+|)(.*)", re.DOTALL)
_SWITCHES = {"--privileged": "privileged", "--init": "init"}

SCALAR_KEYS = ("remoteUser", "containerUser", "updateRemoteUserUID", "privileged", "init", "overrideCommand")
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


@record
class RunOption:
    """One option with its value, however it is spelled: `--name=value`, `--name`, `value`, or `--name value`."""

    name: str
    value: str
    line: int


def parse_dev_container(root: DocumentNode, files: ProjectFiles) -> DevContainer:
    """Return what a devcontainer.json says about images, GPUs, mounts, users and commands."""
    arguments = root.at("runArgs")
    return DevContainer(
        path=root.file,
        image=_setting(root, "image"),
        build=_build(root, files),
        compose_files=tuple(
            found for node in _one_or_more(root.at("dockerComposeFile")) if (found := _path(node, files)) is not None
        ),
        service=root.at("service").text,
        run_args=parse_run_args(arguments),
        run_args_line=arguments.line if arguments else 0,
        host_requirements=tuple(_host_requirements(root.at("hostRequirements"), "")),
        requests=tuple(find_run_gpu_requests(arguments)),
        mounts=(*_mounts(root, files), *find_run_mounts(arguments, files)),
        variables=tuple(one for one in (*_variables(root), *find_run_variables(arguments)) if is_relevant(one)),
        keys=tuple(Key(name, root.file, node.line) for name, node in root.fields.items()),
        settings=(*_settings(root), *find_run_settings(arguments)),
        commands=tuple(_commands(root)),
        features=tuple(
            Setting(name, node.at("cudaVersion").text or node.at("version").text, root.file, node.line)
            for name, node in root.at("features").fields.items()
        ),
        installs=tuple(_installs(root)),
        build_args_not_text=tuple(
            Key(name, root.file, node.line)
            for name, node in root.at("build", "args").fields.items()
            if node.kind is not NodeKind.TEXT
        ),
    )


def _setting(root: DocumentNode, name: str) -> Setting | None:
    node = root.at(name)
    return Setting(name, blank_secrets(node.text), node.file, node.line) if node.is_scalar else None


def _build(root: DocumentNode, files: ProjectFiles) -> Build | None:
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
            if is_relevant(
                found := build_variable(key, node.text, place="build argument", path=root.file, line=node.line)
            )
        ),
        path=root.file,
        line=name.line,
    )


def _path(node: DocumentNode, files: ProjectFiles) -> str | None:
    return files.within(node.text.replace(_LOCAL_FOLDER, files.folder), beside=node.file)


def _one_or_more(node: DocumentNode) -> tuple[DocumentNode, ...]:
    return node.items or ((node,) if node.is_scalar else ())


def _host_requirements(node: DocumentNode, above: str) -> Iterator[HostRequirement]:
    for name, value in node.fields.items():
        full = f"{above}{name}"
        yield HostRequirement(full, value.kind.value, value.text, value.file, value.line)
        yield from _host_requirements(value, f"{full}.")


def _mounts(root: DocumentNode, files: ProjectFiles) -> Iterator[Mount]:
    for node in root.at("mounts").items:
        found = parse_mount_node(node, files)
        if found is not None:
            yield found


def _variables(root: DocumentNode) -> Iterator[Variable]:
    for place in ("containerEnv", "remoteEnv"):
        for name, node in root.at(place).fields.items():
            if node.kind is not NodeKind.NULL:
                yield build_variable(name, node.text, place=place, path=root.file, line=node.line)


def _settings(root: DocumentNode) -> Iterator[Setting]:
    for name in SCALAR_KEYS:
        node = root.at(name)
        if node.is_scalar:
            yield Setting(name, node.text, root.file, node.line)
    for name, compose_name in NAMED_LIKE_COMPOSE.items():
        for node in root.at(name).items:
            yield Setting(compose_name, node.text, root.file, node.line)


def _commands(root: DocumentNode) -> Iterator[Command]:
    for stage in LIFECYCLE:
        node = root.at(stage)
        if node:
            uses = [use for text in _texts(node) for use in shell.find_gpu_uses(shell.parse_shell_text(text))]
            yield Command(stage, root.file, node.line, "nvidia-smi" in uses or "torch.cuda" in uses)


def _texts(node: DocumentNode) -> Iterator[str]:
    """The shell texts of a lifecycle command: one, or several side by side; a list is one command's words."""
    if node.is_scalar:
        yield node.text
    elif node.items:
        yield " ".join(item.text for item in node.items)
    for value in node.fields.values():
        yield from _texts(value)


def _installs(root: DocumentNode) -> Iterator[Install]:
    for stage in LIFECYCLE[1:]:
        node = root.at(stage)
        for text in _texts(node):
            commands = shell.parse_shell_text(text)
            yield from gpu_packages.find_installs(commands, path=root.file, line=node.line, text=text)


def find_compose_file_nodes(root: DocumentNode) -> tuple[DocumentNode, ...]:
    """Return the values of dockerComposeFile."""
    return _one_or_more(root.at("dockerComposeFile"))


def read_dev_container_build_args(root: DocumentNode) -> dict[str, str]:
    """Build arguments with their values, for the Dockerfile's own reading; they never become facts."""
    return {key: node.text for key, node in root.at("build", "args").fields.items() if node.is_scalar}


def parse_run_options(arguments: DocumentNode) -> Iterator[RunOption]:
    """Yield the options. An item with name and value separated by a space counts, though no engine accepts it."""
    items = arguments.items
    place = 0
    while place < len(items):
        node = items[place]
        name, mark, value = _NAME_AND_VALUE.findall(node.text)[0]
        place += 1
        if not name.startswith("-"):
            continue
        takes_next = not mark and name not in _SWITCHES and place < len(items)
        if takes_next and not items[place].text.startswith("-"):
            value = items[place].text
            place += 1
        yield RunOption(name, value, node.line)


def parse_run_args(arguments: DocumentNode) -> tuple[RunArgument, ...]:
    """Return every item as written, with values of environment variables blanked."""
    found = []
    before = ""
    for node in arguments.items:
        text = node.text
        if before in ("-e", "--env") or text.startswith("--env="):
            text = re.sub(r"^((?:--env=)?\w+)=.*$", r"\1=…", text, flags=re.DOTALL)
        found.append(RunArgument(blank_secrets(text), node.line))
        before = node.text
    return tuple(found)


def find_run_gpu_requests(arguments: DocumentNode) -> Iterator[GpuRequest]:
    """Yield requests for GPUs: --gpus, the nvidia runtime, CDI devices."""
    key = ("runArgs",)
    for option in parse_run_options(arguments):
        file, line = arguments.file, option.line
        if option.name == "--gpus":
            yield GpuRequest(RequestForm.GPUS_FLAG, file, line, key, count=option.value)
        elif option.name == "--runtime" and option.value == "nvidia":
            yield GpuRequest(RequestForm.RUNTIME, file, line, key, driver="nvidia")
        elif option.name == "--device" and CDI_GPU.match(option.value):
            yield GpuRequest(RequestForm.CDI, file, line, key, driver="cdi", device_ids=(option.value,))


def find_run_settings(arguments: DocumentNode) -> Iterator[Setting]:
    """Yield options under the names that Compose gives them."""
    for option in parse_run_options(arguments):
        if option.name in _SETTINGS:
            yield Setting(_SETTINGS[option.name], blank_secrets(option.value), arguments.file, option.line)
        elif option.name in _SWITCHES:
            yield Setting(_SWITCHES[option.name], option.value or "true", arguments.file, option.line)


def find_run_mounts(arguments: DocumentNode, files: ProjectFiles) -> Iterator[Mount]:
    """Yield the mounts of -v, --volume and --mount."""
    for option in parse_run_options(arguments):
        if option.name in ("-v", "--volume", "--mount"):
            found = parse_mount(option.value, files, path=arguments.file, line=option.line)
            if found is not None:
                yield found


def find_run_variables(arguments: DocumentNode) -> Iterator[Variable]:
    """Yield the variables of -e and --env."""
    for option in parse_run_options(arguments):
        if option.name in ("-e", "--env"):
            name, has_value, value = option.value.partition("=")
            text = value if has_value else None
            yield build_variable(name, text, place="runArgs", path=arguments.file, line=option.line)
