"""What a run needs beside the GPU: memory of the machine, disk, processor cores."""

from devkit.estimate.adapters import adapter_parameters
from devkit.estimate.cards import GIB
from devkit.estimate.settings import Method, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.trained import PAGED, optimizer_terms, trained
from devkit.facts.record import keyword_record

PROCESS_BYTES = 6 * GIB
"""A Python process with torch and a CUDA context."""
WORKER_BYTES = 1 * GIB
"""A process that prepares data."""
SHARD_BYTES = 5 * 10**9
"""Largest file that transformers writes a model in by default: it is what loading holds at a time."""
WORKERS = 4
CORES_PER_GPU = 8
"""What the University of Virginia's course on language models starts with; four feed data, the rest the GPU."""
TOKEN_BYTES = 6
"""Text of one token with its id: four letters on average in English, four bytes for the id, less after compression."""
CHECKPOINTS = 3
"""How many a run keeps: the newest two and the one being written."""


@keyword_record
class HostNeeds:
    """For one GPU; several processes on a machine need as much each, the files on disk once."""

    memory_bytes: int
    comfortable_memory_bytes: int
    """With the whole model in the page cache, so that a second start reads nothing from disk."""
    disk_bytes: int
    model_bytes: int
    checkpoint_bytes: int
    data_bytes: int
    cores: int
    workers: int


def host_needs(shape: ModelShape, settings: TrainingSettings, *, tokens: int = 0) -> HostNeeds:
    """What training needs of the machine. `tokens` is the size of the data set."""
    model = shape.parameters * settings.precision.bytes
    what = trained(shape, settings)
    state = sum(term.bytes for term in optimizer_terms(what, settings))
    paged = state if settings.optimizer in PAGED else 0
    is_full = settings.method is Method.FULL
    kept = model if is_full else adapter_parameters(shape, settings) * settings.adapter_precision.bytes
    memory = PROCESS_BYTES + WORKERS * WORKER_BYTES + min(model, SHARD_BYTES) + paged
    checkpoints = CHECKPOINTS * (kept + state)
    data = tokens * TOKEN_BYTES
    return HostNeeds(
        memory_bytes=memory,
        comfortable_memory_bytes=memory + max(0, model - SHARD_BYTES),
        disk_bytes=model + checkpoints + data,
        model_bytes=model,
        checkpoint_bytes=kept + state,
        data_bytes=data,
        cores=CORES_PER_GPU,
        workers=WORKERS,
    )
