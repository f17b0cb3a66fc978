"""Numbers that checks compare with, each with where it was read. CUDA and package versions are in `devkit.compat`."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Limit(Generic[T]):
    """A number and its source. A row marked "inferred" may warn, never refuse."""

    value: T
    source: str
    confidence: str


FIRST_OPEN_ONLY_DEVICE_ID = Limit(
    0x2900,
    "pci-ids.ucw.cz, vendor 10de: GB100 and everything after it; NVIDIA, driver README, 'Open Linux Kernel Modules'",
    "single-source",
)
"""PCI device ids from here on are Blackwell or newer, which the proprietary kernel module does not drive."""

SHARED_MEMORY_BYTES = Limit(
    1 * GIB,
    "Docker gives 64 MiB; pytorch/pytorch issue 5040: data loader workers need a shared memory of a gibibyte and more",
    "inferred",
)

ENGINE_FREE_BYTES = Limit(25 * GIB, "image sizes: torch with its CUDA wheels unpacks to about 8 GiB, twice", "inferred")
HUB_FREE_BYTES = Limit(20 * GIB, "an 8 B parameter model in bf16 is 16 GiB of files", "inferred")
FULL_BYTES = Limit(1 * GIB, "less than this ends the smallest image build or download", "inferred")
