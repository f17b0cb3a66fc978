"""Samples of the GPUs that a run uses, taken by a child process beside it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devkit.probe import sample_gpu

SAMPLES_FILE = "gpu.jsonl"
INTERVAL_S = 1.0
_END_GRACE_S = 2.0


@contextmanager
def sampled(file: Path, uuids: tuple[str, ...], *, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Append samples of these GPUs to `file` while the context lasts. A child that cannot start costs them alone.

    The child ends with its standard input, so also when this process is killed.
    """
    program = str(Path(sample_gpu.__file__))
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", program, str(file), str(interval_s), *uuids],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C asks the run for a checkpoint; the samples of that time count, too.
            start_new_session=True,
        )
    except OSError:
        yield
        return
    try:
        yield
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
    try:
        child.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        # A wedged driver may hold it in the kernel: it is nobody's to wait for.
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_GRACE_S)


def gpus_of_this_run() -> tuple[str, ...]:
    """UUIDs, as NVML has them, of the GPUs that this machine's processes of the run use; empty on a CPU."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return ()
    count = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    found = (str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(count))
    return tuple(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in found if uuid)
