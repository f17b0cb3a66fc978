"""Reads the version tables: each file once, and only when something asks for it."""

import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import cache, cached_property
from pkgutil import get_data
from typing import Any, TypeVar, get_args, get_type_hints

from devkit.compat import rows
from devkit.facts.values import ComputeCapability, Release

FILES = ("driver", "gpus", "torch", "stack", "manylinux", "images", "engines", "editors")
"""The table files, by name without ending."""

AnyRow = TypeVar("AnyRow", bound=rows.Row)
Document = dict[str, Any]

_SCALARS: dict[object, Callable[[Any], Any]] = {
    Release: Release.read,
    ComputeCapability: ComputeCapability.read,
    rows.Confidence: rows.Confidence,
}


def document(name: str) -> Document:
    """One table file as TOML gives it. Raises FileNotFoundError for a name outside `FILES`."""
    data = get_data("devkit.compat", f"tables/{name}.toml")
    return tomllib.loads((data or b"").decode())


def _decoders(row: type[rows.Row]) -> dict[str, Callable[[Any], Any]]:
    """How to turn each TOML value into the field's type; fields that TOML already types right are absent."""
    hints = get_type_hints(row)
    found: dict[str, Callable[[Any], Any]] = {}
    for name in (field.name for field in fields(row)):
        wanted = [hints[name], *get_args(hints[name])]
        for candidate in wanted:
            if candidate in _SCALARS:
                found[name] = _SCALARS[candidate]
        if getattr(hints[name], "__origin__", None) is tuple:
            found[name] = tuple
    return found


class Table:
    """One file: `rows(name, type)` gives an array of it, typed. `as_of` is the day the file was last checked."""

    def __init__(self, name: str) -> None:
        self._document = document(name)
        self.as_of: str = self._document["as_of"]

    def rows(self, name: str, row: type[AnyRow]) -> tuple[AnyRow, ...]:
        """The array `name`. Raises KeyError for a missing array or a source id that does not resolve."""
        sources, decoders = self._document["sources"], _decoders(row)

        def typed(raw: Document) -> AnyRow:
            values = {key: decoders[key](value) if key in decoders else value for key, value in raw.items()}
            values["source"] = tuple(sources[source] for source in raw["source"])
            return row(**{"checked": self.as_of, **values})

        return tuple(typed(raw) for raw in self._document[name])


class DriverTable(Table):
    """What each driver runs, and what each CUDA Toolkit targets."""

    def __init__(self) -> None:
        super().__init__("driver")
        self.toolkits = self.rows("toolkit", rows.CudaToolkit)
        self.families = {row.major: row for row in self.rows("family", rows.CudaFamily)}
        self.branches = self.rows("branch", rows.Branch)
        self.windows_branches = self.rows("windows_branch", rows.WindowsBranch)
        self.forward = self.rows("forward", rows.ForwardPackage)
        self.capabilities = {row.capability: row for row in self.rows("capability", rows.Capability)}


class GpuTable(Table):
    """GPUs by name."""

    def __init__(self) -> None:
        super().__init__("gpus")
        self.models = self.rows("gpu", rows.GpuModel)


class TorchTable(Table):
    """torch releases and the GPU code in their wheels."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.releases = self.rows("release", rows.TorchRelease)
        self.wheels = {(row.minor, row.variant, row.machine): row for row in self.rows("wheel", rows.TorchWheel)}
        self.indexes = {row.label: row for row in self.rows("index", rows.WheelIndex)}


class StackTable(Table):
    """The Python packages around torch."""

    def __init__(self) -> None:
        super().__init__("stack")
        self.packages = self.rows("package", rows.Package)
        self.bitsandbytes = self.rows("bitsandbytes", rows.Bitsandbytes)
        self.libraries = self.rows("library", rows.BitsandbytesLibrary)
        self.features = {row.name: row for row in self.rows("feature", rows.Feature)}
        self.pythons = self.rows("python", rows.PythonVersion)
        self.floors = self.rows("floor", rows.RuntimeFloor)


class ManylinuxTable(Table):
    """Platforms of Linux wheels; a file of its own, because every examination asks for it and for nothing else."""

    def __init__(self) -> None:
        super().__init__("manylinux")
        self.platforms = self.rows("manylinux", rows.CxxLibrary)


class ImageTable(Table):
    """Base images."""

    def __init__(self) -> None:
        super().__init__("images")
        self.python_images = self.rows("python_image", rows.PythonImage)
        self.cuda_images = self.rows("cuda_image", rows.CudaImage)
        self.withdrawn = {row.tag: row for row in self.rows("withdrawn", rows.WithdrawnTag)}


class EngineTable(Table):
    """Container engines and the NVIDIA Container Toolkit."""

    def __init__(self) -> None:
        super().__init__("engines")
        self.container_toolkits = self.rows("container_toolkit", rows.ContainerToolkit)
        self.vulnerabilities = self.rows("vulnerability", rows.Vulnerability)
        self.faults = self.rows("engine_fault", rows.EngineFault)
        self.features = {(row.engine, row.feature): row for row in self.rows("engine_feature", rows.EngineFeature)}


class EditorTable(Table):
    """Tools that open dev containers."""

    def __init__(self) -> None:
        super().__init__("editors")
        self.ignored = self.rows("ignored", rows.IgnoredKey)


class Tables:
    """Every table; a file is read when its attribute is first used."""

    @cached_property
    def driver(self) -> DriverTable:
        """Drivers, CUDA Toolkits, compute capabilities."""
        return DriverTable()

    @cached_property
    def gpus(self) -> GpuTable:
        """GPUs by name."""
        return GpuTable()

    @cached_property
    def torch(self) -> TorchTable:
        """torch releases, wheels, indexes."""
        return TorchTable()

    @cached_property
    def stack(self) -> StackTable:
        """transformers and its companions, Pythons, features."""
        return StackTable()

    @cached_property
    def manylinux(self) -> ManylinuxTable:
        """What wheel platforms ask of glibc and libstdc++."""
        return ManylinuxTable()

    @cached_property
    def images(self) -> ImageTable:
        """Base images."""
        return ImageTable()

    @cached_property
    def engines(self) -> EngineTable:
        """Engines and the NVIDIA Container Toolkit."""
        return EngineTable()

    @cached_property
    def editors(self) -> EditorTable:
        """Editors and what they ignore."""
        return EditorTable()


@cache
def tables() -> Tables:
    """The tables that ship with devkit, shared by everyone who asks."""
    return Tables()
