"""The Python that would run the workload, read from its files alone: nothing of it is imported."""

import re
from dataclasses import dataclass

from devkit.facts.model import Package, Python, Torch
from devkit.facts.values import Release, Unknown
from devkit.probe.host import Host
from devkit.probe.programs import path_folders

GPU_PACKAGES = re.compile(
    r"(?:torch|torchvision|torchaudio|triton|pytorch-triton|bitsandbytes|flash-attn|flash-attn-3|xformers|transformers|peft"
    r"|trl|accelerate|datasets|tokenizers|safetensors|huggingface-hub|hf-transfer|hf-xet|deepspeed|vllm|sglang|unsloth"
    r"|unsloth-zoo|liger-kernel|auto-gptq|autoawq|gptqmodel|torchao|apex|transformer-engine|numpy|jax|jaxlib|tensorflow"
    r"|cupy(?:-cuda\d+x)?|nvidia-.+|pynvml|devkit-gpu)"
)
"""Distributions that matter to a GPU, by normalised name."""

_CUDA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn|cudnn_\w+|nccl|nvrtc|cusparse|cusparseLt|cufft|curand|cusolver|nvJitLink|cupti)"
    r"\.so(?:\.\d+)*"
)


@dataclass(frozen=True)
class WorkloadPython:
    """Where an interpreter keeps its things."""

    executable: str
    version: Release
    site_folders: tuple[str, ...]
    include_folders: tuple[str, ...]


def read_python(host: Host) -> Python | Unknown:
    """The active virtual environment's Python, else the one that devkit runs in, and the packages that need a GPU."""
    python = workload_python(host)
    if isinstance(python, Unknown):
        return python
    return Python(
        version=python.version,
        executable=python.executable,
        torch=_torch(host, python),
        packages=_packages(host, python),
        bitsandbytes_cuda=_bitsandbytes_cuda(host, python),
        cuda_visible_devices=host.env.get("CUDA_VISIBLE_DEVICES"),
        ld_library_path=path_folders(host.env.get("LD_LIBRARY_PATH", "")),
        shadowing_libraries=_shadowing(host),
    )


def workload_python(host: Host) -> WorkloadPython | Unknown:
    """The interpreter of VIRTUAL_ENV, else devkit's own."""
    executable = host.python
    if environment := host.env.get("VIRTUAL_ENV"):
        candidates = (f"{environment}/bin/python", f"{environment}\\Scripts\\python.exe")
        executable = next((path for path in candidates if host.stat(path) is not None), executable)
    done = host.run([executable, "--version"])
    if done.code != 0 or not done.out.startswith("Python "):
        return Unknown(f"{executable} --version ended with status {done.code}")
    version = Release.read(done.out)
    # lib64 is often a link to lib; what is found twice is still one folder.
    folders = dict.fromkeys(filter(None, (host.link(folder) for folder in _site_folders(executable, version))))
    return WorkloadPython(executable, version, tuple(folders), _includes(host, executable, version))


def _prefix(executable: str) -> str:
    separator = "\\" if "\\" in executable else "/"
    return executable.rsplit(separator, 2)[0]


def _site_folders(executable: str, version: Release) -> tuple[str, ...]:
    prefix = _prefix(executable)
    if "\\" in executable:
        return (f"{prefix}\\Lib\\site-packages", f"{executable.rpartition(chr(92))[0]}\\Lib\\site-packages")
    minor = _minor(version)
    folders = [f"{prefix}/{lib}/python{minor}/site-packages" for lib in ("lib", "lib64", "local/lib")]
    # Debian's own layout for the system's Python.
    folders += [f"{prefix}/local/lib/python{minor}/dist-packages", f"{prefix}/lib/python3/dist-packages"]
    return tuple(folders)


def _includes(host: Host, executable: str, version: Release) -> tuple[str, ...]:
    """Where Python.h may be: under this prefix, or under the one that a virtual environment was made from."""
    prefixes = [_prefix(executable)]
    settings = host.read(f"{_prefix(executable)}/pyvenv.cfg") or ""
    if home := re.search(r"^home\s*=\s*(\S+)", settings, re.MULTILINE):
        prefixes.append(home[1].rpartition("/")[0])
    if real := host.link(executable):
        prefixes.append(_prefix(real))
    return tuple(f"{prefix}/include/python{_minor(version)}" for prefix in dict.fromkeys(prefixes))


def _minor(version: Release) -> str:
    return ".".join(str(number) for number in version.numbers[:2])


def _torch(host: Host, python: WorkloadPython) -> Torch | Unknown | None:
    for folder in python.site_folders:
        text = host.read(f"{folder}/torch/version.py")
        if text is None:
            continue
        values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(?:'|\")([^'\"]*)", text, re.MULTILINE))
        if "__version__" not in values:
            return Unknown(f"{folder}/torch/version.py does not say its version")
        cuda = values.get("cuda")
        return Torch(values["__version__"], Release.read(cuda) if cuda else None, values.get("hip"))
    return None


def _packages(host: Host, python: WorkloadPython) -> tuple[Package, ...]:
    found: dict[str, Package] = {}
    for folder in python.site_folders:
        for entry in host.list(folder):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            if entry.endswith(".dist-info") and GPU_PACKAGES.fullmatch(name):
                wheel = re.search(r"^Tag: (\S+)", host.read(f"{folder}/{entry}/WHEEL") or "", re.MULTILINE)
                found.setdefault(name, Package(name, version, wheel[1] if wheel else ""))
    return tuple(found[name] for name in sorted(found))


def _bitsandbytes_cuda(host: Host, python: WorkloadPython) -> tuple[str, ...]:
    """("12.8", "13.0") from libbitsandbytes_cuda128.so and libbitsandbytes_cuda130.so."""
    names = [name for folder in python.site_folders for name in host.list(f"{folder}/bitsandbytes")]
    found = (re.fullmatch(r"libbitsandbytes_cuda(\d+)(\d)\.(?:so|dll)", name) for name in names)
    return tuple(f"{match[1]}.{match[2]}" for match in found if match)


def _shadowing(host: Host) -> tuple[str, ...]:
    folders = path_folders(host.env.get("LD_LIBRARY_PATH", ""))
    return tuple(
        f"{folder}/{name}" for folder in folders for name in host.list(folder) if _CUDA_LIBRARY.fullmatch(name)
    )
