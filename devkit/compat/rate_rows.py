"""The rows of what GPUs promise."""

from devkit.compat.rows import Row
from devkit.facts.record import keyword_record


@keyword_record
class GpuRates(Row):
    """What the data sheet of a GPU promises: dense peaks, without sparsity. 0 where it says nothing.

    `nvlink_gb_per_s` counts both directions of all links, as NVIDIA does; `power_w` is the board's; `mig_slices` are
    the compute slices that MIG divides it into.
    """

    id: str
    fp16_tflops: float
    bf16_tflops: float
    bandwidth_gb_per_s: float
    nvlink_gb_per_s: float
    pcie_generation: int
    power_w: int
    mig_slices: int
