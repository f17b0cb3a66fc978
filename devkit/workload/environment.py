"""The process and its environment: installed versions, usable CPUs, settings before torch is imported.

Importable without torch.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import cast

from devkit.errors import DevkitError
from devkit.probe.host import Host, LocalHost
from devkit.probe.machine.control_group import read_cgroup
from devkit.release import __version__
from devkit.text import to_one_line
from devkit.workload.proof import standalone

PROOF_THREADS = 1
"""Measured: a second thread gains nothing on a model this small, and on a busy machine costs many seconds."""

REPORTED_PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "safetensors", "triton")


def find_installed_version(package: str) -> str | None:
    """Return the installed version by metadata alone; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe_environment() -> dict[str, str]:
    """Return versions and machine, for the report. A package that is not installed is left out."""
    shown = standalone.describe_environment(REPORTED_PACKAGES)
    return {"devkit": __version__, "cpus": str(count_usable_cpus()), **shown}


def count_usable_cpus(host: Host | None = None) -> int:
    """Count the CPU cores of this process's affinity, lowered to its control group's quota (whole cores, at least 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = read_cgroup(host or LocalHost()).cpu_count
    return max(1, min(affinity, int(granted))) if isinstance(granted, float) else affinity


def prepare_process() -> None:
    """Set what must be set before torch is imported: no network, deterministic kernels, one thread.

    bitsandbytes may otherwise look for kernels on the Hub while it is imported.
    """
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TOKENIZERS_PARALLELISM="false",
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
        OMP_NUM_THREADS=str(PROOF_THREADS),
    )
    # It warns of a package that nothing here needs, in the lines where the reason of a crash is looked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def require_bitsandbytes(feature: str, *, without: str) -> None:
    """Import bitsandbytes for `feature`. Raises DevkitError where that fails; `without` says what to do instead."""
    try:
        importlib.import_module("bitsandbytes")
    except Exception as error:  # whatever a native library raises
        raise DevkitError(
            f"{feature} needs bitsandbytes, which cannot be imported: {to_one_line(str(error))}",
            f"`devkit doctor --deep` shows why. To do without it: {without}.",
        ) from error


def hide_bitsandbytes() -> None:
    """Make bitsandbytes look absent in this process: the import system reads None in sys.modules that way."""
    for name in [name for name in sys.modules if name.startswith("bitsandbytes.")]:
        del sys.modules[name]
    cast(dict[str, object], sys.modules)["bitsandbytes"] = None


@contextmanager
def hide_module(name: str) -> Iterator[None]:
    """Make a package look absent within the block, by None in sys.modules."""
    modules = cast(dict[str, object], sys.modules)
    previous = {name: modules[name]} if name in modules else {}
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]
        modules.update(previous)
