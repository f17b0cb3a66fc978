"""What goes wrong in one process of a run, planted in it after the fork and before its first line."""

import os
import signal
from pathlib import Path

M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""


def plant(faults: dict) -> None:
    """Plant the faults of these names, each with its argument."""
    for name, argument in faults.items():
        _FAULTS[name](argument)


def _out_of_memory(passes: list[int]) -> None:
    """Memory runs out in these forward passes of training, counted from 1."""
    import torch

    from devkit.workload.finetune.forward import ModelWithLoss

    forward, seen = ModelWithLoss.compute_micro_batch_loss, []

    def failing(module, batch):
        seen.append(1)
        if len(seen) in passes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(module, batch)

    ModelWithLoss.compute_micro_batch_loss = failing


def _dies_at_start(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_before_a_change(change: list) -> None:
    """Killed before its change of this number in this folder."""
    from benchmarks.kills_and_races import kill_before

    kill_before(*change)


def _dies_while_it_reads(_: object) -> None:
    """Killed by the system while texts are read."""
    from devkit.workload.finetune import program

    program.build_dataset = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _memory_of_loading(path: str) -> None:
    """No fault: what loading and sharing out take beside files and what was there, in bytes, is written to `path`."""
    import ctypes
    import threading

    from devkit.workload.finetune import program, trainer

    # Every tensor of a megabyte has pages of its own, which freeing gives back: a heap with holes is not measured.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    load, share, sizes = program.load_base_model, trainer.wrap_parallel, []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.001):
            sizes.append(_own_bytes())

    def loaded(*given):
        sizes.append(_own_bytes())
        threading.Thread(target=watch, daemon=True).start()
        return load(*given)

    def shared(*given, **named):
        result = share(*given, **named)
        sizes.append(_own_bytes())
        ended.set()
        Path(path).write_text(str(max(sizes) - sizes[0]))
        return result

    program.load_base_model, trainer.wrap_parallel = loaded, shared


def _own_bytes() -> int:
    """This process's memory without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _another_transformers(_: object) -> None:
    """The model has a parameter that those of the other processes have not."""
    import torch

    from devkit.workload.finetune import program

    load = program.load_base_model

    def loaded(*given):
        base = load(*given)
        base.model.register_parameter("another", torch.nn.Parameter(torch.zeros(1), requires_grad=False))
        return base

    program.load_base_model = loaded


_FAULTS = {
    "memory of loading": _memory_of_loading,
    "another transformers": _another_transformers,
    "out of memory": _out_of_memory,
    "dies at start": _dies_at_start,
    "killed before a change": _killed_before_a_change,
    "dies while it reads": _dies_while_it_reads,
}
