"""CUDA's own errors: driver, libcuda, devices and memory."""

from devkit.doctor.model import Confidence, Fix, Restart, Side
from devkit.doctor.signatures.fixes import UPDATE_DRIVER
from devkit.doctor.signatures.model import Signature

_COMPATIBILITY = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_NO_COMPAT = Fix(
    "Update the host's driver, or take the compatibility library out of the container's way.",
    ("sudo rm -rf /usr/local/cuda*/compat && sudo ldconfig",),
    where=Side.IMAGE,
    root=True,
    docs=_COMPATIBILITY,
)


CUDA: tuple[Signature, ...] = (
    Signature(
        "CUD004",
        ("The NVIDIA driver on your system is too old (found version {found:cuda})",),
        "the driver runs CUDA up to {found}, and this torch was built for a newer one",
        UPDATE_DRIVER,
        "pytorch/pytorch, torch/csrc/utils/cuda_lazy_init.cpp",
        entry="G02",
        also=("PRJ026", "PRJ027"),
    ),
    Signature(
        "CUD004",
        (
            "CUDA error 35",
            "CUDA failure 35",
            "CUDA driver version is insufficient for CUDA runtime version",
            "cudaErrorInsufficientDriver",
            "CUDA initialization: The NVIDIA driver on your system is too old",
            "The NVIDIA driver on your system is too old",
        ),
        "the program was built for a newer CUDA than the driver runs",
        UPDATE_DRIVER,
        "NVIDIA, CUDA Runtime API, cudaErrorInsufficientDriver",
        entry="G02",
        also=("PRJ026", "PRJ027"),
    ),
    Signature(
        "CUD002",
        (
            "Error 804: forward compatibility was attempted on non supported HW",
            "forward compatibility was attempted on non supported HW",
            "cudaErrorCompatNotSupportedOnDevice",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        ),
        "the image's forward-compatibility libcuda is in use, which GeForce cards refuse",
        _NO_COMPAT,
        "NVIDIA/nvidia-docker issue 1294",
        entry="G03",
        also=("CUD011",),
    ),
    Signature(
        "CUD003",
        (
            "Error 803: system has unsupported display driver / cuda driver combination",
            "unsupported display driver / cuda driver combination",
            "cudaErrorSystemDriverMismatch",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
        "libcuda is of another version than the loaded kernel module",
        Fix(
            "Reboot after a driver update; in a container recreate it. Then look for a second libcuda.",
            ("ldconfig -p | grep libcuda.so.1", "cat /proc/driver/nvidia/version"),
            restart=Restart.HOST,
            docs=_COMPATIBILITY,
        ),
        "NVIDIA/nvidia-docker issue 1256",
        entry="G04",
        also=("CUD011", "DRV002"),
    ),
    Signature(
        "CUD007",
        (
            "CUDA error 222",
            "the provided PTX was compiled with an unsupported toolchain",
            "cudaErrorUnsupportedPtxVersion",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "Unsupported .version {ptx:version}; current version is",
            "ptxas… Unsupported .version",
        ),
        "code was built with a newer CUDA than the driver can translate",
        UPDATE_DRIVER,
        "NVIDIA/nvbandwidth issue 61",
        entry="G05",
        also=("PYT017",),
    ),
    Signature(
        "DRV009",
        (
            "CUDA_ERROR_UNKNOWN",
            "CUDA unknown error",
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "CUDA_ERROR_UNKNOWN: unknown error",
            "cuInit(0) failed… CUDA_ERROR_UNKNOWN",
            "cuInit: CUDA_ERROR_UNKNOWN",
            "failed call to cuInit: CUDA_ERROR_UNKNOWN",
            "cudaGetDeviceCount()… Error 999: unknown error",
            "Error 999: unknown error",
            "Found an unknown error - this may be due to an incorrectly set up environment",
        ),
        "CUDA cannot start although the driver answers: the unified memory module is missing or broke during suspend",
        Fix(
            "Stop CUDA programs and load the unified memory module anew; if nvidia-smi on the host works and only a"
            " container fails,"
            " recreate the container.",
            ("sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",),
            root=True,
        ),
        "pytorch/pytorch issues 49081 and 115340",
        confidence=Confidence.LIKELY,
        entry="A12",
        also=("DRV005", "CUD011", "PYT017", "CTK011"),
    ),
    Signature(
        "PYT006",
        (
            "CUDA error: invalid device ordinal",
            "cudaErrorInvalidDevice",
            "CUDA_ERROR_INVALID_DEVICE",
            "invalid device ordinal",
        ),
        "the program asks for a GPU by a number that it does not see",
        Fix(
            "Look at what the process sees; CUDA_VISIBLE_DEVICES numbers the GPUs anew from 0.",
            ("unset CUDA_VISIBLE_DEVICES", "nvidia-smi -L"),
            where=Side.CONTAINER,
        ),
        "NVIDIA, CUDA Runtime API, cudaErrorInvalidDevice",
        entry="H12",
    ),
    Signature(
        "PYT006",
        (
            "RuntimeError: No CUDA GPUs are available",
            "No CUDA GPUs are available",
        ),
        "torch sees no GPU: CUDA_VISIBLE_DEVICES hides it, or the container was started without one",
        Fix(
            "Look at CUDA_VISIBLE_DEVICES first, then at the container's request.",
            ("echo $CUDA_VISIBLE_DEVICES", "nvidia-smi -L"),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch, torch/csrc/utils/cuda_lazy_init.cpp",
        confidence=Confidence.LIKELY,
        entry="H12",
        also=("CON001",),
    ),
    Signature(
        "CUD005",
        ("CUDA driver is a stub library", "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY"),
        "a stub of libcuda, made for building only, is loaded in place of the driver's",
        Fix(
            "Take folders named stubs out of LD_LIBRARY_PATH.",
            ("echo $LD_LIBRARY_PATH", "ldconfig -p | grep libcuda.so.1"),
            where=Side.CONTAINER,
        ),
        "NVIDIA, CUDA Runtime API, cudaErrorStubLibrary",
        entry="H09",
        also=("CUD011",),
    ),
    Signature(
        "MEM004",
        (
            "CUDA out of memory. Tried to allocate {wanted:size}",
            "torch.OutOfMemoryError: CUDA out of memory",
            "torch.cuda.OutOfMemoryError",
            "CUDA out of memory",
            "CUDA error: out of memory",
            "cudaErrorMemoryAllocation",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        "the GPU's memory is full: the model with its settings is too large for it, or another process holds memory",
        Fix(
            "See who holds memory; then a smaller batch with accumulation, gradient checkpointing, a 4-bit model, and"
            " less"
            " fragmentation.",
            ("nvidia-smi", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
            where=Side.CONTAINER,
        ),
        "PyTorch, CUDA semantics, Memory management",
        entry="I07",
        confidence=Confidence.LIKELY,
        also=("GPU019",),
    ),
)
