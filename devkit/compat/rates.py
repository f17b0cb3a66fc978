"""What a GPU may be expected to reach, by its name: the data sheet's rates, and a MIG slice's share of them."""

import re
from dataclasses import replace

from devkit.compat.gpus import find_gpu
from devkit.compat.load import Tables, tables
from devkit.compat.rate_rows import GpuRates

_SLICE = re.compile(r"^(?P<whole>.+?) MIG (?P<slices>\d)g\.(?P<gigabytes>\d+)gb\b")
"""How NVIDIA's driver calls a MIG device: "NVIDIA H100 80GB HBM3 MIG 3g.40gb"."""

_WITH_HBM3 = ("h100-sxm", "h800-sxm")
"""Boards of the same name were built with the older memory, which moves 2 TB/s: no data sheet is theirs."""


def rates_of(name: str, *, known: Tables | None = None) -> GpuRates | None:
    """The rates of the GPU, or the MIG slice, of that name; None where the name is not that of one product alone.

    A laptop's GPU is not its desktop twin, and a virtual GPU has a share that its name does not tell: both are None.
    """
    table = known or tables()
    found = _SLICE.match(name)
    whole = find_gpu(found["whole"] if found else name, known=table)
    if whole is None or whole.model is None or whole.name != whole.model.name:
        return None
    if "HBM2e" in name and whole.model.id in _WITH_HBM3:
        return None
    rates = table.gpus.rates.get(whole.model.id)
    if rates is None or found is None:
        return rates
    memory_share = int(found["gigabytes"]) / max(whole.model.memory_gib)
    return _scaled(rates, int(found["slices"]), memory_share) if rates.mig_slices else None


def _scaled(rates: GpuRates, slices: int, memory_share: float) -> GpuRates:
    """Compute is shared by slices, memory bandwidth by memory. NVLink is off in MIG mode; PCIe is shared by all.

    Source: NVIDIA, Multi-Instance GPU User Guide, "MIG Device Profiles" and "Application Considerations".
    """
    compute = min(1.0, slices / rates.mig_slices)
    return replace(
        rates,
        fp16_tflops=rates.fp16_tflops * compute,
        bf16_tflops=rates.bf16_tflops * compute,
        bandwidth_gb_per_s=rates.bandwidth_gb_per_s * min(1.0, memory_share),
        nvlink_gb_per_s=0.0,
    )
