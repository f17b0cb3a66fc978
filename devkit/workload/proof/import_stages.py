"""Stages that import packages. Importable without torch, so that a broken package fails its own stage alone."""

import importlib
from collections.abc import Iterator

from devkit.workload.environment import find_installed_version, hide_bitsandbytes
from devkit.workload.proof.stages import StageReading, StageSkipped, record_value

REQUIRED_LIBRARIES = ("transformers", "peft", "accelerate")


def import_torch() -> Iterator[StageReading]:
    """Import torch, whose own message names a missing library."""
    importlib.import_module("torch")
    yield record_value("version", find_installed_version("torch") or "unknown")


def import_bitsandbytes() -> Iterator[StageReading]:
    """Import bitsandbytes. If that fails, it is hidden, because peft would fail to import with it."""
    version = find_installed_version("bitsandbytes")
    if version is None:
        raise StageSkipped("bitsandbytes is not installed")
    try:
        importlib.import_module("bitsandbytes")
    except Exception:
        hide_bitsandbytes()
        raise
    yield record_value("version", version)


def import_libraries() -> Iterator[StageReading]:
    """Import transformers, peft and accelerate, together with this torch."""
    for name in REQUIRED_LIBRARIES:
        importlib.import_module(name)
        yield record_value(name, find_installed_version(name) or "unknown")
