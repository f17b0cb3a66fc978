"""Checks of host and GPU memory for the workload, and of process limits."""

from collections.abc import Iterator

from devkit.doctor.model import check
from devkit.doctor.preconditions import is_in_container, require, require_visible_gpu, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import FREE_GPU_BYTES, GROUP_MEMORY_BYTES, MIB
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import format_bytes, format_count


@check("MEM001", require_visible_gpu)
def memory_may_be_locked(facts: Facts) -> Iterator[Problem]:
    limits = require(facts.limits)
    skip_if(not require(limits.has_infiniband), "this machine has no InfiniBand or RoCE card")
    limit_bytes = require(limits.locked_memory_bytes)
    if limit_bytes is not None:
        evidence = (f"/proc/self/limits: Max locked memory {limit_bytes}", "/sys/class/infiniband is not empty")
        yield problem("limited", limit=format_bytes(limit_bytes), evidence=evidence)


@check("MEM002")
def no_process_was_oom_killed(facts: Facts) -> Iterator[Problem]:
    skip_if(not is_in_container(facts), "on a host, the cgroup covers only this session")
    limits = require(facts.limits)
    kills = require(limits.out_of_memory_kills)
    if not kills:
        return
    processes, limit_bytes = format_count(kills, "process", "processes"), limits.group_memory_bytes
    seen = f"memory.events: oom_kill {kills}"
    if isinstance(limit_bytes, int):
        evidence = (seen, f"memory.max: {limit_bytes}")
        yield problem("killed-at-limit", processes=processes, limit=format_bytes(limit_bytes), evidence=evidence)
    else:
        yield problem("killed", processes=processes, evidence=(seen, "memory.max: no limit"))


@check("MEM003", require_visible_gpu, causes=("MEM002",))
def cgroup_memory_suffices(facts: Facts) -> Iterator[Problem]:
    limit_bytes = require(require(facts.limits).group_memory_bytes)
    if limit_bytes is None or limit_bytes >= GROUP_MEMORY_BYTES:
        return
    gpu_bytes = [gpu.memory_bytes for gpu in facts.gpus if not isinstance(gpu.memory_bytes, Unknown)]
    evidence = (f"memory.max: {limit_bytes // MIB} MiB", *(f"GPU memory: {size // MIB} MiB" for size in gpu_bytes[:1]))
    place = "container" if is_in_container(facts) else "session or job"
    yield problem("limited", limit=format_bytes(limit_bytes), place=place, evidence=evidence)


@check("MEM004", require_visible_gpu)
def gpu_memory_is_free(facts: Facts) -> Iterator[Problem]:
    free = [gpu.free_bytes for gpu in facts.gpus if not isinstance(gpu.free_bytes, Unknown)]
    skip_if(not free or len(free) < len(facts.gpus), "NVML does not report how much memory is free")
    if max(free) < FREE_GPU_BYTES:
        evidence = [f"GPU {gpu.index}: {format_bytes(size)} free" for gpu, size in zip(facts.gpus, free, strict=True)]
        yield problem("used-up", free=format_bytes(max(free)), evidence=evidence)
