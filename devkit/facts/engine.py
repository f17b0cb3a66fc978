"""The container engine: its clients, containers and images, and what gives it GPUs, the Container Toolkit and CDI."""

from dataclasses import dataclass
from enum import StrEnum

from devkit.facts.runs import ProgramFailure
from devkit.facts.values import NOT_READ, Release, Unknown


@dataclass(frozen=True)
class Client:
    """One command on PATH: docker, podman, docker-compose, nerdctl, devcontainer."""

    name: str
    path: str
    version: Release | Unknown
    is_podman: bool | Unknown = NOT_READ
    """Whether a command of another name hands over to Podman, as the package podman-docker makes it."""
    failure: ProgramFailure | Unknown | None = NOT_READ
    """Why it does not reach an engine by this shell's variables; None where it does."""


@dataclass(frozen=True)
class CredentialHelper:
    """A program that the docker command asks for registry logins: "desktop.exe" for docker-credential-desktop.exe."""

    name: str
    path: str
    """"" when it is not on PATH."""
    registry: str
    """The registry that it serves, "" for all."""


@dataclass(frozen=True)
class DockerSettings:
    """The docker command's own config.json, without its logins."""

    path: str
    error: str
    """"" when the file parses or does not exist; otherwise where and why it does not."""
    credential_helpers: tuple[CredentialHelper, ...]
    gives_proxy: bool
    """Whether containers and builds get proxy variables from it."""
    proxies: tuple[str, ...] | Unknown = NOT_READ
    """The addresses in these variables, without logins."""


@dataclass(frozen=True)
class Clients:
    """Every command for containers that this side has.."""

    found: tuple[Client, ...]
    engine_programs: tuple[str, ...] | Unknown = NOT_READ
    """Paths of the Docker daemons installed on this side: /usr/bin/dockerd, /snap/bin/docker."""
    settings: DockerSettings | Unknown = NOT_READ

    def named(self, name: str) -> Client | None:
        """Return the command of this name, None when PATH has none."""
        return next((client for client in self.found if client.name == name), None)


# Containers and local images, as their engine describes them.


@dataclass(frozen=True)
class RunningContainer:
    """One running container, as it was started. `id` is the first twelve digits."""

    id: str
    name: str
    image: str
    folder: str
    """The project's folder on the host by the labels of dev container tools or Compose, "" where there are none."""
    gpu_request: str
    """The form of its GPU request: "driver", "runtime", "cdi", "devices" or "" for not at all."""
    image_id: str | Unknown = NOT_READ
    is_dev_container: bool | Unknown = NOT_READ
    """Whether a dev container tool labeled it; one that Compose alone started is not."""
    service: str | Unknown = NOT_READ
    """Its service in the Compose file, "" for none."""
    runtime: str | Unknown = NOT_READ
    gpu_devices: tuple[str, ...] | Unknown = NOT_READ
    """NVIDIA device nodes that the engine itself passes in: /dev/nvidia0, /dev/nvidiactl …"""
    visible_devices: str | Unknown | None = NOT_READ
    """NVIDIA_VISIBLE_DEVICES of its environment, None when unset."""
    driver_capabilities: str | Unknown | None = NOT_READ
    require_cuda: str | Unknown | None = NOT_READ
    shm_bytes: int | Unknown = NOT_READ
    ipc_mode: str | Unknown = NOT_READ
    user: str | Unknown = NOT_READ
    """As configured: "vscode", "1000:1000", "" for the image's own."""
    is_privileged: bool | Unknown = NOT_READ
    security_options: tuple[str, ...] | Unknown = NOT_READ
    memory_bytes: int | Unknown | None = NOT_READ
    """The limit of its memory, None for no limit."""
    health: str | Unknown = NOT_READ
    """"healthy", "unhealthy", "starting", "" without a health check."""


@dataclass(frozen=True)
class StoppedContainer:
    """A project's container that does not run: how it ended. `error` is the engine's reason when it could not start."""

    id: str
    name: str
    image: str
    folder: str
    gpu_request: str
    state: str
    """"exited", "created" for one that never started, "restarting" for one that ends again and again, "dead" …"""
    exit_code: int
    out_of_memory: bool
    error: str
    service: str | Unknown = NOT_READ
    """The Compose service, "" for none."""


@dataclass(frozen=True)
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


class EngineKind(StrEnum):
    """The daemon that answers on the Docker socket."""

    DOCKER = "docker"
    DOCKER_DESKTOP = "docker-desktop"
    PODMAN = "podman"


@dataclass(frozen=True)
class Runtime:
    """An OCI runtime that the engine knows: its name and the program behind it."""

    name: str
    path: str
    program: str | Unknown = NOT_READ
    """Where the daemon finds that program, "" for nowhere."""


@dataclass(frozen=True)
class Endpoint:
    """The engine's address, and what chose it: "DOCKER_HOST", "context desktop-linux", "default"."""

    url: str
    chosen_by: str


@dataclass(frozen=True)
class Engine:
    """A container engine that answered on its API."""

    endpoint: Endpoint
    kind: EngineKind
    version: Release | Unknown
    api_version: str
    operating_system: str
    machine: str
    runtimes: tuple[Runtime, ...]
    default_runtime: str
    cdi_spec_dirs: tuple[str, ...]
    cdi_devices: tuple[str, ...] | Unknown
    """CDI devices that the engine itself lists; Unknown where its API does not say (before Docker 28)."""
    is_rootless: bool
    has_selinux: bool
    cgroup_driver: str
    cgroup_version: str
    root_dir: str
    is_snap: bool
    hook_on_path: bool | Unknown
    """Whether nvidia-container-runtime-hook is where this daemon looks for programs."""
    containers: tuple[RunningContainer, ...] | Unknown = NOT_READ
    stopped: tuple[StoppedContainer, ...] | Unknown = NOT_READ
    """The newest dev containers that do not run."""
    images: tuple[LocalImage, ...] | Unknown = NOT_READ
    """Of the local images, those that the listed containers use, and the newest of dev containers."""
    runc: Release | Unknown = NOT_READ
    min_api_version: str | Unknown = NOT_READ
    """The oldest API version that it still speaks, "" when it does not say."""
    proxy: str | Unknown = NOT_READ
    """Where it sends its requests for images, without a login; "" for straight to the registry."""
    clock_ahead_s: int | Unknown = NOT_READ
    """How far its clock runs before this one; far from zero in a virtual machine that slept."""


class EngineEnd(StrEnum):
    """The reason for no answer from a container engine."""

    NOT_INSTALLED = "not-installed"
    NOT_RUNNING = "not-running"
    CANNOT_START = "cannot-start"
    PERMISSION_DENIED = "permission-denied"
    TIMED_OUT = "timed-out"
    BAD_ENDPOINT = "bad-endpoint"
    ERROR = "error"


@dataclass(frozen=True)
class EngineFailure:
    """No engine answered at `endpoint`."""

    end: EngineEnd
    endpoint: Endpoint
    message: str
    listens_on: tuple[str, ...] = ()
    """The addresses of a Docker daemon that still runs here, by its flags and settings."""
    pod_runtime: str = ""
    """What runs containers here without Docker's API: "containerd of k3s", "" for nothing."""
    said: tuple[ProgramFailure, ...] | Unknown = NOT_READ
    """The engine's programs that failed, the first cause first."""
    socket_group: int | Unknown = NOT_READ
    """The group that owns the endpoint's socket; -1 where there is no socket here."""
    socket_kind: str | Unknown = NOT_READ
    """The kind of file at the endpoint's path if it is not a socket: "directory", "file"."""


@dataclass(frozen=True)
class Compose:
    """The Compose plugin on this side."""

    version: Release


@dataclass(frozen=True)
class ResolvedService:
    """A service of the project as Compose resolves it. Sizes in bytes, None where the service sets none.

    `gpu_count` is the number of GPUs that it asks for: -1 for all, 0 where it names devices, or asks for none.
    """

    name: str
    runtime: str
    device_ids: tuple[str, ...]
    gpu_count: int
    shm_bytes: int | None
    memory_bytes: int | None


DAEMON_FILE_IS_FOLDER = "it is a folder, which Docker creates for a bind mount with a missing source"
"""The error of a daemon.json that is none."""


@dataclass(frozen=True)
class DaemonFile:
    """An engine's daemon.json: whether the daemon starts with it, and whether it registers the nvidia runtime."""

    path: str
    error: str
    """Empty when nothing speaks against it; otherwise where it does not parse, or why the daemon refuses it."""
    registers_nvidia: bool | Unknown


@dataclass(frozen=True)
class PodRuntime:
    """The settings of a Kubernetes node's containerd or CRI-O, with the files that it imports."""

    name: str
    path: str
    error: str
    """Why the settings cannot be used, "" when they can."""
    is_off: bool
    """The plugin cri is switched off."""
    ignored_section: str
    """A section with the runtime nvidia that a file of this version does not have."""
    runtimes: tuple[Runtime, ...]
    default_runtime: str
    systemd_cgroup: bool | None
    """Of the runtime nvidia; None where runtimes have no such setting."""
    kubelet_cgroup_driver: str
    """By /var/lib/kubelet/config.yaml, "" where that does not say."""
    version: int | Unknown = NOT_READ
    """Of containerd's file: 1 where it names none."""
    ignored_file: str = ""
    """A file that nvidia-ctk wrote and no other one imports."""


@dataclass(frozen=True)
class Toolkit:
    """The NVIDIA Container Toolkit on this side."""

    version: Release | Unknown | None
    """None when nvidia-ctk is not installed."""
    runtime_path: str
    mode: str | Unknown
    """`mode` of the runtime in config.toml: "auto", "legacy", "cdi", "csv", "jit-cdi"."""
    no_cgroups: bool | Unknown
    driver_root: str | Unknown
    daemon_files: tuple[DaemonFile, ...]
    config_error: str | Unknown = NOT_READ
    """Why config.toml cannot be used, "" when it can or is absent."""
    ldconfig: str | Unknown = NOT_READ
    """`ldconfig` of config.toml without its @, "" when it names none."""
    ldconfig_exists: bool | Unknown = NOT_READ
    features: tuple[str, ...] | Unknown = NOT_READ
    """Feature flags that config.toml switches on."""
    cdi_refresh: str | Unknown = NOT_READ
    """The unit that renews CDI specifications: "enabled", "disabled", "masked", or "" where there is none."""
    char_links: bool | Unknown = NOT_READ
    """Whether /dev/char has a link to /dev/nvidiactl; Unknown without that node."""
    config_path: str = "/etc/nvidia-container-runtime/config.toml"
    """The settings file that the runtime and its hook read."""
    default_ldconfig: str | Unknown = NOT_READ
    """The ldconfig that the toolkit's own defaults would name on this machine, without the @."""
    cli_path: str | Unknown = NOT_READ
    """Where nvidia-container-cli is, which the hook calls; "" for nowhere."""
    cli_setting: str | Unknown = NOT_READ
    """nvidia-container-cli as config.toml names it, "" where it does not."""
    enroot_hook: str | Unknown | None = NOT_READ
    """Where Enroot's hook for GPUs is, "" where it has none; None without Enroot."""
    low_level_runtimes: tuple[str, ...] | Unknown = NOT_READ
    """The programs, by preference, of which the nvidia runtime starts the first that exists."""
    low_level_runtime: str | Unknown = NOT_READ
    """The one that exists, "" for none."""
    daemon_file: str | Unknown = NOT_READ
    """The settings file that the system's dockerd reads, by its command line."""
    pods: PodRuntime | Unknown | None = NOT_READ
    """What runs pods here; None if the machine is not a Kubernetes node."""
    accepts_variable: bool | Unknown = NOT_READ
    """Whether containers without privileges may name their GPUs by NVIDIA_VISIBLE_DEVICES, as `--gpus` does."""


UNREADABLE_SPEC = "this user cannot read it"
"""The error of a specification that the engine, as another user, may well read."""


@dataclass(frozen=True)
class CdiSpec:
    """One CDI specification file for nvidia.com/gpu or another kind."""

    path: str
    kind: str
    cdi_version: str
    devices: tuple[str, ...]
    driver: Release | None
    """The driver version in the library paths it mounts; None when no path carries one."""
    error: str
    """Empty when the file was read; otherwise why not."""
    without_nodes: tuple[str, ...] | Unknown = NOT_READ
    """Devices for which it adds no device node."""
    missing_paths: tuple[str, ...] | Unknown = NOT_READ
    """Host paths that it names and that do not exist here."""
