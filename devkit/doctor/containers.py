"""What running containers have in common for several checks: whose they are, and how their GPU reaches them."""

from devkit.compat.load import tables
from devkit.doctor.applies import NOTHING_VISIBLE, known
from devkit.facts.model import Engine, EngineKind, Facts, RunningContainer
from devkit.facts.project import Project
from devkit.facts.values import Release, Unknown

GPU_KIND = "nvidia.com/gpu"


def workspace_of(facts: Facts) -> str:
    """The folder of the project, "" where it is not known."""
    if isinstance(facts.storage, Unknown):
        return ""
    return next((one.path for one in facts.storage.directories if one.purpose == "workspace"), "")


def is_of_project(facts: Facts, folder: str) -> bool:
    """Whether `folder`, a container's label, is the project or a folder above it. Windows writes backslashes."""
    return bool(folder) and f"{_plain(workspace_of(facts))}/".startswith(f"{_plain(folder)}/")


def _plain(folder: str) -> str:
    return folder.replace("\\", "/").rstrip("/")


def dev_containers(facts: Facts, engine: Engine) -> tuple[RunningContainer, ...]:
    """The project's running dev containers; a service of its Compose file counts when no tool labelled another."""
    own = [one for one in known(engine.containers) if is_of_project(facts, one.folder)]
    labelled = tuple(one for one in own if one.is_dev_container is True)
    return labelled or (tuple(own) if len(own) == 1 else ())


def gpu_containers(engine: Engine) -> tuple[RunningContainer, ...]:
    """Running containers that asked for a GPU."""
    return tuple(one for one in known(engine.containers) if one.gpu_request)


def wants_gpu(facts: Facts, container: RunningContainer) -> bool:
    """Whether the container, its image or the project's files show that a GPU was meant."""
    if isinstance(container.visible_devices, str) and container.visible_devices.strip() not in NOTHING_VISIBLE:
        return True
    if isinstance(container.require_cuda, str):
        return True
    project = facts.project
    if not isinstance(project, Project):
        return False
    asks_by_tool = any(one.requests for one in project.dev_containers)
    return asks_by_tool or any(one.requests for one in project.services)


def asks_by_hook(facts: Facts, engine: Engine, container: RunningContainer) -> bool:
    """Whether the container's GPU was added behind the runtime's back, by the toolkit's legacy hook."""
    if container.gpu_request == "driver":
        return container.runtime != "nvidia" and not gives_gpus_by_cdi(engine)
    return container.gpu_request == "runtime" and is_legacy(facts)


def gives_gpus_by_cdi(engine: Engine) -> bool:
    """Whether this Docker answers `--gpus` by CDI: new enough, and it knows the devices."""
    if engine.kind is not EngineKind.DOCKER or isinstance(engine.version, Unknown):
        return False
    if isinstance(engine.cdi_devices, Unknown) or not any(one.startswith(GPU_KIND) for one in engine.cdi_devices):
        return False
    return engine.version >= tables().engines.features["docker", "gpus-by-cdi"].version


def is_legacy(facts: Facts) -> bool:
    """Whether the runtime named nvidia uses the legacy hook, by its mode and what that means in its release."""
    if isinstance(facts.toolkit, Unknown) or isinstance(facts.toolkit.mode, Unknown):
        return False
    if facts.toolkit.mode != "auto":
        return facts.toolkit.mode == "legacy"
    version = facts.toolkit.version
    return isinstance(version, Release) and default_is_legacy(version)


def default_is_legacy(version: Release) -> bool:
    """Whether the mode auto of this toolkit means legacy on a machine with ordinary GPUs, by the version table."""
    rows = [row for row in tables().engines.container_toolkits if row.version <= version]
    newest = max(rows, key=lambda row: row.version, default=None)
    return newest is None or newest.default_mode.startswith("legacy")
