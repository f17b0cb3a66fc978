"""Errors of torch and of the CUDA libraries that it loads."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.fixes import CUDA_TORCH, UNSET_LIBRARY_PATH
from devkit.doctor.signatures.model import Signature

TORCH: tuple[Signature, ...] = (
    Signature(
        "PYT001",
        (
            "Torch not compiled with CUDA enabled",
            "PyTorch was compiled without CUDA support",
            "Torch not compiled with CUDA",
            "torch.cuda.is_available() is False… CPU-only",
            "Could not run '{operator:name}' with arguments from the 'CUDA' backend",
        ),
        "this torch is the build for the CPU",
        CUDA_TORCH,
        "pytorch/pytorch issues 28111 and 160162",
        entry="H01",
    ),
    Signature(
        "PYT001",
        ("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",),
        "a checkpoint wants a GPU, and torch sees none: it is the build for the CPU, or there is no GPU here",
        CUDA_TORCH,
        "pytorch/pytorch, torch/serialization.py",
        confidence=Confidence.POSSIBLE,
        entry="H01",
    ),
    Signature(
        "PYT013",
        (
            "bfloat16 is only supported on GPUs with compute capability",
            "Your setup doesn't support bf16/gpu",
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0",
            "BFloat16 is not supported on your machine",
            "bf16 mixed precision requires PyTorch >= 1.10 and a supported device",
            "bfloat16 is not supported on this GPU",
        ),
        "bf16 is asked for, and this GPU or this torch cannot do it: it needs compute capability 8.0 and a build for"
        " CUDA",
        Fix(
            "Train in fp16 on GPUs before the RTX 30 and A100; elsewhere look why torch sees no GPU.",
            where=Side.PROJECT,
        ),
        "huggingface/transformers, training_args.py; vllm-project/vllm",
        confidence=Confidence.LIKELY,
        entry="H15",
    ),
    Signature(
        "PYT007",
        (
            "A module that was compiled using NumPy 1.x cannot be run in NumPy {found:version}",
            "numpy.dtype size changed, may indicate binary incompatibility",
            "_ARRAY_API not found",
            "numpy.core.multiarray failed to import",
        ),
        "a package was built for NumPy 1, and NumPy 2 is installed",
        Fix("Update the package, or stay with NumPy 1 for now.", ("pip install 'numpy<2'",), where=Side.CONTAINER),
        "NumPy, Troubleshooting ImportError",
        entry="H16",
        confidence=Confidence.LIKELY,
    ),
    Signature(
        "PYT005",
        (
            "undefined symbol: __nvJitLink{symbol:word}, version libnvJitLink.so.{major:number}",
            "undefined symbol: __nvJitLink…",
            "undefined symbol: cublasLt…",
            "libcublas… undefined symbol:",
            "libcusparse.so… undefined symbol",
            "undefined symbol: ncclCommRegister",
            "libtorch_cuda.so: undefined symbol: nccl…",
            "libc10_cuda.so: undefined symbol",
        ),
        "LD_LIBRARY_PATH leads torch to CUDA libraries of another version than its own",
        UNSET_LIBRARY_PATH,
        "pytorch/pytorch issues 111469 and 134929",
        confidence=Confidence.LIKELY,
        entry="H10",
    ),
    Signature(
        "PYT011",
        (
            "Could not load library libcudnn_{part:name}",
            "Unable to load any of {libcudnn:text}",
            "Could not locate cudnn_{part:name}",
            "cuDNN version incompatibility: PyTorch was compiled against",
            "libcudnn… cannot open shared object file",
            "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            "CUDNN_STATUS_NOT_INITIALIZED",
            "cuDNN version incompatibility",
            "CUDNN_STATUS_VERSION_MISMATCH",
        ),
        "cuDNN is missing or mixed: a copy of the system or of another package stands before the one that torch needs",
        Fix(
            "Take the system's cuDNN out of LD_LIBRARY_PATH and let torch use its own.",
            ("unset LD_LIBRARY_PATH", "pip list | grep -i cudnn"),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch, SYSTRAN/faster-whisper threads",
        confidence=Confidence.LIKELY,
        entry="H14",
    ),
    Signature(
        "CUD008",
        (
            "The detected CUDA version ({found:version}) mismatches the version that was used to compile PyTorch"
            " ({built:version})",
            "mismatches the version that was used to compile",
        ),
        "nvcc is of another CUDA than torch was built with",
        Fix(
            "Take a devel image of torch's CUDA, or point CUDA_HOME to such a toolkit.",
            ("python -c 'import torch; print(torch.version.cuda)'", "nvcc --version"),
            where=Side.IMAGE,
        ),
        "pytorch/pytorch, torch/utils/cpp_extension.py",
        entry="H13",
    ),
    Signature(
        "CUD008",
        (
            "CUDA_HOME environment variable is not set. Please set it to your CUDA install root",
            "CUDA_HOME does not exist, unable to compile CUDA op",
            "nvcc was not found. Are you sure your environment has nvcc available",
            "The nvcc binary could not be located on your PATH",
            "Failed to find nvcc",
        ),
        "a package is being compiled, and there is no CUDA compiler",
        Fix(
            "Take a ready-made wheel of the package, or a devel image whose CUDA is torch's.",
            ("nvcc --version",),
            where=Side.IMAGE,
        ),
        "pytorch/pytorch, torch/utils/cpp_extension.py",
        entry="H13",
    ),
)
