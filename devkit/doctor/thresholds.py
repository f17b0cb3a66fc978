"""Numbers that checks compare with, each with its source. CUDA and package versions are in `devkit.compat`."""

from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Threshold(Generic[_T]):
    """A number and its source. A row marked "inferred" may warn, never refuse."""

    value: _T
    source: str
    confidence: str


FIRST_OPEN_ONLY_DEVICE_ID = Threshold(
    0x2900,
    "pci-ids.ucw.cz, vendor 10de: GB100 and everything after it; NVIDIA, driver README, 'Open Linux Kernel Modules'",
    "single-source",
)
"""PCI device ids from here on are Blackwell or newer, which the proprietary kernel module does not drive."""

SHARED_MEMORY_BYTES = Threshold(
    1 * GIB,
    "Docker gives 64 MiB; pytorch/pytorch issue 5040: data loader workers need a shared memory of a gibibyte and more",
    "inferred",
)

FREE_GPU_BYTES = Threshold(
    4 * GIB, "CUDA's context of half a GiB, a billion parameters in 4 bits, their adapter and activations", "inferred"
)
GROUP_MEMORY_BYTES = Threshold(
    8 * GIB, "one shard of up to 5 GiB of weights on its way to the GPU, and torch with its libraries", "inferred"
)

NVLINK_ERRORS_PER_S = Threshold(
    100.0, "NVIDIA/DCGM, dcgm_gpu_hardware_limits.h: CRC errors of a link matter from 100 a second on", "single-source"
)

ENGINE_FREE_BYTES = Threshold(
    25 * GIB, "image sizes: torch with its CUDA wheels unpacks to about 8 GiB, twice", "inferred"
)
HUB_FREE_BYTES = Threshold(20 * GIB, "an 8 B parameter model in bf16 is 16 GiB of files", "inferred")
FULL_BYTES = Threshold(1 * GIB, "less than this ends the smallest image build or download", "inferred")

WSL_MEMORY_BYTES = Threshold(
    12 * GIB,
    "shards of up to 5 GiB, torch with its CUDA libraries and the page cache beside them; WSL takes half of the memory,"
    " so a machine of 16 GB is below and one of 32 GB above",
    "inferred",
)
FREE_FILES = Threshold(
    200_000, "an image with torch and its packages unpacks to about a hundred thousand files", "inferred"
)
FULL_FILES = Threshold(2_000, "less than one Python package with its tests", "inferred")
CLOCK_SKEW_S = Threshold(
    120,
    "Amazon S3 and its like refuse what is signed 15 minutes off; fresh certificates and package indexes bite earlier",
    "inferred",
)
WINDOWS_DRIVE_BYTES = Threshold(25 * GIB, "the guest's disk is a file there, which grows with each image", "inferred")

BUSY_PERCENT = Threshold(
    50, "NVML's utilization counts time with any kernel; half of the time is more than a desktop", "inferred"
)
FAST_ENOUGH_SHARE = Threshold(
    0.5, "below half of the highest clock a GPU under load is held back, not merely warm", "inferred"
)
USUAL_CLOCK_SHARE = Threshold(
    0.7, "application clocks that far below the GPU's own default were set on purpose", "inferred"
)
USUAL_POWER_SHARE = Threshold(
    0.7, "NVML names the default limit; a third below it costs more than a few percent", "inferred"
)
UNSEEN_MEMORY_BYTES = Threshold(
    2 * GIB, "what the driver reserves for itself stays below this on GPUs of 2026", "inferred"
)
UNSEEN_MEMORY_SHARE = Threshold(0.1, "what the driver reserves for itself grows with the GPU's memory", "inferred")
FULL_LANES_SHARE = Threshold(
    0.25, "a quarter of the lanes loads weights four times slower; half is seldom felt", "inferred"
)
SMALL_WINDOW_BYTES = Threshold(
    256 * MIB, "NVIDIA/open-gpu-kernel-modules issue 862: BAR 1 without resizable BAR is 256 MiB", "single-source"
)
FIRST_TURING_DEVICE_ID = Threshold(
    0x1E00, "pci-ids.ucw.cz, vendor 10de: TU102 begins at 0x1e02; Volta ends below 0x1e00", "single-source"
)
FIRST_MAXWELL_DEVICE_ID = Threshold(
    0x1340, "pci-ids.ucw.cz, vendor 10de: GM108 begins at 0x1340; Kepler ends below it", "single-source"
)
LAST_BRANCH_BEFORE_TURING = Threshold(
    580, "NVIDIA, legacy GPUs: 580 is the last branch for Maxwell, Pascal and Volta", "confirmed"
)
LAST_BRANCH_OF_KEPLER = Threshold(470, "NVIDIA, legacy GPUs: 470 is the last branch for Kepler", "confirmed")
STILL_FRESH_HOURS = Threshold(
    24, "a fault of the last day may still matter to the job that the user asks about", "inferred"
)

BITSANDBYTES_FALLS_BACK = Threshold(
    "0.50.0",
    "bitsandbytes wheels 0.49.2 and 0.50.0, cextension.py: 0.50.0 loads the nearest library of the same major",
    "confirmed",
)
"""Older releases load the library of torch's exact CUDA, or the one that BNB_CUDA_VERSION names, and no other."""

FIRST_GENERIC_L4T = Threshold(
    38,
    "pollen-robotics/microduck_rl pull 39: JetPack 7 is L4T R38 with CUDA 13 for Arm servers (sbsa)",
    "single-source",
)
"""L4T from here on takes wheels for Arm servers."""

PODMAN_OF_ONE_CDI_FOLDER = Threshold(
    (5, 5), "podman-container-tools/podman issue 26569; containers/common issue 2460", "confirmed"
)
"""Podman that looks for CDI specifications in /etc/cdi alone, unless containers.conf names others."""

JETSON_INDEXES = Threshold(
    {36: "https://pypi.jetson-ai-lab.io/jp6/cu126"},
    "calabi-inc/rtsm pull 19: JetPack 6.2, L4T R36.4.7, with that index and numpy<2",
    "single-source",
)
"""Indexes of wheels for Jetsons, by the major of their L4T release."""

BUSY_WHILE_TRAINING_PERCENT = Threshold(
    80,
    "Collabnix, Fine-Tuning Open Source LLMs: Complete Infrastructure Guide 2024: 'above 80%'; NVML counts time with"
    " any kernel, so what is missing is time in which the GPU stood still",
    "inferred",
)
WAITING_FOR_DATA_PERCENT = Threshold(
    10,
    "a tenth of each step spent on waiting for data is time that workers beside the step would give back",
    "inferred",
)
ROOM_WITHOUT_CHECKPOINTING = Threshold(
    0.5,
    "pytorch/torchtune, README, table of memory and speed: activation checkpointing takes 21 % of the speed and gives"
    " 42 % of the memory; without it a peak of half of the memory stays below seven eighths",
    "inferred",
)
HELD_BACK_PERCENT = Threshold(10, "clocks held down in a tenth of the samples are not a passing peak", "inferred")
FEWEST_SAMPLES = Threshold(10, "fewer samples of a GPU, one a second, say nothing of a run", "inferred")
