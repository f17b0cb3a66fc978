"""The Python that would run the workload, read from its files alone: nothing of it is imported."""

import re

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.model import Copy, CudaFolder, Library, Package, Python, Torch
from devkit.facts.values import Release, Unknown, record
from devkit.probe.documents import get_object, get_scalar, parse_json
from devkit.probe.host import Host
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
    r"|unsloth-zoo|liger-kernel|auto-gptq|autoawq|gptqmodel|torchao|apex|transformer-engine|numpy|jax|jaxlib|tensorflow"
    r"|cupy(?:-cuda\d+x)?|nvidia-.+|pynvml|devkit-gpu)"
)
"""Distributions that matter to a GPU, by normalised name."""
_SHARES_SYSTEM = re.compile(r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE)

_TORCH_VALUE = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=[ \t]*(None|'[^'\n]*'|\"[^\"\n]*\")", re.MULTILINE)


@record
class WorkloadPython:
    """An interpreter and its folders."""

    executable: str
    version: Release
    site_folders: tuple[str, ...]
    include_folders: tuple[str, ...]
    user_site: str
    """The user's own site-packages, "" where this Python does not read them. It comes before the others."""


@record
class _Entry:
    """A distribution's folder of metadata on the module path."""

    name: str
    version: str
    folder: str
    path: str


def read_python(host: Host) -> Python | Unknown:
    """Read the active virtual environment's Python, else the one that devkit runs in, and the packages that need a GPU."""
    python = find_workload_python(host)
    if isinstance(python, Unknown):
        return python
    shadowing = read_shadowing(host)
    entries = _entries(host, python)
    names = [entry.name for entry in entries]
    return Python(
        version=python.version,
        executable=python.executable,
        torch=_torch(host, python),
        packages=_packages(host, entries),
        bitsandbytes_cuda=_bitsandbytes_cuda(host, python),
        cuda_visible_devices=host.env.get("CUDA_VISIBLE_DEVICES"),
        ld_library_path=split_search_path(host.env.get("LD_LIBRARY_PATH", "")),
        shadowing_libraries=tuple(library.path for library in shadowing),
        shadowing=shadowing,
        copies=tuple(Copy(entry.name, entry.version, entry.folder) for entry in entries if names.count(entry.name) > 1),
        user_site=python.user_site,
        installer=_installer(host, python),
        bnb_cuda_version=host.env.get("BNB_CUDA_VERSION"),
        cuda_device_order=host.env.get("CUDA_DEVICE_ORDER"),
        cuda_toolkit=read_cuda_toolkit(host),
        libstdcxx=read_libstdcxx(host, _prefix(python.executable)),
    )


def _entries(host: Host, python: WorkloadPython) -> tuple[_Entry, ...]:
    """Every distribution that matters to a GPU, as often as it is there, first found first."""
    found = []
    for folder in python.site_folders:
        for entry in host.list(folder):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            name = canonicalize_name(name)
            if entry.endswith(".dist-info") and GPU_PACKAGES.fullmatch(name):
                found.append(_Entry(name, version, folder, f"{folder}/{entry}"))
    return tuple(found)


def _torch(host: Host, python: WorkloadPython) -> Torch | Unknown | None:
    for folder in python.site_folders:
        text = host.read(f"{folder}/torch/version.py")
        if text is None:
            continue
        values = {name: value.strip("'\"") for name, value in _TORCH_VALUE.findall(text)}
        if not values.get("__version__"):
            return Unknown(f"{folder}/torch/version.py does not say its version")
        hip = values.get("hip")
        return Torch(values["__version__"], _torch_cuda(values, folder), None if hip in (None, "None") else hip)
    return None


def _torch_cuda(values: dict[str, str], folder: str) -> Release | Unknown | None:
    """The CUDA that torch was built with. A file without the line says nothing; only `None` means a CPU build."""
    cuda = values.get("cuda", "")
    if cuda == "None":
        return None
    return Release.find(cuda) or Unknown(f"{folder}/torch/version.py does not say its CUDA")


def _packages(host: Host, entries: tuple[_Entry, ...]) -> tuple[Package, ...]:
    found: dict[str, Package] = {}
    for entry in entries:
        if entry.name not in found:
            wheel = re.search(r"^Tag: (\S+)", host.read(f"{entry.path}/WHEEL") or "", re.MULTILINE)
            found[entry.name] = Package(
                entry.name, entry.version, wheel[1] if wheel else "", _requires(host.read(f"{entry.path}/METADATA"))
            )
    return tuple(found[name] for name in sorted(found))


def _requires(metadata: str | None) -> tuple[str, ...] | Unknown:
    """Requirement lines on packages that matter here, without those of extras."""
    if metadata is None:
        return Unknown("the package came without metadata")
    head = metadata.partition("\n\n")[0]
    lines = re.findall(r"^Requires-Dist: *(.+?)\s*$", head, re.MULTILINE)
    return tuple(line for line in lines if _matters(line) and not re.search(r"\bextra\s*==", line))


def _matters(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    return name is not None and GPU_PACKAGES.fullmatch(canonicalize_name(name[0])) is not None


def _bitsandbytes_cuda(host: Host, python: WorkloadPython) -> tuple[str, ...]:
    """("12.8", "13.0") from libbitsandbytes_cuda128.so and libbitsandbytes_cuda130.so."""
    names = [name for folder in python.site_folders for name in host.list(f"{folder}/bitsandbytes")]
    found = (re.fullmatch(r"libbitsandbytes_cuda(\d+)(\d)\.(?:so|dll)", name) for name in names)
    return tuple(f"{match[1]}.{match[2]}" for match in found if match)


def _installer(host: Host, python: WorkloadPython) -> str:
    """Return what manages this environment: uv leaves its mark in pyvenv.cfg, conda a folder beside bin."""
    prefix = _prefix(python.executable)
    if host.stat(f"{prefix}/conda-meta") is not None:
        return "conda"
    if re.search(r"^uv\s*=", host.read(f"{prefix}/pyvenv.cfg") or "", re.MULTILINE):
        return "uv"
    return "pip"


def _prefix(executable: str) -> str:
    separator = "\\" if "\\" in executable else "/"
    return executable.rsplit(separator, 2)[0]


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
    try:
        said = parse_json(host.read(f"{folder}/version.json") or "{}")
    except ValueError:
        said = {}
    versions = said if isinstance(said, dict) else {}
    text = get_scalar(get_object(versions, "cuda_nvcc") or get_object(versions, "cuda"), "version")
    text = text or (host.read(f"{folder}/version.txt") or "").partition("CUDA Version ")[2]
    if not text:
        # Packages of a distribution install without the file, into a folder that is named for the release.
        text = (host.link(folder) or "").rpartition("/cuda-")[2]
    try:
        return Release.parse(text)
    except ValueError:
        return Unknown(f"{folder} does not say its version")


def read_libstdcxx(host: Host, prefix: str) -> Library | None:
    """Read the libstdc++ that packages of the Python under `prefix` load, from LD_LIBRARY_PATH, conda or the system."""
    folders = [*split_search_path(host.env.get("LD_LIBRARY_PATH", "")), f"{prefix}/lib", *_LIBRARY_FOLDERS]
    found = next((f"{folder}/{_STDCXX}" for folder in folders if host.stat(f"{folder}/{_STDCXX}") is not None), None)
    return Library(found, read_library_release(host, found)) if found else None


def find_workload_python(host: Host) -> WorkloadPython | Unknown:
    """Find the interpreter of VIRTUAL_ENV, else devkit's own."""
    executable = host.python
    if environment := host.env.get("VIRTUAL_ENV"):
        candidates = (f"{environment}/bin/python", f"{environment}\\Scripts\\python.exe")
        executable = next((path for path in candidates if host.stat(path) is not None), executable)
    done = host.run([executable, "--version"])
    if done.code != 0 or not re.match(r"Python \d+\.\d", done.out):
        return Unknown(f"{executable} --version ended with status {done.code}")
    version = Release.parse(done.out)
    # lib64 is often a link to lib; what is found twice is still one folder.
    user_site = _user_site(host, executable, version)
    own, shared = _site_folders(executable, version), _shared_folders(host, executable, version)
    # The user's folder comes before the system's, but after those of a virtual environment.
    searched = (*own, user_site, *shared) if shared else (user_site, *own)
    folders = dict.fromkeys(filter(None, (host.link(folder) for folder in searched if folder)))
    return WorkloadPython(executable, version, tuple(folders), _includes(host, executable, version), user_site)


def _user_site(host: Host, executable: str, version: Release) -> str:
    """~/.local/lib/python3.12/site-packages where it exists and is read.

    A virtual environment reads it only with the system's packages, and PYTHONNOUSERSITE switches it off.
    Source: Python documentation, module site.
    """
    settings = host.read(f"{_prefix(executable)}/pyvenv.cfg")
    if host.env.get("PYTHONNOUSERSITE") or (settings is not None and not _SHARES_SYSTEM.search(settings)):
        return ""
    base = host.env.get("PYTHONUSERBASE") or f"{host.env.get('HOME', '')}/.local"
    folder = f"{base}/lib/python{_minor(version)}/site-packages"
    return folder if base != "/.local" and host.stat(folder) is not None else ""


def _minor(version: Release) -> str:
    return ".".join(str(number) for number in version.numbers[:2])


def _site_folders(executable: str, version: Release) -> tuple[str, ...]:
    prefix = _prefix(executable)
    if "\\" in executable:
        return (f"{prefix}\\Lib\\site-packages", f"{executable.rpartition(chr(92))[0]}\\Lib\\site-packages")
    minor = _minor(version)
    folders = [f"{prefix}/{lib}/python{minor}/site-packages" for lib in ("lib", "lib64", "local/lib")]
    # Debian's own layout for the system's Python.
    folders += [f"{prefix}/local/lib/python{minor}/dist-packages", f"{prefix}/lib/python3/dist-packages"]
    return tuple(folders)


def _shared_folders(host: Host, executable: str, version: Release) -> tuple[str, ...]:
    """The base Python's folders, where a virtual environment was made with --system-site-packages."""
    settings = host.read(f"{_prefix(executable)}/pyvenv.cfg") or ""
    home = re.search(r"^home\s*=\s*(\S+)", settings, re.MULTILINE)
    if home is None or not _SHARES_SYSTEM.search(settings):
        return ()
    return _site_folders(f"{home[1]}/python3", version)


def _includes(host: Host, executable: str, version: Release) -> tuple[str, ...]:
    """Return where Python.h may be: under this prefix, or under the one that a virtual environment was made from."""
    prefixes = [_prefix(executable)]
    settings = host.read(f"{_prefix(executable)}/pyvenv.cfg") or ""
    if home := re.search(r"^home\s*=\s*(\S+)", settings, re.MULTILINE):
        prefixes.append(home[1].rpartition("/")[0])
    if real := host.link(executable):
        prefixes.append(_prefix(real))
    return tuple(f"{prefix}/include/python{_minor(version)}" for prefix in dict.fromkeys(prefixes))
