"""Numbers that checks compare with, each with its source; what is inferred may warn, never refuse.

CUDA and package versions are in `devkit.compat`.
"""

GIB = 1 << 30
MIB = 1 << 20

FIRST_OPEN_ONLY_DEVICE_ID = 0x2900
"""PCI device ids from here on are Blackwell or newer, which the proprietary kernel module does not drive. Source:
pci-ids.ucw.cz, vendor 10de: GB100 and everything after it; NVIDIA, driver README, 'Open Linux Kernel Modules'."""
SHARED_MEMORY_BYTES = 1 * GIB
"""Inferred: Docker gives 64 MiB; pytorch/pytorch issue 5040: data loader workers need a shared memory of a
gibibyte and more."""
FREE_GPU_BYTES = 4 * GIB
"""Inferred: CUDA's context of half a GiB, a billion parameters in 4 bits, their adapter and activations."""
GROUP_MEMORY_BYTES = 8 * GIB
"""Inferred: one shard of up to 5 GiB of weights on its way to the GPU, and torch with its libraries."""
NVLINK_ERRORS_PER_S = 100.0
"""Source: NVIDIA/DCGM, dcgm_gpu_hardware_limits.h: CRC errors of a link matter from 100 a second on."""
ENGINE_FREE_BYTES = 25 * GIB
"""Inferred: image sizes: torch with its CUDA wheels unpacks to about 8 GiB, twice."""
HUB_FREE_BYTES = 20 * GIB
"""Inferred: an 8 B parameter model in bf16 is 16 GiB of files."""
FULL_BYTES = 1 * GIB
"""Inferred: less than this ends the smallest image build or download."""
WSL_MEMORY_BYTES = 12 * GIB
"""Inferred: shards of up to 5 GiB, torch with its CUDA libraries and the page cache beside them; WSL takes half of
the memory, so a machine of 16 GB is below and one of 32 GB above."""
FREE_FILES = 200_000
"""Inferred: an image with torch and its packages unpacks to about a hundred thousand files."""
FULL_FILES = 2_000
"""Inferred: less than one Python package with its tests."""
CLOCK_SKEW_S = 120
"""Inferred: Amazon S3 and its like refuse what is signed 15 minutes off; fresh certificates and package indexes
bite earlier."""
WINDOWS_DRIVE_BYTES = 25 * GIB
"""Inferred: the guest's disk is a file there, which grows with each image."""
BUSY_PERCENT = 50
"""Inferred: NVML's utilization counts time with any kernel; half of the time is more than a desktop."""
FAST_ENOUGH_SHARE = 0.5
"""Inferred: below half of the highest clock a GPU under load is held back, not merely warm."""
USUAL_CLOCK_SHARE = 0.7
"""Inferred: application clocks that far below the GPU's own default were set on purpose."""
USUAL_POWER_SHARE = 0.7
"""Inferred: NVML names the default limit; a third below it costs more than a few percent."""
UNSEEN_MEMORY_BYTES = 2 * GIB
"""Inferred: what the driver reserves for itself stays below this on GPUs of 2026."""
UNSEEN_MEMORY_SHARE = 0.1
"""Inferred: what the driver reserves for itself grows with the GPU's memory."""
FULL_LANES_SHARE = 0.25
"""Inferred: a quarter of the lanes loads weights four times slower; half is seldom felt."""
SMALL_WINDOW_BYTES = 256 * MIB
"""Source: NVIDIA/open-gpu-kernel-modules issue 862: BAR 1 without resizable BAR is 256 MiB."""
FIRST_TURING_DEVICE_ID = 0x1E00
"""Source: pci-ids.ucw.cz, vendor 10de: TU102 begins at 0x1e02; Volta ends below 0x1e00."""
FIRST_MAXWELL_DEVICE_ID = 0x1340
"""Source: pci-ids.ucw.cz, vendor 10de: GM108 begins at 0x1340; Kepler ends below it."""
LAST_BRANCH_BEFORE_TURING = 580
"""Source: NVIDIA, legacy GPUs: 580 is the last branch for Maxwell, Pascal and Volta."""
LAST_BRANCH_OF_KEPLER = 470
"""Source: NVIDIA, legacy GPUs: 470 is the last branch for Kepler."""
STILL_FRESH_HOURS = 24
"""Inferred: a fault of the last day may still matter to the job that the user asks about."""
BITSANDBYTES_FALLS_BACK = "0.50.0"
"""Older releases load the library of torch's exact CUDA, or the one that BNB_CUDA_VERSION names, and no other.
Source: bitsandbytes wheels 0.49.2 and 0.50.0, cextension.py: 0.50.0 loads the nearest library of the same
major."""
FIRST_GENERIC_L4T = 38
"""L4T from here on takes wheels for Arm servers. Source: pollen-robotics/microduck_rl pull 39: JetPack 7 is L4T
R38 with CUDA 13 for Arm servers (sbsa)."""
PODMAN_OF_ONE_CDI_FOLDER = (5, 5)
"""Podman that looks for CDI specifications in /etc/cdi alone, unless containers.conf names others.
Source: podman-container-tools/podman issue 26569; containers/common issue 2460."""
JETSON_INDEXES = {36: "https://pypi.jetson-ai-lab.io/jp6/cu126"}
"""Indexes of wheels for Jetsons, by the major of their L4T release. Source: calabi-inc/rtsm pull 19: JetPack 6.2,
L4T R36.4.7, with that index and numpy<2."""
