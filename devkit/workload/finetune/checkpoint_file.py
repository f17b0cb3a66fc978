"""Tensors to a file in the safetensors format, one after the other, so that no second copy of them is ever held.

The library's own `save_file` wants all tensors on the CPU at once: 48 GB for a model of 8 billion parameters with its
optimizer, on each machine. Here the first process gathers, writes and forgets them one by one.
Source: https://github.com/huggingface/safetensors#format
"""

import hashlib
import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from devkit.workload.finetune.manifest import FileRecord

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


class SyncedFile:
    """A new file that is on the disk when it is closed, with the hash of what was written.

    A disk that refuses is told on closing, and what is written in between is dropped: the other processes go on
    handing over their parts of each tensor until the last one, whatever happened here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file: FileIO | None = None
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        try:
            self._file = FileIO(self._path, "x")
        except OSError as error:
            self._error = error
        return self

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        left = memoryview(data)
        self._digest.update(left)
        self._bytes += len(left)
        try:
            while left and self._file is not None and self._error is None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._error = error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            with self._file:
                if self._error is None and kind is None:
                    os.fsync(self._file.fileno())
        if self._error is not None and kind is None:
            raise self._error

    @property
    def record(self) -> FileRecord:
        """Size and hash of what was written."""
        return FileRecord(self._bytes, self._digest.hexdigest())


def write_tensors(tensors: Mapping[str, torch.Tensor], file: SyncedFile | None) -> None:
    """Write `tensors`, gathered from all processes where they are sharded. Only the first one has a `file`."""
    # Wide types first: each tensor then starts at a multiple of its own width, as readers that map the file expect.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    if file is not None:
        file.write(_header({name: tensors[name] for name in names}))
    for name in names:
        whole = gathered(tensors[name])
        if file is not None:
            file.write(_bytes_of(whole))


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that FSDP2 keeps in parts; all processes must ask. Any other tensor as it is."""
    if hasattr(tensor, "full_tensor"):
        whole: torch.Tensor = tensor.full_tensor()
        return whole
    return tensor


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
