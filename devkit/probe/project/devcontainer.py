"""devcontainer.json and the `docker run` options in its runArgs.

Source: containers.dev, "Dev Container metadata reference"
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from devkit.facts.project import (
    Build,
    Command,
    DevContainer,
    GpuRequest,
    HostRequirement,
    Install,
    Key,
    RequestForm,
    RunArgument,
    Setting,
    Variable,
)
from devkit.facts.secrets import redact_tokens
from devkit.formats.shell import ShellCommand
from devkit.probe.documents import DocumentNode, NodeKind
from devkit.probe.project import gpu_packages, shell
from devkit.probe.project.files import ProjectFiles
from devkit.probe.project.mounts_and_variables import (
    CDI_GPU,
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
_MOUNTS = ("-v", "--volume", "--mount")
_SWITCHES = {"--privileged": "privileged", "--init": "init"}

SCALAR_KEYS = (
    *("remoteUser", "containerUser", "updateRemoteUserUID", "privileged", "init", "overrideCommand"),
    "workspaceFolder",
)
NAMED_LIKE_COMPOSE = {"securityOpt": "security_opt", "capAdd": "cap_add"}
LIFECYCLE = (
    "initializeCommand",
    "onCreateCommand",
    "updateContentCommand",
    "postCreateCommand",
    "postStartCommand",
    "postAttachCommand",
)
_SHELL = re.compile(r"(?:ba|da|z)?sh|source|\.")
_WORKSPACE = re.compile(r"^\$\{?(?:containerWorkspaceFolder|PWD)\}?/")
LOCAL_FOLDER = "${localWorkspaceFolder}"


@dataclass(frozen=True)
class RunOption:
    """One option with its value, however it is spelled: `--name=value`, `--name`, `value`, or `--name value`."""

    name: str
    value: str
    line: int


def parse_dev_container(root: DocumentNode, files: ProjectFiles) -> DevContainer:
    """Return what a devcontainer.json says about images, GPUs, mounts, users and commands."""
    arguments, image, path = root.at("runArgs"), root.at("image"), root.file
    options = tuple(parse_run_options(arguments))
    texts = {stage: tuple(_shell_texts(root.at(stage))) for stage in LIFECYCLE}
    gpu_uses = {
        stage: [use for text in texts[stage] for use in shell.find_gpu_uses(shell.parse_shell_text(text))]
        for stage in LIFECYCLE
    }
    inside = tuple(
        each
        for stage in LIFECYCLE[1:]
        for text in texts[stage]
        for each in _read_commands(text, root.at(stage), files, is_in_root=not root.at("workspaceFolder"))
    )
    run_mounts = (parse_mount(one.value, files, path=path, line=one.line) for one in options if one.name in _MOUNTS)
    mounts = (*(parse_mount_node(node, files) for node in root.at("mounts").items), *run_mounts)
    for name, node in root.at("features").fields.items():
        folder = files.within(name, beside=path) if name.startswith("./") else None
        if folder is not None:
            files.expect(f"{folder}/devcontainer-feature.json", "feature", named_by=path, line=node.line)
    return DevContainer(
        path=path,
        image=Setting("image", redact_tokens(image.text), image.file, image.line) if image.is_scalar else None,
        build=_build(root, files),
        compose_files=tuple(
            found for node in find_compose_file_nodes(root) if (found := _path(node, files)) is not None
        ),
        service=root.at("service").text,
        run_args=parse_run_args(arguments),
        run_args_line=arguments.line if arguments else 0,
        host_requirements=tuple(_host_requirements(root.at("hostRequirements"), "")),
        requests=tuple(_gpu_requests(options, path)),
        mounts=tuple(mount for mount in mounts if mount is not None),
        variables=tuple(one for one in _variables(root, options) if is_relevant(one)),
        keys=tuple(Key(name, path, node.line) for name, node in root.fields.items()),
        settings=tuple(_settings(root, options)),
        commands=tuple(
            Command(stage, path, root.at(stage).line, not {"nvidia-smi", "torch.cuda"}.isdisjoint(gpu_uses[stage]))
            for stage in LIFECYCLE
            if root.at(stage)
        ),
        features=tuple(
            Setting(name, node.at("cudaVersion").text or node.at("version").text, path, node.line)
            for name, node in root.at("features").fields.items()
        ),
        installs=tuple(install for each in inside for install in each.find_installs()),
        programs=shell.find_programs(command for each in inside for command in each.commands),
        nvcc=shell.find_nvcc_packages(command for each in inside for command in each.commands),
        scripts=tuple(dict.fromkeys(each.path for each in inside if each.is_by_path)),
    )


@dataclass(frozen=True)
class CommandText:
    """The commands of a text: a lifecycle command with its line, or a script of the project that one runs, with line 0."""

    commands: tuple[ShellCommand, ...]
    text: str
    path: str
    line: int
    is_by_path: bool = False

    def find_installs(self) -> Iterator[Install]:
        """Yield what the commands install for GPUs."""
        yield from gpu_packages.find_installs(self.commands, path=self.path, line=self.line, text=self.text)


def _read_commands(
    text: str, node: DocumentNode, files: ProjectFiles, *, is_in_root: bool = False
) -> Iterator[CommandText]:
    """Yield a lifecycle command without the parts that run a script of the project, and these scripts.

    Of a command that starts in the project's folder (`is_in_root`), a script that is not there is remembered.
    """
    others: list[ShellCommand] = []
    scripts: list[CommandText] = []
    for command in shell.parse_shell_text(text):
        words = [word for word in command.values if not word.startswith("-")]
        is_run = bool(_SHELL.fullmatch(command.program))
        name = words[1] if is_run and len(words) > 1 else words[0] if words else ""
        path = files.within(_WORKSPACE.sub("", name)) if is_run or "/" in name else None
        # What comes first, no command before has made; and a word with a variable names none.
        is_first = is_in_root and command.values[1:2] == (name,)
        if path and is_run and is_first and not others and not scripts and re.fullmatch(r"[\w./-]+", name):
            files.expect(path, "script", named_by=node.file, line=node.line)
        script = files.read(path, "script") if path and files.has(path) else None
        if path and script is not None:
            scripts.append(CommandText(shell.parse_shell_text(script), script, path, 0, is_by_path=not is_run))
        else:
            others.append(command)
    yield CommandText(tuple(others), text, node.file, node.line)
    yield from scripts


def _variables(root: DocumentNode, options: tuple[RunOption, ...]) -> Iterator[Variable]:
    for place in ("containerEnv", "remoteEnv"):
        for name, node in root.at(place).fields.items():
            if node.kind is not NodeKind.NULL:
                yield build_variable(name, node.text, place=place, path=root.file, line=node.line)
    for option in options:
        if option.name in ("-e", "--env"):
            name, has_value, value = option.value.partition("=")
            text = value if has_value else None
            yield build_variable(name, text, place="runArgs", path=root.file, line=option.line)


def _gpu_requests(options: tuple[RunOption, ...], path: str) -> Iterator[GpuRequest]:
    """Requests for GPUs: --gpus, the nvidia runtime, CDI devices."""
    key = ("runArgs",)
    for option in options:
        if option.name == "--gpus":
            yield GpuRequest(RequestForm.GPUS_FLAG, path, option.line, key, count=option.value)
        elif option.name == "--runtime" and option.value == "nvidia":
            yield GpuRequest(RequestForm.RUNTIME, path, option.line, key, driver="nvidia")
        elif option.name == "--device" and CDI_GPU.match(option.value):
            yield GpuRequest(RequestForm.CDI, path, option.line, key, driver="cdi", device_ids=(option.value,))


def _settings(root: DocumentNode, options: tuple[RunOption, ...]) -> Iterator[Setting]:
    """Plain keys, and under Compose's names the options that Compose has as well."""
    for name in SCALAR_KEYS:
        node = root.at(name)
        if node.is_scalar:
            yield Setting(name, node.text, root.file, node.line)
    for name, compose_name in NAMED_LIKE_COMPOSE.items():
        for node in root.at(name).items:
            yield Setting(compose_name, node.text, root.file, node.line)
    for option in options:
        if option.name in _SETTINGS:
            yield Setting(_SETTINGS[option.name], redact_tokens(option.value), root.file, option.line)
        elif option.name in _SWITCHES:
            yield Setting(_SWITCHES[option.name], option.value or "true", root.file, option.line)


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
    return files.within(node.text.replace(LOCAL_FOLDER, files.folder), beside=node.file)


def _host_requirements(node: DocumentNode, above: str) -> Iterator[HostRequirement]:
    for name, value in node.fields.items():
        full = f"{above}{name}"
        yield HostRequirement(full, value.kind.value, value.text, value.file, value.line)
        yield from _host_requirements(value, f"{full}.")


def list_lifecycle_texts(root: DocumentNode) -> Iterator[str]:
    """Yield the shell texts of the lifecycle commands that run in the container."""
    for stage in LIFECYCLE[1:]:
        yield from _shell_texts(root.at(stage))


def _shell_texts(node: DocumentNode) -> Iterator[str]:
    """The shell texts of a lifecycle command: one, or several side by side; a list is one command's words."""
    if node.is_scalar:
        yield node.text
    elif node.items:
        yield " ".join(item.text for item in node.items)
    for value in node.fields.values():
        yield from _shell_texts(value)


def find_compose_file_nodes(root: DocumentNode) -> tuple[DocumentNode, ...]:
    """Return the values of dockerComposeFile."""
    node = root.at("dockerComposeFile")
    return node.items or ((node,) if node.is_scalar else ())


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
        if before in ("-e", "--env") or re.match(r"--env=|(?:-e|--env)\s", text):
            text = re.sub(r"^((?:--env=|(?:-e|--env)\s+)?\w+)=.*$", r"\1=…", text, flags=re.DOTALL)
        found.append(RunArgument(redact_tokens(text), node.line))
        before = node.text
    return tuple(found)
