"""Builds the stand-in for libcuda.so.1 and the environment that makes programs load it."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "cuda" / "cuda_stub.c"


def build_stub(directory: Path) -> Path:
    """Compile the stub into `directory` as libcuda.so.1, with gcc. Raises CalledProcessError with its messages."""
    library = directory / "libcuda.so.1"
    directory.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


def stub_environment(library: Path, *, init: str = "", count: str = "", cuda: str = "") -> Mapping[str, str]:
    """Environment variables to add. `init` and `count` are a number, "hang" or "segv"; `cuda` is "13000"."""
    settings = {
        "LD_LIBRARY_PATH": str(library.parent),
        "CUDA_STUB_INIT": init,
        "CUDA_STUB_COUNT": count,
        "CUDA_STUB_CUDA": cuda,
    }
    return {name: value for name, value in settings.items() if value}
