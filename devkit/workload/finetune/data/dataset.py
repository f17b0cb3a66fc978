"""The dataset of a run: from --data and --eval-data to examples, tokenized once per node.

Local rank 0 tokenizes and writes the examples to a file that all ranks of its node map into memory. The file is deleted
as soon as it is mapped. Where it cannot be written, or another rank cannot see it (containers with a disk of their own),
that rank tokenizes for itself, with the same result.
"""

import contextlib
import json
import mmap
import os
import tempfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.data.batches import Example
from devkit.workload.finetune.data.readers import RecordReader
from devkit.workload.finetune.data.tokenization import (
    find_context_length,
    require_context_length,
    require_vocabulary_size,
    tokenize_records,
)
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.events import Events, ReadingProgress
from devkit.workload.finetune.model.files import Tokenizer
from devkit.workload.finetune.settings import FinetuneSettings

DEFAULT_SEQUENCE = FinetuneSettings().sequence

_STORE_KEY = "devkit/data"
"""Where local rank 0 leaves the file's path in the store, followed by its rank."""

_INT_BYTES = 4
"""Bytes of a length and of a token id."""


@dataclass(frozen=True)
class Dataset:
    """Examples to train on, held-out examples to evaluate on, and notes for people.

    `chat_template` is how chats were rendered, which a program that talks to the trained model needs.
    """

    train: Sequence[Example]
    held_out: Sequence[Example]
    notes: tuple[str, ...]
    chat_template: str | None = None


def build_dataset(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    config: Any,  # noqa: ANN401 - of transformers
    events: Events,
) -> Dataset:
    """Read and tokenize all data for the model of `config`; `events` get the progress.

    Raises DevkitError for data that cannot be trained on.
    """
    examples, notes = _tokenize(settings.data, tokenizer, settings, events)
    require_vocabulary_size(examples, config)
    if settings.sequence == find_context_length(config):
        notes = (*notes, f"rows have at most {settings.sequence} tokens, which is this model's context length")
    if not settings.eval_data:
        return Dataset(*_split(examples, settings), notes, tokenizer.chat_template)
    held_out, more = _tokenize(settings.eval_data, tokenizer, settings, events)
    notes = (*notes, *(f"held-out data: {note}" for note in more))
    return Dataset(examples, held_out, notes, tokenizer.chat_template)


def limit_to_context_length(settings: FinetuneSettings, config: Any) -> FinetuneSettings:  # noqa: ANN401 - of transformers
    """Return the settings with the default sequence length limited to the model's context length.

    Raises DevkitError if the user set a longer one.
    """
    context_length = find_context_length(config)
    if context_length is not None and context_length < settings.sequence == DEFAULT_SEQUENCE:
        return replace(settings, sequence=context_length)
    require_context_length(settings.sequence, config)
    return settings


def _tokenize(
    names: tuple[str, ...], tokenizer: Tokenizer, settings: FinetuneSettings, events: Events
) -> tuple[Sequence[Example], tuple[str, ...]]:
    records = RecordReader(names)
    tokenized = tokenize_records(
        records,
        tokenizer,
        sequence=settings.sequence,
        completion_only=settings.completion_only,
        on_progress=ReadingProgress(events),
    )
    return tokenized.examples, (f"{records.summarize()}", *tokenized.notes)


def _split(examples: Sequence[Example], settings: FinetuneSettings) -> tuple[Sequence[Example], Sequence[Example]]:
    """Split off the share to hold out, spread evenly over the data."""
    wanted = round(len(examples) * settings.eval_share)
    if settings.eval_share > 0 and not 0 < wanted < len(examples):
        raise DevkitError(
            f"--eval-share {settings.eval_share:g} of {len(examples)} texts leaves nothing on one side",
            "Give more texts, or --eval-data.",
        )
    held_out = {index * len(examples) // wanted for index in range(wanted)}
    train = [each for index, each in enumerate(examples) if index not in held_out]
    return train, [examples[index] for index in sorted(held_out)]


def tokenize_once_per_node(build: Callable[[], Dataset], ranks: Ranks) -> Dataset:
    """Call `build` on local rank 0 and share its dataset with the node; all ranks must call.

    A DevkitError of one rank is raised on all.
    """
    if ranks.world_size == 1:
        return build()
    built = ranks.on_all_or_fail(lambda: build() if ranks.is_local_rank0 else None)
    path = write_dataset_file(built) if built is not None else None
    assert ranks.store is not None  # noqa: S101 - several ranks have met at one
    key = f"{_STORE_KEY}/{ranks.rank - ranks.local_rank}"
    try:
        if ranks.is_local_rank0:
            ranks.store.set(key, str(path or ""))
        ranks.barrier()
        name = ranks.store.get(key).decode()
        mapped = _map_dataset_file(Path(name)) if name else None
        # After this the file's name is not needed any more.
        ranks.barrier()
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
    if mapped is not None:
        return mapped
    return built if built is not None else build()


def write_dataset_file(data: Dataset) -> Path | None:
    """Write `data` to a new file and return its path; None if the disk does not take it.

    A line of JSON, padded to whole ids; then each text's length and all token ids, in 4 bytes each; then the loss mask
    in a byte for each token.
    """
    texts = [*data.train, *data.held_out]
    header = {"train": len(data.train), "held_out": len(data.held_out), "notes": data.notes}
    line = json.dumps({**header, "chat_template": data.chat_template}).encode()
    try:
        descriptor, name = tempfile.mkstemp(prefix="devkit-texts-")
    except OSError:
        return None
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(line + b" " * (-(len(line) + 1) % _INT_BYTES) + b"\n")
            stream.write(memoryview(array("i", [len(each.ids) for each in texts])).cast("B"))
            for each in texts:
                stream.write(memoryview(array("i", each.ids)).cast("B"))
            for each in texts:
                stream.write(memoryview(array("b", each.loss_mask)).cast("B"))
    except OSError:
        path.unlink(missing_ok=True)
        return None
    except BaseException:
        # A signal ends the run here, and no other process knows the name.
        path.unlink(missing_ok=True)
        raise
    return path


def _map_dataset_file(path: Path) -> Dataset | None:
    """Map a dataset file: its pages are in memory once for all ranks. None if there is no such file."""
    try:
        with path.open("rb") as stream:
            header = json.loads(stream.readline())
            start = stream.tell()
            # Copy on write, which never happens: torch refuses memory that is read-only.
            memory = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))[start:]
    except (OSError, ValueError):
        return None
    texts = header["train"] + header["held_out"]
    lengths = memory[: texts * _INT_BYTES].cast("i")
    tokens = sum(lengths)
    ids = memory[texts * _INT_BYTES :][: tokens * _INT_BYTES].cast("i")
    loss_mask = memory[(texts + tokens) * _INT_BYTES :].cast("b")
    examples = []
    start = 0
    for length in lengths:
        end = start + length
        examples.append(Example(ids[start:end], loss_mask[start:end]))
        start = end
    train, held_out = examples[: header["train"]], examples[header["train"] :]
    return Dataset(train, held_out, tuple(header["notes"]), header["chat_template"])
