"""Checks that a container has no more power over the host than GPU work needs."""

from collections.abc import Iterator

from devkit.doctor.checks.project_units import Unit, placed, units_of, wants_gpu
from devkit.doctor.limits import SHARED_MEMORY_BYTES
from devkit.doctor.model import Confidence, Finding, Fix, Location, Repair, RepairKind, Severity, Side, check
from devkit.facts.model import Facts, Setting
from devkit.text import human_bytes

SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "//var/run/docker.sock")
SHARED = "8gb"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@check(
    "PRJ014",
    "Shared memory is sized, and not the host's own",
    symptoms=("ipc: host", "--ipc=host"),
)
def shared_memory_is_its_own(facts: Facts) -> Iterator[Finding]:
    """The container has shared memory of its own, of a size that the files state.

    Why it matters: `ipc: host` opens the shared memory of every program on the host to the container, and the other
    way round. `shm_size` gives loader workers and NCCL what they need without that.
    How it is seen: ipc set to host in runArgs or in the Compose file.
    Source: Docker, "docker run", --ipc; NVIDIA deep learning containers, user guide, which offers both.
    """
    for unit in units_of(facts):
        for setting in unit.settings("ipc"):
            if setting.value == "host":
                yield _finding(
                    setting,
                    "the container shares the host's IPC namespace, which GPU work on one machine does not need",
                    Fix(
                        "Give it shared memory of its own: shm_size, or --shm-size.",
                        where=Side.PROJECT,
                        repairs=_sized_instead(unit, setting),
                    ),
                )


def _sized_instead(unit: Unit, setting: Setting) -> tuple[Repair, ...]:
    if unit.service is None or setting not in unit.service.settings or setting.path != unit.service.path:
        return ()
    above = ("services", unit.service.name)
    repairs = (Repair(RepairKind.REMOVE, setting.path, (*above, "ipc")),)
    if unit.setting("shm_size"):
        return repairs
    return (*repairs, Repair(RepairKind.SET, setting.path, (*above, "shm_size"), f'"{SHARED}"'))


@check(
    "PRJ015",
    "The container is not privileged",
    symptoms=("privileged: true", "--privileged", "seccomp=unconfined"),
)
def container_is_not_privileged(facts: Facts) -> Iterator[Finding]:
    """The container runs without `privileged`, without the host's processes, and with the engine's system call filter.

    Why it matters: a privileged container owns the host: every disk, every device, every kernel setting. A GPU needs
    none of that; the Container Toolkit passes on exactly its device nodes.
    How it is seen: privileged, pid: host and seccomp=unconfined in runArgs, devcontainer.json or the Compose file.
    Source: Docker, "docker run", --privileged; NVIDIA/nvidia-container-toolkit, which needs no privileges.
    """
    for unit in units_of(facts):
        for setting in unit.settings("privileged", "pid", "security_opt"):
            told = {
                (
                    "privileged",
                    "true",
                ): "the container is privileged: it owns the whole host, which a GPU does not need",
                ("pid", "host"): "the container sees and can end every process of the host",
                ("security_opt", "seccomp=unconfined"): "the container may make every system call",
                ("security_opt", "seccomp:unconfined"): "the container may make every system call",
            }.get((setting.name, setting.value.lower()))
            if told is not None:
                is_debugging = setting.name == "security_opt"
                yield _finding(
                    setting,
                    told + (", which only debuggers of old engines need" if is_debugging else ""),
                    Fix(
                        "Leave it out; a GPU needs --gpus or a reservation alone.",
                        where=Side.PROJECT,
                        repairs=_removed(unit, setting),
                    ),
                    severity=Severity.NOTE if is_debugging else Severity.WARNING,
                )


def _removed(unit: Unit, setting: Setting) -> tuple[Repair, ...]:
    if setting.name not in ("privileged", "pid"):
        return ()
    if unit.service is not None and setting in unit.service.settings and setting.path == unit.service.path:
        return (Repair(RepairKind.REMOVE, setting.path, ("services", unit.service.name, setting.name)),)
    is_own_key = unit.dev is not None and any(
        key.name == setting.name and key.line == setting.line for key in unit.dev.keys
    )
    return (Repair(RepairKind.REMOVE, setting.path, (setting.name,)),) if is_own_key else ()


@check(
    "PRJ016",
    "The container cannot command the engine",
    symptoms=("/var/run/docker.sock:/var/run/docker.sock", "docker outside of docker"),
)
def container_has_no_socket(facts: Facts) -> Iterator[Finding]:
    """The engine's socket is not mounted into the container.

    Why it matters: who can talk to the engine can start a privileged container, and so is root on the host. Downloaded
    models and packages run code in there.
    How it is seen: a mount of docker.sock or podman.sock, or a Feature that makes one.
    Source: Docker, "Protect the Docker daemon socket"; OWASP, Docker Security Cheat Sheet, rule 1.
    """
    for unit in units_of(facts):
        for mount in unit.mounts:
            if mount.source.endswith(("docker.sock", "podman.sock")) or mount.target in SOCKETS:
                yield _finding(
                    Setting("mount", f"{mount.source}:{mount.target}", mount.path, mount.line),
                    "the engine's socket is in the container: whatever runs there is root on the host",
                    Fix("Leave the mount out, and start other containers from the host.", where=Side.PROJECT),
                )
        for feature in unit.dev.features if unit.dev else ():
            if "docker-outside-of-docker" in feature.name:
                yield _finding(
                    feature,
                    "a Feature mounts the engine's socket: whatever runs in the container is root on the host",
                    Fix("Leave the Feature out, unless the work in there is with containers.", where=Side.PROJECT),
                    severity=Severity.NOTE,
                )


def _finding(setting: Setting, message: str, fix: Fix, *, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(
        severity,
        message,
        fix,
        subject=placed(setting.path, setting.line),
        evidence=(f"{placed(setting.path, setting.line)}: {setting.name} {setting.value}".rstrip(),),
        location=Location(setting.path, setting.line),
    )


@check(
    "PRJ020",
    "The container has shared memory for loader workers",
    covers=("I01",),
    symptoms=(
        "DataLoader worker (pid 123) is killed by signal: Bus error",
        "It is possible that dataloader's workers are out of shared memory",
    ),
)
def shared_memory_is_sized(facts: Facts) -> Iterator[Finding]:
    """The files of a container for GPU work state the size of its shared memory.

    Why it matters: engines give 64 MiB. PyTorch's loader workers and NCCL pass tensors through it, and end with a bus
    error, often hours into a run.
    How it is seen: torch for CUDA in the container and a request for a GPU, without shm_size, --shm-size or ipc; or a
    size below a gibibyte.
    Source: pytorch/pytorch issue 5040; PyTorch README, "Docker image".
    """
    for unit in units_of(facts):
        wants = wants_gpu(unit)
        if not unit.is_started_by_files or wants is None or unit.setting("ipc") is not None:
            continue
        size = unit.setting("shm_size")
        stated = None if size is None else _bytes(size.value)
        if size is not None and (stated is None or stated >= SHARED_MEMORY_BYTES.value):
            continue
        place = Location(size.path, size.line) if size is not None else unit.location
        has = "the engine's 64 MiB" if stated is None else human_bytes(stated)
        yield Finding(
            Severity.WARNING,
            f"{unit.name} leaves shared memory at {has}, too little for PyTorch's loader workers",
            Fix(
                f"Set shm_size: {SHARED}, or --shm-size={SHARED} in runArgs: a limit, not a reservation.",
                where=Side.PROJECT,
                repairs=_size(unit),
            ),
            subject=placed(place.path, place.line),
            evidence=(f"shm_size: {size.value if size else 'not set'}", f"{placed(wants.path, wants.line)}: torch"),
            confidence=Confidence.LIKELY,
            location=place,
        )


def _size(unit: Unit) -> tuple[Repair, ...]:
    if unit.service is not None:
        key = ("services", unit.service.name, "shm_size")
        return (Repair(RepairKind.SET, unit.service.path, key, f'"{SHARED}"'),)
    words = [argument.text for argument in unit.dev.run_args] if unit.dev else []
    if unit.dev is None or unit.is_compose or unit.setting("shm_size") or any("…" in word for word in words):
        return ()
    if any(word.startswith("-") and " " in word for word in words):
        return ()
    listed = ", ".join(
        '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in (*words, f"--shm-size={SHARED}")
    )
    return (Repair(RepairKind.SET, unit.dev.path, ("runArgs",), f"[{listed}]"),)


def _bytes(text: str) -> int | None:
    """A size as engines read it; None for one that a variable decides."""
    text = text.strip().lower().removesuffix("b").removesuffix("i")
    digits, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS and text[-1:] else (text, "")
    try:
        return int(float(digits) * _UNITS[unit])
    except ValueError:
        return None
