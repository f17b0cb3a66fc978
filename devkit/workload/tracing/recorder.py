"""A mode that writes down every tensor storage made and dropped while a program runs."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devkit.workload.tracing.emulation import SCRATCH_BYTES
from devkit.workload.tracing.stream import Allocation, Deallocation, EventStream, Section, StepPhase, TensorKind


class AllocationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storages and not tensors are counted: views share theirs, and saved tensors keep theirs alive.

    Enter it above a FakeTensorMode: then nothing is computed, and shapes and lifetimes are the real program's.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream: EventStream = []
        self.section = Section(StepPhase.LOAD)
        self.kind = TensorKind.OTHER
        self.current_pass = StepPhase.FORWARD
        """What going through the layers is part of: a step's forward pass, a prompt, or a new token."""
        self._counts: dict[Section, int] = {}
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        made = func(*args, **(kwargs or {}))
        size = SCRATCH_BYTES[func](*args) if func in SCRATCH_BYTES else 0
        scratch = self._write(size) if size else None
        self._note(made)
        if scratch is not None:
            self.stream.append(Deallocation(self.section, scratch.name))
        return made

    def record_existing(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Write down tensors that were there before, as if they were made now."""
        with self.label_new(kind):
            for tensor in tensors:
                self._note(tensor)

    @contextmanager
    def label_new(self, kind: TensorKind) -> Iterator[None]:
        """Say that whatever is made inside is of this kind."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def relabel(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Say afterwards what living tensors are."""
        for tensor in tensors:
            _, index = self._live[id(tensor.untyped_storage())]
            made = self.stream[index]
            assert isinstance(made, Allocation)  # noqa: S101 - only these are kept by index
            self.stream[index] = Allocation(made.section, made.ordinal, made.bytes, kind)

    def _note(self, made: object) -> None:
        if isinstance(made, torch.Tensor):
            self._allocate(made.untyped_storage())
        elif isinstance(made, list | tuple):
            for each in made:
                self._note(each)

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._live or storage.nbytes() == 0:
            return
        made = self._write(storage.nbytes())
        index = len(self.stream) - 1

        def drop(_: object) -> None:
            del self._live[key]
            self.stream.append(Deallocation(self.section, made.name))

        self._live[key] = weakref.ref(storage, drop), index

    def _write(self, size_bytes: int) -> Allocation:
        ordinal = self._counts.get(self.section, 0)
        self._counts[self.section] = ordinal + 1
        made = Allocation(self.section, ordinal, size_bytes, self.kind)
        self.stream.append(made)
        return made
