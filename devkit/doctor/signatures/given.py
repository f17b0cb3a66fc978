"""Errors inside of containers that were given no GPU, half of one, or one that they lost."""

from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.fixes import GIVE_GPU, RECREATE
from devkit.doctor.signatures.model import Signature

GIVEN: tuple[Signature, ...] = (
    Signature(
        "CUD001",
        (
            "requirement error: unsatisfied condition: {condition:condition}, please update your driver",
            "requirement error: unsatisfied condition: {condition:condition}",
        ),
        "the image demands {condition}, and the host's driver is older",
        Fix(
            "Update the driver on the host, or take an older tag of the image.",
            ("nvidia-smi  # its CUDA version is the highest that the driver runs",),
            docs="https://docs.nvidia.com/deploy/cuda-compatibility/",
        ),
        "NVIDIA/nvidia-container-toolkit issue 152; NVIDIA/nvidia-docker issue 536",
        entry="F03",
        also=("CON008", "PRJ027"),
    ),
    Signature(
        "CUD001",
        ("requirement error: invalid expression", "requirement error: unsatisfied"),
        "the image's requirement of driver or GPU is not met",
        Fix(
            "Look at what the image demands, and take a tag that fits the driver.",
            ("docker image inspect IMAGE --format '{{.Config.Env}}'",),
            where=Side.IMAGE,
        ),
        "NVIDIA/libnvidia-container",
        confidence=Confidence.LIKELY,
        entry="F03",
    ),
    Signature(
        "CON001",
        (
            "CUDA_ERROR_NO_DEVICE",
            "Found no NVIDIA driver on your system",
            "The NVIDIA Driver was not detected. GPU functionality will not be available",
            "cudaGetDeviceCount() failed… no CUDA-capable device is detected",
            "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
            "no CUDA-capable device is detected",
            "cudaErrorNoDevice",
            "Failed to initialize NVML: GPU Not Found",
        ),
        "CUDA sees no GPU here: the container was started without one, or the driver is not loaded",
        GIVE_GPU,
        "AbdBarho/stable-diffusion-webui-docker issue 348; NVIDIA/nvidia-docker issue 954",
        confidence=Confidence.LIKELY,
        entry="F16",
        also=("CON010", "CON006", "PYT006", "DRV001", "CUD011", "PRJ005", "PRJ025"),
    ),
    Signature(
        "CON001",
        (
            "libnvidia-ml.so.1: cannot open shared object file",
            "libcuda.so.1: cannot open shared object file",
            "ImportError: libcuda.so.1",
            "Could not load dynamic library 'libcuda.so.1'",
            "dlopen: libcuda.so.1",
            "Couldn't open CUDA library libcuda.so.1",
            "libnvidia-ml.so: cannot open shared object file",
        ),
        "the driver's library libcuda.so.1 is not here: the container was started without a GPU or without the"
        " capability compute",
        GIVE_GPU,
        "NVIDIA/nvidia-docker issue 1226",
        confidence=Confidence.LIKELY,
        unless=("/usr/lib/wsl/lib/libcuda.so.1",),
        entry="F16",
        also=("DRV001", "ENG002", "PRJ031"),
    ),
    Signature(
        "CON002",
        (
            "nvidia-smi: command not found",
            "nvidia-smi: not found",
            'exec: "nvidia-smi": executable file not found in $PATH',
            "FileNotFoundError: [Errno 2] No such file or directory: 'nvidia-smi'",
            "nvidia-smi: No such file or directory",
        ),
        "nvidia-smi is not here: in a container it was started without a GPU or without the capability utility; on a"
        " host the driver is"
        " missing",
        Fix(
            "Start the container with a GPU and with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            ("docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ubuntu nvidia-smi",),
            where=Side.PROJECT,
        ),
        "NVIDIA/nvidia-docker issue 954; weaviate/weaviate-helm issue 101",
        confidence=Confidence.POSSIBLE,
        entry="F16",
        also=("CON010", "DRV001", "PRJ005", "PRJ025"),
    ),
    Signature(
        "CON002",
        (
            "NVIDIA_DRIVER_CAPABILITIES… unsupported",
            "unsupported capabilities found in",
            "unsupported driver capabilities",
        ),
        "NVIDIA_DRIVER_CAPABILITIES names a capability that the toolkit does not know",
        Fix("Set NVIDIA_DRIVER_CAPABILITIES=compute,utility.", where=Side.PROJECT),
        "NVIDIA/nvidia-container-toolkit, cmd/nvidia-container-runtime-hook",
        entry="F16",
    ),
    Signature(
        "CON014",
        ("groups: cannot find name for group ID {gid:number}",),
        "a harmless line: the device's group {gid} has no name in the image",
        Fix("Nothing to do.", where=Side.IMAGE),
        "NVIDIA, Container Toolkit, Release notes",
        severity=Severity.NOTE,
        entry="F17",
    ),
    Signature(
        "CTK004",
        (
            "Failed to initialize NVML: Unknown Error",
            "NVMLError_Unknown: Unknown Error",
            "initialization error: nvml error: unknown error",
        ),
        "if the host's nvidia-smi works, systemd took the GPU away from the running container when it reloaded",
        RECREATE,
        "NVIDIA/nvidia-container-toolkit issue 48",
        confidence=Confidence.LIKELY,
        also=("CON007", "CTK012", "CON001", "DRV003"),
        entry="F01",
    ),
    Signature(
        "PYT006",
        (
            "nvidia-container-cli: device error: unknown device id: {device:text}",
            "nvidia-container-cli: device error: {device:name}: unknown device",
            "device error: unknown device id",
        ),
        "the request names a GPU that this machine does not have",
        Fix("Look at what is there, and request that.", ("nvidia-smi -L",), where=Side.PROJECT),
        "NVIDIA/libnvidia-container",
        entry="H12",
    ),
    Signature(
        "CON001",
        ("CUDA driver initialization failed, you might not have a CUDA gpu", "CUDA driver initialization failed"),
        "CUDA does not start: no GPU here, or one that is not ready",
        GIVE_GPU,
        "pytorch/pytorch, c10/cuda/CUDAFunctions.cpp",
        confidence=Confidence.POSSIBLE,
        entry="C01",
        also=("GPU004", "CUD011"),
    ),
)
