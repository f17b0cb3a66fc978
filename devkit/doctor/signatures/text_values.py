"""The values that a text names, and the fixes that the version tables give for them.

A fix that names versions comes of the tables by which `doctor` judges and `plan` plans; a test gives it to the solver.
"""

import re
from collections.abc import Callable, Mapping

from devkit.doctor.model import Fix, Restart, Side
from devkit.facts.values import ComputeCapability, Release, record

MAX_READ = 256 * 1024
"""Characters at either end of a text in which values are looked for."""

_DRIVER = re.compile(
    r"(?:Driver Version: ?|NVIDIA-SMI |NVRM version: NVIDIA UNIX \w{1,12} (?:Kernel Module )? ?|driver[ _]version[=: ]{1,2})"
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
_PYTHON = re.compile(r"\b(?:python|cp|py)(3\.?(?:[89]|1[0-9]))\b")
_ENGINES = {
    "kubernetes": re.compile(
        r"\b(?:kubectl|kubelet|nvidia\.com/gpu:|FailedScheduling|CrashLoopBackOff|containerd://)", re.IGNORECASE
    ),
    "podman": re.compile(r"\bpodman\b", re.IGNORECASE),
    "apptainer": re.compile(r"\b(?:apptainer|singularity)\b", re.IGNORECASE),
}
_MACHINE = re.compile(r"(?<![a-z0-9])(x86_64|amd64|aarch64|arm64)(?![a-z0-9])")


@record
class TextValues:
    """Versions and hardware that a text names; None and empty where it names none."""

    driver: Release | None = None
    reported_cuda: Release | None = None
    capabilities: tuple[ComputeCapability, ...] = ()
    python: str | None = None
    machine: str | None = None
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
    from devkit.compat.torch_wheels import DriverCuda, find_wheel
    from devkit.compat.version_tables import load_tables

    driver = None
    if values.driver is not None:
        driver = DriverCuda(values.driver, values.reported_cuda, "linux")
    elif values.reported_cuda is not None:
        # Of a driver that says only its CUDA, the first that came with it.
        release = find_toolkit_driver(values.reported_cuda) or find_oldest_driver(values.reported_cuda)
        driver = DriverCuda(release, values.reported_cuda, "linux") if release else None
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


def _fix_torch_for_gpu(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    try:
        named = (parse_capability(captures["arch"]),) if "arch" in captures else ()
    except ValueError:
        return None
    capabilities = named or values.capabilities
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


def _fix_toolkit_for_gpu(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    from devkit.compat.version_tables import load_tables

    try:
        capability = parse_capability(captures["arch"])
    except (KeyError, ValueError):
        return None
    row = load_tables().driver.capabilities.get(capability)
    if row is None:
        return None
    last = f", and no newer than {row.last_cuda}" if row.last_cuda else ""
    return Fix(
        f"Compile with nvcc of CUDA {row.first_cuda} or newer{last}: it knows {capability.sm}. Put it first in PATH.",
        (
            "nvcc --version",
            f"export CUDA_HOME=/usr/local/cuda-{row.first_cuda} PATH=/usr/local/cuda-{row.first_cuda}/bin:$PATH",
        ),
        Side.IMAGE,
    )


def _fix_gpu_for_container(captures: Mapping[str, str], values: TextValues) -> Fix | None:
    return fix_gpu_request(values.engine)


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


COMPUTED_FIXES: Mapping[str, Callable[[Mapping[str, str], TextValues], Fix | None]] = {
    "torch-for-gpu": _fix_torch_for_gpu,
    "torch-for-driver": _fix_torch_for_driver,
    "driver-for-cuda": _fix_driver_for_cuda,
    "toolkit-for-gpu": _fix_toolkit_for_gpu,
    "gpu-for-container": _fix_gpu_for_container,
}
