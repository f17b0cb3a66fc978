"""Stages about collectives: an all-reduce of several processes is right, over NCCL on GPUs and Gloo on the CPU."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from devkit.workload.device import Device
from devkit.workload.proof import all_reduce
from devkit.workload.proof.stages import (
    StageReading,
    StageSkipped,
    expect_above,
    expect_at_most,
    expect_equal,
)

DEADLINE_S = 120.0
GPU_MEGABYTES, CPU_MEGABYTES = 256, 8
MIN_BUS_GB_PER_S = 1.0
"""Within one machine even host memory carries more; below it NCCL went through a network interface."""


def prove_nccl(device: Device) -> Iterator[StageReading]:
    """Prove that the GPUs of this machine all-reduce over NCCL, faster than over a network.

    Bus bandwidth counts the bytes on each link, 2 (n - 1) / n of the size per call, so that it compares across counts.
    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    if device.kind != "cuda":
        raise StageSkipped("NCCL needs GPUs, but this machine has none")
    if device.count < 2:
        raise StageSkipped("this machine has only one GPU, so there is nothing to reduce")
    ranks = _run("nccl", device.count, GPU_MEGABYTES)
    yield from _sums(ranks, device.count)
    slowest = max(rank["seconds"] for rank in ranks)
    bus = 2 * (device.count - 1) / device.count * ranks[0]["bytes"] / slowest / 1e9
    yield expect_above("bus_gb_per_s", round(bus, 3), MIN_BUS_GB_PER_S)


def prove_gloo(device: Device) -> Iterator[StageReading]:
    """Prove that two processes on the CPU all-reduce over Gloo."""
    del device
    ranks = _run("gloo", 2, CPU_MEGABYTES)
    yield from _sums(ranks, 2)
    yield StageReading("gb_per_s", round(ranks[0]["bytes"] / max(rank["seconds"] for rank in ranks) / 1e9, 3))


def _sums(ranks: list[dict[str, float]], world_size: int) -> Iterator[StageReading]:
    yield expect_equal("processes", len(ranks), world_size)
    yield expect_at_most("wrong_sums", sum(rank["wrong"] for rank in ranks), 0)


def _run(backend: str, world_size: int, megabytes: int) -> list[dict[str, float]]:
    """Run all processes by torchrun and return their results. Raises RuntimeError with the error of the first that failed."""
    with tempfile.TemporaryDirectory(prefix="devkit-ranks-") as folder:
        program = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--log-dir", folder]
        program += [f"--nproc-per-node={world_size}", all_reduce.__file__, backend, str(megabytes), folder]
        safe_path = {**os.environ, "PYTHONSAFEPATH": "1"}
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=safe_path)
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the processes did not finish within {DEADLINE_S:g} s: they wait") from None
        finally:
            # torchrun ends its processes before it ends.
            process.terminate()
            process.wait()
        if code:
            raise RuntimeError(_find_error(Path(folder)))
        return [json.loads(each.read_text(encoding="utf-8")) for each in sorted(Path(folder).glob("*.json"))]


def _find_error(folder: Path) -> str:
    """Return the first error, which `record` writes into the folder of its rank; without one the last line of the log."""
    failures = [(each.parent.name, json.loads(each.read_text())["message"]) for each in folder.glob("**/error.json")]
    if failures:
        rank, error = min(failures, key=lambda failure: int(failure[1]["extraInfo"]["timestamp"]))
        return f"process {rank}: {error['message']}"
    log = Path(folder, "log").read_text(encoding="utf-8", errors="replace")
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip(" =-")), "it printed nothing")
