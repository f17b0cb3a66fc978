"""Containers and local images, as their engine describes them."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Unknown


@record
class RunningContainer:
    """One running container: what it asked for at its start. `id` is the first twelve digits."""

    id: str
    name: str
    image: str
    folder: str
    """The project's folder on the host by the labels of dev container tools or Compose, "" where there are none."""
    gpu_request: str
    """How a GPU was asked for: "driver", "runtime", "cdi", "devices" or "" for not at all."""
    image_id: str | Unknown = NOT_READ
    is_dev_container: bool | Unknown = NOT_READ
    """Whether a dev container tool labelled it; one that Compose alone started is not."""
    service: str | Unknown = NOT_READ
    """Its service in the Compose file, "" for none."""
    runtime: str | Unknown = NOT_READ
    gpu_devices: tuple[str, ...] | Unknown = NOT_READ
    """NVIDIA device nodes that the engine itself was told of: /dev/nvidia0, /dev/nvidiactl …"""
    visible_devices: str | Unknown | None = NOT_READ
    """NVIDIA_VISIBLE_DEVICES of its environment, None when unset."""
    driver_capabilities: str | Unknown | None = NOT_READ
    require_cuda: str | Unknown | None = NOT_READ
    shm_bytes: int | Unknown = NOT_READ
    ipc_mode: str | Unknown = NOT_READ
    network_mode: str | Unknown = NOT_READ
    user: str | Unknown = NOT_READ
    """As configured: "vscode", "1000:1000", "" for the image's own."""
    is_privileged: bool | Unknown = NOT_READ
    security_options: tuple[str, ...] | Unknown = NOT_READ
    ulimits: tuple[str, ...] | Unknown = NOT_READ
    """As name=soft:hard, -1 for unlimited."""
    memory_bytes: int | Unknown | None = NOT_READ
    """The limit of its memory, None for no limit."""
    has_engine_socket: bool | Unknown = NOT_READ
    """Whether the engine's own socket is mounted into it."""
    health: str | Unknown = NOT_READ
    """"healthy", "unhealthy", "starting", "" without a health check."""


@record
class StoppedContainer:
    """A dev container that does not run: how it ended. `error` is the engine's reason when it could not start."""

    id: str
    name: str
    image: str
    folder: str
    gpu_request: str
    state: str
    """"exited", "created" for one that never started, "dead" …"""
    exit_code: int
    out_of_memory: bool
    error: str


@record
class LocalImage:
    """An image that the engine already has."""

    name: str
    machine: str
    """As the engine names it: "amd64", "arm64"."""
    require_cuda: str | Unknown | None = NOT_READ
    """NVIDIA_REQUIRE_CUDA of its environment; None when it asks for nothing."""
    id: str | Unknown = NOT_READ
    is_dev_container: bool | Unknown = NOT_READ
    """Whether a dev container tool built it."""
