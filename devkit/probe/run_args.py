"""What `runArgs` says to docker run, item by item as the engine's command line reads it."""

import re
from collections.abc import Iterator

from devkit.facts.project_parts import GpuRequest, Mount, RequestForm, RunArgument, Setting, Variable
from devkit.facts.record import record
from devkit.probe.documents import Node
from devkit.probe.mounts import CDI_GPU, mount_of
from devkit.probe.project_files import ProjectFiles
from devkit.probe.secret_names import shown, variable

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


@record
class Option:
    """One option with its value, however it is spelled: `--name=value`, `--name`, `value`, or `--name value`."""

    name: str
    value: str
    line: int


def options_of(arguments: Node) -> Iterator[Option]:
    """The options. One item that holds name and value with a space between counts, though no engine takes it."""
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
        yield Option(name, value, node.line)


def arguments_of(arguments: Node) -> tuple[RunArgument, ...]:
    """Every item as it stands, with values of environment variables blanked."""
    found = []
    before = ""
    for node in arguments.items:
        text = node.text
        if before in ("-e", "--env") or text.startswith("--env="):
            text = re.sub(r"^((?:--env=)?\w+)=.*$", r"\1=…", text, flags=re.DOTALL)
        found.append(RunArgument(shown(text), node.line))
        before = node.text
    return tuple(found)


def requests_of(arguments: Node) -> Iterator[GpuRequest]:
    """Requests for GPUs: --gpus, the nvidia runtime, CDI devices."""
    key = ("runArgs",)
    for option in options_of(arguments):
        file, line = arguments.file, option.line
        if option.name == "--gpus":
            yield GpuRequest(RequestForm.GPUS_FLAG, file, line, key, count=option.value)
        elif option.name == "--runtime" and option.value == "nvidia":
            yield GpuRequest(RequestForm.RUNTIME, file, line, key, driver="nvidia")
        elif option.name == "--device" and CDI_GPU.match(option.value):
            yield GpuRequest(RequestForm.CDI, file, line, key, driver="cdi", device_ids=(option.value,))


def settings_of(arguments: Node) -> Iterator[Setting]:
    """Options under the names that Compose gives them."""
    for option in options_of(arguments):
        if option.name in _SETTINGS:
            yield Setting(_SETTINGS[option.name], shown(option.value), arguments.file, option.line)
        elif option.name in _SWITCHES:
            yield Setting(_SWITCHES[option.name], option.value or "true", arguments.file, option.line)


def mounts_of(arguments: Node, files: ProjectFiles) -> Iterator[Mount]:
    """-v, --volume and --mount."""
    for option in options_of(arguments):
        if option.name in ("-v", "--volume", "--mount"):
            found = mount_of(option.value, files, path=arguments.file, line=option.line)
            if found is not None:
                yield found


def variables_of(arguments: Node) -> Iterator[Variable]:
    """-e and --env."""
    for option in options_of(arguments):
        if option.name in ("-e", "--env"):
            name, has_value, value = option.value.partition("=")
            text = value if has_value else None
            yield variable(name, text, place="runArgs", path=arguments.file, line=option.line)
