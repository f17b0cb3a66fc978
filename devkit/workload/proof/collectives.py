"""Stages about several processes: their sum is right, over NCCL on GPUs and over Gloo on the CPU."""

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
    record_value,
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
    yield expect_above("bus_gb_per_s", round(bus, 3), MIN_BUS_GB_PER_S)


def prove_gloo(device: Device) -> Iterator[StageReading]:
    """Two processes on the CPU add up over Gloo."""
    del device
    ranks = _run("gloo", 2, CPU_MEGABYTES)
    yield from _sums(ranks)
    yield record_value("gb_per_s", round(ranks[0]["bytes"] / max(rank["seconds"] for rank in ranks) / 1e9, 3))


def _sums(ranks: list[dict[str, float]]) -> Iterator[StageReading]:
    yield expect_equal("processes", len(ranks), len(ranks))
    yield expect_at_most("wrong_sums", sum(rank["wrong"] for rank in ranks), 0)


def _run(backend: str, world: int, megabytes: int) -> list[dict[str, float]]:
    """What each process found. Raises RuntimeError with the error of the first that failed."""
    ends_at = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryDirectory(prefix="devkit-ranks-") as name:
        folder = Path(name)
        started = [_started(folder, backend, rank, world, megabytes) for rank in range(world)]
        try:
            _wait(folder, started, ends_at)
            return [_found(folder, rank) for rank in range(world)]
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


def _wait(folder: Path, started: list[subprocess.Popen[bytes]], ends_at: float) -> None:
    """Until all have ended well. One that fails ends it at once: the others wait for it, and say nothing of why."""
    while True:
        codes = [process.poll() for process in started]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            said = (folder / f"{failed[0]}.err").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"process {failed[0]} ended with status {codes[failed[0]]}: {find_error(said)}")
        waiting = [rank for rank, code in enumerate(codes) if code is None]
        if not waiting:
            return
        if time.monotonic() > ends_at:
            raise RuntimeError(f"process {waiting[0]} did not finish within {DEADLINE_S:g} s: the processes wait")
        time.sleep(POLL_S)


def find_error(said: str) -> str:
    """The error that ends the last traceback, all its lines on one; else the last line.

    torch puts the rank in front of each line, and warns behind the traceback that the group was not destroyed.
    """
    own = [_RANK.sub("", line).rstrip() for line in said.splitlines() if not _WARNING.match(line)]
    lines = [line for line in own if line]
    begun = max((place for place, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    names = (place for place in range(begun + 1, len(lines)) if _ERROR.match(lines[place]))
    first = next(names, None) if begun >= 0 else None
    return " ".join(line.strip() for line in (lines[-1:] if first is None else lines[first:])) or "it said nothing"


def _found(folder: Path, rank: int) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / f"{rank}.out").read_text(encoding="utf-8").splitlines()[-1])
    return found
