"""The values that a text names, and the fixes that the version tables give for them.

A fix that names versions comes of the tables by which `doctor` judges and `plan` plans; a test gives it to the solver.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from devkit.doctor.model import Fix, Restart, Side
from devkit.facts.values import ComputeCapability, Release

MAX_READ = 256 * 1024
"""Characters at either end of a text in which values are looked for."""

_DRIVER = re.compile(
    r"(?:Driver Version: ?|NVIDIA-SMI |NVRM version: NVIDIA UNIX \w{1,12} (?:Kernel Module )? ?|driver[ _]version[=: ]{1,2}"
    r"|nvidia[ -]drivers?:? v?)"
    r"(\d{3}\.\d{1,3}(?:\.\d{1,3})?)",
    re.IGNORECASE,
)
_REPORTED = re.compile(r"CUDA Version: ?(\d{1,2}\.\d)\b")
_FOUND = re.compile(r"found version (\d{4,5})\)")
_CAPABILITY = re.compile(
    r"(?:CUDA capability sm_|compute capability (?:of )?|cuda capability |compute[_ ]cap(?:ability)?[=: ]{1,2})"
    r"(\d{1,2}\.\d\b|\d{2,3}\b)",
    re.IGNORECASE,
)
_GPU = re.compile(
    r"\b((?:[RG]TX(?: PRO)? ?A?\d{4}|GTX \d{3}|Tesla [KMPTV]\d{1,3}|[ABHL]\d{2,3}S?|V100|P100|T4|GB10|G?B[23]00)(?: ?(?:Ti|SUPER))?)\b"
)
_PYTHON = re.compile(r"\b(?:python|cp|py)(3\.?(?:[89]|1[0-9]))\b")
_ENGINES = {
    "kubernetes": re.compile(
        r"\b(?:kubectl|kubelet|nvidia\.com/gpu:|FailedScheduling|CrashLoopBackOff|containerd://)", re.IGNORECASE
    ),
    "podman": re.compile(r"\bpodman\b", re.IGNORECASE),
    "apptainer": re.compile(r"\b(?:apptainer|singularity)\b", re.IGNORECASE),
}
_MACHINE = re.compile(r"(?<![a-z0-9])(x86_64|amd64|aarch64|arm64)(?![a-z0-9])")


@dataclass(frozen=True)
class TextValues:
    """Versions and hardware that a text names; None and empty where it names none."""

    driver: Release | None = None
    reported_cuda: Release | None = None
    capabilities: tuple[ComputeCapability, ...] = ()
    python: str | None = None
    machine: str | None = None
    gpu: str | None = None
    engine: str = ""
    """What starts the containers: kubernetes, podman or apptainer; "" for Docker or none."""

    def complete(self, other: "TextValues") -> "TextValues":
        """Return these values, with those of `other` where there are none."""
        has_driver = self.driver is not None or self.reported_cuda is not None
        return TextValues(
            driver=self.driver if has_driver else other.driver,
            reported_cuda=self.reported_cuda if has_driver else other.reported_cuda,
            capabilities=self.capabilities or other.capabilities,
            python=self.python or other.python,
            machine=self.machine or other.machine,
            gpu=self.gpu or other.gpu,
            engine=self.engine or other.engine,
        )


def read_text_values(text: str) -> TextValues:
    """Read the values of a text. What it names several times with different values counts as not named."""
    if len(text) > 2 * MAX_READ:
        text = f"{text[:MAX_READ]} {text[-MAX_READ:]}"
    found = _FOUND.search(text)
    reported = format_cuda_number(found[1]) if found else _find_single(_REPORTED, text)
    driver, python = _find_single(_DRIVER, text), _find_single(_PYTHON, text)
    machine = _find_single(_MACHINE, text)
    return TextValues(
        driver=Release.parse(driver) if driver else None,
        reported_cuda=Release.parse(reported) if reported else None,
        capabilities=tuple(sorted({parse_capability(text) for text in _CAPABILITY.findall(text)})),
        python=f"3.{python.removeprefix('3').removeprefix('.')}" if python else None,
        machine={"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine) if machine else None,
        gpu=_find_single(_GPU, text),
        engine=next((name for name, pattern in _ENGINES.items() if pattern.search(text)), ""),
    )


def _find_single(pattern: re.Pattern[str], text: str) -> str | None:
    values = {found[1] for found in pattern.finditer(text)}
    return values.pop() if len(values) == 1 else None


def format_cuda_number(digits: str) -> str:
    """Format the number by which the CUDA API counts a version: 12080 is 12.8."""
    return f"{int(digits) // 1000}.{int(digits) % 1000 // 10}"


def parse_capability(text: str) -> ComputeCapability:
    """Parse 8.6, 86, sm_86 or compute_120a."""
    text = re.sub(r"^(?:sm|compute)?_?", "", text).rstrip("af")
    return ComputeCapability.parse(text if "." in text else f"sm_{text}")


def _find_torch_fix(values: TextValues, capabilities: tuple[ComputeCapability, ...], *, why: str) -> Fix | None:
    """Return the fix that installs the newest torch for the driver, the GPUs and the Python that a text names."""
    from devkit.compat.rules import find_oldest_driver, find_toolkit_driver
    from devkit.compat.version_tables import load_tables
    from devkit.compat.wheels import DriverCuda, find_wheel

    driver = None
    if values.driver is not None:
        driver = DriverCuda(values.driver, values.reported_cuda, "linux")
    elif values.reported_cuda is not None:
        # Of a driver that says only its CUDA, the first that came with it.
        release = find_toolkit_driver(values.reported_cuda) or find_oldest_driver(values.reported_cuda)
        driver = DriverCuda(release, values.reported_cuda, "linux") if release else None
    rows = [row for each in capabilities if (row := load_tables().driver.capabilities.get(each)) and row.first_branch]
    newest = max(rows, key=lambda row: row.first_branch or 0, default=None)
    if values.driver is not None and newest is not None and values.driver.numbers[0] < (newest.first_branch or 0):
        return Fix(
            f"Install driver {newest.first_branch} or newer on the host: {values.driver} does not know {newest.capability.sm}.",
            root=True,
            restart=Restart.HOST,
            docs="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
        )
    machine = values.machine or "x86_64"
    wheel = find_wheel(driver=driver, capabilities=capabilities, machine=machine, python=values.python)
    if wheel is None:
        return None
    cuda = load_tables().torch.indexes[wheel.label].cuda
    oldest = find_oldest_driver(cuda) if cuda is not None and driver is None else None
    needs = f", on a driver of {oldest} or newer" if oldest else ""
    return Fix(
        f"Install torch {wheel.version} built for CUDA {cuda}: {why}{needs}.",
        (f"pip install --force-reinstall torch=={wheel.version} --index-url {wheel.index_url}",),
        Side.CONTAINER,
        docs="https://pytorch.org/get-started/locally/",
    )


def _find_capability(gpu: str | None) -> tuple[ComputeCapability, ...]:
    if not gpu:
        return ()
    from devkit.compat.gpus import find_gpu

    found = find_gpu(gpu)
    return (found.capability,) if found else ()


def _fix_torch_for_gpu(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    try:
        named = (parse_capability(captures["arch"]),) if "arch" in captures else ()
    except ValueError:
        return None
    capabilities = named or values.capabilities or _find_capability(values.gpu)
    if not capabilities:
        return None
    names = " and ".join(each.sm for each in capabilities)
    return _find_torch_fix(values, capabilities, why=f"its wheels have kernels for {names}")


def _fix_torch_for_driver(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    if values.driver is None and values.reported_cuda is None:
        return None
    runs = f"driver {values.driver}" if values.driver else f"a driver that says CUDA {values.reported_cuda}"
    return _find_torch_fix(values, values.capabilities, why=f"{runs} runs it")


def _fix_driver_for_cuda(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    from devkit.compat.rules import find_oldest_driver, find_toolkit_driver

    try:
        cuda = Release.parse(captures["needed"])
    except (KeyError, ValueError):
        return None
    full, oldest = find_toolkit_driver(cuda), find_oldest_driver(cuda)
    if full is None or oldest is None:
        return None
    return Fix(
        f"Install driver {full} or newer on the host, which supports CUDA {cuda} in full ({oldest} or newer runs programs"
        f" compiled for the GPU), and reboot; or use an image or wheel of an older CUDA.",
        root=True,
        restart=Restart.HOST,
        docs="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
    )


_FIRST_CUDA_OF_VARIANTS = {"90a": Release.parse("12.0"), "f": Release.parse("12.9")}
"""The CUDA Toolkits that brought the first architecture-specific target and the targets of families of architectures."""


def _fix_toolkit_for_gpu(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    from devkit.compat.version_tables import load_tables

    try:
        capability = parse_capability(captures["arch"])
    except (KeyError, ValueError):
        return None
    row = load_tables().driver.capabilities.get(capability)
    if row is None:
        return None
    name = capability.sm + captures["arch"][len(captures["arch"].rstrip("af")) :]
    first = max((row.first_cuda, *(cuda for end, cuda in _FIRST_CUDA_OF_VARIANTS.items() if name.endswith(end))))
    folder = f"/usr/local/cuda-{row.last_cuda or first}"
    if row.last_cuda:
        summary = (
            f"Leave {name} out of the architectures that the build names, if the GPU is newer; else compile with nvcc of"
            f" CUDA {first} to {row.last_cuda}, which knows it."
        )
    else:
        summary = f"Compile with nvcc of CUDA {first} or newer: it knows {name}. Put it first in PATH."
    return Fix(
        summary,
        ("nvcc --version", f"export CUDA_HOME={folder} PATH={folder}/bin:$PATH"),
        Side.IMAGE,
    )


def _fix_python_for_torch(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    from devkit.compat.version_tables import load_tables

    name, _, version = captures.get("package", "").partition("==")
    releases = (row for row in load_tables().torch.releases if str(row.version) == version.partition("+")[0])
    if name != "torch" or (release := next(releases, None)) is None:
        return None
    pythons = release.pythons
    # The newest one that it supports came first for some systems alone.
    python = "3.12" if "3.12" in pythons else pythons[-2]
    return Fix(
        f"Use a Python that torch {release.version} has wheels for: {pythons[0]} to {pythons[-1]}; or a torch for this Python.",
        ("python -VV", f"uv venv --python {python}"),
        Side.PROJECT,
    )


_LIBRARY_PACKAGES = (
    (r"libcudnn\w*\.so\.8\b", "'nvidia-cudnn-cu12<9'  # beside CUDA 11: 'nvidia-cudnn-cu11<9'"),
    (r"libcudnn\w*\.so\.9\b", "'nvidia-cudnn-cu12>=9'  # beside CUDA 13: nvidia-cudnn-cu13"),
    (
        r"lib(cublas\w*|cudart|nvrtc)\.so\.11\b|libcufft\.so\.10\b",
        "nvidia-cuda-runtime-cu11 nvidia-cublas-cu11 nvidia-cufft-cu11 nvidia-cuda-nvrtc-cu11 'nvidia-cudnn-cu11<9'",
    ),
)
"""Packages that bring a library of the number in its name, where the newest ones bring another."""


def _fix_cuda_library(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    library = captures.get("library", "")
    packages = next((names for pattern, names in _LIBRARY_PACKAGES if re.match(pattern, library)), "")
    if not packages:
        return None
    return Fix(
        f"Install the release that {library} belongs to and let the loader find it, or a build of the program for the"
        f" CUDA and cuDNN that are here.",
        (
            f"pip install {packages}",
            f"find / -name '{library}*' 2>/dev/null",
            "export LD_LIBRARY_PATH=<folder that find names>",
        ),
        Side.CONTAINER,
    )


def fix_gpu_request(engine: str) -> Fix | None:
    """Return the fix that gives a container its GPU by an engine other than Docker."""
    fixes = {
        "kubernetes": Fix(
            "Ask for the GPU in the pod's resources, and look that its node has the driver and the nvidia runtime.",
            (
                "# resources: {limits: {nvidia.com/gpu: 1}}; and runtimeClassName: nvidia where that is not the default",
                "kubectl describe node <node> | grep nvidia.com/gpu",
            ),
            Side.PROJECT,
            docs="https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
        ),
        "podman": Fix(
            "Request the GPU by its CDI name when the container is created.",
            ("podman run --device nvidia.com/gpu=all --security-opt=label=disable …", "nvidia-ctk cdi list"),
            Side.PROJECT,
            docs="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
        ),
        "apptainer": Fix(
            "Start the container with --nv, on a node that has a GPU.",
            ("apptainer exec --nv image.sif nvidia-smi",),
            Side.PROJECT,
            docs="https://apptainer.org/docs/user/latest/gpu.html",
        ),
    }
    return fixes.get(engine)


def _fix_library_release(captures: Mapping[str, str], values: TextValues) -> Fix:
    library, caller = captures["library"], captures["caller"]
    is_package = " " not in caller
    upgrade = (f"pip install --upgrade {caller}",) if is_package else ()
    if library == "python":
        release = captures["removed"] or captures["added"]
        older = f"3.{int(release.partition('.')[2]) - 1}" if captures["removed"] else release
        return Fix(
            f"Upgrade {caller}, or make the environment with Python {older}.",
            (*upgrade, f"uv venv --python {older}"),
            Side.PROJECT,
        )
    limit = captures["added"] if captures["change"] == "called" else captures["removed"]
    if limit:
        return Fix(
            f"Upgrade {caller} to a release for the newer {library}, or install {library} below {limit}.",
            (f"pip install '{library}<{limit}'", *upgrade),
            Side.CONTAINER,
        )
    return Fix(
        f"Upgrade {library} to {captures['added']} or newer; where it is pinned, install {caller} of its time.",
        (f"pip install --upgrade '{library}>={captures['added']}'", "pip check"),
        Side.CONTAINER,
    )


COMPUTED_FIXES: Mapping[str, Callable[[Mapping[str, str], TextValues], Fix | None]] = {
    "cuda-library": _fix_cuda_library,
    "library-release": _fix_library_release,
    "python-for-torch": _fix_python_for_torch,
    "torch-for-gpu": _fix_torch_for_gpu,
    "torch-for-driver": _fix_torch_for_driver,
    "driver-for-cuda": _fix_driver_for_cuda,
    "toolkit-for-gpu": _fix_toolkit_for_gpu,
    "gpu-for-container": lambda _captures, values: fix_gpu_request(values.engine),
}
