"""The native libraries around a Python: a CUDA Toolkit, the C++ library, and what LD_LIBRARY_PATH puts first."""

import re

from devkit.facts.model import CudaFolder, Library
from devkit.facts.values import Release, Unknown
from devkit.probe.host import Host
from devkit.probe.programs import find_program, library_release, path_folders
from devkit.probe.shapes import json_of, part, word

_CUDA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn|cudnn_\w+|nccl|nvrtc|cusparse|cusparseLt|cufft|curand|cusolver|nvJitLink|cupti)"
    r"\.so(?:\.\d+)*"
)
_CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH")
"""Where torch's extension builder looks first. Source: pytorch, torch/utils/cpp_extension.py."""
_DEFAULT_CUDA = "/usr/local/cuda"

_STDCXX = "libstdc++.so.6"
_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def read_shadowing(host: Host) -> tuple[Library, ...]:
    """CUDA libraries in the folders of LD_LIBRARY_PATH, with their versions."""
    folders = path_folders(host.env.get("LD_LIBRARY_PATH", ""))
    paths = [f"{folder}/{name}" for folder in folders for name in host.list(folder) if _CUDA_LIBRARY.fullmatch(name)]
    return tuple(Library(path, library_release(host, path)) for path in paths)


def read_cuda_toolkit(host: Host) -> CudaFolder | None:
    """The toolkit whose nvcc a build of an extension would start: CUDA_HOME, PATH, then /usr/local/cuda."""
    for variable in _CUDA_HOMES:
        if (folder := host.env.get(variable, "").rstrip("/")) and _has_compiler(host, folder):
            return CudaFolder(folder, variable, _toolkit_release(host, folder))
    if compiler := find_program(host, "nvcc"):
        folder = (host.link(compiler) or compiler).rpartition("/bin/")[0]
        return CudaFolder(folder, "PATH", _toolkit_release(host, folder))
    if _has_compiler(host, _DEFAULT_CUDA):
        return CudaFolder(_DEFAULT_CUDA, "the default", _toolkit_release(host, _DEFAULT_CUDA))
    return None


def _has_compiler(host: Host, folder: str) -> bool:
    return host.stat(f"{folder}/bin/nvcc") is not None


def _toolkit_release(host: Host, folder: str) -> Release | Unknown:
    """By the version file of the toolkit: JSON since CUDA 11.1, plain text before. nvcc itself is not started."""
    try:
        said = json_of(host.read(f"{folder}/version.json") or "{}")
    except ValueError:
        said = {}
    versions = said if isinstance(said, dict) else {}
    text = word(part(versions, "cuda_nvcc") or part(versions, "cuda"), "version")
    text = text or (host.read(f"{folder}/version.txt") or "").partition("CUDA Version ")[2]
    if not text:
        # Packages of a distribution install without the file, into a folder that is named for the release.
        text = (host.link(folder) or "").rpartition("/cuda-")[2]
    try:
        return Release.read(text)
    except ValueError:
        return Unknown(f"{folder} does not say its version")


def read_libstdcxx(host: Host, prefix: str) -> Library | None:
    """The libstdc++ that packages of the Python under `prefix` load, from LD_LIBRARY_PATH, conda or the system."""
    folders = [*path_folders(host.env.get("LD_LIBRARY_PATH", "")), f"{prefix}/lib", *_LIBRARY_FOLDERS]
    found = next((f"{folder}/{_STDCXX}" for folder in folders if host.stat(f"{folder}/{_STDCXX}") is not None), None)
    return Library(found, library_release(host, found)) if found else None
