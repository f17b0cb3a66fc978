"""Stages about several processes: their sum is right, over NCCL on GPUs and over Gloo on the CPU."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from devkit.workload import all_reduce
from devkit.workload.device import Device
from devkit.workload.stage import Reading, StageSkipped, above, at_most, equals, fact

DEADLINE_S = 120.0
GPU_MEGABYTES, CPU_MEGABYTES = 256, 8
LEAST_BUS_GB_PER_S = 1.0
"""Within one machine even host memory carries more; below it NCCL went through a network interface."""


def nccl_adds_up(device: Device) -> Iterator[Reading]:
    """All GPUs of this machine add up over NCCL, faster than a network would.

    Bus bandwidth counts what each link carries, 2 (n - 1) / n of the size per call, so that it compares across counts.
    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    if device.kind != "cuda":
        raise StageSkipped("NCCL adds up over GPUs, and there is none")
    if device.count < 2:
        raise StageSkipped("there is one GPU: nothing to add up with")
    ranks = _run("nccl", device.count, GPU_MEGABYTES)
    yield from _sums(ranks)
    slowest = max(rank["seconds"] for rank in ranks)
    bus = 2 * (device.count - 1) / device.count * ranks[0]["bytes"] / slowest / 1e9
    yield above("bus_gb_per_s", round(bus, 3), LEAST_BUS_GB_PER_S)


def gloo_adds_up(device: Device) -> Iterator[Reading]:
    """Two processes on the CPU add up over Gloo."""
    del device
    ranks = _run("gloo", 2, CPU_MEGABYTES)
    yield from _sums(ranks)
    yield fact("gb_per_s", round(ranks[0]["bytes"] / max(rank["seconds"] for rank in ranks) / 1e9, 3))


def _sums(ranks: list[dict[str, float]]) -> Iterator[Reading]:
    yield equals("processes", len(ranks), len(ranks))
    yield at_most("wrong_sums", sum(rank["wrong"] for rank in ranks), 0)


def _run(backend: str, world: int, megabytes: int) -> list[dict[str, float]]:
    """What each process found. Raises RuntimeError with the last words of the first that failed."""
    ends_at = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="devkit-ranks-") as folder:
        program = [sys.executable, "-P", str(Path(all_reduce.__file__)), backend]
        store = str(Path(folder) / "store")
        started = [
            subprocess.Popen(
                [*program, str(rank), str(world), store, str(megabytes)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            return [_found(rank, process, ends_at) for rank, process in enumerate(started)]
        finally:
            for process in started:
                process.kill()
                process.communicate()


def _found(rank: int, process: subprocess.Popen[str], ends_at: float) -> dict[str, float]:
    try:
        out, err = process.communicate(timeout=max(0.1, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"process {rank} did not finish within {DEADLINE_S:g} s: the processes wait") from None
    if process.returncode != 0:
        last = [line for line in err.splitlines() if line.strip()][-1:]
        raise RuntimeError(f"process {rank} ended with status {process.returncode}: {''.join(last)}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found
