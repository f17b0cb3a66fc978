"""Stages about collectives: an all-reduce of several processes is right, over NCCL on GPUs and Gloo on the CPU."""

import json
import re
import subprocess
import sys
import tempfile
import time
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
POLL_S = 0.05
GPU_MEGABYTES, CPU_MEGABYTES = 256, 8
MIN_BUS_GB_PER_S = 1.0
"""Within one machine even host memory carries more; below it NCCL went through a network interface."""

_RANK = re.compile(r"^\[rank\d+\]: ?")
_WARNING = re.compile(r"^(?:\[rank\d+\]:)?\[[WI]\d")
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?::|$)")


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
    yield from _sums(ranks)
    slowest = max(rank["seconds"] for rank in ranks)
    bus = 2 * (device.count - 1) / device.count * ranks[0]["bytes"] / slowest / 1e9
    yield expect_above("bus_gb_per_s", round(bus, 3), MIN_BUS_GB_PER_S)


def prove_gloo(device: Device) -> Iterator[StageReading]:
    """Prove that two processes on the CPU all-reduce over Gloo."""
    del device
    ranks = _run("gloo", 2, CPU_MEGABYTES)
    yield from _sums(ranks)
    yield StageReading("gb_per_s", round(ranks[0]["bytes"] / max(rank["seconds"] for rank in ranks) / 1e9, 3))


def _sums(ranks: list[dict[str, float]]) -> Iterator[StageReading]:
    yield expect_equal("processes", len(ranks), len(ranks))
    yield expect_at_most("wrong_sums", sum(rank["wrong"] for rank in ranks), 0)


def _run(backend: str, world_size: int, megabytes: int) -> list[dict[str, float]]:
    """Run all processes and return their results. Raises RuntimeError with the error of the first that failed."""
    ends_at = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="devkit-ranks-") as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world_size):
                program = [sys.executable, "-P", str(Path(all_reduce.__file__)), backend, str(rank), str(world_size)]
                arguments = [*program, str(folder / "store"), str(megabytes)]
                # Output goes to files: a full pipe of one process would block all of them.
                with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
                    processes.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
            _wait(folder, processes, ends_at)
            outputs = [(folder / f"{rank}.out").read_text(encoding="utf-8") for rank in range(world_size)]
            return [json.loads(output.splitlines()[-1]) for output in outputs]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _wait(folder: Path, processes: list[subprocess.Popen[bytes]], ends_at: float) -> None:
    """Wait until all have succeeded. The first failure ends the wait: the others would wait for it in silence."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            log = (folder / f"{failed[0]}.err").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"process {failed[0]} ended with status {codes[failed[0]]}: {find_error(log)}")
        waiting = [rank for rank, code in enumerate(codes) if code is None]
        if not waiting:
            return
        if time.monotonic() > ends_at:
            raise RuntimeError(f"process {waiting[0]} did not finish within {DEADLINE_S:g} s: the processes wait")
        time.sleep(POLL_S)


def find_error(log: str) -> str:
    """Return the error that ends the last traceback, joined to one line; else the last line.

    torch puts the rank in front of each line, and warns after the traceback that the group was not destroyed.
    """
    own = [_RANK.sub("", line).rstrip() for line in log.splitlines() if not _WARNING.match(line)]
    lines = [line for line in own if line]
    start = max((index for index, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    errors = (index for index in range(start + 1, len(lines)) if _ERROR.match(lines[index]))
    first = next(errors, None) if start >= 0 else None
    return " ".join(line.strip() for line in (lines[-1:] if first is None else lines[first:])) or "it printed nothing"
