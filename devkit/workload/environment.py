"""Before the proof proper: the process is prepared, and each library imports."""

import importlib
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import cast

from devkit import __version__
from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.proof.stages import StageReading, StageSkipped, record_value

# How many CPU cores this process may really use; a container's quota is less than the machine has.

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def count_usable_cpus(quota_file: Path = CGROUP_CPU_MAX) -> int:
    """Cores by affinity, lowered to the cgroup v2 quota (whole cores, at least 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(affinity, _quota(quota_file) or affinity))


def _quota(path: Path) -> int | None:
    """Whole cores of "max 100000" or "150000 100000" (microseconds per period); None for no limit."""
    try:
        granted, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else max(1, int(granted) // int(period))


REQUIRED_LIBRARIES = ("transformers", "peft", "accelerate")
PROOF_THREADS = 1
"""Measured: a second thread gains nothing on a model this small, and on a busy machine costs many seconds."""

REPORTED_PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "safetensors", "triton")


def find_installed_version(package: str) -> str | None:
    """The installed version by metadata alone; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_environment() -> dict[str, str]:
    """Versions and machine, for the report. A package that is not installed is left out.

    `gpu_request` is how the dev container asked its engine for a GPU, such as nvidia, cdi or cpu; absent elsewhere.
    """
    found = {name: find_installed_version(name) for name in REPORTED_PACKAGES}
    return {
        "devkit": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": sys.platform,
        "machine": platform.machine(),
        "cpus": str(count_usable_cpus()),
        **({"gpu_request": os.environ["DEVKIT_GPU"]} if os.environ.get("DEVKIT_GPU") else {}),
        **{name: version for name, version in found.items() if version is not None},
    }


def import_torch() -> Iterator[StageReading]:
    """torch imports. Its own message names the missing library when it does not."""
    importlib.import_module("torch")
    yield record_value("version", find_installed_version("torch") or "unknown")


def import_bitsandbytes() -> Iterator[StageReading]:
    """bitsandbytes imports. When it does not, it is hidden, because peft would fail to import with it."""
    version = find_installed_version("bitsandbytes")
    if version is None:
        raise StageSkipped("bitsandbytes is not installed")
    try:
        importlib.import_module("bitsandbytes")
    except Exception:
        hide_bitsandbytes()
        raise
    yield record_value("version", version)


def hide_bitsandbytes() -> None:
    """Make bitsandbytes look absent in this process: None in sys.modules is the import system's mark for that."""
    for name in [name for name in sys.modules if name.startswith("bitsandbytes.")]:
        del sys.modules[name]
    cast(dict[str, object], sys.modules)["bitsandbytes"] = None


@contextmanager
def hide_module(name: str, *, unless: bool = False) -> Iterator[None]:
    """Make a package look absent for the block: None in sys.modules is the import system's mark for that."""
    modules = cast(dict[str, object], sys.modules)
    there = {name: modules[name]} if name in modules else {}
    if not unless:
        modules[name] = None
    try:
        yield
    finally:
        if not unless:
            del modules[name]
        modules.update(there)


def require_bitsandbytes(what: str, *, without: str) -> None:
    """Import bitsandbytes for `what`. Raises DevkitError where that fails; `without` it there is another way."""
    try:
        importlib.import_module("bitsandbytes")
    except Exception as error:  # whatever a native library raises
        raise DevkitError(
            f"{what} needs bitsandbytes, which does not import: {to_one_line(str(error))}",
            f"`devkit doctor --deep` says why. Without it: {without}.",
        ) from error


def import_libraries() -> Iterator[StageReading]:
    """transformers, peft and accelerate import, together with this torch."""
    for name in REQUIRED_LIBRARIES:
        importlib.import_module(name)
        yield record_value(name, find_installed_version(name) or "unknown")


def prepare_process() -> None:
    """Settings that must stand before torch is imported: no network, repeatable kernels, one thread.

    bitsandbytes may otherwise look for kernels on the Hub while it is imported.
    """
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TOKENIZERS_PARALLELISM="false",
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
    )
    os.environ["OMP_NUM_THREADS"] = str(PROOF_THREADS)
    # It misses a package that nothing here needs, and says so where the last words of a crash are looked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
