"""Weights onto the GPU, in the order and through the detours that loading takes."""

from collections.abc import Callable, Iterator

import torch

from devkit.workload.tracing.ledger import Ledger
from devkit.workload.tracing.packed import Linear4bit, Linear8bit
from devkit.workload.tracing.program import Model, layer_number
from devkit.workload.tracing.stream import Allocation, Kind, Phase, Release, Section

ADAPTER_MARK = ".lora_"
"""What peft puts into the name of every parameter of a LoRA or DoRA adapter."""

HALF_BYTES = 2


def load(ledger: Ledger, model: Model, *, is_upcast: bool) -> None:
    """Write down the base's tensors, then the adapter's.

    A weight that is packed stands beside its packed form for a moment; one that peft turns into fp32 had a 16-bit
    form, and these are given back one by one after everything was loaded.
    """
    number = layer_number(model)
    tensors = list(_tensors(model))
    base = [(name, tensor) for name, tensor in tensors if ADAPTER_MARK not in name]
    unpacked = _unpacked_bytes(model)
    halves = {}
    for name, tensor in base:
        if is_upcast and tensor.dtype == torch.float32 and not _is_of_packed(name):
            section = Section(Phase.LOAD, number(name), part=f"half {name}" if number(name) is None else _short(name))
            halves[name] = Allocation(section, 0, tensor.numel() * HALF_BYTES)
            ledger.stream.append(halves[name])
            continue
        if name in unpacked:
            _pass_through(ledger, Section(Phase.LOAD, number(name), part=_short(name)), unpacked[name])
        _take(ledger, number, name, tensor, Kind.WEIGHTS)
    for name, tensor in base:
        if name in halves:
            _take(ledger, number, name, tensor, Kind.WEIGHTS)
            ledger.stream.append(Release(halves[name].section, halves[name].name))
    for name, tensor in tensors:
        if ADAPTER_MARK in name:
            _take(ledger, number, name, tensor, Kind.ADAPTERS)


def _take(ledger: Ledger, number: Callable[[str], int | None], name: str, tensor: torch.Tensor, kind: Kind) -> None:
    ledger.section = Section(Phase.LOAD, number(name))
    ledger.take([tensor], kind)


def _pass_through(ledger: Ledger, section: Section, size_bytes: int) -> None:
    made = Allocation(section, 0, size_bytes)
    ledger.stream.extend([made, Release(section, made.name)])


def _short(name: str) -> str:
    """The name without its layer's number, equal in each layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _is_of_packed(name: str) -> bool:
    return name.endswith((".packed", ".scales", ".scales_of_scales", ".codes"))


def _unpacked_bytes(model: Model) -> dict[str, int]:
    """What a packed weight takes before it is packed, by the name of its packed form."""
    return {
        f"{name}.packed": module.in_features * module.out_features * HALF_BYTES
        for name, module in model.named_modules()
        if isinstance(module, Linear4bit | Linear8bit)
    }


def _tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers in the order of the modules, each once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}" if prefix else name, tensor
