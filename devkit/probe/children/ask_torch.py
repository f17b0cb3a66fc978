"""Try torch and what is built on it in the workload's own Python, as a separate program: any step may hang or crash.

Prints one JSON object per line as it goes: `{"part": NAME}` and `{"step": NAME}` before, `{"worked": NAME}`,
`{"failed": NAME, "detail": TEXT}` or `{"skipped": NAME, "detail": TEXT}` after each; what it reads as `{"torch": …}`,
`{"available": …}`, `{"device": …}` and `{"bitsandbytes": …}`; at last `{"end": true}`.
It imports nothing of devkit, runs on Python 3.9 and newer, and leaves nothing behind.

    python ask_torch.py [PART ...]        parts: torch bitsandbytes triton flash_attn
"""

import importlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

STARTED = time.monotonic()
MAX_DETAIL_CHARACTERS = 400

# Packages print greetings on standard output. It belongs to the report alone, so they get standard error instead.
REPORT = os.dup(1)
os.dup2(2, 1)

tl: Any = None
"""triton.language, once Triton is imported; its compiler looks the name up here."""


def emit(**line: object) -> None:
    """Print one line at once; a line kept in a buffer is lost when the process is killed."""
    os.write(REPORT, (json.dumps(line) + "\n").encode())


def run_step(name: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
    """Return what `function` returns, or None when it fails; report before and after how it went."""
    emit(step=name, at_s=round(time.monotonic() - STARTED, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - packages raise what they like, SystemExit included
            cause = error if str(error) else next((warning.message for warning in caught), "")
            words = f"{type(error).__name__}: {cause}".split()
            emit(failed=name, detail=" ".join(words)[:MAX_DETAIL_CHARACTERS])
            return None
    emit(worked=name)
    return value


def is_installed(name: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def try_torch(torch: ModuleType) -> None:
    """Report what torch was built for, whether it starts CUDA, and a real multiplication on every GPU."""
    if torch.version.cuda is None:
        emit(skipped="start CUDA", detail="torch is not built for CUDA")
        return
    emit(available=bool(run_step("torch.cuda.is_available", torch.cuda.is_available)))
    run_step("start CUDA", torch.cuda.init)
    if not torch.cuda.is_initialized():
        return
    for index in range(run_step("count GPUs", torch.cuda.device_count) or 0):
        device = run_step(f"look at GPU {index}", describe_device, torch, index)
        product = run_step(f"multiply on GPU {index}", multiply, torch, index, torch.float32)
        if product is not None and device is not None:
            has_bf16 = run_step(f"multiply in bf16 on GPU {index}", multiply, torch, index, torch.bfloat16)
            device["bf16"] = has_bf16 is not None
        if device is not None:
            emit(device=device)


def describe_build(torch: ModuleType) -> dict[str, Any]:
    """Return the version, CUDA, architectures and C++ ABI that torch was built for."""
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "architectures": list(torch.cuda.get_arch_list()) if torch.version.cuda else [],
        "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
    }


def describe_device(torch: ModuleType, index: int) -> dict[str, Any]:
    """Return a GPU's name and compute capability."""
    return {
        "index": index,
        "name": torch.cuda.get_device_name(index),
        "capability": list(torch.cuda.get_device_capability(index)),
    }


def multiply(torch: ModuleType, index: int, dtype: object) -> float:
    """Multiply two small matrices. Raises ArithmeticError when the product is wrong."""
    ones = torch.ones(16, 16, dtype=dtype, device=f"cuda:{index}")
    product = float((ones @ ones).sum().item())
    if product != 16.0**3:
        raise ArithmeticError(f"the product of two matrices of ones sums to {product}, not 4096")
    return product


def try_bitsandbytes(torch: ModuleType) -> None:
    """Report the native library that bitsandbytes loaded, and try 4-bit quantization on the first GPU."""
    bitsandbytes = run_step("import bitsandbytes", importlib.import_module, "bitsandbytes")
    if bitsandbytes is None:
        return
    library = getattr(importlib.import_module("bitsandbytes.cextension"), "lib", None)
    emit(bitsandbytes=type(library).__name__)
    if not has_gpu(torch):
        emit(skipped="quantize to 4 bits", detail="torch sees no GPU")
        return
    run_step("quantize to 4 bits", quantize, torch)


def quantize(torch: ModuleType) -> None:
    """Quantize to 4 bits and back in bitsandbytes' own CUDA code. Raises ArithmeticError when the values are not close."""
    functional = importlib.import_module("bitsandbytes.functional")
    ones = torch.ones(64, 64, dtype=torch.float16, device="cuda")
    packed, state = functional.quantize_4bit(ones, quant_type="nf4")
    mean = float(functional.dequantize_4bit(packed, state).float().mean().item())
    if abs(mean - 1.0) > 0.1:
        raise ArithmeticError(f"ones came back from 4 bits as {mean}")


def try_triton(torch: ModuleType) -> None:
    """Compile and run a kernel, with an empty cache so that an old result cannot hide a missing compiler."""
    if run_step("import triton", importlib.import_module, "triton") is None:
        return
    if not has_gpu(torch):
        emit(skipped="compile a Triton kernel", detail="torch sees no GPU")
        return
    run_step("compile a Triton kernel", compile_kernel, torch)


def compile_kernel(torch: ModuleType) -> None:
    """Compile a Triton kernel that adds one to eight numbers. Raises ArithmeticError when the sum is wrong."""
    global tl
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
    folder = tempfile.mkdtemp(prefix="devkit-triton-")
    os.environ["TRITON_CACHE_DIR"] = folder
    try:
        numbers = torch.zeros(8, device="cuda")
        triton.jit(add_one)[(1,)](numbers, SIZE=8)
        total = float(numbers.sum().item())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if total != 8.0:
        raise ArithmeticError(f"a kernel that adds one to eight zeros summed to {total}")


def add_one(pointer, SIZE: "tl.constexpr"):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    """Add one: the kernel, in Triton's own language."""
    offsets = tl.arange(0, SIZE)
    tl.store(pointer + offsets, tl.load(pointer + offsets) + 1.0)


def try_flash_attn(torch: ModuleType) -> None:
    """Import its compiled part, which holds the symbols that must fit torch."""
    run_step("import flash_attn", importlib.import_module, "flash_attn_2_cuda")


def has_gpu(torch: ModuleType) -> bool:
    """Return whether torch can use a GPU."""
    try:
        return bool(torch.cuda.is_available())
    except Exception:  # noqa: BLE001 - reported before, by the part that tries torch itself
        return False


PARTS: dict[str, Callable[[ModuleType], None]] = {
    "torch": try_torch,
    "bitsandbytes": try_bitsandbytes,
    "triton": try_triton,
    "flash_attn": try_flash_attn,
}


def main(parts: list[str]) -> None:
    """Try the parts in order."""
    # Pythons before 3.11 have no -P, and devkit's own modules must not stand before the workload's.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    os.environ["HF_HUB_OFFLINE"] = "1"  # newer bitsandbytes looks for kernels on the hub when it is imported
    if not is_installed("torch"):
        emit(absent="torch")
        return
    emit(part="torch")
    torch = run_step("import torch", importlib.import_module, "torch")
    if torch is None:
        return
    emit(torch=describe_build(torch))
    for part in parts:
        if is_installed(part):
            emit(part=part)
            PARTS[part](torch)
    emit(end=True)


if __name__ == "__main__":
    main([part for part in sys.argv[1:] if part in PARTS] or list(PARTS))
