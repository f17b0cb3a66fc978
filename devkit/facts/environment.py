"""Where the workload runs: the inside of a container, and its Python."""

from dataclasses import dataclass

from devkit.facts.values import Release, Unknown


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Package:
    """An installed Python distribution, by metadata only: `tag` is its wheel tag, "" when not recorded."""

    name: str
    version: str
    tag: str


@dataclass(frozen=True)
class Torch:
    """An installed torch, read from its files without importing it. `cuda` is None for a CPU build."""

    version: str
    cuda: Release | Unknown | None
    hip: str | None


@dataclass(frozen=True)
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
