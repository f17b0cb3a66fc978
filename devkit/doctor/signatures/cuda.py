"""CUDA's own errors, and those of versions and architectures that do not fit together."""

from devkit.doctor.model import Confidence, Fix, Restart, Side
from devkit.doctor.signatures.fixes import NEWER_TORCH, UPDATE_DRIVER
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
    ),
    Signature(
        "CUD004",
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "cudaErrorInsufficientDriver",
            "CUDA initialization: The NVIDIA driver on your system is too old",
            "The NVIDIA driver on your system is too old",
        ),
        "the program was built for a newer CUDA than the driver runs",
        UPDATE_DRIVER,
        "NVIDIA, CUDA Runtime API, cudaErrorInsufficientDriver",
        entry="G02",
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
    ),
    Signature(
        "G05",
        (
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
    ),
    Signature(
        "G06",
        (
            "nvrtc: error: invalid value for --gpu-architecture",
            "nvrtc: error: invalid value for '--gpu-architecture",
            "NVRTC_ERROR_INVALID_OPTION",
            "ptxas fatal : Value '{arch:word}' is not defined for option 'gpu-name'",
            "nvcc fatal : Unsupported gpu architecture '{arch:word}'",
            "nvcc fatal   : Unsupported gpu architecture",
            "ptxas-blackwell… is not defined for option 'gpu-name'",
            "is not defined for option 'gpu-name'",
        ),
        "the compiler in use is older than this GPU and has no code for it",
        NEWER_TORCH,
        "NVIDIA, NVRTC documentation",
        confidence=Confidence.LIKELY,
        entry="G06",
    ),
    Signature(
        "PYT002",
        (
            "with CUDA capability {arch:arch} is not compatible with the current PyTorch installation",
            "CUDA capability {arch:arch} is not compatible",
        ),
        "this torch has no kernels for {arch}",
        NEWER_TORCH,
        "pytorch/pytorch issues 150733 and 172352",
        entry="G07",
    ),
    Signature(
        "PYT002",
        (
            "which is of cuda capability {found:version}. PyTorch no longer supports this GPU because it is too old",
            "which is of compute capability (CC) {found:version}. The following list shows the CCs this version of"
            " PyTorch was built for",
        ),
        "this torch no longer has kernels for compute capability {found}",
        Fix(
            "Take a torch that still supports the card: CUDA 12.6 wheels, torch 2.14 at most.",
            ("pip install 'torch<=2.14' --index-url https://download.pytorch.org/whl/cu126",),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch, torch/cuda/__init__.py",
        entry="G08",
    ),
    Signature(
        "PYT002",
        (
            "no kernel image is available for execution on the device",
            "cudaErrorNoKernelImageForDevice",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "named symbol not found… csrc/ops.cu",
            "no kernel image is available for execution on device",
        ),
        "a package was built without kernels for this GPU: torch itself, or one of the packages on top of it",
        NEWER_TORCH,
        "pytorch/pytorch issue 167244",
        confidence=Confidence.LIKELY,
        entry="G07",
    ),
    Signature(
        "DRV005",
        (
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "CUDA_ERROR_UNKNOWN: unknown error",
            "cuInit(0) failed… CUDA_ERROR_UNKNOWN",
            "cuInit: CUDA_ERROR_UNKNOWN",
            "failed call to cuInit: CUDA_ERROR_UNKNOWN",
            "failed call to cuInit: UNKNOWN ERROR",
            "cudaGetDeviceCount()… Error 999: unknown error",
            "Error 999: unknown error",
            "CUDA unknown error",
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
    ),
    Signature(
        "G11",
        (
            "exec format error",
            "The requested image's platform (linux/{image:name}) does not match the detected host platform",
            "does not match the detected host platform",
            "no matching manifest for linux/{wanted:name} in the manifest list entries",
            "image with reference {image:name} was found but does not match the specified platform",
            "image with reference {image:name} was found but its platform (linux/",
        ),
        "the image was built for another kind of processor",
        Fix(
            "Pull or build it for this machine's processor.",
            ("docker pull --platform linux/$(uname -m | sed s/x86_64/amd64/ | sed s/aarch64/arm64/) IMAGE",),
            where=Side.IMAGE,
        ),
        "Docker, Multi-platform builds",
        confidence=Confidence.LIKELY,
        unless=("modprobe",),
        entry="G11",
    ),
    Signature(
        "G13",
        (
            "version `GLIBC_{needed:version}' not found",
            "version `GLIBCXX_{needed:version}' not found",
            "version `CXXABI_{needed:version}' not found",
        ),
        "a library needs a newer C or C++ library ({needed}) than this system has",
        Fix(
            "Take a newer base image; in conda install a newer libstdc++.",
            ("conda install -c conda-forge libstdcxx-ng",),
            where=Side.IMAGE,
        ),
        "pytorch/pytorch and conda-forge threads",
        entry="G13",
    ),
    Signature(
        "G10",
        ("This L4T image… is not compatible", "nvmap… /dev/nvmap", "NvRmMemInitNvmap failed", "NvRmMemInit… error"),
        "this is a Jetson: its driver comes with L4T, and images for other machines do not fit",
        Fix("Take an image made for the Jetson's L4T release, and start it with `--runtime nvidia`.", where=Side.IMAGE),
        "dusty-nv/jetson-containers issue 1460",
        confidence=Confidence.LIKELY,
        entry="G10",
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
    ),
    Signature(
        "H09",
        ("CUDA driver is a stub library", "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY"),
        "a stub of libcuda, made for building only, is loaded in place of the driver's",
        Fix(
            "Take folders named stubs out of LD_LIBRARY_PATH.",
            ("echo $LD_LIBRARY_PATH", "ldconfig -p | grep libcuda.so.1"),
            where=Side.CONTAINER,
        ),
        "NVIDIA, CUDA Runtime API, cudaErrorStubLibrary",
        entry="H09",
    ),
    Signature(
        "I07",
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
    ),
)
