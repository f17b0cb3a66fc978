"""The packages of the Python that would run the workload, read from its files alone: nothing of it is imported."""

import re

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.machine import Copy, CudaFolder, Library, Package, Python, Torch
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import get_object, get_scalar, parse_object_or_empty
from devkit.probe.host import Host
from devkit.probe.machine.interpreter import WorkloadPython, find_workload_python, get_prefix
from devkit.probe.machine.programs import find_program, read_library_release, split_search_path

# The native libraries around a Python: a CUDA Toolkit, the C++ library, and what LD_LIBRARY_PATH puts first.
_CUDA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn|cudnn_\w+|nccl|nvrtc|cusparse|cusparseLt|cufft|curand|cusolver|nvJitLink|cupti)"
    r"\.so(?:\.\d+)*"
)
_CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH")
"""Where torch's extension builder looks first. Source: pytorch, torch/utils/cpp_extension.py."""
_DEFAULT_CUDA = "/usr/local/cuda"
_STDCXX = "libstdc++.so.6"
_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")

GPU_PACKAGES = re.compile(
    r"(?:torch|torchvision|torchaudio|triton|pytorch-triton|bitsandbytes|flash-attn|flash-attn-3|xformers|transformers|peft"
    r"|trl|accelerate|datasets|tokenizers|safetensors|huggingface-hub|hf-transfer|hf-xet|deepspeed|vllm|sglang|unsloth"
    r"|unsloth-zoo|liger-kernel|auto-gptq|autoawq|gptqmodel|torchao|apex|transformer-engine|numpy|jax|jaxlib|jax-cuda\d+-plugin|tensorflow"
    r"|cupy(?:-cuda\d+x)?|nvidia-.+|pynvml|devkit-gpu)"
)
"""Distributions that matter to a GPU, by normalized name."""
_TORCH_VALUE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=[ \t]*(None|'[^'\n]*'|\"[^\"\n]*\")", re.MULTILINE)


def read_python(host: Host) -> Python | Unknown:
    """Read the project's Python, which may be the one that devkit runs in, and the packages that need a GPU."""
    python = find_workload_python(host)
    if isinstance(python, Unknown):
        return python
    shadowing = read_shadowing(host)
    entries = _entries(host, python)
    names = [entry.name for entry, _ in entries]
    # 12.8 and 13.0 out of libbitsandbytes_cuda128.so and libbitsandbytes_cuda130.so.
    bitsandbytes = (
        re.fullmatch(r"libbitsandbytes_cuda(\d+)(\d)\.(?:so|dll)", name)
        for folder in python.site_folders
        for name in host.list(f"{folder}/bitsandbytes")
    )
    # uv leaves its mark in pyvenv.cfg, conda a folder beside bin.
    prefix, installer = get_prefix(python.executable), "pip"
    if host.stat(f"{prefix}/conda-meta") is not None:
        installer = "conda"
    elif re.search(r"^uv\s*=", host.read(f"{prefix}/pyvenv.cfg") or "", re.MULTILINE):
        installer = "uv"
    return Python(
        version=python.version,
        executable=python.executable,
        torch=_torch(host, python),
        packages=_packages(host, entries),
        bitsandbytes_cuda=tuple(f"{match[1]}.{match[2]}" for match in bitsandbytes if match),
        cuda_visible_devices=host.env.get("CUDA_VISIBLE_DEVICES"),
        ld_library_path=split_search_path(host.env.get("LD_LIBRARY_PATH", "")),
        shadowing_libraries=tuple(library.path for library in shadowing),
        shadowing=shadowing,
        copies=tuple(entry for entry, _ in entries if names.count(entry.name) > 1),
        user_site=python.user_site,
        installer=installer,
        bnb_cuda_version=host.env.get("BNB_CUDA_VERSION"),
        cuda_device_order=host.env.get("CUDA_DEVICE_ORDER"),
        cuda_toolkit=read_cuda_toolkit(host),
        libstdcxx=read_libstdcxx(host, prefix),
    )


def _entries(host: Host, python: WorkloadPython) -> list[tuple[Copy, str]]:
    """Every distribution that matters to a GPU with its metadata's folder, as often as it is there, first found first."""
    found = []
    for folder in python.site_folders:
        for entry in host.list(folder):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            name = canonicalize_name(name)
            if entry.endswith(".dist-info") and GPU_PACKAGES.fullmatch(name):
                found.append((Copy(name, version, folder), f"{folder}/{entry}"))
    return found


def _torch(host: Host, python: WorkloadPython) -> Torch | Unknown | None:
    for folder in python.site_folders:
        text = host.read(f"{folder}/torch/version.py")
        if text is None:
            continue
        values = {name: value.strip("'\"") for name, value in _TORCH_VALUE.findall(text)}
        if not values.get("__version__"):
            return Unknown(f"{folder}/torch/version.py does not state its version")
        hip, written = values.get("hip"), values.get("cuda", "")
        # A file without the line says nothing; only `None` means a CPU build.
        cuda = Release.find(written) or Unknown(f"{folder}/torch/version.py does not state its CUDA")
        return Torch(values["__version__"], None if written == "None" else cuda, None if hip in (None, "None") else hip)
    return None


def _packages(host: Host, entries: list[tuple[Copy, str]]) -> tuple[Package, ...]:
    found: dict[str, Package] = {}
    for entry, path in entries:
        if entry.name not in found:
            wheel = re.search(r"^Tag: (\S+)", host.read(f"{path}/WHEEL") or "", re.MULTILINE)
            metadata = host.read(f"{path}/METADATA")
            lines = re.findall(r"^Requires-Dist: *(.+?)\s*$", (metadata or "").partition("\n\n")[0], re.MULTILINE)
            # Requirements on packages that matter here, without those of extras.
            named = ((line, re.match(r"[\w.-]+", line)) for line in lines if not re.search(r"\bextra\s*==", line))
            requires = tuple(
                line for line, name in named if name and GPU_PACKAGES.fullmatch(canonicalize_name(name[0]))
            )
            found[entry.name] = Package(
                name=entry.name,
                version=entry.version,
                tag=wheel[1] if wheel else "",
                requires=Unknown("the package came without metadata") if metadata is None else requires,
            )
    return tuple(found[name] for name in sorted(found))


def read_shadowing(host: Host) -> tuple[Library, ...]:
    """Read CUDA libraries in the folders of LD_LIBRARY_PATH, with their versions."""
    folders = split_search_path(host.env.get("LD_LIBRARY_PATH", ""))
    paths = [f"{folder}/{name}" for folder in folders for name in host.list(folder) if _CUDA_LIBRARY.fullmatch(name)]
    return tuple(Library(path, read_library_release(host, path)) for path in paths)


def read_cuda_toolkit(host: Host) -> CudaFolder | None:
    """Read the toolkit whose nvcc a build of an extension would start: CUDA_HOME, PATH, then /usr/local/cuda."""
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
    versions = parse_object_or_empty(host.read(f"{folder}/version.json"))
    text = get_scalar(get_object(versions, "cuda_nvcc") or get_object(versions, "cuda"), "version")
    text = text or (host.read(f"{folder}/version.txt") or "").partition("CUDA Version ")[2]
    if not text:
        # Packages of a distribution install without the file, into a folder that is named for the release.
        text = (host.link(folder) or "").rpartition("/cuda-")[2]
    return Release.find(text) or Unknown(f"{folder} does not state its version")


def read_libstdcxx(host: Host, prefix: str) -> Library | None:
    """Read the libstdc++ that packages of the Python under `prefix` load, from LD_LIBRARY_PATH, conda or the system."""
    folders = [*split_search_path(host.env.get("LD_LIBRARY_PATH", "")), f"{prefix}/lib", *_LIBRARY_FOLDERS]
    found = next((f"{folder}/{_STDCXX}" for folder in folders if host.stat(f"{folder}/{_STDCXX}") is not None), None)
    return Library(found, read_library_release(host, found)) if found else None
