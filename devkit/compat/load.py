"""The version tables: each file is read once, and only when something asks for it."""

from collections.abc import Callable
from functools import cache, cached_property
from pkgutil import get_data

from devkit.compat import image_rows, rate_rows, rocm_rows, rows
from devkit.compat.newer import newer_table
from devkit.compat.service_rows import Alert, ExporterService, Panel, ProfileImage, ProfilePackage
from devkit.compat.table import Array, Document, KeyedArray, LazyDocument, Table


class DriverTable(Table):
    """What each driver runs, and what each CUDA Toolkit targets."""

    toolkits = Array("toolkit", rows.CudaToolkit, unique=("version",))
    families = KeyedArray("family", rows.CudaFamily, unique=("major",), key=lambda row: row.major)
    branches = Array("branch", rows.Branch, unique=("branch",))
    windows_branches = Array("windows_branch", rows.WindowsBranch, unique=("branches",))
    forward = Array("forward", rows.ForwardPackage, unique=("package",))
    capabilities = KeyedArray("capability", rows.Capability, unique=("capability",), key=lambda row: row.capability)


class GpuTable(Table):
    """GPUs by name."""

    models = Array("gpu", rows.GpuModel, unique=("id",))
    rates = KeyedArray("rate", rate_rows.GpuRates, unique=("id",), key=lambda row: row.id)


class TorchTable(Table):
    """torch releases and the GPU code in their wheels."""

    releases = Array("release", rows.TorchRelease, unique=("version",))
    wheels = KeyedArray(
        "wheel",
        rows.TorchWheel,
        unique=("minor", "variant", "machine"),
        key=lambda row: (row.minor, row.variant, row.machine),
    )
    indexes = KeyedArray("index", rows.WheelIndex, unique=("label",), key=lambda row: row.label)


class StackTable(Table):
    """The Python packages around torch."""

    packages = Array("package", rows.Package, unique=("name", "version"))
    bitsandbytes = Array("bitsandbytes", rows.Bitsandbytes, unique=("version",))
    libraries = Array("library", rows.BitsandbytesLibrary, unique=("version", "machine", "cudas"))
    features = KeyedArray("feature", rows.Feature, unique=("name",), key=lambda row: row.name)
    pythons = Array("python", rows.PythonVersion, unique=("version",))
    floors = Array("floor", rows.RuntimeFloor, unique=("name", "version"))


class ManylinuxTable(Table):
    """Platforms of Linux wheels; a file of its own, because every examination asks for it and for nothing else."""

    platforms = Array("manylinux", rows.CxxLibrary, unique=("glibc",))


class ImageTable(Table):
    """Base images."""

    python_images = Array("python_image", image_rows.PythonImage, unique=("tag",))
    systems = Array("system", image_rows.SystemImage, unique=("name", "tags"))
    cuda_images = Array("cuda_image", image_rows.CudaImage, unique=("cuda", "system"))
    tools = Array("tool", image_rows.ImageTool, unique=("name",))
    life = Array("life", image_rows.ImageLife, unique=("name",))
    withdrawn = KeyedArray("withdrawn", image_rows.WithdrawnTag, unique=("tag",), key=lambda row: row.tag)


class RocmTable(Table):
    """AMD GPUs: torch builds for ROCm, their GPU targets, GPUs by name."""

    releases = KeyedArray("release", rocm_rows.RocmRelease, unique=("version",), key=lambda row: row.version)
    indexes = KeyedArray("index", rocm_rows.RocmIndex, unique=("label",), key=lambda row: row.label)
    libraries = Array("library", rocm_rows.RocmLibrary, unique=("version", "rocms"))
    features = KeyedArray("feature", rocm_rows.RocmFeature, unique=("name",), key=lambda row: row.name)
    gpus = Array("gpu", rocm_rows.AmdGpu, unique=("name",))


class EngineTable(Table):
    """Container engines and the NVIDIA Container Toolkit."""

    container_toolkits = Array("container_toolkit", rows.ContainerToolkit, unique=("version",))
    vulnerabilities = Array("vulnerability", rows.Vulnerability, unique=("id",))
    faults = Array("engine_fault", rows.EngineFault, unique=("program", "since", "when"))
    features = KeyedArray(
        "engine_feature", rows.EngineFeature, unique=("engine", "feature"), key=lambda row: (row.engine, row.feature)
    )


class EditorTable(Table):
    """Tools that open dev containers."""

    editors = KeyedArray("editor", rows.Editor, unique=("name",), key=lambda row: row.name)
    ignored = Array("ignored", rows.IgnoredKey, unique=("editor", "key"))


class ProfileTable(Table):
    """Services beside the dev container, and what a cluster's own services show of a job."""

    packages = Array("profile_package", ProfilePackage, unique=("profile", "name"))
    images = KeyedArray("profile_image", ProfileImage, unique=("service",), key=lambda row: row.service)
    panels = Array("panel", Panel, unique=("vendor", "title"))
    cluster_panels = Array("cluster_panel", Panel, unique=("title",))
    alerts = Array("alert", Alert, unique=("vendor", "name"))
    exporters = KeyedArray(
        "exporter_service",
        ExporterService,
        unique=("vendor", "installed_by"),
        key=lambda row: (row.vendor, row.installed_by),
    )


TABLES: dict[str, type[Table]] = {
    "driver": DriverTable,
    "gpus": GpuTable,
    "torch": TorchTable,
    "stack": StackTable,
    "manylinux": ManylinuxTable,
    "images": ImageTable,
    "rocm": RocmTable,
    "engines": EngineTable,
    "editors": EditorTable,
    "profiles": ProfileTable,
}
"""What each table file holds, by its name without ending."""

FILES = tuple(TABLES)


def document(name: str) -> Document:
    """One table file as it ships. Raises FileNotFoundError for a name outside `FILES`."""
    return LazyDocument(shipped_bytes(name).decode())


def shipped_bytes(name: str) -> bytes:
    """The text of one table file as it ships. Raises FileNotFoundError for a name that no file has."""
    return get_data("devkit.compat", f"tables/{name}.toml") or b""


def _newest(name: str) -> Document:
    return newer_table(name) or document(name)


class Tables:
    """Every table; a file is read when its attribute is first used. `read` gives the document of a table by name."""

    def __init__(self, read: Callable[[str], Document] = document) -> None:
        self._read = read

    @cached_property
    def driver(self) -> DriverTable:
        """Drivers, CUDA Toolkits, compute capabilities."""
        return DriverTable(self._read("driver"))

    @cached_property
    def gpus(self) -> GpuTable:
        """GPUs by name."""
        return GpuTable(self._read("gpus"))

    @cached_property
    def torch(self) -> TorchTable:
        """torch releases, wheels, indexes."""
        return TorchTable(self._read("torch"))

    @cached_property
    def stack(self) -> StackTable:
        """transformers and its companions, Pythons, features."""
        return StackTable(self._read("stack"))

    @cached_property
    def manylinux(self) -> ManylinuxTable:
        """What wheel platforms ask of glibc and libstdc++."""
        return ManylinuxTable(self._read("manylinux"))

    @cached_property
    def images(self) -> ImageTable:
        """Base images."""
        return ImageTable(self._read("images"))

    @cached_property
    def rocm(self) -> RocmTable:
        """AMD GPUs under ROCm."""
        return RocmTable(self._read("rocm"))

    @cached_property
    def engines(self) -> EngineTable:
        """Engines and the NVIDIA Container Toolkit."""
        return EngineTable(self._read("engines"))

    @cached_property
    def editors(self) -> EditorTable:
        """Editors and what they ignore."""
        return EditorTable(self._read("editors"))

    @cached_property
    def profiles(self) -> ProfileTable:
        """Services beside the dev container."""
        return ProfileTable(self._read("profiles"))

    @property
    def as_of(self) -> str:
        """The day on which the oldest of the tables that were read so far was last checked; "" before any was read."""
        return min((table.as_of for table in vars(self).values() if isinstance(table, Table)), default="")


@cache
def tables() -> Tables:
    """The newest tables there are: those that were offered, else those that ship. Shared by everyone who asks."""
    return Tables(_newest)
