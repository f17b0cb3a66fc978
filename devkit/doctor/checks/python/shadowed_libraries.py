"""Checks that no other library shadows the CUDA libraries of torch's wheels."""

import re
from collections.abc import Iterator

from devkit.compat.version_tables import load_tables
from devkit.doctor.checks.python.packages import find_python_packages
from devkit.doctor.model import check
from devkit.doctor.preconditions import (
    require,
    require_some,
    require_torch_cuda,
    require_visible_gpu,
    skip_if,
)
from devkit.doctor.problems import Problem, problem
from devkit.facts.machine import Library, Package
from devkit.facts.model import Facts
from devkit.facts.values import Release, Unknown
from devkit.text import join_words

_CUDNN = "libcudnn"
_WHEEL_OF = {
    "libcudart": "nvidia-cuda-runtime",
    "libcublas": "nvidia-cublas",
    "libcudnn": "nvidia-cudnn",
    "libnccl": "nvidia-nccl",
    "libnvrtc": "nvidia-cuda-nvrtc",
    "libcusparse": "nvidia-cusparse",
    "libcufft": "nvidia-cufft",
    "libcurand": "nvidia-curand",
    "libcusolver": "nvidia-cusolver",
    "libnvJitLink": "nvidia-nvjitlink",
    "libcupti": "nvidia-cuda-cupti",
}
"""Which wheel brings a library; for one CUDA major their names end in -cu12 and the like."""
_SAME_NUMBERS = ("libnvJitLink", "libcudnn", "libnccl", "libcublas", "libnvrtc")
"""Libraries whose file names carry the version of their wheels; others count on their own."""


def _find_stem(path: str) -> str:
    name = path.rpartition("/")[2].partition(".so")[0]
    return next((stem for stem in _WHEEL_OF if name == stem or name.startswith((f"{stem}_", f"{stem}Lt"))), name)


def _find_wheel(facts: Facts, stem: str) -> Package | None:
    wanted = re.compile(rf"{_WHEEL_OF.get(stem, '-')}(?:-cu\d+)?")
    return next((package for name, package in find_python_packages(facts).items() if wanted.fullmatch(name)), None)


def _find_shadowing_libraries(facts: Facts) -> tuple[Library, ...]:
    """Libraries that come before a wheel's own and are not of the very same release."""
    python = require(facts.python)
    libraries = python.shadowing
    if isinstance(libraries, Unknown):
        libraries = tuple(Library(path, libraries) for path in python.shadowing_libraries)
    outside = [library for library in libraries if "/site-packages/" not in library.path]
    return tuple(library for library in outside if not _is_same_release(facts, library))


def _is_same_release(facts: Facts, library: Library) -> bool:
    stem = _find_stem(library.path)
    wheel = _find_wheel(facts, stem)
    if wheel is None or isinstance(library.version, Unknown) or stem not in _SAME_NUMBERS:
        return False
    numbers = library.version.numbers
    return Release.parse(wheel.version).numbers[: len(numbers)] == numbers[: len(Release.parse(wheel.version).numbers)]


def _format_shadowing(facts: Facts, library: Library) -> str:
    """What is hidden: libnvJitLink.so.12 12.1.105 before 12.4.127 of nvidia-nvjitlink-cu12."""
    wheel = _find_wheel(facts, _find_stem(library.path))
    version = "" if isinstance(library.version, Unknown) else f" {library.version}"
    return f"{library.path}{version}" + (f" before {wheel.version} of {wheel.name}" if wheel else "")


@check("PYT005", require_torch_cuda, causes=("PYT017", "PYT018", "PYT019", "PYT020"))
def no_library_is_shadowed(facts: Facts) -> Iterator[Problem]:
    shadowing = [library for library in _find_shadowing_libraries(facts) if _find_stem(library.path) != _CUDNN]
    if not shadowing:
        return
    folders = sorted({library.path.rpartition("/")[0] for library in shadowing})
    example = next((library for library in shadowing if _find_wheel(facts, _find_stem(library.path))), shadowing[0])
    yield problem(
        "shadowed",
        folders=join_words(folders),
        subject=folders[0],
        evidence=(
            f"LD_LIBRARY_PATH={':'.join(require(facts.python).ld_library_path)}",
            f"for example {_format_shadowing(facts, example)}",
        ),
    )


@check("PYT011", require_torch_cuda, causes=("PYT017",))
def cudnn_is_not_shadowed(facts: Facts) -> Iterator[Problem]:
    wheel = require_some(_find_wheel(facts, _CUDNN), "no wheel includes cuDNN")
    found = [library for library in _find_shadowing_libraries(facts) if _find_stem(library.path) == _CUDNN]
    if not found:
        return
    folders = sorted({library.path.rpartition("/")[0] for library in found})
    yield problem(
        "another-cudnn",
        folders=join_words(folders),
        version=wheel.version,
        subject=folders[0],
        evidence=(f"{wheel.name} {wheel.version}", *(_format_shadowing(facts, library) for library in found[:3])),
    )


@check("PYT012", require_visible_gpu)
def nvrtc_supports_every_gpu(facts: Facts) -> Iterator[Problem]:
    wheel = require_some(_find_wheel(facts, "libnvrtc"), "no wheel includes NVRTC")
    skip_if(not facts.gpus, "no GPU answers")
    release = Release.parse(wheel.version)
    version = Release.parse(release.minor)
    for gpu in facts.gpus:
        row = load_tables().driver.capabilities.get(require(gpu.capability))
        if row is None or (row.first_cuda <= version and (row.last_cuda is None or version <= row.last_cuda)):
            continue
        wanted = f">={row.first_cuda}" + (f",<{row.last_cuda.major + 1}" if row.last_cuda else "")
        yield problem(
            "cannot-compile",
            wheel=wheel.name,
            version=wheel.version,
            sm=row.capability.sm,
            index=gpu.index,
            gpu=gpu.name,
            requirement=f"{wheel.name}{wanted}",
            evidence=(f"{wheel.name} {wheel.version}", f"{row.capability.sm} came with CUDA {row.first_cuda}"),
        )
