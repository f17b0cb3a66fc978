"""Errors of what is compiled: Triton, the loader, flash-attn."""

from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.model import Signature

_LINK_LIBCUDA = Fix(
    "Let the loader find libcuda: run ldconfig in the container, or name the folder to Triton. Never point it at a"
    " folder stubs.",
    ("sudo ldconfig", "export TRITON_LIBCUDA_PATH=/usr/lib/x86_64-linux-gnu"),
    where=Side.CONTAINER,
)


COMPILED: tuple[Signature, ...] = (
    Signature(
        "CON004",
        (
            "Failed to find C compiler. Please specify via CC environment variable",
            "Failed to find C compiler",
            "RuntimeError: Failed to find C++ compiler",
            "No C compiler found",
            "error: command 'gcc' failed: No such file or directory",
            "unable to execute 'gcc': No such file or directory",
            "InvalidCxxCompiler: No working C++ compiler found",
        ),
        "Triton builds its launcher with a C compiler, and this image has none",
        Fix(
            "Install a C compiler in the image, or take a devel image.",
            ("apt-get update && apt-get install -y build-essential",),
            where=Side.IMAGE,
            root=True,
        ),
        "vllm-project/vllm issue 14075; sgl-project/sglang issue 1067",
        entry="H05",
        also=("PYT019", "PRJ023"),
    ),
    Signature(
        "CON004",
        (
            "Python.h: No such file",
            "Python.h: No such file or directory",
            "Cannot find Python.h",
            "'Python.h' file not found",
        ),
        "Triton builds its launcher against Python, whose headers are missing",
        Fix(
            "Install the headers of this very Python.",
            ("apt-get update && apt-get install -y python3-dev",),
            where=Side.IMAGE,
            root=True,
        ),
        "triton-lang/triton; vllm-project/vllm threads",
        entry="H06",
        also=("PYT019",),
    ),
    Signature(
        "CON005",
        (
            "libcuda.so cannot found!",
            "libcuda.so cannot be found",
            "cannot find -lcuda",
            "Possible files are located at",
            "Please create a symlink of any of the files",
            "unable to find library -lcuda",
        ),
        "the driver's libcuda.so.1 is here, and the loader or linker does not find it under the name that Triton asks"
        " for",
        _LINK_LIBCUDA,
        "triton-lang/triton issues 2019 and 3053",
        entry="H07",
        also=("PYT019", "WSL007"),
    ),
    Signature(
        "CON005",
        (
            "CUDA is not linked properly",
            "ldconfig /usr/lib64-nvidia",
            "Unsloth: CUDA is not linked properly",
        ),
        "Unsloth found that Triton or bitsandbytes cannot reach CUDA, and tried ldconfig, which needs root",
        _LINK_LIBCUDA,
        "unslothai/unsloth issues 200 and 220",
        confidence=Confidence.LIKELY,
        entry="H08",
    ),
    Signature(
        "CON005",
        (
            "Can't create temporary cache file /etc/ld.so.cache~: Permission denied",
            "Can't create temporary cache file /etc/ld.so.cache~: Read-only file system",
            "Can't create temporary cache file /etc/ld.so.cache~",
        ),
        "ldconfig ran without the right to write its cache",
        Fix("Run ldconfig as root, when the image is built.", ("RUN ldconfig",), where=Side.IMAGE, root=True),
        "unslothai/unsloth issue 221",
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        entry="H08",
    ),
    Signature(
        "PYT004",
        (
            "flash_attn_2_cuda…so: undefined symbol: {symbol:word}",
            "flash_attn…so: undefined symbol:",
            "flash_attn_2_cuda… undefined symbol",
            "flash_attn_cuda…so: undefined symbol",
            "flash_attn_3… undefined symbol",
        ),
        "flash-attn was built for another torch, CUDA or C++ ABI than the installed one",
        Fix(
            "Install the wheel made for this torch, build it against it, or use torch's own attention.",
            (
                "pip uninstall -y flash-attn && pip install flash-attn --no-build-isolation --no-cache-dir",
                'model = AutoModel.from_pretrained(…, attn_implementation="sdpa")',
            ),
            where=Side.CONTAINER,
        ),
        "Dao-AILab/flash-attention issues 919 and 975",
        entry="H11",
        also=("PYT020",),
    ),
    Signature(
        "PYT004",
        (
            "_ZN3c105ErrorC2E…",
            "_ZN3c104cuda9SetDeviceE…",
            "undefined symbol: _ZN3c10…",
            "undefined symbol: _ZNK3c10…",
            "undefined symbol: _ZN2at…",
            "undefined symbol: _ZNK2at…",
            "undefined symbol: _ZN5torch…",
        ),
        "a compiled package was built for another torch than the installed one",
        Fix(
            "Reinstall the package that the line names, built for this torch.",
            ("pip install --force-reinstall --no-build-isolation --no-cache-dir --no-deps PACKAGE",),
            where=Side.CONTAINER,
        ),
        "Dao-AILab/flash-attention issue 1832",
        confidence=Confidence.LIKELY,
        entry="H11",
        also=("PYT020",),
    ),
    Signature(
        "PYT004",
        (
            "FlashAttention2 has been toggled on, but it cannot be used due to the following error",
            "the package flash_attn seems to be not installed",
            "No module named 'flash_attn'",
            "No module named 'flash_attn_2_cuda'",
        ),
        "flash-attn is asked for, and is not installed or cannot be loaded",
        Fix(
            "Install it for this torch, or ask for torch's own attention.",
            (
                "pip install flash-attn --no-build-isolation",
                'model = AutoModel.from_pretrained(…, attn_implementation="sdpa")',
            ),
            where=Side.CONTAINER,
        ),
        "huggingface/transformers, modeling_utils.py",
        confidence=Confidence.LIKELY,
        entry="H11",
    ),
    Signature(
        "PYT013",
        ("FlashAttention only supports Ampere GPUs or newer",),
        "flash-attn needs an RTX 30, A100 or newer GPU",
        Fix(
            "Use torch's own attention.",
            ('model = AutoModel.from_pretrained(…, attn_implementation="sdpa")',),
            where=Side.PROJECT,
        ),
        "Dao-AILab/flash-attention issue 190",
        entry="H15",
    ),
    Signature(
        "PYT019",
        ("torch._dynamo.exc.BackendCompilerFailed", "BackendCompilerFailed"),
        "torch.compile could not build a kernel; the lines around it say why",
        Fix(
            "Look for the first error above it; a C compiler and Python's headers must be there.",
            ("gcc --version",),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch, torch/_dynamo/exc.py",
        confidence=Confidence.POSSIBLE,
        entry="H05",
    ),
)
