"""Weight files as they lie on disk: are they whole, and which weights are they? Importable without torch."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import human_bytes

LONGEST_HEADER_BYTES = 100_000_000
"""What the safetensors library itself accepts. Source: https://github.com/huggingface/safetensors#format."""

SAMPLE_BYTES = 1024
POINTER = b"version https://git-lfs.github.com/"
FETCH_AGAIN = "Fetch it again; a download or copy may have been cut short."


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: `begin` and `end` are bytes from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int


def refuse_pointer(file: Path) -> None:
    """Raise DevkitError where Git LFS left a pointer instead of the file, or the file cannot be read at all."""
    try:
        with file.open("rb") as stream:
            is_pointer = stream.read(len(POINTER)) == POINTER
    except OSError as error:
        raise DevkitError(f"cannot read {file}: {error.strerror}", "Check that the file is there and yours.") from error
    if is_pointer:
        raise DevkitError(f"{file} is a pointer of Git LFS, not the file", f"Run git lfs pull in {file.parent}.")


def tensors_in(file: Path) -> tuple[Tensor, ...]:
    """The tensors of a safetensors file, by its header alone. Raises DevkitError for a file that is not whole."""
    refuse_pointer(file)
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(size_bytes - 8, LONGEST_HEADER_BYTES):
                raise DevkitError(f"{file} is no whole safetensors file", FETCH_AGAIN)
            header = json.loads(stream.read(length))
        found = tuple(_tensors(file, header, data_begin=8 + length))
    except OSError as error:
        raise DevkitError(f"{file} cannot be read to its end: {error.strerror}", FETCH_AGAIN) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DevkitError(f"{file} has a damaged header", FETCH_AGAIN) from error
    end = max((each.end for each in found), default=0)
    if end > size_bytes:
        raise DevkitError(f"{file} ends after {human_bytes(size_bytes)} of {human_bytes(end)}", FETCH_AGAIN)
    return found


def _tensors(file: Path, header: dict[str, Any], *, data_begin: int) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (data_begin + int(offset) for offset in entry["data_offsets"])
            yield Tensor(name, str(entry["dtype"]), tuple(int(each) for each in entry["shape"]), file, begin, end)


def parameter_count(tensors: Iterable[Tensor]) -> int:
    """How many numbers the tensors hold."""
    return sum(math.prod(each.shape) for each in tensors)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Which weights these are: a sha256 over every tensor's name, type, shape and a kilobyte from its middle.

    Training moves every number of a weight that it trains, so the sample tells a model from the one it was tuned from
    without reading all of it. How the tensors are spread over files does not matter.
    """
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda each: each.name):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(_sample(tensor.file, tensor.begin, tensor.end))
    return digest.hexdigest()


def fingerprint_of_files(files: Iterable[Path]) -> str:
    """The same of weights in a format without a header: a sha256 over every file's name, size and middle."""
    digest = hashlib.sha256()
    for file in sorted(files):
        size_bytes = file.stat().st_size
        digest.update(f"{file.name} {size_bytes}\n".encode())
        digest.update(_sample(file, 0, size_bytes))
    return digest.hexdigest()


def _sample(file: Path, begin: int, end: int) -> bytes:
    """A kilobyte from the middle of what lies from `begin` to `end`."""
    with file.open("rb") as stream:
        stream.seek(max(begin, (begin + end - SAMPLE_BYTES) // 2))
        return stream.read(min(SAMPLE_BYTES, end - begin))
