"""What goes wrong in one process of a run, planted in it after the fork and before its first line."""

import os
import signal


def plant(faults: dict) -> None:
    """Plant the faults of these names, each with its argument."""
    for name, argument in faults.items():
        _FAULTS[name](argument)


def _out_of_memory(passes: list[int]) -> None:
    """Memory runs out in these forward passes of training, counted from 1."""
    import torch

    from devkit.workload.finetune.step import ModelWithLoss

    forward, seen = ModelWithLoss.forward, []

    def failing(module, batch):
        seen.append(1)
        if len(seen) in passes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(module, batch)

    ModelWithLoss.forward = failing


def _dies_at_start(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies_while_it_reads(_: object) -> None:
    """Killed by the system while texts are read."""
    from devkit.workload.finetune import program_parts

    program_parts.data_of = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _tokenises_nothing(_: object) -> None:
    """This process has no tokenizer to hand texts to."""
    from devkit.workload.finetune import program_parts

    def absent(*_: object) -> None:
        raise AssertionError("this process tokenises")

    program_parts.data_of = absent


def _scratch(folder: str) -> None:
    """Files that are nobody's go there; nowhere, if it does not exist."""
    import tempfile

    tempfile.tempdir = folder


def _patience(seconds: float) -> None:
    """Wait for the others no longer than so."""
    from devkit.workload.finetune import ranks

    ranks.joined.__wrapped__.__kwdefaults__["meeting_s"] = seconds


_FAULTS = {
    "out of memory": _out_of_memory,
    "dies at start": _dies_at_start,
    "dies while it reads": _dies_while_it_reads,
    "tokenises nothing": _tokenises_nothing,
    "scratch": _scratch,
    "patience": _patience,
}
