"""Checks of the containers that run on this engine: they asked for their GPU, and in a way that lasts."""

from collections.abc import Iterator

from devkit.doctor.applies import gpu_engine, is_in_wsl, known, nvml_answer, toolkit_engine
from devkit.doctor.checks.container import NEEDED_CAPABILITIES
from devkit.doctor.checks.toolkit import has_cdi_gpus
from devkit.doctor.containers import asks_by_hook, dev_containers, gpu_containers, wants_gpu
from devkit.doctor.limits import MIB, SHARED_MEMORY_BYTES
from devkit.doctor.machine import TROUBLESHOOTING, host_side, refresh_cdi
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Engine, EngineKind, Facts, RunningContainer
from devkit.facts.values import Unknown
from devkit.text import human_bytes, listed


@check(
    "CON006",
    "The project's dev container asked for the GPU",
    covers=("J02",),
    symptoms=("torch.cuda.is_available() is False in VS Code, True on the command line",),
    causes=("CON001",),
)
def dev_container_asked_for_gpu(facts: Facts) -> Iterator[Finding]:
    """The running dev container of this project was created with a request for a GPU.

    Why it matters: a GPU is given when a container is created, or never. The same image started by hand with `--gpus
    all` works, so the search begins in the wrong place.
    How it is seen: the engine's description of the container that carries the project's label: no device request, no
    nvidia runtime, no device. Where nothing in project or image speaks of a GPU, it is only noted.
    Source: microsoft/vscode-remote-release issue 9385; Docker Engine API, `HostConfig.DeviceRequests`.
    """
    engine = gpu_engine(facts)
    if not nvml_answer(facts).gpus:
        raise NotApplicable("NVML shows no GPU that could be given")
    containers = dev_containers(facts, engine)
    if not containers:
        raise NotApplicable("no dev container of this project runs")
    for container in containers:
        if container.gpu_request or container.is_privileged is True or _runs_under_nvidia(container):
            continue
        is_meant = wants_gpu(facts, container)
        yield Finding(
            Severity.ERROR if is_meant else Severity.NOTE,
            f"the dev container {container.name} was created without a request for the GPU that this machine has",
            _ask_for_gpu(facts, engine),
            subject=container.name,
            evidence=(
                f"docker inspect {container.name}: no DeviceRequests, no Devices, Runtime {container.runtime}",
                f"NVIDIA_VISIBLE_DEVICES={_shown(container.visible_devices)}",
            ),
            # Podman's Docker API leaves out devices that it cannot name.
            confidence=Confidence.LIKELY if engine.kind is EngineKind.PODMAN else Confidence.CERTAIN,
        )


def _runs_under_nvidia(container: RunningContainer) -> bool:
    return isinstance(container.runtime, str) and "nvidia" in container.runtime


def _shown(value: str | Unknown | None) -> str:
    return value if isinstance(value, str) else "(not set)"


def _ask_for_gpu(facts: Facts, engine: Engine) -> Fix:
    by_cdi = engine.kind is EngineKind.PODMAN or (engine.hook_on_path is False and has_cdi_gpus(facts, engine))
    arguments = '"--device", "nvidia.com/gpu=all"' if by_cdi else '"--gpus", "all"'
    return Fix(
        "Ask for the GPU in devcontainer.json, or for the service in the Compose file, and rebuild the container.",
        (f'"runArgs": [{arguments}]', 'devices: ["nvidia.com/gpu=all"]' if by_cdi else "gpus: all"),
        where=Side.PROJECT,
    )


@check(
    "CON007",
    "Running containers keep their GPU when systemd reloads",
    covers=("F01",),
    symptoms=("Failed to initialize NVML: Unknown Error",),
)
def running_gpus_survive_reload(facts: Facts) -> Iterator[Finding]:
    """No running container got its GPU from the legacy hook while systemd manages the control groups.

    Why it matters: the container runtime knows nothing of what the hook allowed. The next `systemctl daemon-reload`,
    which any package upgrade may do, sets the device rules anew, and training ends with "NVML: Unknown Error".
    How it is seen: cgroup driver systemd; containers with a device request but neither CDI names nor device nodes of
    their own. Docker 29.2 and later answers such requests by CDI where it knows the devices.
    Source: NVIDIA, Container Toolkit, "Troubleshooting"; NVIDIA/nvidia-container-toolkit issues 48 and 1227;
    moby/moby pull request 50228.
    """
    engine = toolkit_engine(facts)
    if engine.kind is not EngineKind.DOCKER or engine.is_rootless:
        raise NotApplicable("only a Docker daemon run by root injects GPUs by the legacy hook")
    containers = gpu_containers(engine)
    if not containers:
        raise NotApplicable("no running container asked for a GPU")
    if engine.cgroup_driver != "systemd":
        return
    frail = [one for one in containers if asks_by_hook(facts, engine, one) and not _has_own_nodes(one)]
    if frail:
        yield _will_lose_gpu(facts, engine, frail)


def _will_lose_gpu(facts: Facts, engine: Engine, frail: list[RunningContainer]) -> Finding:
    names = listed(one.name for one in frail)
    ready = has_cdi_gpus(facts, engine)
    return Finding(
        Severity.WARNING,
        f"at the next `systemctl daemon-reload` {names} will lose the GPU",
        Fix(
            "Finish what runs, then recreate the container with its GPU by CDI."
            + ("" if ready else " Write the CDI specification first, and switch CDI on in Docker."),
            (
                *(() if ready else (*refresh_cdi(facts), "sudo nvidia-ctk runtime configure --cdi.enabled")),
                "docker run --device nvidia.com/gpu=all ...",
            ),
            where=host_side(facts),
            root=not ready,
            docs=TROUBLESHOOTING,
        ),
        subject=names,
        evidence=(
            f"cgroup driver {engine.cgroup_driver}, Docker {_version(engine)}",
            *(f"{one.name}: request by {one.gpu_request}, runtime {_shown(one.runtime)}, no devices" for one in frail),
        ),
        confidence=Confidence.LIKELY,
    )


def _has_own_nodes(container: RunningContainer) -> bool:
    if container.is_privileged is True:
        return True
    return not isinstance(container.gpu_devices, Unknown) and "/dev/nvidiactl" in container.gpu_devices


def _version(engine: Engine) -> str:
    return "of an unknown version" if isinstance(engine.version, Unknown) else str(engine.version)


@check(
    "CON009",
    "GPU containers have shared memory for data loaders and NCCL",
    covers=("I01", "I02"),
    symptoms=(
        "DataLoader worker is killed by signal: Bus error",
        "Error while creating shared memory segment /dev/shm/nccl",
    ),
    causes=("CON003",),
)
def gpu_containers_have_shared_memory(facts: Facts) -> Iterator[Finding]:
    """Running containers with a GPU have a shared memory of at least a gibibyte, or the host's.

    Why it matters: an engine's default of 64 MiB ends data loader workers with "Bus error" and NCCL with "No space left
    on device", often hours in.
    How it is seen: ShmSize and IpcMode in the engine's description of each container.
    Source: pytorch/pytorch issue 5040; NVIDIA/nccl issue 290; NVIDIA, NCCL user guide, "Troubleshooting".
    """
    engine = gpu_engine(facts)
    containers = gpu_containers(engine)
    if not containers:
        raise NotApplicable("no running container asked for a GPU")
    for container in containers:
        size_bytes = container.shm_bytes
        if isinstance(size_bytes, Unknown) or isinstance(container.ipc_mode, Unknown):
            continue
        if size_bytes >= SHARED_MEMORY_BYTES.value or container.ipc_mode == "host" or size_bytes <= 0:
            continue
        yield Finding(
            Severity.WARNING,
            f"{container.name} has {human_bytes(size_bytes)} of shared memory: data loaders with workers and NCCL fail",
            Fix(
                "Set shm_size for the service in the Compose file, or --shm-size, and recreate the container.",
                ("shm_size: 8gb", '"runArgs": ["--shm-size=8g"]'),
                where=Side.PROJECT,
            ),
            subject=container.name,
            evidence=(f"ShmSize: {size_bytes // MIB} MiB, IpcMode: {container.ipc_mode or 'private'}",),
        )


@check(
    "CON010",
    "GPU containers ask the toolkit for what they need",
    covers=("F16",),
    symptoms=("nvidia-smi: command not found", "Found no NVIDIA driver on your system"),
    causes=("CON001", "CON002"),
)
def variables_ask_for_gpu(facts: Facts) -> Iterator[Finding]:
    """A container under the runtime named nvidia names its devices, and capabilities include compute and utility.

    Why it matters: the runtime alone gives nothing; without NVIDIA_VISIBLE_DEVICES it adds no GPU, and without the
    capability compute no libcuda. CUDA images set both, plain ones neither.
    How it is seen: the runtime and the two variables in the engine's description. CDI gives everything and reads none.
    Source: NVIDIA, Container Toolkit, "Specialized configurations with Docker"; NVIDIA/nvidia-docker issue 954.
    """
    engine = gpu_engine(facts)
    for container in known(engine.containers):
        if _runs_under_nvidia(container) and container.visible_devices is None and not container.gpu_request:
            if container.runtime != engine.default_runtime:
                yield _nothing_named(container)
        elif container.gpu_request in ("driver", "runtime") and isinstance(container.driver_capabilities, str):
            yield from _lacking(container, container.driver_capabilities)


def _nothing_named(container: RunningContainer) -> Finding:
    return Finding(
        Severity.ERROR,
        f"{container.name} runs under the nvidia runtime, but names no GPU, so it has none",
        Fix(
            "Set both variables for the service, or ask with `gpus: all` instead, and recreate the container.",
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
            where=Side.PROJECT,
        ),
        subject=container.name,
        evidence=(f"Runtime: {container.runtime}", "NVIDIA_VISIBLE_DEVICES is not set"),
    )


def _lacking(container: RunningContainer, capabilities: str) -> Iterator[Finding]:
    asked = {name.strip() for name in capabilities.split(",") if name.strip()}
    missing = [name for name in NEEDED_CAPABILITIES if name not in asked]
    if not asked or "all" in asked or not missing:
        return
    yield Finding(
        Severity.ERROR if "compute" in missing else Severity.WARNING,
        f"{container.name} was created without the driver capability {listed(missing)}",
        Fix(
            "Set the variable in the image or the Compose file, and recreate the container.",
            ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
            where=Side.PROJECT,
        ),
        subject=container.name,
        evidence=(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",),
    )


@check(
    "CON012",
    "SELinux lets containers use the GPU",
    covers=("F07",),
    symptoms=("Failed to initialize NVML: Insufficient Permissions",),
)
def selinux_allows_gpu(facts: Facts) -> Iterator[Finding]:
    """Where SELinux confines containers, those with a GPU are exempt, or the policy lets containers use devices.

    Why it matters: the device nodes are there and their mode is right, yet every program ends with "Insufficient
    Permissions".
    How it is seen: SELinux enforces and its switch container_use_devices is off; a running GPU container was created
    without label=disable. Policies of some distributions allow GPUs all the same, so this is no certainty.
    Source: NVIDIA, Container Toolkit, "Troubleshooting"; Podman manual, `--security-opt`.
    """
    engine = toolkit_engine(facts)
    limits = known(facts.limits)
    if is_in_wsl(facts) or known(limits.selinux) != "enforcing" or not engine.has_selinux:
        raise NotApplicable("SELinux does not confine containers here")
    if known(limits.selinux_allows_devices):
        return
    confined = [one for one in gpu_containers(engine) if _is_confined(one)]
    if not confined:
        return
    yield Finding(
        Severity.WARNING,
        f"SELinux may refuse {listed(one.name for one in confined)} the GPU",
        Fix(
            "Let containers use devices, or exempt this one.",
            ("sudo setsebool -P container_use_devices on", "--security-opt=label=disable"),
            where=host_side(facts),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        evidence=("SELinux: enforcing, container_use_devices off", *(f"{one.name}: confined" for one in confined)),
        confidence=Confidence.POSSIBLE,
    )


def _is_confined(container: RunningContainer) -> bool:
    options = container.security_options
    if container.is_privileged is True or isinstance(options, Unknown):
        return False
    return not any(option.replace(":", "=") == "label=disable" or "spc_t" in option for option in options)
