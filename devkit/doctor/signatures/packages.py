"""Errors of bitsandbytes, transformers, and packages that do not agree."""

from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.model import Signature

_NEW_BITSANDBYTES = Fix(
    "Update bitsandbytes, and let no variable choose another CUDA for it.",
    ("pip install --upgrade bitsandbytes", "unset BNB_CUDA_VERSION", "python -m bitsandbytes"),
    where=Side.CONTAINER,
)
_ALIGN_HUB_PACKAGES = Fix(
    "Update the three together, in the same Python, and restart the notebook's kernel.",
    ("pip install --upgrade transformers accelerate bitsandbytes",),
    where=Side.CONTAINER,
)


PACKAGES: tuple[Signature, ...] = (
    Signature(
        "PYT003",
        (
            "Attempted to use bitsandbytes native library functionality",
            "CUDA Setup failed despite GPU being available",
            "CUDA Setup failed despite CUDA being available",
            "CUDA SETUP ERROR: Missing dependency: {library:name}",
            "CUDA SETUP: Required library version not found: {library:name}",
            "Required library version not found: libbitsandbytes_cuda",
            "Configured CUDA binary not found at",
            "No compatible CUDA binary found",
            "Could not find the bitsandbytes CUDA binary at",
            "libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats",
            "undefined symbol: cquantize_blockwise",
            "undefined symbol: cadam32bit_grad_fp32",
            "Attempted to use bitsandbytes native library functionality but it's not available",
            "The installed version of bitsandbytes was compiled without GPU support",
            "CUDA SETUP: CUDA detection failed",
            "libcudart.so not found in any environmental path",
            "libbitsandbytes_cpu.so: undefined symbol: c{symbol:word}",
            "ErrorHandlerMockBNBNativeLibrary",
        ),
        "bitsandbytes has no library for torch's CUDA, or cannot load it",
        _NEW_BITSANDBYTES,
        "bitsandbytes-foundation/bitsandbytes issues 572 and 1559, cextension.py",
        entry="H02",
        also=("PYT016", "PYT018"),
    ),
    Signature(
        "PYT003",
        ("bitsandbytes library load error", "Error named symbol not found at line {line:number} in file…ops.cu"),
        "bitsandbytes could not load its library",
        _NEW_BITSANDBYTES,
        "bitsandbytes-foundation/bitsandbytes, cextension.py",
        confidence=Confidence.LIKELY,
        entry="H02",
    ),
    Signature(
        "PYT008",
        (
            "Using `bitsandbytes` 8-bit quantization requires Accelerate",
            "Using `bitsandbytes` 8-bit quantization requires the latest version of bitsandbytes",
            "Using `bitsandbytes` 4-bit quantization requires the latest version of bitsandbytes",
            "Using `bitsandbytes` 4-bit quantization requires Accelerate",
            "quantization requires the latest version of bitsandbytes",
            "Using `load_in_8bit=True` requires Accelerate",
            "requires Accelerate: `pip install accelerate` and the latest version of bitsandbytes",
            "Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate",
            "No package metadata was found for bitsandbytes",
            "The package `bitsandbytes` was not found",
            "{bits:number} bit quantization requires bitsandbytes>={least:version}",
            "Please install bitsandbytes>={least:version} via",
            "The version of PEFT you are using is not compatible, please use a version that is greater than",
        ),
        "transformers does not find bitsandbytes or accelerate new enough in this Python, or sees no GPU",
        _ALIGN_HUB_PACKAGES,
        "bitsandbytes-foundation/bitsandbytes issue 1100; huggingface/transformers",
        confidence=Confidence.LIKELY,
        entry="H04",
    ),
    Signature(
        "PYT016",
        (
            "BNB_CUDA_VERSION={digits:number} environment variable detected; loading {library:name}",
            "BNB_CUDA_VERSION environment variable detected; loading {library:name}",
        ),
        "BNB_CUDA_VERSION chooses {library} in place of the library for torch's own CUDA",
        Fix("Unset the variable.", ("unset BNB_CUDA_VERSION",), where=Side.CONTAINER),
        "bitsandbytes-foundation/bitsandbytes issue 1559",
        severity=Severity.WARNING,
        entry="H02",
    ),
    Signature(
        "PYT014",
        ("Compute capability < 7.5 detected! Only slow 8-bit matmul is supported for your GPU",),
        "this GPU multiplies 8-bit integers only slowly",
        Fix("Load the model in 4 bits.", where=Side.PROJECT),
        "bitsandbytes-foundation/bitsandbytes issue 386",
        severity=Severity.NOTE,
        entry="H18",
    ),
    Signature(
        "PYT007",
        ("operator torchvision::nms does not exist", "torchvision::nms does not exist"),
        "torchvision was built for another torch than the installed one",
        Fix(
            "Install torch and torchvision together, from the same index.",
            ("pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cu128",),
            where=Side.CONTAINER,
        ),
        "pytorch/vision",
        entry="H17",
    ),
    Signature(
        "PYT007",
        ("pip's dependency resolver does not currently take into account all the packages",),
        "pip installed packages that do not agree on each other's versions",
        Fix("See which, and install those together in one command.", ("pip check",), where=Side.CONTAINER),
        "pypa/pip, user guide, Dependency resolution",
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        entry="H17",
    ),
)
