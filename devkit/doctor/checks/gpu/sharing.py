"""Checks of how GPUs are shared and divided: compute mode, memory of other processes, MIG, vGPU."""

import re
from collections.abc import Iterator

from devkit.doctor.checks.cascades import CUDA_CODES, DEEP_CODES, PYTHON_CODES
from devkit.doctor.gpus import GpuWithHealth, format_gpu, require_gpu_health_field
from devkit.doctor.model import Severity, check
from devkit.doctor.preconditions import (
    is_in_container,
    require,
    require_host,
    require_nvml,
    require_some,
    require_visible_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import UNSEEN_MEMORY_BYTES, UNSEEN_MEMORY_SHARE
from devkit.facts.gpu import Gpu
from devkit.facts.model import Facts
from devkit.text import format_bytes, format_count, join_words

_NOT_SHARED = ("prohibited", "exclusive-process", "exclusive-thread")
_MPS_SERVER = "nvidia-cuda-mps"
"""Its name as the kernel shortens it."""
_INDEX_OF_MIG = re.compile(r"(\d+):(\d+)")
_MIG_UUID = re.compile(r"MIG-[0-9a-fA-F-]{36}")
_WITHOUT_CUDA = re.compile(r"-\d+([AB])\d?$")
_LICENSED = "licensed"
_UNKNOWN_LICENSES = ("unknown", "uninitialized")


@check("GPU018", causes=("PYT006", *DEEP_CODES))
def compute_mode_is_shared(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "compute_mode"):
        mode = health.compute_mode
        processes = health.processes if isinstance(health.processes, tuple) else ()
        if mode not in _NOT_SHARED or any(process.name.startswith(_MPS_SERVER) for process in processes):
            continue
        yield problem(
            "prohibited" if mode == "prohibited" else "taken" if processes else "exclusive",
            index=gpu.index,
            mode=mode,
            processes=join_words(f"{process.name or 'process'} ({process.pid})" for process in processes),
            evidence=(f"{format_gpu(gpu)} {gpu.name}: compute mode {mode}",),
        )


@check("GPU035", require_visible_gpu, causes=DEEP_CODES)
def mps_is_reachable(facts: Facts) -> Iterator[Problem]:
    mps = require_some(require(facts.limits).mps, "MPS is not configured, and no MPS daemon responds")
    control = f"{mps.pipe_directory}/control"
    if not mps.answers:
        yield problem("no-daemon", folder=mps.pipe_directory, evidence=(f"{control}: not there", *mps.settings))
    elif is_in_container(facts) and mps.has_own_ipc:
        yield problem("own-ipc", evidence=(f"{control}: a socket", *mps.settings))


@check("GPU019")
def gpu_memory_is_accounted_for(facts: Facts) -> Iterator[Problem]:
    for gpu, health in require_gpu_health_field(facts, "processes"):
        if gpu.mig_enabled is True or health.virtualization == "vgpu":
            continue
        if not isinstance(gpu.memory_bytes, int) or not isinstance(gpu.free_bytes, int):
            continue
        processes = health.processes if isinstance(health.processes, tuple) else ()
        sizes = [process.memory_bytes for process in processes if isinstance(process.memory_bytes, int)]
        used_bytes = gpu.memory_bytes - gpu.free_bytes
        unseen_bytes = used_bytes - sum(sizes)
        # The driver itself takes some.
        allowance_bytes = max(UNSEEN_MEMORY_BYTES, int(gpu.memory_bytes * UNSEEN_MEMORY_SHARE))
        if unseen_bytes > allowance_bytes and len(sizes) == len(processes):
            yield problem(
                "unseen-in-container" if is_in_container(facts) else "unseen",
                index=gpu.index,
                size=format_bytes(unseen_bytes),
                evidence=(f"used {used_bytes} B, by visible processes {sum(sizes)} B",),
            )


@check("GPU003", causes=(*CUDA_CODES, *PYTHON_CODES))
def mig_has_instances(facts: Facts) -> Iterator[Problem]:
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    skip_if(not any(gpu.mig_enabled is True for gpu in gpus), "no GPU is in MIG mode")
    empty = [gpu for gpu in gpus if gpu.mig_enabled is True and not gpu.mig_instances]
    for gpu in empty:
        yield problem(
            "no-instance",
            index=gpu.index,
            evidence=(f"{format_gpu(gpu)} {gpu.name}: MIG mode on, no MIG devices",),
            severity=Severity.ERROR if len(empty) == len(gpus) else Severity.WARNING,
        )


@check("GPU020")
def process_has_one_mig_device(facts: Facts) -> Iterator[Problem]:
    named = [entry.strip() for entry in (require(facts.python).cuda_visible_devices or "").split(",")]
    migs = [entry for entry in named if entry.startswith("MIG-")]
    if len(migs) > 1:
        evidence = (f"CUDA_VISIBLE_DEVICES={','.join(named)}",)
        yield problem("several", count=len(migs), first=migs[0], evidence=evidence)


@check("GPU021", require_host)
def cdi_names_current_mig_devices(facts: Facts) -> Iterator[Problem]:
    gpus = [gpu for gpu in require_nvml(facts).gpus if isinstance(gpu, Gpu)]
    devices = [(spec.path, name) for spec in require(facts.cdi) for name in spec.devices]
    named = [(path, name) for path, name in devices if _INDEX_OF_MIG.fullmatch(name) or _MIG_UUID.fullmatch(name)]
    # Each MIG device by both of the names that specifications use.
    present = frozenset(
        name for gpu in gpus for place, uuid in enumerate(gpu.mig_instances) for name in (uuid, f"{gpu.index}:{place}")
    )
    skip_if(not named and not present, "no GPU is divided, and no specification names a MIG device")
    gone = [(path, name) for path, name in named if name not in present]
    unnamed = bool(present) and bool(devices) and not any(name in present for _, name in named)
    if not gone and not unnamed:
        return
    # NVML's devices have two names each.
    count = len(gone) or len(present) // 2
    yield problem(
        "names-gone" if gone else "names-none",
        devices=format_count(count, "MIG device"),
        names=join_words(name for _, name in gone),
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
    skip_if(not found, "no GPU here is virtual")
    return found


@check("GPU025")
def vgpu_is_licensed(facts: Facts) -> Iterator[Problem]:
    states = [(gpu, health) for gpu, health in _require_vgpus(facts) if isinstance(health.license, str)]
    reported = [(gpu, str(health.license)) for gpu, health in states if health.license not in _UNKNOWN_LICENSES]
    skip_if(not reported, "the driver does not report whether the virtual GPU is licensed")
    for gpu, license in reported:
        if license != _LICENSED:
            yield problem(
                "slowed-down" if license == "unlicensed-restricted" else "unlicensed",
                index=gpu.index,
                model=gpu.name,
                evidence=(f"{format_gpu(gpu)}: license {license}",),
            )


@check("GPU026", causes=DEEP_CODES)
def vgpu_profile_computes(facts: Facts) -> Iterator[Problem]:
    for gpu, _ in _require_vgpus(facts):
        series = _WITHOUT_CUDA.search(gpu.name)
        if series is not None:
            yield problem(
                "no-cuda",
                index=gpu.index,
                model=gpu.name,
                series=series[1],
                evidence=(f"name {gpu.name}, virtualization vgpu",),
            )
