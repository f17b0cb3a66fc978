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
    with tempfile.TemporaryDirectory(prefix="devkit-ranks-") as name:
        folder = Path(name)
        started = [_started(folder, backend, rank, world, megabytes) for rank in range(world)]
        try:
            return [_found(folder, rank, process, ends_at) for rank, process in enumerate(started)]
        finally:
            for process in started:
                process.kill()
                process.wait()


def _started(folder: Path, backend: str, rank: int, world: int, megabytes: int) -> subprocess.Popen[bytes]:
    """Output goes to files: a full pipe of one process would hold up all of them."""
    program = [sys.executable, "-P", str(Path(all_reduce.__file__)), backend, str(rank), str(world)]
    with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
        return subprocess.Popen(
            [*program, str(folder / "store"), str(megabytes)], stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )


def _found(folder: Path, rank: int, process: subprocess.Popen[bytes], ends_at: float) -> dict[str, float]:
    try:
        code = process.wait(timeout=max(0.1, ends_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"process {rank} did not finish within {DEADLINE_S:g} s: the processes wait") from None
    if code != 0:
        said = (folder / f"{rank}.err").read_text(encoding="utf-8", errors="replace")
        last = [line for line in said.splitlines() if line.strip()][-1:]
        raise RuntimeError(f"process {rank} ended with status {code}: {''.join(last)}")
    found: dict[str, float] = json.loads((folder / f"{rank}.out").read_text(encoding="utf-8").splitlines()[-1])
    return found
