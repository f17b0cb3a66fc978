"""The rows about AMD GPUs under ROCm."""

from devkit.compat.rows import Row, WheelIndex
from devkit.facts.record import keyword_record
from devkit.facts.values import Release


@keyword_record
class RocmRelease(Row):
    """A torch release and its ROCm builds, by index label."""

    version: Release
    variants: tuple[str, ...]


@keyword_record
class RocmIndex(WheelIndex):
    """A wheel index of ROCm builds, and the GPU targets (gfx942 …) that its wheels hold code for."""

    rocm: Release
    targets: tuple[str, ...]


@keyword_record
class RocmLibrary(Row):
    """GPU targets in the libraries that a bitsandbytes release carries for some ROCm versions."""

    version: str
    rocms: tuple[str, ...]
    targets: tuple[str, ...]


@keyword_record
class RocmFeature(Row):
    """A feature by its name in the stack table, and the targets that have it."""

    name: str
    targets: tuple[str, ...]


@keyword_record
class AmdGpu(Row):
    """An AMD GPU as sold. `target` is its LLVM target; code for another target does not run on it."""

    name: str
    aliases: tuple[str, ...]
    target: str
    kind: str
