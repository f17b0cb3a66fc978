"""Checks of host and GPU memory for the workload, and of process limits."""

from collections.abc import Iterator

from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import is_in_container, require, require_gpu_run, require_visible_gpu
from devkit.doctor.thresholds import FREE_GPU_BYTES, GROUP_MEMORY_BYTES, MIB, ROOM_WITHOUT_CHECKPOINTING
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import format_bytes, format_count

_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


@check("MEM001")
def memory_may_be_locked(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    limits = require(facts.limits)
    if not require(limits.has_infiniband):
        raise NotApplicable("there is no InfiniBand or RoCE card")
    limit_bytes = require(limits.locked_memory_bytes)
    if limit_bytes is None:
        return
    inside = is_in_container(facts)
    yield Finding(
        Severity.WARNING,
        f"only {format_bytes(limit_bytes)} of memory may be locked: NCCL over InfiniBand and GPUDirect Storage fail",
        Fix(
            "Lift the limit of the container and recreate it." if inside else "Lift the limit, and log in again.",
            ("--ulimit memlock=-1:-1", "ulimits: {memlock: -1}")
            if inside
            else ("echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-rdma.conf",),
            where=Side.PROJECT if inside else Side.HOST,
            root=not inside,
            docs=_NCCL_GUIDE,
        ),
        evidence=(f"/proc/self/limits: Max locked memory {limit_bytes}", "/sys/class/infiniband is not empty"),
        confidence=Confidence.LIKELY,
    )


@check("MEM002")
def no_process_was_oom_killed(facts: Facts) -> Iterator[Finding]:
    if not is_in_container(facts):
        raise NotApplicable("on a host the control group is only this session's")
    limits = require(facts.limits)
    kills = require(limits.out_of_memory_kills)
    if not kills:
        return
    limit_bytes = limits.group_memory_bytes
    is_limited = isinstance(limit_bytes, int)
    where = f"its limit of {format_bytes(limit_bytes)}" if isinstance(limit_bytes, int) else "the machine's memory"
    yield Finding(
        Severity.WARNING,
        f"the kernel has killed {format_count(kills, 'process', 'processes')} in this container: {where} was used up",
        Fix(
            ("Raise the container's memory limit" if is_limited else "Give the machine more memory or swap")
            + ", use fewer data loader workers, or load models from safetensors files, which are mapped, not copied.",
            ("deploy: {resources: {limits: {memory: 32g}}}",) if is_limited else (),
            where=Side.PROJECT,
        ),
        evidence=(f"memory.events: oom_kill {kills}", f"memory.max: {limit_bytes if is_limited else 'no limit'}"),
        confidence=Confidence.LIKELY,
    )


@check("MEM003", causes=("MEM002",))
def cgroup_memory_suffices(facts: Facts) -> Iterator[Finding]:
    if not is_in_container(facts):
        raise NotApplicable("only containers are limited this way")
    require_visible_gpu(facts)
    limit_bytes = require(require(facts.limits).group_memory_bytes)
    if limit_bytes is None or limit_bytes >= GROUP_MEMORY_BYTES.value:
        return
    gpu_bytes = [gpu.memory_bytes for gpu in facts.gpus if not isinstance(gpu.memory_bytes, Unknown)]
    yield Finding(
        Severity.WARNING,
        f"this container may use {format_bytes(limit_bytes)} of memory: loading a model will end it with status 137",
        Fix(
            "Raise the memory limit of the service in the Compose file, or --memory, and recreate the container.",
            ("deploy: {resources: {limits: {memory: 32g}}}",),
            where=Side.PROJECT,
        ),
        evidence=(
            f"memory.max: {limit_bytes // MIB} MiB",
            *(f"GPU memory: {size // MIB} MiB" for size in gpu_bytes[:1]),
        ),
        confidence=Confidence.POSSIBLE,
    )


@check("MEM004")
def gpu_memory_is_free(facts: Facts) -> Iterator[Finding]:
    require_visible_gpu(facts)
    free = [gpu.free_bytes for gpu in facts.gpus if not isinstance(gpu.free_bytes, Unknown)]
    if not free or len(free) < len(facts.gpus):
        raise NotApplicable("NVML does not say how much memory is free")
    if max(free) >= FREE_GPU_BYTES.value:
        return
    yield Finding(
        Severity.WARNING,
        f"no GPU has more than {format_bytes(max(free))} free: training ends with CUDA out of memory",
        Fix(
            "End what holds the memory, or use a smaller model, 4-bit weights, a batch of one and checkpointing.",
            ("nvidia-smi", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
            where=Side.CONTAINER if is_in_container(facts) else Side.HOST,
        ),
        evidence=tuple(
            f"GPU {gpu.index}: {format_bytes(size)} free" for gpu, size in zip(facts.gpus, free, strict=True)
        ),
        confidence=Confidence.POSSIBLE,
    )


@check("MEM005", causes=("GPU029",))
def checkpointing_is_needed(facts: Facts) -> Iterator[Finding]:
    run = require_gpu_run(facts)
    memory = [gpu.memory_bytes for gpu in require(run.gpus) if isinstance(gpu.memory_bytes, int)]
    peak = require(run.peak_bytes)
    if not memory:
        raise NotApplicable("the GPU's memory is not known")
    if require(run.checkpointing) and peak < min(memory) * ROOM_WITHOUT_CHECKPOINTING.value:
        yield Finding(
            Severity.NOTE,
            f"gradient checkpointing is on, though the run needs {format_bytes(peak)} of {format_bytes(min(memory))}",
            Fix(
                "Train without it, or with a larger micro-batch.",
                ("devkit finetune … --no-checkpointing",),
                where=Side.PROJECT,
            ),
            evidence=(f"peak {peak} bytes, memory {min(memory)} bytes",),
            confidence=Confidence.LIKELY,
        )
