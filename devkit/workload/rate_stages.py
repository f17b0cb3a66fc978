"""Stages about speed: a device that computes right may still run on one PCIe lane, locked clocks, or half a GPU."""

from collections.abc import Iterator

import torch

from devkit.compat.rate_rows import GpuRates
from devkit.compat.rates import rates_of
from devkit.workload import rates
from devkit.workload.device import OLDEST_MAJOR_WITH_BF16, Device
from devkit.workload.settings import Precision
from devkit.workload.stage import Reading, StageSkipped, above, fact

COMPUTE_SHARE = 0.4
"""Least part of the data sheet's matrix rate. Healthy boards reach two thirds and more, an H100 780 of 989 TFLOP/s.

Source: https://gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405
"""

SMALL_BOARD_W = 75
SMALL_BOARD_COMPUTE_SHARE = 0.25
"""The same for boards that live on the slot's power alone: they cannot hold the clocks their data sheet counts with."""

MEMORY_SHARE = 0.6
"""Least part of the data sheet's bandwidth; large copies reach 0.9 on an A100.

Source: https://github.com/calculon-ai/calculon/blob/main/systems/a100_80g.json
"""

MOST_SHARE = 1.3
"""Nothing runs so far above its data sheet: a reading beyond it means that clock or name is wrong."""

PCIE_GB_PER_S = {2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
"""Sixteen lanes, one way. Source: PCI-SIG, https://pcisig.com/faq, "PCI Express"."""

LINK_SHARE = 1 / 16
"""Not even one lane of sixteen."""


def compute_rate(device: Device) -> Iterator[Reading]:
    """Matrix products run at the rate that this GPU's data sheet promises, on each GPU; a CPU's is a fact."""
    for index, name in _devices(device):
        promised = _promised(device, index, name)
        for precision in _precisions(device, first=index == 0):
            measured = rates.matrix_tflops(_torch_device(device, index), precision)
            rate = {Precision.BF16: "bf16_tflops", Precision.FP16: "fp16_tflops"}.get(precision)
            best = getattr(promised, rate) if promised and rate else 0.0
            share = _compute_share(promised) if promised else 0.0
            yield judged(f"{_of(device, index)}{precision}_tflops", measured, best, share, promised)


def memory_rate(device: Device) -> Iterator[Reading]:
    """The device's memory moves at the rate of its data sheet, on each GPU; a CPU's is a fact."""
    for index, name in _devices(device):
        promised = _promised(device, index, name)
        best = promised.bandwidth_gb_per_s if promised else 0.0
        where = _torch_device(device, index)
        copied = rates.copy_gb_per_s(where)
        yield judged(f"{_of(device, index)}copy_gb_per_s", copied, best, MEMORY_SHARE, promised)
        yield fact(f"{_of(device, index)}triad_gb_per_s", round(rates.triad_gb_per_s(where), 3))


def link_rate(device: Device) -> Iterator[Reading]:
    """Host and GPU talk over more than one PCIe lane, in both directions."""
    if device.kind != "cuda":
        raise StageSkipped(f"there is no link between the host and {_article(device)}")
    for index, name in _devices(device):
        promised = rates_of(name)
        best = PCIE_GB_PER_S.get(promised.pcie_generation, 0.0) if promised else 0.0
        for direction in ("to_gpu", "from_gpu"):
            measured = rates.link_gb_per_s(_torch_device(device, index), to_device=direction == "to_gpu")
            yield judged_link(f"{_of(device, index)}{direction}_gb_per_s", measured, best, promised)


def judged(name: str, measured: float, promised: float, share: float, row: GpuRates | None) -> Reading:
    """A rate beside what the data sheet promises. Without a promise it is a fact; an inferred row never refuses."""
    measured = round(measured, 3)
    if row is None or not promised:
        return fact(name, measured)
    least, most = share * promised, MOST_SHARE * promised
    expected = f"{least:.3g} to {most:.3g}; data sheet {promised:.4g}"
    if row.is_inferred:
        return Reading(name, measured, f"{expected}, not judged: the row is inferred")
    return Reading(name, measured, expected, least <= measured <= most)


def judged_link(name: str, measured: float, promised: float, row: GpuRates | None) -> Reading:
    """A link has a least rate alone: some GPUs share their memory with the host, or have more than PCIe to it."""
    measured = round(measured, 3)
    if row is None or not promised or row.is_inferred:
        return fact(name, measured)
    return above(name, measured, LINK_SHARE * promised)


def _promised(device: Device, index: int, name: str) -> GpuRates | None:
    """The data sheet that the GPU is held to; None for none, and where somebody else fills the GPU's memory."""
    if device.kind != "cuda" or not rates.has_room(_torch_device(device, index)):
        return None
    return rates_of(name)


def _compute_share(promised: GpuRates) -> float:
    return SMALL_BOARD_COMPUTE_SHARE if promised.power_w <= SMALL_BOARD_W else COMPUTE_SHARE


def _precisions(device: Device, *, first: bool) -> tuple[Precision, ...]:
    """All that the GPU computes in on the first one, the proof's on the others, fp32 on a CPU."""
    if device.kind != "cuda":
        return (Precision.FP32,)
    if not first:
        return (device.precision,)
    has_bf16 = int(device.capability.split(".")[0]) >= OLDEST_MAJOR_WITH_BF16
    return (Precision.FP32, Precision.FP16, *((Precision.BF16,) if has_bf16 else ()))


def _devices(device: Device) -> Iterator[tuple[int, str]]:
    if device.kind != "cuda":
        yield 0, device.name
        return
    for index in range(torch.cuda.device_count()):
        yield index, torch.cuda.get_device_name(index)


def _torch_device(device: Device, index: int) -> torch.device:
    return torch.device("cuda", index) if device.kind == "cuda" else device.torch_device


def _of(device: Device, index: int) -> str:
    return f"gpu_{index}_" if device.count > 1 else ""


def _article(device: Device) -> str:
    return "the CPU" if device.kind == "cpu" else "this GPU, which shares its memory"
