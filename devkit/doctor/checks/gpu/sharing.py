"""Checks of how GPUs are shared and divided: compute mode, memory of other processes, MIG, vGPU."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import CUDA_CODES, DEEP_CODES, PYTHON_CODES
from devkit.doctor.fixes import CDI_GUIDE, DistroFamily, find_distro_family, find_driver_side, refresh_cdi
from devkit.doctor.gpus import GpuWithHealth, format_gpu, list_process_bytes, require_gpu_health_field
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_host,
    require_nvml,
    require_python,
    require_visible_gpu,
)
from devkit.doctor.thresholds import UNSEEN_MEMORY_BYTES, UNSEEN_MEMORY_SHARE
from devkit.facts.model import Facts, Gpu, GpuHealth
from devkit.text import format_bytes, format_count, join_words

_MPS_GUIDE = "https://docs.nvidia.com/deploy/mps/"

_MPS_SERVER = "nvidia-cuda-mps"
"""Its name as the kernel shortens it."""

_MIG_GUIDE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"

_INDEX_OF_MIG = re.compile(r"(\d+):(\d+)")

_MIG_UUID = re.compile(r"MIG-[0-9a-fA-F-]{36}")

_LICENSING_GUIDE = "https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/"

_WITHOUT_CUDA = re.compile(r"-\d+([AB])\d?$")

_LICENSED = "licensed"

_UNKNOWN_LICENSES = ("unknown", "uninitialized")


@check("GPU018", causes=("PYT006", *DEEP_CODES))
def compute_mode_is_shared(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "compute_mode"):
        if health.compute_mode in ("prohibited", "exclusive-process", "exclusive-thread"):
            processes = health.processes if isinstance(health.processes, tuple) else ()
            if any(process.name.startswith(_MPS_SERVER) for process in processes):
                continue
            holders = join_words(f"{process.name or 'process'} ({process.pid})" for process in processes)
            if health.compute_mode == "prohibited":
                severity, says = Severity.ERROR, "is closed to CUDA (compute mode prohibited)"
            elif holders:
                severity, says = Severity.WARNING, f"admits one process and has it: {holders}"
            else:
                severity, says = Severity.NOTE, f"admits one process at a time ({health.compute_mode})"
            yield Finding(
                severity,
                f"{format_gpu(gpu)} {says}; any other program finds it busy or unavailable",
                Fix(
                    "Open the GPU to all programs again, unless it was closed on purpose; or end the process that holds it.",
                    (f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",),
                    where=find_driver_side(facts),
                    root=True,
                ),
                subject=format_gpu(gpu),
                evidence=(f"{format_gpu(gpu)} {gpu.name}: compute mode {health.compute_mode}",),
            )


@check("GPU035", causes=DEEP_CODES)
def mps_is_reachable(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    mps = require(require(facts.limits).mps)
    if mps is None:
        raise NotApplicable("nothing is set for MPS, and no daemon of it answers")
    inside = is_in_container(facts)
    if mps.answers and not (inside and mps.has_own_ipc):
        return
    yield Finding(
        Severity.WARNING,
        "the container has the socket of an MPS daemon and an IPC namespace of its own: CUDA may end with error 805, or wait"
        if mps.answers
        else f"CUDA_MPS_* is set, and no MPS daemon answers in {mps.pipe_directory}: CUDA runs without MPS, and its limits"
        " do not hold",
        Fix(
            "Start the container with the host's IPC namespace and as the user whose programs use MPS already, which"
            " .devcontainer/gpu.sh of `devkit init` does; or leave out the folder of the daemon."
            if mps.answers
            else "Start the daemon on the host, and mount its folder into containers; or unset CUDA_MPS_*.",
            ("docker run --ipc=host --user $(id -u) …",)
            if mps.answers
            else (f"CUDA_MPS_PIPE_DIRECTORY={mps.pipe_directory} nvidia-cuda-mps-control -d",),
            where=Side.HOST,
            docs=_MPS_GUIDE,
        ),
        evidence=(f"{mps.pipe_directory}/control: {'a socket' if mps.answers else 'not there'}", *mps.settings),
        confidence=Confidence.POSSIBLE if mps.answers else Confidence.CERTAIN,
    )


@check("GPU019")
def gpu_memory_is_accounted_for(facts: Facts) -> Iterator[Finding]:
    for gpu, health in require_gpu_health_field(facts, "processes"):
        unseen_bytes = _unseen_bytes(gpu, health)
        if unseen_bytes is None:
            continue
        inside = is_in_container(facts)
        yield Finding(
            Severity.NOTE if inside else Severity.WARNING,
            f"{format_bytes(unseen_bytes)} of the memory of {format_gpu(gpu)} belong to no process that is visible here",
            Fix(
                "Look on the host who holds the memory."
                if inside
                else "See who has the device open, also as root, and"
                " end what is left of dead programs; if no process has, reset the GPU.",
                ("nvidia-smi",) if inside else (f"sudo fuser -v /dev/nvidia{gpu.index} /dev/nvidia-uvm",),
                where=Side.HOST if inside else find_driver_side(facts),
                root=not inside,
            ),
            subject=format_gpu(gpu),
            evidence=(f"used {_find_used_bytes(gpu)} B, by visible processes {sum(list_process_bytes(health))} B",),
            confidence=Confidence.LIKELY if not inside else Confidence.POSSIBLE,
        )


def _unseen_bytes(gpu: Gpu, health: GpuHealth) -> int | None:
    """Memory in use beyond what processes and the driver itself explain; None where nothing is missing or not known."""
    if gpu.mig_enabled is True or health.virtualization == "vgpu" or not isinstance(gpu.memory_bytes, int):
        return None
    processes = health.processes if isinstance(health.processes, tuple) else ()
    if any(not isinstance(process.memory_bytes, int) for process in processes):
        return None
    missing = _find_used_bytes(gpu) - sum(list_process_bytes(health))
    allowance = max(UNSEEN_MEMORY_BYTES.value, int(gpu.memory_bytes * UNSEEN_MEMORY_SHARE.value))
    return missing if missing > allowance else None


def _find_used_bytes(gpu: Gpu) -> int:
    if not isinstance(gpu.memory_bytes, int) or not isinstance(gpu.free_bytes, int):
        return 0
    return gpu.memory_bytes - gpu.free_bytes


@check("GPU003", causes=(*CUDA_CODES, *PYTHON_CODES))
def mig_has_instances(facts: Facts) -> Iterator[Finding]:
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    if not any(gpu.mig_enabled is True for gpu in gpus):
        raise NotApplicable("no GPU is in MIG mode")
    empty = [gpu for gpu in gpus if gpu.mig_enabled is True and not gpu.mig_instances]
    for gpu in empty:
        yield Finding(
            Severity.ERROR if len(empty) == len(gpus) else Severity.WARNING,
            f"GPU {gpu.index} is in MIG mode without a single instance, so CUDA sees nothing of it",
            Fix(
                "Create instances on the host (`nvidia-smi mig -lgip` lists the profiles), or turn MIG off.",
                ("sudo nvidia-smi mig -lgip", f"sudo nvidia-smi -i {gpu.index} -mig 0"),
                root=True,
                docs="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
            ),
            subject=f"GPU {gpu.index}",
            evidence=(f"GPU {gpu.index} {gpu.name}: MIG mode on, no MIG devices",),
        )


@check("GPU020")
def process_has_one_mig_device(facts: Facts) -> Iterator[Finding]:
    named = [entry.strip() for entry in (require_python(facts).cuda_visible_devices or "").split(",")]
    migs = [entry for entry in named if entry.startswith("MIG-")]
    if len(migs) < 2:
        return
    yield Finding(
        Severity.WARNING,
        f"CUDA_VISIBLE_DEVICES names {len(migs)} MIG devices, but a process sees the first of them only",
        Fix(
            "Start one process for each MIG device, each with its own CUDA_VISIBLE_DEVICES. MIG devices do not talk to"
            " each other over NCCL; to train on several, turn MIG off.",
            (f"CUDA_VISIBLE_DEVICES={migs[0]} python …",),
            where=Side.CONTAINER if is_in_container(facts) else Side.PROJECT,
            docs=_MIG_GUIDE,
        ),
        evidence=(f"CUDA_VISIBLE_DEVICES={','.join(named)}",),
    )


@check("GPU021")
def cdi_names_current_mig_devices(facts: Facts) -> Iterator[Finding]:
    require_host(facts)
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    devices = [(spec.path, name) for spec in require(facts.cdi) for name in spec.devices]
    named = [(path, name) for path, name in devices if _INDEX_OF_MIG.fullmatch(name) or _MIG_UUID.fullmatch(name)]
    # Each MIG device by both of the names that specifications use.
    present = frozenset(
        name for gpu in gpus for place, uuid in enumerate(gpu.mig_instances) for name in (uuid, f"{gpu.index}:{place}")
    )
    if not named and not present:
        raise NotApplicable("no GPU is divided, and no specification names a MIG device")
    gone = [(path, name) for path, name in named if name not in present]
    unnamed = bool(present) and bool(devices) and not any(name in present for _, name in named)
    if not gone and not unnamed:
        return
    names = [name for _, name in gone]
    yield Finding(
        Severity.WARNING,
        f"the CDI specification names {format_count(len(names), 'MIG device')} that no longer exist: {join_words(names)}"
        if gone
        else f"the CDI specification names none of the {format_count(len(present) // 2, 'MIG device')} of this machine",
        Fix(
            "Regenerate the specification, and do so after each change of the MIG layout.",
            (
                refresh_cdi(facts)
                if find_distro_family(facts) is DistroFamily.NIXOS
                else ("sudo systemctl restart nvidia-cdi-refresh.service || " + refresh_cdi(facts)[0],)
            ),
            root=True,
            docs=CDI_GUIDE,
        ),
        subject=(gone or devices)[0][0],
        evidence=(
            f"in the specification: {join_words(name for _, name in devices)}",
            f"by NVML: {join_words(sorted(present))}",
        ),
    )


def _require_vgpus(facts: Facts) -> tuple[GpuWithHealth, ...]:
    found = tuple(
        state for state in require_gpu_health_field(facts, "virtualization") if state[1].virtualization == "vgpu"
    )
    if not found:
        raise NotApplicable("no GPU here is a virtual one")
    return found


@check("GPU025")
def vgpu_is_licensed(facts: Facts) -> Iterator[Finding]:
    states = [(gpu, health) for gpu, health in _require_vgpus(facts) if isinstance(health.license, str)]
    reported = [(gpu, str(health.license)) for gpu, health in states if health.license not in _UNKNOWN_LICENSES]
    if not reported:
        raise NotApplicable("the driver does not say whether the virtual GPU is licensed")
    for gpu, license in reported:
        if license == _LICENSED:
            continue
        is_restricted = license == "unlicensed-restricted"
        yield Finding(
            Severity.ERROR if is_restricted else Severity.WARNING,
            f"{format_gpu(gpu)} {gpu.name} has no license: it "
            + ("is slowed down now" if is_restricted else "is slowed down after a while"),
            Fix(
                "Put the client token of your license server in place, set FeatureType in gridd.conf (0 lets the driver"
                " choose), and restart the service.",
                (
                    "ls -l /etc/nvidia/ClientConfigToken/",
                    "grep FeatureType /etc/nvidia/gridd.conf",
                    "sudo systemctl restart nvidia-gridd",
                    "journalctl -u nvidia-gridd -b | tail",
                ),
                root=True,
                docs=_LICENSING_GUIDE,
            ),
            subject=format_gpu(gpu),
            evidence=(f"{format_gpu(gpu)}: license {license}",),
        )


@check("GPU026", causes=DEEP_CODES)
def vgpu_profile_computes(facts: Facts) -> Iterator[Finding]:
    for gpu, _ in _require_vgpus(facts):
        series = _WITHOUT_CUDA.search(gpu.name)
        if series is None:
            continue
        yield Finding(
            Severity.WARNING,
            f"{format_gpu(gpu)} {gpu.name} has a profile of the {series[1]} series, which most likely has no CUDA",
            Fix(
                "Ask the operator of the hypervisor for a profile of the C or Q series. For unified memory the hypervisor"
                " must also switch it on for this machine (enable_uvm=1).",
                docs="https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/",
            ),
            subject=format_gpu(gpu),
            evidence=(f"name {gpu.name}, virtualization vgpu",),
            confidence=Confidence.POSSIBLE,
        )
