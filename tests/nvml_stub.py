"""Builds the stand-in for libnvidia-ml.so.1 and the environment that makes the real nvidia-ml-py load it.

Also a program: `python tests/nvml_stub.py DIRECTORY` builds the library there and prints its path.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml" / "nvml_stub.c"


def build_stub(directory: Path) -> Path:
    """Compile the stub into `directory` as libnvidia-ml.so.1, with gcc. Raises CalledProcessError with its messages."""
    return compile_library(SOURCE, directory / "libnvidia-ml.so.1")


def compile_library(source: Path, library: Path) -> Path:
    """Compile a stub; skip the test where there is no gcc, and fail in CI, which must have one."""
    if shutil.which("gcc") is None and os.environ.get("CI") != "true":
        import pytest

        pytest.skip("the stubs of NVML and libcuda need gcc: apt-get install gcc libc6-dev")
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library)], check=True)
    return library


def stub_environment(
    library: Path,
    *,
    gpus: int = 1,
    fail: str = "",
    name: str = "",
    capability: str = "",
    memory_mib: int | None = None,
    driver: str = "",
    cuda: str = "",
    mig: str = "",
    nvlinks: str = "",
    fabric: str = "",
    sram: str = "",
) -> Mapping[str, str]:
    """Environment variables to add, so that a child process finds the stub and the stub answers as asked.

    `fail` is `nvmlInit_v2=9`, `nvmlDeviceGetName@3=15`, `…=hang`, `…=segv`, `…=slow`, joined by ";"; `cuda` is "13.0";
    `mig` is "0:2" for two instances on GPU 0; `nvlinks` "18:17:250" for 17 of 18 links up with errors.
    """
    major, _, minor = cuda.partition(".")
    settings = {
        "LD_LIBRARY_PATH": str(library.parent),
        "NVML_STUB_GPUS": str(gpus),
        "NVML_STUB_FAIL": fail,
        "NVML_STUB_NAME": name,
        "NVML_STUB_CC": capability,
        "NVML_STUB_MEMORY_MIB": "" if memory_mib is None else str(memory_mib),
        "NVML_STUB_DRIVER": driver,
        "NVML_STUB_CUDA": str(int(major) * 1000 + int(minor or 0) * 10) if cuda else "",
        "NVML_STUB_MIG": mig,
        "NVML_STUB_NVLINKS": nvlinks,
        "NVML_STUB_FABRIC": fabric,
        "NVML_STUB_SRAM": sram,
    }
    return {name: value for name, value in settings.items() if value}


if __name__ == "__main__":
    sys.stdout.write(f"{build_stub(Path(sys.argv[1]))}\n")
