"""Texts are tokenised once on a node: the first process writes them to a file that all of its node map into memory.

The file is of this machine and gone as soon as it is mapped. Where it cannot be written, or not be seen by another
process (containers with a disk of their own each), that process tokenises for itself and comes to the same.
"""

import contextlib
import json
import mmap
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.data.batches import Example
from devkit.workload.finetune.data.readers import RecordReader
from devkit.workload.finetune.data.tokenization import (
    CONTEXT_LENGTH_FIELDS,
    require_context_length,
    require_vocabulary_size,
    tokenize_records,
)
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.events import Events, ReadingProgress
from devkit.workload.finetune.model.loading import Tokenizer
from devkit.workload.finetune.settings import FinetuneSettings

# From what --data and --eval-data name to examples.

DEFAULT_SEQUENCE = FinetuneSettings().sequence


@dataclass(frozen=True)
class Dataset:
    """Texts to learn from, texts to evaluate on, and what their owner should hear of them.

    `chat_template` is how chats were written, which whoever talks to the trained model has to know.
    """

    learned: Sequence[Example]
    held_out: Sequence[Example]
    notes: tuple[str, ...]
    chat_template: str | None = None


def build_dataset(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    config: Any,  # noqa: ANN401 - of transformers
    events: Events,
) -> Dataset:
    """Everything that is named, as examples for this model; `events` hear how far the reading is.

    Raises DevkitError for what cannot be learned.
    """
    examples, notes = _examples_of(settings.data, tokenizer, settings, events)
    require_vocabulary_size(examples, config)
    if settings.sequence == _positions_of(config):
        notes = (*notes, f"rows have at most {settings.sequence} tokens: this model reads no more")
    if not settings.eval_data:
        return Dataset(*_divided(examples, settings), notes, tokenizer.chat_template)
    held_out, more = _examples_of(settings.eval_data, tokenizer, settings, events)
    notes = (*notes, *(f"to evaluate on: {note}" for note in more))
    return Dataset(examples, held_out, notes, tokenizer.chat_template)


def limit_to_context_length(settings: FinetuneSettings, config: Any) -> FinetuneSettings:  # noqa: ANN401 - of transformers
    """The settings with the longest row that the model reads, where it is shorter than the default.

    Raises DevkitError where a longer one was asked for.
    """
    most = _positions_of(config)
    if most is not None and most < settings.sequence == DEFAULT_SEQUENCE:
        return replace(settings, sequence=most)
    require_context_length(settings.sequence, config)
    return settings


def _positions_of(config: Any) -> int | None:  # noqa: ANN401 - of transformers
    """The longest row that the model reads; None where its configuration does not say."""
    text = config.get_text_config()
    return next((found for name in CONTEXT_LENGTH_FIELDS if isinstance(found := getattr(text, name, None), int)), None)


def _examples_of(
    names: tuple[str, ...], tokenizer: Tokenizer, settings: FinetuneSettings, events: Events
) -> tuple[Sequence[Example], tuple[str, ...]]:
    records = RecordReader(names)
    made = tokenize_records(
        records,
        tokenizer,
        sequence=settings.sequence,
        completion_only=settings.completion_only,
        counted=ReadingProgress(events),
    )
    return made.examples, (f"{records.summarize()}", *made.notes)


def _divided(examples: Sequence[Example], settings: FinetuneSettings) -> tuple[Sequence[Example], Sequence[Example]]:
    """The texts without the share that is held out, spread evenly over the data, and that share."""
    wanted = round(len(examples) * settings.eval_share)
    if settings.eval_share > 0 and not 0 < wanted < len(examples):
        raise DevkitError(
            f"--eval-share {settings.eval_share:g} of {len(examples)} texts leaves nothing on one side",
            "Give more texts, or --eval-data.",
        )
    chosen = {index * len(examples) // wanted for index in range(wanted)}
    learned = [each for index, each in enumerate(examples) if index not in chosen]
    return learned, [examples[index] for index in sorted(chosen)]


_PATH = "devkit/data"
"""Where the first process of a node leaves the file's path in the store, by its rank."""

_INT = 4
"""Bytes of a length and of a token id."""


def tokenize_once_per_node(make: Callable[[], Dataset], together: Ranks) -> Dataset:
    """What `make` gives, made once on each node. All processes must call; what is refused is refused by all."""
    if together.world == 1:
        return make()
    made = together.on_all_or_fail(lambda: make() if together.is_local_rank0 else None)
    path = write_dataset_file(made) if made is not None else None
    try:
        found = _handed_on(path, together)
        # From here on nobody needs the name.
        together.barrier()
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
    if found is not None:
        return found
    return made if made is not None else make()


def _handed_on(path: Path | None, together: Ranks) -> Dataset | None:
    """What the file of this node holds; None where there is none. The first process of the node has written `path`."""
    assert together.store is not None  # noqa: S101 - several processes have met somewhere
    key = f"{_PATH}/{together.rank - together.local}"
    if together.is_local_rank0:
        together.store.set(key, str(path or ""))
    together.barrier()
    name = together.store.get(key).decode()
    return _mapped(Path(name)) if name else None


def write_dataset_file(data: Dataset) -> Path | None:
    """A new file that holds `data`; None where the disk takes it not.

    A line of JSON, padded to whole ids; then each text's length and all token ids, in 4 bytes each; then a byte for
    each token, whether it is learned.
    """
    texts = [*data.learned, *data.held_out]
    head = {"learned": len(data.learned), "held_out": len(data.held_out), "notes": data.notes}
    line = json.dumps({**head, "chat_template": data.chat_template}).encode()
    try:
        descriptor, name = tempfile.mkstemp(prefix="devkit-texts-")
    except OSError:
        return None
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(line + b" " * (-(len(line) + 1) % _INT) + b"\n")
            for block in _blocks(texts):
                stream.write(block)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    except BaseException:
        # A signal ends the run here: nobody else knows the name.
        path.unlink(missing_ok=True)
        raise
    return path


def _blocks(texts: Sequence[Example]) -> Iterator[memoryview]:
    yield memoryview(array("i", [len(each.ids) for each in texts])).cast("B")
    for each in texts:
        yield memoryview(array("i", each.ids)).cast("B")
    for each in texts:
        yield memoryview(array("b", each.counted)).cast("B")


def _mapped(path: Path) -> Dataset | None:
    """The data in a file, where it lies: pages of it are in memory once for all processes. None for no such file."""
    try:
        with path.open("rb") as stream:
            head = json.loads(stream.readline())
            start = stream.tell()
            # A copy on writing, which never happens: torch takes no memory that cannot be written to.
            memory = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except (OSError, ValueError):
        return None
    examples = _examples(memory[start:], head["learned"] + head["held_out"])
    learned, held_out = examples[: head["learned"]], examples[head["learned"] :]
    return Dataset(learned, held_out, tuple(head["notes"]), head["chat_template"])


def _examples(memory: memoryview, texts: int) -> list[Example]:
    lengths = memory[: texts * _INT].cast("i")
    tokens = sum(lengths)
    ids = memory[texts * _INT :][: tokens * _INT].cast("i")
    counted = memory[(texts + tokens) * _INT :].cast("b")
    found = []
    start = 0
    for length in lengths:
        end = start + length
        found.append(Example(ids[start:end], counted[start:end]))
        start = end
    return found
