"""Where the workload runs: the inside of a container, and its Python."""

from devkit.facts.record import record
from devkit.facts.values import NOT_READ, Release, Unknown


@record
class Container:
    """This side when it is the inside of a container."""

    kind: str
    """"docker", "podman", "kubernetes", "apptainer" or "unknown"."""
    visible_devices: str | None
    """NVIDIA_VISIBLE_DEVICES, None when unset."""
    driver_capabilities: str | None
    require_cuda: str | None
    shm_bytes: int | Unknown
    c_compiler: str
    """Path of cc, gcc or clang, "" for none."""
    python_headers: bool | Unknown
    libcuda_in_cache: bool | Unknown
    """Whether the loader's cache knows the plain name libcuda.so, which Triton links against."""
    compat_libcuda: str
    """A libcuda under a cuda compat directory that the loader would take first, "" for none."""
    nameless_groups: tuple[int, ...] | Unknown = NOT_READ
    """Numbers of this process's groups that the container has no name for."""


@record
class Package:
    """An installed Python distribution, by metadata only: `tag` is its wheel tag, "" when not recorded."""

    name: str
    version: str
    tag: str
    requires: tuple[str, ...] | Unknown = NOT_READ
    """Its requirement lines on packages that matter to a GPU; those of optional extras aside."""


@record
class Copy:
    """One of several installations of the same distribution on one module path."""

    name: str
    version: str
    folder: str


@record
class CudaFolder:
    """A CUDA Toolkit with a compiler: where it is, what led there ("CUDA_HOME", "PATH" …), and its version."""

    path: str
    found_by: str
    version: Release | Unknown


@record
class Library:
    """A shared library, with the version that its real file name carries."""

    path: str
    version: Release | Unknown


@record
class Torch:
    """An installed torch, read from its files without importing it. `cuda` is None for a CPU build."""

    version: str
    cuda: Release | Unknown | None
    hip: str | None


@record
class Python:
    """The Python that would run the workload: the active virtual environment's, else this one."""

    version: Release
    executable: str
    torch: Torch | Unknown | None
    """None when torch is not installed."""
    packages: tuple[Package, ...]
    """Those that matter to a GPU: torch, triton, bitsandbytes, flash-attn, transformers, peft …"""
    bitsandbytes_cuda: tuple[str, ...]
    """CUDA versions for which the installed bitsandbytes carries a library: ("12.8", "13.0")."""
    cuda_visible_devices: str | None
    ld_library_path: tuple[str, ...]
    shadowing_libraries: tuple[str, ...]
    """CUDA libraries reachable through LD_LIBRARY_PATH that hide the wheels' own."""
    shadowing: tuple[Library, ...] | Unknown = NOT_READ
    """The same libraries with their versions."""
    copies: tuple[Copy, ...] | Unknown = NOT_READ
    """Distributions that stand on the module path more than once, in the order in which they are found."""
    user_site: str | Unknown = NOT_READ
    """The user's own site-packages where this Python reads them, "" where it does not."""
    installer: str | Unknown = NOT_READ
    """What installs packages here: "pip", "uv" or "conda"."""
    bnb_cuda_version: str | Unknown | None = NOT_READ
    """BNB_CUDA_VERSION, None when unset."""
    cuda_device_order: str | Unknown | None = NOT_READ
    """CUDA_DEVICE_ORDER, None when unset."""
    cuda_toolkit: CudaFolder | Unknown | None = NOT_READ
    """The CUDA Toolkit that builds of extensions would use; None when there is no compiler."""
    libstdcxx: Library | Unknown | None = NOT_READ
    """The C++ library that this Python's packages load; None when none was found."""
