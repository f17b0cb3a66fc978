"""Containers and images as the engine describes them, and the facts inside of the project's running dev container."""

from typing import Any

from devkit.facts.engine import Engine, EngineKind, LocalImage, RunningContainer, StoppedContainer
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.probe.documents import get_int, get_list, get_object, get_objects, get_text
from devkit.probe.host import TIMED_OUT, Host

SHORT_ID = 12
DEV_CONTAINER_LABEL = "devcontainer.local_folder"
COMPOSE_FOLDER_LABEL = "com.docker.compose.project.working_dir"
COMPOSE_SERVICE_LABEL = "com.docker.compose.service"
_CDI_GPU = "nvidia.com/"
_NODE = "/dev/nvidia"
JsonObject = dict[str, Any]

# The project's running dev container, read by the devkit that is installed in it.
DOCTOR_COMMAND = ("devkit", "doctor", "--save-facts", "/dev/stdout", "--output", "/dev/null")
"""Any release of devkit since the first answers this. Its exit status is the verdict, which is judged here instead."""
_CANNOT_EXECUTE = (126, 127)
"""Exit statuses of `docker exec` for a program that is not there or not executable; of a missing docker as well."""


def parse_running_containers(reply: JsonObject) -> tuple[RunningContainer, ...] | Unknown:
    """Parse the running containers, dev containers first."""
    described = _listed(reply, "containers")
    return described if isinstance(described, Unknown) else tuple(_running(one) for one in described if _runs(one))


def _listed(reply: JsonObject, what: str) -> list[JsonObject] | Unknown:
    if isinstance(reply.get(what), list):
        return get_objects(reply, what)
    return Unknown(f"the engine does not list its {what}: {reply.get('unlisted') or 'it did not answer in time'}")


def _running(one: JsonObject) -> RunningContainer:
    config, host = get_object(one, "Config"), get_object(one, "HostConfig")
    labels, variables, memory = get_object(config, "Labels"), _variables(config), _number(host, "Memory")
    devices = [get_text(device, "PathOnHost") for device in get_objects(host, "Devices")]
    return RunningContainer(
        id=_short_id(one, "Id"),
        name=get_text(one, "Name").lstrip("/"),
        image=get_text(config, "Image"),
        folder=_folder(labels),
        gpu_request=_gpu_request(host, variables),
        image_id=_short_id(one, "Image"),
        is_dev_container=DEV_CONTAINER_LABEL in labels,
        service=get_text(labels, COMPOSE_SERVICE_LABEL),
        runtime=get_text(host, "Runtime"),
        gpu_devices=tuple(path for path in devices if path.startswith(_NODE)),
        visible_devices=variables.get("NVIDIA_VISIBLE_DEVICES"),
        driver_capabilities=variables.get("NVIDIA_DRIVER_CAPABILITIES"),
        require_cuda=_requirement(variables),
        shm_bytes=_number(host, "ShmSize"),
        ipc_mode=get_text(host, "IpcMode"),
        user=get_text(config, "User"),
        is_privileged=host.get("Privileged") is True,
        security_options=tuple(str(option) for option in get_list(host, "SecurityOpt")),
        memory_bytes=memory if isinstance(memory, Unknown) else memory or None,
        health=get_text(get_object(one, "State"), "Health"),
    )


def _variables(config: JsonObject) -> dict[str, str]:
    return dict(str(entry).partition("=")[::2] for entry in get_list(config, "Env"))


def _number(described: JsonObject, key: str) -> int | Unknown:
    number = get_int(described, key)
    return Unknown(f"the engine does not report {key}") if number is None or number < 0 else number


def _short_id(one: JsonObject, key: str) -> str:
    return get_text(one, key).removeprefix("sha256:")[:SHORT_ID]


def _folder(labels: JsonObject) -> str:
    """Return the project's folder. Compose names the folder of its file, which may be .devcontainer inside of it."""
    folder = get_text(labels, DEV_CONTAINER_LABEL) or get_text(labels, COMPOSE_FOLDER_LABEL)
    return folder.rstrip("/\\").removesuffix("/.devcontainer").removesuffix("\\.devcontainer")


def _gpu_request(host: JsonObject, variables: dict[str, str]) -> str:
    """Return the form that wins: what the engine injects itself before what a hook or runtime adds."""
    requests = get_objects(host, "DeviceRequests")
    paths = [get_text(device, "PathOnHost") for device in get_objects(host, "Devices")]
    names = [str(name) for request in requests for name in get_list(request, "DeviceIDs")]
    if any(name.startswith(_CDI_GPU) for name in (*names, *paths)):
        return "cdi"
    for request in requests:
        groups = [group for group in get_list(request, "Capabilities") if isinstance(group, list)]
        capabilities = {str(name) for group in groups for name in group}
        if get_text(request, "Driver") == "nvidia" or capabilities & {"gpu", "nvidia"}:
            return "driver"
    visible = variables.get("NVIDIA_VISIBLE_DEVICES", "void")
    if "nvidia" in get_text(host, "Runtime") and visible not in ("", "void", "none"):
        return "runtime"
    return "devices" if any(path.startswith(_NODE) for path in paths) else ""


def _requirement(variables: dict[str, str]) -> str | None:
    """Return the image's requirement of the driver; NVIDIA_DISABLE_REQUIRE removes it."""
    is_disabled = variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true")
    return None if is_disabled else variables.get("NVIDIA_REQUIRE_CUDA") or None


def _runs(one: JsonObject) -> bool:
    state = get_object(one, "State")
    return state.get("Running") is True and get_text(state, "Status") != "restarting"


def parse_stopped_containers(reply: JsonObject) -> tuple[StoppedContainer, ...] | Unknown:
    """Parse the containers of projects that do not run."""
    described = _listed(reply, "containers")
    if isinstance(described, Unknown):
        return described
    return tuple(
        StoppedContainer(
            id=_short_id(one, "Id"),
            name=get_text(one, "Name").lstrip("/"),
            image=get_text(get_object(one, "Config"), "Image"),
            folder=_folder(get_object(one, "Config", "Labels")),
            gpu_request=_gpu_request(get_object(one, "HostConfig"), _variables(get_object(one, "Config"))),
            state=get_text(get_object(one, "State"), "Status"),
            exit_code=get_int(get_object(one, "State"), "ExitCode") or 0,
            out_of_memory=get_object(one, "State").get("OOMKilled") is True,
            error=get_text(get_object(one, "State"), "Error"),
            service=get_text(get_object(one, "Config", "Labels"), COMPOSE_SERVICE_LABEL),
        )
        for one in described
        if not _runs(one)
    )


def parse_local_images(reply: JsonObject) -> tuple[LocalImage, ...] | Unknown:
    """Parse the images that the child program inspected."""
    described = _listed(reply, "images")
    if isinstance(described, Unknown):
        return described
    return tuple(
        LocalImage(
            name=str((get_list(one, "RepoTags") or [_short_id(one, "Id")])[0]),
            machine=get_text(one, "Architecture"),
            require_cuda=_requirement(_variables(one)),
            id=_short_id(one, "Id"),
            is_dev_container=one.get("IsDevContainer") is True,
        )
        for one in described
    )


def read_facts_inside(host: Host, engine: object, *, project: str, deadline_s: float) -> Facts | Unknown | None:
    """Read the facts inside the running dev container of `project` with its own devkit; None when none runs or it is unknown.

    The container is found by the label that dev container tools and Compose put on it. Nothing is started.
    """
    if not isinstance(engine, Engine) or isinstance(engine.containers, Unknown):
        return None
    container = find_project_container(engine.containers, project)
    if container is None:
        return None
    from devkit.facts.model import InvalidFacts, parse_facts

    command = "podman" if engine.kind is EngineKind.PODMAN else "docker"
    done = host.run([command, "exec", container.id, *DOCTOR_COMMAND], deadline_s=deadline_s)
    try:
        return parse_facts(done.out)
    except InvalidFacts as error:
        problem = error.problem
    if done.code == TIMED_OUT:
        reason = f"devkit in the container did not answer within {deadline_s:.1f} s"
    elif done.code in _CANNOT_EXECUTE:
        reason = f"devkit is not installed in it, or the {command} command is missing here"
    else:
        last = done.err.strip().rpartition("\n")[2]
        reason = f"looking into it ended with status {done.code}: {last or problem}"
    return Unknown(f"the dev container {container.name} runs, but {reason}")


def find_project_container(containers: tuple[RunningContainer, ...], project: str) -> RunningContainer | None:
    """Find the container whose labels name `project`, or the nearest folder above it."""
    inside = f"{_normalize_folder(project)}/"
    above = [one for one in containers if one.folder and inside.startswith(f"{_normalize_folder(one.folder)}/")]
    return max(above, key=lambda one: len(_normalize_folder(one.folder)), default=None)


def _normalize_folder(folder: str) -> str:
    # Windows writes the label with backslashes, and a trailing separator says nothing.
    return folder.replace("\\", "/").rstrip("/")
