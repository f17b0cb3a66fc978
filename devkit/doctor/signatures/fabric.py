"""Errors of several GPUs and of shares of one: the Fabric Manager, MIG, vGPU."""

from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.model import Signature

_FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
_START_FABRIC = Fix(
    "Install the Fabric Manager of exactly the driver's version and start it.",
    (
        "sudo apt-get install -y nvidia-fabricmanager-580  # the branch of the driver",
        "sudo systemctl enable --now nvidia-fabricmanager",
    ),
    root=True,
    docs=_FABRIC_GUIDE,
)


FABRIC: tuple[Signature, ...] = (
    Signature(
        "GPU004",
        (
            "Error 802: system not yet initialized",
            "CUDA error: system not yet initialized",
            "cudaErrorSystemNotReady",
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "system not yet initialized",
        ),
        "the GPUs of this machine are joined by an NVSwitch, and its Fabric Manager does not run",
        _START_FABRIC,
        "pytorch/pytorch issue 35710",
        confidence=Confidence.LIKELY,
        entry="C01",
        also=("DRV010", "CUD011"),
    ),
    Signature(
        "GPU022",
        (
            "fabric manager NVIDIA GPU driver interface version {manager:version} don't match with driver version"
            " {driver:version}",
            "FM… interface version {manager:version} doesn't match driver version {driver:version}",
        ),
        "the Fabric Manager is of version {manager}, the driver of {driver}; they must be the same",
        _START_FABRIC,
        "ollama/ollama issue 12136",
        entry="C02",
    ),
    Signature(
        "GPU023",
        (
            "NV_WARN_NOTHING_TO_DO",
            "query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do",
        ),
        "the Fabric Manager found no NVSwitch: this machine needs none, and nothing is wrong",
        Fix("Leave it off.", ("sudo systemctl disable --now nvidia-fabricmanager",), root=True),
        "NVIDIA/gpu-operator issue 610",
        severity=Severity.NOTE,
        entry="C03",
    ),
    Signature(
        "GPU020",
        (
            "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
            "device >= 0 && device < num_gpus… INTERNAL ASSERT FAILED",
        ),
        "a process asked for a GPU that it does not see: with MIG every process sees only one instance",
        Fix(
            "Give each process one instance, and start none of several GPUs over MIG.",
            ("nvidia-smi -L", "export CUDA_VISIBLE_DEVICES=MIG-…"),
            where=Side.CONTAINER,
        ),
        "pytorch/pytorch issue 130181",
        confidence=Confidence.POSSIBLE,
        entry="C05",
    ),
    Signature(
        "GPU025",
        (
            "License Status : Unlicensed",
            "nvidia-gridd: Failed to acquire license",
            "Failed to acquire license from",
            "Unlicensed (Unrestricted)",
            "Failed to acquire/renew license from license server",
        ),
        "this virtual GPU has no licence: it slows down, and then CUDA stops",
        Fix(
            "Put the client token in place and restart the licence client.",
            ("ls /etc/nvidia/ClientConfigToken/", "sudo systemctl restart nvidia-gridd"),
            root=True,
            docs="https://docs.nvidia.com/vgpu/latest/grid-licensing-user-guide/",
        ),
        "NVIDIA, Virtual GPU Client Licensing User Guide",
        beside=("grid", "vGPU", "License"),
        entry="C07",
    ),
    Signature(
        "GPU003",
        ("No MIG-enabled devices found", "MIG device… Insufficient Resources", "In-use by another client… MIG"),
        "MIG mode is on and has no usable instance",
        Fix(
            "Create instances, or turn MIG off.",
            ("sudo nvidia-smi mig -cgi 0 -C", "sudo nvidia-smi -mig 0"),
            root=True,
        ),
        "NVIDIA, Multi-Instance GPU User Guide",
        confidence=Confidence.LIKELY,
        entry="C04",
    ),
    Signature(
        "GPU004",
        ("nvidia-fabricmanager.service: Failed with result", "Failed to start NVIDIA fabric manager service"),
        "the Fabric Manager did not start; on a machine with an NVSwitch no CUDA program runs then",
        Fix(
            "Read its log: its version must be exactly the driver's. Without an NVSwitch it is not needed.",
            (
                "journalctl -u nvidia-fabricmanager --no-pager -n 30",
                "nvidia-smi --query-gpu=driver_version --format=csv",
            ),
            root=True,
            docs=_FABRIC_GUIDE,
        ),
        "NVIDIA/gpu-operator issue 1043",
        confidence=Confidence.LIKELY,
        entry="C02",
        unless=("NV_WARN_NOTHING_TO_DO",),
    ),
    Signature(
        "GPU022",
        ("Please update with matching NVIDIA driver package", "fabric manager NVIDIA GPU driver interface version"),
        "the Fabric Manager is of another version than the driver",
        _START_FABRIC,
        "ollama/ollama issue 12136",
        entry="C02",
    ),
    Signature(
        "GPU023",
        ("request to query NVSwitch device information from NVSwitch driver failed",),
        "the Fabric Manager reaches no NVSwitch; without one it is not needed",
        Fix("On a machine without an NVSwitch leave it off.", ("lspci | grep -i nvswitch",)),
        "NVIDIA/gpu-operator issue 610",
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        entry="C03",
    ),
    Signature(
        "GPU026",
        ("cudaErrorNotSupported: operation not supported", "CUDA error: operation not supported"),
        "the GPU refuses the call: on a virtual GPU its profile may not compute, or have no unified memory",
        Fix(
            "On a virtual GPU take a C or Q profile, with unified memory enabled on the hypervisor.", ("nvidia-smi -L",)
        ),
        "NVIDIA, Virtual GPU Software User Guide",
        confidence=Confidence.POSSIBLE,
        entry="C08",
    ),
)
