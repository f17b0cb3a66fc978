"""Containers and images, from what the engine child wrote down of them in the engine's own words."""

from collections.abc import Iterator
from typing import Any

from devkit.facts.model import LocalImage, RunningContainer, StoppedContainer
from devkit.facts.values import Unknown

SHORT_ID = 12
DEV_FOLDER = "devcontainer.local_folder"
COMPOSE_FOLDER = "com.docker.compose.project.working_dir"
COMPOSE_SERVICE = "com.docker.compose.service"

_CDI_GPU = "nvidia.com/"
_NODE = "/dev/nvidia"
_ENGINE_SOCKETS = ("docker.sock", "podman.sock")

Described = dict[str, Any]


def running_containers(said: Described) -> tuple[RunningContainer, ...] | Unknown:
    """Those that run, dev containers first."""
    described = _listed(said, "containers")
    if isinstance(described, Unknown):
        return described
    return tuple(_running(one) for one in described if _part(one, "State").get("Running") is True)


def stopped_containers(said: Described) -> tuple[StoppedContainer, ...] | Unknown:
    """Dev containers that do not run."""
    described = _listed(said, "containers")
    if isinstance(described, Unknown):
        return described
    return tuple(_stopped(one) for one in described if _part(one, "State").get("Running") is not True)


def local_images(said: Described) -> tuple[LocalImage, ...] | Unknown:
    """The images that were asked about."""
    described = _listed(said, "images")
    return described if isinstance(described, Unknown) else tuple(_image(one) for one in described)


def _listed(said: Described, what: str) -> list[Described] | Unknown:
    entries = said.get(what)
    if isinstance(entries, list):
        return [entry for entry in entries if isinstance(entry, dict)]
    reason = said.get("unlisted")
    return Unknown(f"the engine does not list its {what}: {reason or 'it gave no answer in time'}")


def _running(one: Described) -> RunningContainer:
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
        is_dev_container=DEV_FOLDER in labels,
        service=_text(labels, COMPOSE_SERVICE),
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


def _stopped(one: Described) -> StoppedContainer:
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


def _image(one: Described) -> LocalImage:
    tags = _items(one, "RepoTags")
    number = _image_id(_text(one, "Id"))
    return LocalImage(
        name=str(tags[0]) if tags else number,
        machine=_text(one, "Architecture"),
        require_cuda=_requirement(_variables(one)),
        id=number,
        is_dev_container=one.get("IsDevContainer") is True,
    )


def _gpu_request(host: Described, variables: dict[str, str]) -> str:
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


def _wants_gpu(request: Described) -> bool:
    wanted = {str(name) for group in _items(request, "Capabilities") if isinstance(group, list) for name in group}
    return _text(request, "Driver") == "nvidia" or bool(wanted & {"gpu", "nvidia"})


def _nodes(host: Described) -> Iterator[str]:
    for device in _items(host, "Devices"):
        path = _text(device, "PathOnHost") if isinstance(device, dict) else ""
        if path.startswith(_NODE):
            yield path


def _ulimits(host: Described) -> Iterator[str]:
    for limit in _items(host, "Ulimits"):
        if isinstance(limit, dict):
            name = str(limit.get("Name", "")).lower().removeprefix("rlimit_")
            yield f"{name}={limit.get('Soft')}:{limit.get('Hard')}"


def _folder(labels: Described) -> str:
    """Compose names the folder of its file, which for a dev container is the one inside of the project."""
    folder = _text(labels, DEV_FOLDER) or _text(labels, COMPOSE_FOLDER)
    return folder.rstrip("/\\").removesuffix("/.devcontainer").removesuffix("\\.devcontainer")


def _requirement(variables: dict[str, str]) -> str | None:
    """What the image asks of the driver; NVIDIA_DISABLE_REQUIRE takes it back."""
    if variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        return None
    return variables.get("NVIDIA_REQUIRE_CUDA") or None


def _variables(config: Described) -> dict[str, str]:
    return dict(str(entry).partition("=")[::2] for entry in _items(config, "Env"))


def _labels(one: Described) -> Described:
    return _part(_part(one, "Config"), "Labels")


def _image_id(text: str) -> str:
    return text.removeprefix("sha256:")[:SHORT_ID]


def _part(record: Described, key: str) -> Described:
    part = record.get(key)
    return part if isinstance(part, dict) else {}


def _items(record: Described, key: str) -> list[Any]:
    items = record.get(key)
    return items if isinstance(items, list) else []


def _text(record: Described, key: str) -> str:
    text = record.get(key)
    return text if isinstance(text, str) else ""


def _number(record: Described, key: str) -> int | Unknown:
    number = record.get(key)
    return number if isinstance(number, int) and not isinstance(number, bool) else Unknown(f"the engine says no {key}")
