"""A dispatch mode that records every tensor storage allocated and freed while a program runs."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devkit.workload.tracing.emulation import SCRATCH_BYTES
from devkit.workload.tracing.stream import Allocation, Deallocation, EventStream, Section, StepPhase, TensorKind


class AllocationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records storages and not tensors: views share theirs, and saved tensors keep theirs alive.

    Enter it above a FakeTensorMode: then nothing is computed, and shapes and lifetimes are the real program's.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream: EventStream = []
        self.section = Section(StepPhase.LOAD)
        self.kind = TensorKind.OTHER
        self.current_pass = StepPhase.FORWARD
        """The phase that a pass through the layers belongs to: forward, prefill or decode."""
        self._counts: dict[Section, int] = {}
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        output = func(*args, **(kwargs or {}))
        size = SCRATCH_BYTES[func](*args) if func in SCRATCH_BYTES else 0
        scratch = self._append(size) if size else None
        self._record(output)
        if scratch is not None:
            self.stream.append(Deallocation(self.section, scratch.name))
        return output

    def record_existing(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Record tensors that exist already, as if they were allocated now."""
        with self.label_new(kind):
            for tensor in tensors:
                self._record(tensor)

    @contextmanager
    def label_new(self, kind: TensorKind) -> Iterator[None]:
        """Label all allocations within the block as of this kind."""
        previous, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = previous

    def relabel(self, tensors: Iterable[torch.Tensor], kind: TensorKind) -> None:
        """Change the kind of live tensors."""
        for tensor in tensors:
            _, index = self._live[id(tensor.untyped_storage())]
            allocation = self.stream[index]
            assert isinstance(allocation, Allocation)  # noqa: S101 - only these are kept by index
            self.stream[index] = Allocation(allocation.section, allocation.ordinal, allocation.bytes, kind)

    def _record(self, output: object) -> None:
        if isinstance(output, torch.Tensor):
            self._record_storage(output.untyped_storage())
        elif isinstance(output, list | tuple):
            for each in output:
                self._record(each)

    def _record_storage(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._live or storage.nbytes() == 0:
            return
        allocation = self._append(storage.nbytes())
        index = len(self.stream) - 1

        def drop(_: object) -> None:
            del self._live[key]
            self.stream.append(Deallocation(self.section, allocation.name))

        self._live[key] = weakref.ref(storage, drop), index

    def _append(self, size_bytes: int) -> Allocation:
        ordinal = self._counts.get(self.section, 0)
        self._counts[self.section] = ordinal + 1
        allocation = Allocation(self.section, ordinal, size_bytes, self.kind)
        self.stream.append(allocation)
        return allocation
