"""Checks of the containers that the engine runs or ran: their GPU request, and what keeps them from starting."""

import re
from collections.abc import Iterator
from dataclasses import replace

from devkit.compat.rules import CudaSupport
from devkit.doctor.checks.cdi import has_cdi_gpus
from devkit.doctor.checks.container.inside import REQUIRED_CAPABILITIES
from devkit.doctor.checks.cuda import find_unmet_cuda
from devkit.doctor.checks.toolkit import has_gpus_by_cdi, is_legacy_by_default
from devkit.doctor.model import Confidence, NotApplicable, Severity, check
from devkit.doctor.preconditions import (
    NO_VISIBLE_DEVICES,
    is_in_wsl,
    require,
    require_container_engine,
    require_gpu_engine,
    require_host,
    require_nvml,
    require_some,
    require_toolkit_engine,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.program_failures import report_failure
from devkit.doctor.thresholds import MIB, SHARED_MEMORY_BYTES
from devkit.doctor.wheels import find_driver_cuda
from devkit.facts.engine import Engine, EngineKind, LocalImage, RunningContainer, StoppedContainer
from devkit.facts.model import Facts
from devkit.facts.project import Project
from devkit.facts.runs import Trials
from devkit.facts.values import Release, Unknown
from devkit.text import format_bytes, join_words

_LONGEST = 160
_STOPPED = (0, 128 + 2, 128 + 9, 128 + 15)
"""Statuses of a program that has done its work, or that Ctrl-C or `docker stop` ended."""


def find_workspace(facts: Facts) -> str:
    """Find the folder of the project; "" where it is not known."""
    if isinstance(facts.storage, Unknown):
        return ""
    return next((one.path for one in facts.storage.directories if one.purpose == "workspace"), "")


def is_project_folder(facts: Facts, folder: str) -> bool:
    """Say if `folder`, a container's label, is the project or a folder above it. Windows writes backslashes."""
    return bool(folder) and f"{_normalize_folder(find_workspace(facts))}/".startswith(f"{_normalize_folder(folder)}/")


def _normalize_folder(folder: str) -> str:
    return folder.replace("\\", "/").rstrip("/")


def find_dev_containers(facts: Facts, engine: Engine) -> tuple[RunningContainer, ...]:
    """Find the project's running dev containers; a single Compose service counts if no tool labeled another."""
    own = [one for one in require(engine.containers) if is_project_folder(facts, one.folder)]
    labeled = tuple(one for one in own if one.is_dev_container is True)
    return labeled or (tuple(own) if len(own) == 1 else ())


def _runs_under_nvidia(container: RunningContainer) -> bool:
    return isinstance(container.runtime, str) and "nvidia" in container.runtime


def _format_variable(value: str | Unknown | None) -> str:
    return value if isinstance(value, str) else "(not set)"


@check("CON006", causes=("CON001",))
def dev_container_requests_gpu(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    skip_if(not require_nvml(facts).gpus, "NVML does not list a GPU that could be exposed")
    containers = find_dev_containers(facts, engine)
    skip_if(not containers, "no dev container of this project is running")
    for container in containers:
        if container.gpu_request or container.is_privileged is True or _runs_under_nvidia(container):
            continue
        by_cdi = engine.kind is EngineKind.PODMAN or (engine.hook_on_path is False and has_cdi_gpus(facts, engine))
        yield problem(
            "not-requested",
            container=container.name,
            way="cdi" if by_cdi else "hook",
            severity=Severity.ERROR if has_gpu_intent(facts, container) else Severity.NOTE,
            evidence=(
                f"docker inspect {container.name}: no DeviceRequests, no Devices, Runtime {container.runtime}",
                f"NVIDIA_VISIBLE_DEVICES={_format_variable(container.visible_devices)}",
            ),
            # Podman's Docker API leaves out devices that it cannot name.
            confidence=Confidence.LIKELY if engine.kind is EngineKind.PODMAN else None,
        )


def has_gpu_intent(facts: Facts, container: RunningContainer) -> bool:
    """Say if the container, its image or the project's files show that a GPU is wanted."""
    if isinstance(container.visible_devices, str) and container.visible_devices.strip() not in NO_VISIBLE_DEVICES:
        return True
    if isinstance(container.require_cuda, str):
        return True
    project = facts.project
    if not isinstance(project, Project):
        return False
    asks_by_tool = any(one.requests for one in project.dev_containers)
    return asks_by_tool or any(one.requests for one in project.services)


def find_gpu_containers(engine: Engine) -> tuple[RunningContainer, ...]:
    """Find the running containers that requested a GPU."""
    return tuple(one for one in require(engine.containers) if one.gpu_request)


@check("CON007")
def running_gpus_survive_reload(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless:
        raise NotApplicable("only a Docker daemon that root runs injects GPUs through the legacy hook")
    containers = find_gpu_containers(engine)
    skip_if(not containers, "no running container requested a GPU")
    if engine.cgroup_driver != "systemd":
        return
    affected = [
        one
        for one in containers
        if is_gpu_from_legacy_hook(facts, engine, one)
        and one.is_privileged is not True
        and (isinstance(one.gpu_devices, Unknown) or "/dev/nvidiactl" not in one.gpu_devices)
    ]
    if affected:
        names = join_words(one.name for one in affected)
        version = "of an unknown version" if isinstance(engine.version, Unknown) else str(engine.version)
        yield problem(
            "lost-at-reload",
            containers=names,
            cdi="ready" if has_cdi_gpus(facts, engine) else "missing",
            subject=names,
            evidence=(
                f"cgroup driver {engine.cgroup_driver}, Docker {version}",
                *(
                    f"{one.name}: request by {one.gpu_request}, runtime {_format_variable(one.runtime)}, no devices"
                    for one in affected
                ),
            ),
        )


def is_gpu_from_legacy_hook(facts: Facts, engine: Engine, container: RunningContainer) -> bool:
    """Say if the toolkit's legacy hook added the container's GPU without the runtime's knowledge."""
    if container.gpu_request == "driver":
        return container.runtime != "nvidia" and not has_gpus_by_cdi(engine)
    return container.gpu_request == "runtime" and is_legacy_mode(facts)


def is_legacy_mode(facts: Facts) -> bool:
    """Say if the runtime named nvidia uses the legacy hook, by its mode and its release."""
    if isinstance(facts.toolkit, Unknown) or isinstance(facts.toolkit.mode, Unknown):
        return False
    if facts.toolkit.mode != "auto":
        return facts.toolkit.mode == "legacy"
    version = facts.toolkit.version
    return isinstance(version, Release) and is_legacy_by_default(version)


@check("CON008", require_host, causes=("CON011", "CUD001"))
def driver_meets_image_requirements(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    require_nvml(facts)
    driver = require_some(find_driver_cuda(facts), "the driver's version is not known")
    images = _images_of_project(facts, engine)
    skip_if(not images, "the engine has no image of this project")
    names = tuple(gpu.name for gpu in facts.gpus)
    for image in images:
        if not isinstance(image.require_cuda, str):
            continue
        wanted = find_unmet_cuda(image.require_cuda, driver, names)
        if wanted is not None:
            is_safe = driver.classify(wanted) in (CudaSupport.FULL, CudaSupport.MINOR)
            # The hook may have refused this very image already.
            was_refused = any(
                "unsatisfied condition" in one.error and one.image in image.name
                for one in require(engine.stopped)
                if is_project_folder(facts, one.folder)
            )
            yield problem(
                "newer-minor" if is_safe else "too-new",
                image=image.name,
                wanted=wanted,
                driver=driver.release,
                newest=f"CUDA {driver.cuda}" if driver.cuda else "an older CUDA",
                own=f"CUDA {driver.cuda}" if driver.cuda else "the driver's CUDA",
                severity=Severity.ERROR if was_refused else None,
                evidence=(f"NVIDIA_REQUIRE_CUDA={image.require_cuda[:_LONGEST]}", f"driver {driver.release}"),
                confidence=Confidence.CERTAIN if driver.reported_cuda else Confidence.LIKELY,
            )


def _images_of_project(facts: Facts, engine: Engine) -> tuple[LocalImage, ...]:
    """Those of its containers, and those named as dev container tools name them after its folder."""
    used = {one.image_id for one in require(engine.containers) if is_project_folder(facts, one.folder)}
    names = {one.image for one in require(engine.stopped) if is_project_folder(facts, one.folder)}
    base = re.sub(r"[^a-z0-9_.-]", "", find_workspace(facts).replace("\\", "/").rpartition("/")[2].lower())
    prefixes = (f"vsc-{base}-", f"{base}_devcontainer-", f"{base}-")

    def is_own(image: LocalImage) -> bool:
        name = image.name.removeprefix("localhost/")
        by_name = bool(base) and image.is_dev_container is True and name.startswith(prefixes)
        return image.id in used or image.name in names or by_name

    return tuple(image for image in require(engine.images) if is_own(image))


@check("CON009", causes=("CON003",))
def gpu_containers_have_shared_memory(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    containers = find_gpu_containers(engine)
    skip_if(not containers, "no running container requested a GPU")
    for container in containers:
        size_bytes = container.shm_bytes
        if isinstance(size_bytes, Unknown) or isinstance(container.ipc_mode, Unknown):
            continue
        if size_bytes >= SHARED_MEMORY_BYTES or container.ipc_mode == "host" or size_bytes <= 0:
            continue
        yield problem(
            "too-small",
            container=container.name,
            size=format_bytes(size_bytes),
            evidence=(f"ShmSize: {size_bytes // MIB} MiB, IpcMode: {container.ipc_mode or 'private'}",),
        )


@check("CON010", causes=("CON001", "CON002"))
def container_variables_request_gpu(facts: Facts) -> Iterator[Problem]:
    engine = require_gpu_engine(facts)
    for container in require(engine.containers):
        if _runs_under_nvidia(container) and container.visible_devices is None and not container.gpu_request:
            if container.runtime != engine.default_runtime:
                evidence = (f"Runtime: {container.runtime}", "NVIDIA_VISIBLE_DEVICES is not set")
                yield problem("no-gpu-named", container=container.name, evidence=evidence)
        elif container.gpu_request in ("driver", "runtime") and isinstance(container.driver_capabilities, str):
            requested = {name.strip() for name in container.driver_capabilities.split(",") if name.strip()}
            missing = [name for name in REQUIRED_CAPABILITIES if name not in requested]
            if requested and "all" not in requested and missing:
                yield problem(
                    "capability-missing",
                    container=container.name,
                    capabilities=join_words(missing),
                    severity=Severity.ERROR if "compute" in missing else Severity.WARNING,
                    evidence=(f"NVIDIA_DRIVER_CAPABILITIES={container.driver_capabilities}",),
                )


def list_last_stopped(facts: Facts, engine: Engine) -> tuple[StoppedContainer, ...]:
    """List the newest stopped container of each of the project's services that does not run again."""
    running = [one for one in require(engine.containers) if is_project_folder(facts, one.folder)]
    services = {one.service for one in running if one.service}
    is_open = any(one.is_dev_container is True or not one.service for one in running)
    last: dict[str, StoppedContainer] = {}
    for one in require(engine.stopped):
        service = "" if isinstance(one.service, Unknown) else one.service
        runs_again = service in services if service else is_open
        if is_project_folder(facts, one.folder) and not runs_again:
            last.setdefault(service, one)
    return tuple(last.values())


def list_failed(facts: Facts) -> tuple[StoppedContainer, ...]:
    """List those of the last containers whose program ended with an error, and was not stopped."""
    engine = facts.engine
    if not isinstance(engine, Engine) or isinstance(engine.containers, Unknown) or isinstance(engine.stopped, Unknown):
        return ()
    last = list_last_stopped(facts, engine)
    return tuple(one for one in last if one.exit_code not in _STOPPED and not one.error and not one.out_of_memory)


@check("CON011")
def last_container_ended_well(facts: Facts) -> Iterator[Problem]:
    last = list_last_stopped(facts, require_container_engine(facts))
    skip_if(not last, "no container of this project was stopped")
    from devkit.doctor.known_errors import find_known_errors  # it knows all checks

    failures = {each.program: each for each in facts.trials.ended} if isinstance(facts.trials, Trials) else {}
    for container in last:
        is_service = container.service and isinstance(container.service, str)
        kind = f"service {container.service}" if is_service else "dev container"
        if container.error:
            best = next(iter(find_known_errors(container.error, is_ours=True)), None)
            text = " ".join(container.error.split())
            yield problem(
                "could-not-start",
                kind=kind,
                container=container.name,
                reason=best.cause.rstrip(".") if best else text[:_LONGEST],
                evidence=(f"State.Error: {text[: 2 * _LONGEST]}",),
                confidence=best.confidence if best else None,
                fix=best.fix if best else None,
            )
        elif container.out_of_memory:
            evidence = (f"OOMKilled: true, exit code {container.exit_code}",)
            yield problem("out-of-memory", kind=kind, container=container.name, evidence=evidence)
        elif failure := failures.get(f"the container {container.name}"):
            shown = report_failure(failure, is_workload=True)
            # Without a line to correct, the project may have changed since.
            yield shown if failure.settings else replace(shown, severity=Severity.WARNING)
        elif container.state == "restarting":
            evidence = (f"State.Status: restarting, exit code {container.exit_code}",)
            yield problem("restarts", kind=kind, container=container.name, code=container.exit_code, evidence=evidence)


@check("CON012")
def selinux_allows_gpu(facts: Facts) -> Iterator[Problem]:
    engine = require_toolkit_engine(facts)
    limits = require(facts.limits)
    if is_in_wsl(facts) or require(limits.selinux) != "enforcing" or not engine.has_selinux:
        raise NotApplicable("SELinux does not confine containers here")
    if require(limits.selinux_allows_devices):
        return
    confined = [
        one
        for one in find_gpu_containers(engine)
        if one.is_privileged is not True
        and not isinstance(one.security_options, Unknown)
        and not any(option.replace(":", "=") == "label=disable" or "spc_t" in option for option in one.security_options)
    ]
    if confined:
        yield problem(
            "confined",
            containers=join_words(one.name for one in confined),
            evidence=("SELinux: enforcing, container_use_devices off", *(f"{one.name}: confined" for one in confined)),
        )
