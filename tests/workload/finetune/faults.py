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

    from devkit.workload.finetune.loop import ModelWithLoss

    forward, seen = ModelWithLoss.compute_micro_batch_loss, []

    def failing(module, batch):
        seen.append(1)
        if len(seen) in passes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(module, batch)

    ModelWithLoss.compute_micro_batch_loss = failing


def _dies_at_start(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies_while_it_reads(_: object) -> None:
    """Killed by the system while texts are read."""
    from devkit.workload.finetune import program

    program.build_dataset = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _tokenises_nothing(_: object) -> None:
    """This process has no tokenizer to hand texts to."""
    from devkit.workload.finetune import program

    def absent(*_: object) -> None:
        raise AssertionError("this process tokenises")

    program.build_dataset = absent


def _scratch(folder: str) -> None:
    """Files that are nobody's go there; nowhere, if it does not exist."""
    import tempfile

    tempfile.tempdir = folder


def _patience(seconds: float) -> None:
    """Wait for the others no longer than so."""
    from devkit.workload.finetune import distributed

    distributed.join_process_group.__wrapped__.__kwdefaults__["rendezvous_timeout_s"] = seconds


def _memory_of_loading(path: str) -> None:
    """No fault: what loading and sharing out take beside files and what was there, in bytes, is written to `path`."""
    import ctypes
    import threading

    from devkit.workload.finetune import program

    # Every tensor of a megabyte has pages of its own, which freeing gives back: a heap with holes is not measured.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
    load, share, sizes = program.load_base_model, program.wrap_parallel, []
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

    program.load_base_model, program.wrap_parallel = loaded, shared


def _own_bytes() -> int:
    """This process's memory without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def _another_transformers(_: object) -> None:
    """The model without weights has a place that the whole one has not."""
    import torch

    from devkit.workload.finetune.model import loading

    made = loading.build_meta_model

    def skeleton(*given, **named):
        result = made(*given, **named)
        result.register_buffer("another", torch.zeros(1, device="meta"))
        return result

    loading.build_meta_model = skeleton


_FAULTS = {
    "memory of loading": _memory_of_loading,
    "another transformers": _another_transformers,
    "out of memory": _out_of_memory,
    "dies at start": _dies_at_start,
    "dies while it reads": _dies_while_it_reads,
    "tokenises nothing": _tokenises_nothing,
    "scratch": _scratch,
    "patience": _patience,
}
