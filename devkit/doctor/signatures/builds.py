"""Errors of builds that do not fit: GPU architecture, processor, C library, Jetson."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.fixes import NEWER_TORCH
from devkit.doctor.signatures.model import Signature

BUILDS: tuple[Signature, ...] = (
    Signature(
        "PYT012",
        (
            "nvrtc: error: invalid value for --gpu-architecture",
            "nvrtc: error: invalid value for '--gpu-architecture",
            "NVRTC_ERROR_INVALID_OPTION",
        ),
        "the compiler in use is older than this GPU and has no code for it",
        NEWER_TORCH,
        "NVIDIA, NVRTC documentation",
        confidence=Confidence.LIKELY,
        entry="G06",
    ),
    Signature(
        "CUD006",
        (
            "Value '{arch:word}' is not defined",
            "Value '{arch:word}' is not defined for option 'gpu-name'",
            "Unsupported gpu architecture '{arch:word}'",
        ),
        "the CUDA compiler in use does not know {arch}: it is older than the GPU, or too new for it",
        Fix(
            "Take an image or wheels of a CUDA that knows the GPU: 12.8 or newer for RTX 50 and B200, 13.0 for GB10.",
            ("nvcc --version", "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas  # for Triton's own compiler"),
            where=Side.IMAGE,
        ),
        "gpustack/gpustack issue 4372",
        also=("PYT012", "PYT019"),
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
            "CUDA error: no kernel image is available",
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
        also=("PYT017",),
    ),
    Signature(
        "CUD009",
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
        "PYT010",
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
        "CUD010",
        ("This L4T image… is not compatible", "nvmap… /dev/nvmap", "NvRmMemInitNvmap failed", "NvRmMemInit… error"),
        "this is a Jetson: its driver comes with L4T, and images for other machines do not fit",
        Fix("Take an image made for the Jetson's L4T release, and start it with `--runtime nvidia`.", where=Side.IMAGE),
        "dusty-nv/jetson-containers issue 1460",
        confidence=Confidence.LIKELY,
        entry="G10",
    ),
    Signature(
        "CUD010",
        ("libnvdla_runtime.so: cannot open shared object file",),
        "a build for the Jetson looks for its libraries, which are not here: outside of a Jetson, or without"
        " `--runtime nvidia`",
        Fix(
            "On a Jetson start the container with `--runtime nvidia`; elsewhere install the usual build.",
            where=Side.CONTAINER,
        ),
        "dusty-nv/jetson-containers",
        confidence=Confidence.LIKELY,
        entry="G10",
    ),
    Signature(
        "PRJ025",
        (
            "IndexError: list index out of range… _get_cuda_arch_flags",
            "_get_cuda_arch_flags… IndexError: list index out of range",
        ),
        "an extension is compiled where no GPU is, as in an image build, and nothing says for which GPUs",
        Fix(
            "Name the architectures in the Dockerfile.",
            ('ENV TORCH_CUDA_ARCH_LIST="8.0;8.6;9.0;12.0"',),
            where=Side.IMAGE,
        ),
        "pytorch/pytorch, torch/utils/cpp_extension.py",
        entry="E13",
    ),
)
