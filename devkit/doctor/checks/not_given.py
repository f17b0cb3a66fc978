"""Why a container cannot open the GPU, by the way the attempt ended."""

from devkit.doctor.machine import TROUBLESHOOTING
from devkit.doctor.model import Confidence, Finding, Fix, Severity, Side
from devkit.facts.model import Container, Driver, Facts
from devkit.facts.values import Release, Unknown

_REQUEST_GPU = {
    "docker": "docker run --gpus all ...",
    "podman": "podman run --device nvidia.com/gpu=all ...",
    "kubernetes": "resources: {limits: {nvidia.com/gpu: 1}}",
    "apptainer": "apptainer exec --nv ...",
}


def why_not_given(facts: Facts, container: Container, driver: Driver) -> Finding:
    """The finding for a container that cannot open /dev/nvidiactl, or that got no GPU beside it."""
    match driver.nvidiactl:
        case "EPERM":
            return _dropped(container)
        case "EACCES":
            return _refused(facts)
        case "absent" | "open":
            return _never_requested(container, driver)
        case error:
            return Finding(
                Severity.ERROR,
                f"/dev/nvidiactl cannot be opened: {error}",
                Fix("Recreate the container. If that does not help, look on the host.", ("devkit doctor",)),
                evidence=(f"open(/dev/nvidiactl): {error}",),
                confidence=Confidence.POSSIBLE,
            )


def _dropped(container: Container) -> Finding:
    return Finding(
        Severity.ERROR,
        "this container has lost its GPU: the device nodes are there, but its cgroup no longer allows them",
        Fix(
            "Recreate the container now. To keep it from coming back, give GPUs by CDI on the host: a systemd reload,"
            " which package upgrades cause, drops what the legacy hook allowed.",
            (
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                _REQUEST_GPU["podman"] if container.kind == "podman" else "docker run --device nvidia.com/gpu=all ...",
            ),
            root=True,
            docs=TROUBLESHOOTING,
        ),
        subject="/dev/nvidiactl",
        evidence=("open(/dev/nvidiactl): EPERM (operation not permitted)",),
    )


def _refused(facts: Facts) -> Finding:
    return Finding(
        Severity.ERROR,
        "this user may not open the GPU's device nodes: file mode, SELinux or a user namespace refuses it",
        Fix(
            "Compare `ls -lZ /dev/nvidia*` inside and on the host. With SELinux, start the container with the option"
            " below; with a mode other than 0666, the driver option NVreg_DeviceFileMode is set on the host.",
            ("--security-opt=label=disable",),
            docs=TROUBLESHOOTING,
        ),
        subject="/dev/nvidiactl",
        evidence=("open(/dev/nvidiactl): EACCES (permission denied)",),
        confidence=Confidence.LIKELY,
    )


def _never_requested(container: Container, driver: Driver) -> Finding:
    evidence = ["open(/dev/nvidiactl): ENOENT (no such file)"]
    if driver.nvidiactl == "open":
        evidence = ["/dev/nvidiactl opens, but there is no /dev/nvidia0 or other GPU beside it"]
    if not isinstance(driver.pci_gpus, Unknown) and driver.pci_gpus:
        evidence.append(f"PCI {driver.pci_gpus[0].address} is an NVIDIA GPU")
    if isinstance(driver.loaded, Release):
        evidence.append(f"the host's driver {driver.loaded} is loaded")
    variable = container.visible_devices
    evidence.append("NVIDIA_VISIBLE_DEVICES is not set" if variable is None else f"NVIDIA_VISIBLE_DEVICES={variable}")
    return Finding(
        Severity.ERROR,
        "the machine has an NVIDIA GPU, but this container was started without it",
        Fix(
            "Ask for the GPU when the container is created (in Compose: `gpus: all` for the service; in a dev"
            " container of devkit: DEVKIT_GPU), then recreate it. Nothing inside of it needs a change.",
            (_REQUEST_GPU.get(container.kind, _REQUEST_GPU["docker"]),),
            where=Side.PROJECT,
        ),
        evidence=tuple(evidence),
    )
