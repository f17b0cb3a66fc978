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
from pathlib import Path

from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.program_data import Data
from devkit.workload.finetune.ranks import Ranks

_PATH = "devkit/data"
"""Where the first process of a node leaves the file's path in the store, by its rank."""

_INT = 4
"""Bytes of a length and of a token id."""


def together_made(make: Callable[[], Data], together: Ranks) -> Data:
    """What `make` gives, made once on each node. All processes must call; what is refused is refused by all."""
    if together.world == 1:
        return make()
    made = together.agreed(lambda: make() if together.leads else None)
    path = written(made) if made is not None else None
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


def _handed_on(path: Path | None, together: Ranks) -> Data | None:
    """What the file of this node holds; None where there is none. The first process of the node has written `path`."""
    assert together.store is not None  # noqa: S101 - several processes have met somewhere
    key = f"{_PATH}/{together.rank - together.local}"
    if together.leads:
        together.store.set(key, str(path or ""))
    together.barrier()
    name = together.store.get(key).decode()
    return _mapped(Path(name)) if name else None


def written(data: Data) -> Path | None:
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


def _mapped(path: Path) -> Data | None:
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
    return Data(learned, held_out, tuple(head["notes"]), head["chat_template"])


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
