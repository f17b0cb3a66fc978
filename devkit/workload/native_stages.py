"""Stages about compiled parts: bitsandbytes' own library, and what Triton compiles on the spot."""

import importlib
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

import torch

from devkit.workload.device import Device
from devkit.workload.stage import Reading, StageSkipped, at_most, equals, fact

OLDEST_MAJOR_WITH_TRITON = 7
QUANTISED_SIZE = 256
ROUND_TRIP_ERROR = 0.12
"""Mean error of normal numbers through 4-bit NormalFloat, relative to their mean size; 0.09 where it is right."""

OPTIMIZER_STEPS = 20
TILE = 64
TRITON_TOLERANCE = 2e-2
"""Of the largest true value: the inputs are rounded to 16 bits, tensor cores add up in fp32."""


def native_library(device: Device) -> Iterator[Reading]:
    """bitsandbytes' own library packs numbers into 4 bits and steps an optimizer whose state has 8.

    Without its library bitsandbytes still imports: a stand-in takes its place and raises only when it is used.
    """
    if device.kind == "mps":
        raise StageSkipped("4-bit and 8-bit numbers are not proved on Apple's GPU")
    library = type(getattr(importlib.import_module("bitsandbytes.cextension"), "lib", None)).__name__
    yield Reading("library", library, "bitsandbytes' own", "Mock" not in library and library != "NoneType")
    yield at_most("round_trip_error", _round_trip_error(device), ROUND_TRIP_ERROR)
    yield from _optimizer_learns(device)


def _round_trip_error(device: Device) -> float:
    functional = importlib.import_module("bitsandbytes.functional")
    numbers = _normal(QUANTISED_SIZE).to(device=device.torch_device, dtype=device.dtype)
    packed, state = functional.quantize_4bit(numbers, quant_type="nf4")
    back = functional.dequantize_4bit(packed, state)
    return float((back - numbers).abs().float().mean() / numbers.abs().float().mean())


def _optimizer_learns(device: Device) -> Iterator[Reading]:
    """Towards a known target, so that a step in the wrong direction shows."""
    bitsandbytes = importlib.import_module("bitsandbytes")
    target = _normal(TILE).to(device.torch_device)
    weight = torch.nn.Parameter(torch.zeros_like(target))
    optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=0.1, weight_decay=0.0, min_8bit_size=1024)
    before = float((weight - target).detach().square().mean())
    for _ in range(OPTIMIZER_STEPS):
        optimizer.zero_grad()
        torch.autograd.backward((weight - target).square().mean())
        optimizer.step()
    kinds = {str(state["state1"].dtype) for state in optimizer.state.values() if "state1" in state}
    yield equals("state", ", ".join(sorted(kinds)), "torch.uint8")
    yield at_most("distance_left", float((weight - target).detach().square().mean()) / before, 0.2)


def triton_computes(device: Device) -> Iterator[Reading]:
    """Triton compiles a matrix product, and it agrees with the CPU in fp64.

    An empty cache is used: an old result would hide a compiler that is gone.
    """
    if device.kind != "cuda":
        raise StageSkipped(f"Triton compiles for GPUs, and this is {'a CPU' if device.kind == 'cpu' else device.name}")
    require_triton(device)
    with tempfile.TemporaryDirectory(prefix="devkit-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield from _tile_readings(device)
        finally:
            del os.environ["TRITON_CACHE_DIR"]


def require_triton(device: Device) -> None:
    """Skip a stage that compiles with Triton for a GPU where there is none, or for one that it never made code for.

    Source: torch/_dynamo/device_interface.py, CudaInterface.is_triton_capable.
    """
    if find_spec("triton") is None:
        raise StageSkipped("Triton is not installed")
    if torch.version.hip is None and int(device.capability.split(".")[0]) < OLDEST_MAJOR_WITH_TRITON:
        raise StageSkipped(f"Triton compiles for compute capability 7.0 and newer, and this is {device.capability}")


def _tile_readings(device: Device) -> Iterator[Reading]:
    kernel = importlib.import_module("devkit.workload.triton_kernel")
    left, right = (_normal(TILE, seed).to(device.dtype) for seed in (1, 2))
    product = torch.empty(TILE, TILE, device=device.torch_device)
    kernel.multiply_tile[(1,)](left.to(device.torch_device), right.to(device.torch_device), product, SIZE=TILE)
    true = left.double() @ right.double()
    yield fact("triton", importlib.import_module("triton").__version__)
    yield at_most("error", float((product.cpu().double() - true).abs().max() / true.abs().max()), TRITON_TOLERANCE)


def _normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
