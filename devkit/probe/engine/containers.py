"""Containers and images, from what the engine child wrote down of them in the engine's own words."""

from collections.abc import Iterator
from typing import Any

from devkit.facts.model import Engine, EngineKind, Facts, LocalImage, RunningContainer, StoppedContainer
from devkit.facts.values import Unknown
from devkit.probe.host import TIMED_OUT, Host, ProgramResult

SHORT_ID = 12
DEV_CONTAINER_LABEL = "devcontainer.local_folder"
COMPOSE_FOLDER_LABEL = "com.docker.compose.project.working_dir"
COMPOSE_SERVICE_LABEL = "com.docker.compose.service"

_CDI_GPU = "nvidia.com/"
_NODE = "/dev/nvidia"
_ENGINE_SOCKETS = ("docker.sock", "podman.sock")

JsonObject = dict[str, Any]


def parse_running_containers(said: JsonObject) -> tuple[RunningContainer, ...] | Unknown:
    """Parse the running containers, dev containers first."""
    described = _listed(said, "containers")
    if isinstance(described, Unknown):
        return described
    return tuple(_running(one) for one in described if _part(one, "State").get("Running") is True)


def parse_stopped_containers(said: JsonObject) -> tuple[StoppedContainer, ...] | Unknown:
    """Parse the dev containers that do not run."""
    described = _listed(said, "containers")
    if isinstance(described, Unknown):
        return described
    return tuple(_stopped(one) for one in described if _part(one, "State").get("Running") is not True)


def parse_local_images(said: JsonObject) -> tuple[LocalImage, ...] | Unknown:
    """Parse the images that the child program inspected."""
    described = _listed(said, "images")
    return described if isinstance(described, Unknown) else tuple(_image(one) for one in described)


def _listed(said: JsonObject, what: str) -> list[JsonObject] | Unknown:
    entries = said.get(what)
    if isinstance(entries, list):
        return [entry for entry in entries if isinstance(entry, dict)]
    reason = said.get("unlisted")
    return Unknown(f"the engine does not list its {what}: {reason or 'it gave no answer in time'}")


def _running(one: JsonObject) -> RunningContainer:
    config, host, labels = _part(one, "Config"), _part(one, "HostConfig"), _labels(one)
    variables = _variables(config)
    memory = _number(host, "Memory")
    return RunningContainer(
        id=_text(one, "Id")[:SHORT_ID],
        name=_text(one, "Name").lstrip("/"),
        image=_text(config, "Image"),
        folder=_folder(labels),
        gpu_request=_gpu_request(host, variables),
        image_id=_image_id(_text(one, "Image")),
        is_dev_container=DEV_CONTAINER_LABEL in labels,
        service=_text(labels, COMPOSE_SERVICE_LABEL),
        runtime=_text(host, "Runtime"),
        gpu_devices=tuple(_nodes(host)),
        visible_devices=variables.get("NVIDIA_VISIBLE_DEVICES"),
        driver_capabilities=variables.get("NVIDIA_DRIVER_CAPABILITIES"),
        require_cuda=_requirement(variables),
        shm_bytes=_number(host, "ShmSize"),
        ipc_mode=_text(host, "IpcMode"),
        network_mode=_text(host, "NetworkMode"),
        user=_text(config, "User"),
        is_privileged=host.get("Privileged") is True,
        security_options=tuple(str(option) for option in _items(host, "SecurityOpt")),
        ulimits=tuple(_ulimits(host)),
        memory_bytes=memory if isinstance(memory, Unknown) else memory or None,
        has_engine_socket=any(str(path).endswith(_ENGINE_SOCKETS) for path in _items(one, "Sockets")),
        health=_text(_part(one, "State"), "Health"),
    )


def _stopped(one: JsonObject) -> StoppedContainer:
    config, host, state = _part(one, "Config"), _part(one, "HostConfig"), _part(one, "State")
    code = _number(state, "ExitCode")
    return StoppedContainer(
        id=_text(one, "Id")[:SHORT_ID],
        name=_text(one, "Name").lstrip("/"),
        image=_text(config, "Image"),
        folder=_folder(_labels(one)),
        gpu_request=_gpu_request(host, _variables(config)),
        state=_text(state, "Status"),
        exit_code=0 if isinstance(code, Unknown) else code,
        out_of_memory=state.get("OOMKilled") is True,
        error=_text(state, "Error"),
    )


def _image(one: JsonObject) -> LocalImage:
    tags = _items(one, "RepoTags")
    number = _image_id(_text(one, "Id"))
    return LocalImage(
        name=str(tags[0]) if tags else number,
        machine=_text(one, "Architecture"),
        require_cuda=_requirement(_variables(one)),
        id=number,
        is_dev_container=one.get("IsDevContainer") is True,
    )


def _gpu_request(host: JsonObject, variables: dict[str, str]) -> str:
    """The way that wins: what the engine injects itself before what a hook or runtime adds behind its back."""
    requests = [request for request in _items(host, "DeviceRequests") if isinstance(request, dict)]
    paths = [_text(device, "PathOnHost") for device in _items(host, "Devices") if isinstance(device, dict)]
    names = [str(name) for request in requests for name in _items(request, "DeviceIDs")]
    if any(name.startswith(_CDI_GPU) for name in (*names, *paths)):
        return "cdi"
    if any(_wants_gpu(request) for request in requests):
        return "driver"
    if "nvidia" in _text(host, "Runtime") and variables.get("NVIDIA_VISIBLE_DEVICES", "void") not in (
        "",
        "void",
        "none",
    ):
        return "runtime"
    return "devices" if any(path.startswith(_NODE) for path in paths) else ""


def _wants_gpu(request: JsonObject) -> bool:
    wanted = {str(name) for group in _items(request, "Capabilities") if isinstance(group, list) for name in group}
    return _text(request, "Driver") == "nvidia" or bool(wanted & {"gpu", "nvidia"})


def _nodes(host: JsonObject) -> Iterator[str]:
    for device in _items(host, "Devices"):
        path = _text(device, "PathOnHost") if isinstance(device, dict) else ""
        if path.startswith(_NODE):
            yield path


def _ulimits(host: JsonObject) -> Iterator[str]:
    for limit in _items(host, "Ulimits"):
        if isinstance(limit, dict):
            name = str(limit.get("Name", "")).lower().removeprefix("rlimit_")
            yield f"{name}={limit.get('Soft')}:{limit.get('Hard')}"


def _folder(labels: JsonObject) -> str:
    """Compose names the folder of its file, which for a dev container is the one inside of the project."""
    folder = _text(labels, DEV_CONTAINER_LABEL) or _text(labels, COMPOSE_FOLDER_LABEL)
    return folder.rstrip("/\\").removesuffix("/.devcontainer").removesuffix("\\.devcontainer")


def _requirement(variables: dict[str, str]) -> str | None:
    """Return the image's requirement of the driver; NVIDIA_DISABLE_REQUIRE removes it."""
    if variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        return None
    return variables.get("NVIDIA_REQUIRE_CUDA") or None


def _variables(config: JsonObject) -> dict[str, str]:
    return dict(str(entry).partition("=")[::2] for entry in _items(config, "Env"))


def _labels(one: JsonObject) -> JsonObject:
    return _part(_part(one, "Config"), "Labels")


def _image_id(text: str) -> str:
    return text.removeprefix("sha256:")[:SHORT_ID]


def _part(record: JsonObject, key: str) -> JsonObject:
    part = record.get(key)
    return part if isinstance(part, dict) else {}


def _items(record: JsonObject, key: str) -> list[Any]:
    items = record.get(key)
    return items if isinstance(items, list) else []


def _text(record: JsonObject, key: str) -> str:
    text = record.get(key)
    return text if isinstance(text, str) else ""


def _number(record: JsonObject, key: str) -> int | Unknown:
    number = record.get(key)
    return number if isinstance(number, int) and not isinstance(number, bool) else Unknown(f"the engine says no {key}")


# The project's running dev container, read by the devkit that is installed in it.

DOCTOR_COMMAND = ("devkit", "doctor", "--save-facts", "/dev/stdout", "--output", "/dev/null")
"""Any release of devkit since the first answers this. Its exit status is the verdict, which is judged here instead."""

_CANNOT_EXECUTE = (126, 127)
"""Exit statuses of `docker exec` for a program that is not there or not executable; of a missing docker as well."""


def read_facts_inside(host: Host, engine: object, *, project: str, deadline_s: float) -> Facts | Unknown | None:
    """Read the facts inside the running dev container of `project` with its own devkit; None when none runs or it is unknown.

    The container is found by the label that dev container tools and Compose put on it. Nothing is started.
    """
    if not isinstance(engine, Engine) or isinstance(engine.containers, Unknown):
        return None
    container = find_project_container(engine.containers, project)
    if container is None:
        return None
    from devkit.facts.store import InvalidFacts, parse_facts

    command = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    done = host.run([command, "exec", container.id, *DOCTOR_COMMAND], deadline_s=deadline_s)
    try:
        return parse_facts(done.out)
    except InvalidFacts as wrong:
        return Unknown(
            f"the dev container {container.name} runs, but {_exec_problem(done, command, deadline_s, wrong.problem)}"
        )


def find_project_container(containers: tuple[RunningContainer, ...], project: str) -> RunningContainer | None:
    """Find the container whose labels name `project`, or the nearest folder above it."""
    inside = f"{_normalize_folder(project)}/"
    above = [one for one in containers if one.folder and inside.startswith(f"{_normalize_folder(one.folder)}/")]
    return max(above, key=lambda one: len(_normalize_folder(one.folder)), default=None)


def _normalize_folder(folder: str) -> str:
    """Windows writes the label with backslashes, and a trailing separator says nothing."""
    return folder.replace("\\", "/").rstrip("/")


def _exec_problem(done: ProgramResult, command: str, deadline_s: float, wrong: str) -> str:
    if done.code == TIMED_OUT:
        return f"devkit inside of it did not answer within {deadline_s:.1f} s"
    if done.code in _CANNOT_EXECUTE:
        return f"devkit is not installed in it, or the {command} command is missing here"
    said = done.err.strip().rpartition("\n")[2]
    return f"looking into it ended with status {done.code}: {said or wrong}"
