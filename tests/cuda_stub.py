"""Builds the stand-in for libcuda.so.1 and the environment that makes programs load it."""

from collections.abc import Mapping
from pathlib import Path

from tests.nvml_stub import compile_library

SOURCE = Path(__file__).parent / "cuda" / "cuda_stub.c"


def build_stub(directory: Path) -> Path:
    """Compile the stub into `directory` as libcuda.so.1, with gcc. Raises CalledProcessError with its messages."""
    return compile_library(SOURCE, directory / "libcuda.so.1")


def stub_environment(library: Path, *, init: str = "", count: str = "", cuda: str = "") -> Mapping[str, str]:
    """Environment variables to add. `init` and `count` are a number, "hang" or "segv"; `cuda` is "13000"."""
    settings = {
        "LD_LIBRARY_PATH": str(library.parent),
        "CUDA_STUB_INIT": init,
        "CUDA_STUB_COUNT": count,
        "CUDA_STUB_CUDA": cuda,
    }
    return {name: value for name, value in settings.items() if value}
