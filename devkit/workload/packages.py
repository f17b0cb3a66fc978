"""Before the proof proper: the process is prepared, and each library imports."""

import importlib
import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import cast

from devkit import __version__
from devkit.errors import DevkitError
from devkit.text import on_one_line
from devkit.workload.cpus import usable_cpus
from devkit.workload.stage import Reading, StageSkipped, fact

LIBRARIES = ("transformers", "peft", "accelerate")
THREADS = 1
"""Measured: a second thread gains nothing on a model this small, and on a busy machine costs many seconds."""

PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "safetensors", "triton")


def version_of(package: str) -> str | None:
    """The installed version by metadata alone; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, str]:
    """Versions and machine, for the report. A package that is not installed is left out.

    `gpu_request` is how the dev container asked its engine for a GPU, such as nvidia, cdi or cpu; absent elsewhere.
    """
    found = {name: version_of(name) for name in PACKAGES}
    return {
        "devkit": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": sys.platform,
        "machine": platform.machine(),
        "cpus": str(usable_cpus()),
        **({"gpu_request": os.environ["DEVKIT_GPU"]} if os.environ.get("DEVKIT_GPU") else {}),
        **{name: version for name, version in found.items() if version is not None},
    }


def torch_imports() -> Iterator[Reading]:
    """torch imports. Its own message names the missing library when it does not."""
    importlib.import_module("torch")
    yield fact("version", version_of("torch") or "unknown")


def bitsandbytes_imports() -> Iterator[Reading]:
    """bitsandbytes imports. When it does not, it is hidden, because peft would fail to import with it."""
    version = version_of("bitsandbytes")
    if version is None:
        raise StageSkipped("bitsandbytes is not installed")
    try:
        importlib.import_module("bitsandbytes")
    except Exception:
        hide_bitsandbytes()
        raise
    yield fact("version", version)


def hide_bitsandbytes() -> None:
    """Make bitsandbytes look absent in this process: None in sys.modules is the import system's mark for that."""
    for name in [name for name in sys.modules if name.startswith("bitsandbytes.")]:
        del sys.modules[name]
    cast(dict[str, object], sys.modules)["bitsandbytes"] = None


@contextmanager
def hidden(name: str, *, unless: bool = False) -> Iterator[None]:
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
            f"{what} needs bitsandbytes, which does not import: {on_one_line(str(error))}",
            f"`devkit doctor --deep` says why. Without it: {without}.",
        ) from error


def libraries_import() -> Iterator[Reading]:
    """transformers, peft and accelerate import, together with this torch."""
    for name in LIBRARIES:
        importlib.import_module(name)
        yield fact(name, version_of(name) or "unknown")


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
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    # It misses a package that nothing here needs, and says so where the last words of a crash are looked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
