"""Checks of who may use a GPU and who already does: compute mode, foreign memory, MIG devices."""

import re
from collections.abc import Iterator

from devkit.doctor.applies import is_in_container, known, nvml_answer, outside_of_containers, python_of
from devkit.doctor.checks.chains import TRIED
from devkit.doctor.gpus import name_of, read_states, sum_of_processes
from devkit.doctor.limits import UNSEEN_MEMORY_BYTES, UNSEEN_MEMORY_SHARE
from devkit.doctor.machine import CDI_GUIDE, Family, driver_side, family_of, refresh_cdi
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts, Gpu, GpuHealth
from devkit.text import count_of, human_bytes, listed

MIG_GUIDE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
_INDEX_OF_MIG = re.compile(r"(\d+):(\d+)")
_MIG_UUID = re.compile(r"MIG-[0-9a-fA-F-]{36}")


@check(
    "GPU018",
    "Compute mode lets programs share a GPU",
    covers=("B13",),
    symptoms=("all CUDA-capable devices are busy or unavailable", "cudaErrorDevicesUnavailable", "E. Process"),
    causes=("PYT006", *TRIED),
)
def compute_mode_is_shared(facts: Facts) -> Iterator[Finding]:
    """No GPU is closed to CUDA, or taken by the one process that exclusive mode admits.

    Why it matters: the second program on such a GPU ends with "all CUDA-capable devices are busy or unavailable", which
    reads like a fault of the GPU. nvidia-smi shows nothing wrong but two letters in its table.
    How it is seen: NVML's compute mode, and the processes on the GPU. Clusters set exclusive mode on purpose; on a GPU
    without a process it is a note.
    Source: nvidia-smi(1), --compute-mode; tensorflow/tensorflow issue 526; NVIDIA/DIGITS issue 2005.
    """
    for gpu, health in read_states(facts, "compute_mode"):
        if health.compute_mode in ("prohibited", "exclusive-process", "exclusive-thread"):
            yield _closed(facts, gpu, health)


def _closed(facts: Facts, gpu: Gpu, health: GpuHealth) -> Finding:
    holders = _names(health)
    if health.compute_mode == "prohibited":
        severity, says = Severity.ERROR, "is closed to CUDA (compute mode prohibited)"
    elif holders:
        severity, says = Severity.WARNING, f"admits one process and has it: {holders}"
    else:
        severity, says = Severity.NOTE, f"admits one process at a time ({health.compute_mode})"
    return Finding(
        severity,
        f"{name_of(gpu)} {says}; any other program finds it busy or unavailable",
        Fix(
            "Open the GPU to all programs again, if nobody closed it on purpose; or end the process that holds it.",
            (f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",),
            where=driver_side(facts),
            root=True,
        ),
        subject=name_of(gpu),
        evidence=(f"{name_of(gpu)} {gpu.name}: compute mode {health.compute_mode}",),
    )


def _names(health: GpuHealth) -> str:
    if not isinstance(health.processes, tuple) or not health.processes:
        return ""
    return listed(f"{process.name or 'process'} ({process.pid})" for process in health.processes)


@check(
    "GPU019",
    "GPU memory is held by visible programs only",
    covers=("B14",),
    symptoms=("CUDA out of memory although no process is running", "GPU memory in use but no processes found"),
)
def memory_is_accounted_for(facts: Facts) -> Iterator[Finding]:
    """What is used of a GPU's memory belongs to processes that can be seen.

    Why it matters: a model that should fit ends with "out of memory" because another container, another user or a
    program that was killed half-way holds the memory, and no list shows it.
    How it is seen: memory in use against the sum of the processes that NVML names, on GPUs that are not divided. The
    inside of a container never sees the host's processes; there it is a note.
    Source: nvidia-smi(1), "Processes"; NVIDIA, NVML API reference, nvmlDeviceGetComputeRunningProcesses.
    """
    for gpu, health in read_states(facts, "processes"):
        held = _unseen_bytes(gpu, health)
        if held is None:
            continue
        inside = is_in_container(facts)
        yield Finding(
            Severity.NOTE if inside else Severity.WARNING,
            f"{human_bytes(held)} of the memory of {name_of(gpu)} are held by no process that can be seen here",
            Fix(
                "Look on the host who holds the memory."
                if inside
                else "See who has the device open, also as root, and"
                " end what is left of dead programs; if nobody has, reset the GPU.",
                ("nvidia-smi",) if inside else (f"sudo fuser -v /dev/nvidia{gpu.index} /dev/nvidia-uvm",),
                where=Side.HOST if inside else driver_side(facts),
                root=not inside,
            ),
            subject=name_of(gpu),
            evidence=(f"used {_used(gpu)} B, by visible processes {sum(sum_of_processes(health))} B",),
            confidence=Confidence.LIKELY if not inside else Confidence.POSSIBLE,
        )


def _used(gpu: Gpu) -> int:
    if not isinstance(gpu.memory_bytes, int) or not isinstance(gpu.free_bytes, int):
        return 0
    return gpu.memory_bytes - gpu.free_bytes


def _unseen_bytes(gpu: Gpu, health: GpuHealth) -> int | None:
    """Memory in use beyond what processes and the driver itself explain; None where nothing is missing or not known."""
    if gpu.mig_enabled is True or health.virtualisation == "vgpu" or not isinstance(gpu.memory_bytes, int):
        return None
    processes = health.processes if isinstance(health.processes, tuple) else ()
    if any(not isinstance(process.memory_bytes, int) for process in processes):
        return None
    missing = _used(gpu) - sum(sum_of_processes(health))
    allowance = max(UNSEEN_MEMORY_BYTES.value, int(gpu.memory_bytes * UNSEEN_MEMORY_SHARE.value))
    return missing if missing > allowance else None


@check(
    "GPU020",
    "A process is given one MIG device",
    covers=("C05",),
    symptoms=("INTERNAL ASSERT FAILED device >= 0 && device < num_gpus", "only one MIG device is visible"),
)
def one_mig_device_for_a_process(facts: Facts) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names no more than one MIG device.

    Why it matters: CUDA shows a process the first MIG device of its list and no other. Distributed training that counts
    on the rest starts on one device, or fails in an assertion.
    How it is seen: entries of CUDA_VISIBLE_DEVICES that begin with MIG-.
    Source: NVIDIA, Multi-Instance GPU user guide, "CUDA device enumeration"; pytorch/pytorch issue 130181.
    """
    named = [entry.strip() for entry in (python_of(facts).cuda_visible_devices or "").split(",")]
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
            docs=MIG_GUIDE,
        ),
        evidence=(f"CUDA_VISIBLE_DEVICES={','.join(named)}",),
    )


@check(
    "GPU021",
    "CDI specifications name the MIG devices of today",
    covers=("C06",),
    symptoms=("unresolvable CDI devices", "MIG device not found", "failed to inject CDI devices"),
)
def cdi_names_present_mig_devices(facts: Facts) -> Iterator[Finding]:
    """The MIG devices in CDI specifications are those that NVML lists now.

    Why it matters: the service that writes the specification anew after driver updates does not notice a GPU that was
    divided anew. Containers then ask for MIG devices that are gone, and the new ones cannot be asked for.
    How it is seen: MIG UUIDs and "gpu:instance" names of the specifications against NVML's list.
    Source: NVIDIA, Container Toolkit, CDI support, known limitations of nvidia-cdi-refresh.
    """
    outside_of_containers(facts)
    gpus = [gpu for gpu in nvml_answer(facts).gpus if isinstance(gpu, Gpu)]
    devices = [(spec.path, name) for spec in known(facts.cdi) for name in spec.devices]
    named = [(path, name) for path, name in devices if _INDEX_OF_MIG.fullmatch(name) or _MIG_UUID.fullmatch(name)]
    present = _present_names(gpus)
    if not named and not present:
        raise NotApplicable("no GPU is divided, and no specification names a MIG device")
    gone = [(path, name) for path, name in named if name not in present]
    unnamed = bool(present) and bool(devices) and not any(name in present for _, name in named)
    if not gone and not unnamed:
        return
    names = [name for _, name in gone]
    yield Finding(
        Severity.WARNING,
        f"the CDI specification names {count_of(len(names), 'MIG device')} that no longer exist: {listed(names)}"
        if gone
        else f"the CDI specification names none of the {count_of(len(present) // 2, 'MIG device')} of this machine",
        Fix(
            "Write the specification anew, and do so after each change of the MIG layout.",
            _refresh(facts),
            root=True,
            docs=CDI_GUIDE,
        ),
        subject=(gone or devices)[0][0],
        evidence=(
            f"in the specification: {listed(name for _, name in devices)}",
            f"by NVML: {listed(sorted(present))}",
        ),
    )


def _present_names(gpus: list[Gpu]) -> frozenset[str]:
    """Each MIG device by both of the names that specifications use."""
    return frozenset(
        name for gpu in gpus for place, uuid in enumerate(gpu.mig_instances) for name in (uuid, f"{gpu.index}:{place}")
    )


def _refresh(facts: Facts) -> tuple[str, ...]:
    if family_of(facts) is Family.NIXOS:
        return refresh_cdi(facts)
    return ("sudo systemctl restart nvidia-cdi-refresh.service || " + refresh_cdi(facts)[0],)
