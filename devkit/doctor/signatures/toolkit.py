"""Errors of the NVIDIA Container Toolkit, CDI, Podman and rootless engines."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.fixes import GIVE_GPU, RECREATE, UPDATE_TOOLKIT, WRITE_CDI
from devkit.doctor.signatures.model import Signature

_CDI_DOCS = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"

TOOLKIT: tuple[Signature, ...] = (
    Signature(
        "CTK005",
        (
            "bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
            "unable to find any existing device filters attached to the cgroup",
            "mount error: failed to add device rules",
            "mount error: open failed: /sys/fs/cgroup/devices/…permission denied",
            "mount error: write error: /sys/fs/cgroup/devices/…operation not permitted",
            "/sys/fs/cgroup/devices/…devices.allow: operation not permitted",
        ),
        "a rootless engine may not change device rules, and the toolkit is set to try",
        Fix(
            "Tell the toolkit to leave the device rules alone, or give the GPU by CDI, which suits root and rootless"
            " alike.",
            ("sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place",),
            root=True,
            docs="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
        ),
        "NVIDIA/nvidia-container-toolkit issue 139; NVIDIA/nvidia-docker issue 1155",
        entry="F05",
    ),
    Signature(
        "CTK005",
        (
            "Failed to initialize NVML: Insufficient Permissions",
            "NVML_ERROR_NO_PERMISSION",
            "NVMLError_NoPermission",
            "nvml error: insufficient permissions",
        ),
        "the device nodes cannot be opened: no-cgroups is set for an engine run by root, or SELinux or the nodes'"
        " mode forbids it",
        Fix(
            "Set no-cgroups = false for an engine run by root; with SELinux run with its label off or allow"
            " containers to use devices.",
            (
                "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
                "sudo setsebool -P container_use_devices on  # SELinux",
            ),
            root=True,
        ),
        "NVIDIA/nvidia-docker issue 1608; NVIDIA, Container Toolkit, Troubleshooting",
        confidence=Confidence.LIKELY,
        entry="F06",
    ),
    Signature(
        "CUD001",
        (
            "requirement error: unsatisfied condition: {condition:name}, please update your driver",
            "requirement error: unsatisfied condition: {condition:name}",
            "unsatisfied condition: {condition:name}, please update your driver to a newer version",
        ),
        "the image demands {condition}, and the host's driver is older",
        Fix(
            "Update the driver on the host, or take an older tag of the image.",
            ("nvidia-smi  # its CUDA version is the highest that the driver runs",),
            docs="https://docs.nvidia.com/deploy/cuda-compatibility/",
        ),
        "NVIDIA/nvidia-container-toolkit issue 152; NVIDIA/nvidia-docker issue 536",
        entry="F03",
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
        "CDI003",
        (
            "unresolvable CDI devices {device:name}",
            "setting up CDI devices: unresolvable CDI devices",
            "CDI device injection failed: unresolvable CDI devices",
            "failed to inject CDI devices: unresolvable CDI devices",
            'could not select device driver "cdi"',
            "CDI device injection failed",
            "invalid CDI spec",
            "unresolvable CDI devices",
            "injecting CDI devices: unresolvable",
        ),
        "the engine finds no CDI specification that names this device: none was written, it is not readable, too new"
        " for this engine,"
        " or in a folder that the engine does not search",
        WRITE_CDI,
        "NVIDIA/nvidia-container-toolkit issues 63, 146 and 1940",
        confidence=Confidence.LIKELY,
        entry="F08",
    ),
    Signature(
        "CTK002",
        (
            "stat nvidia.com/gpu={device:name}: no such file or directory",
            'error gathering device information while adding custom device "nvidia.com/gpu={device:name}": no such'
            " file or directory",
        ),
        "this engine takes the CDI name nvidia.com/gpu={device} for a path: it has no CDI, or it is off",
        Fix(
            'Turn CDI on (Docker 25 to 27: `"features": {"cdi": true}` in daemon.json; Podman 4.1 or newer has it),'
            " and restart.",
            ("sudo systemctl restart docker",),
            root=True,
            restart=Restart.ENGINE,
            docs=_CDI_DOCS,
        ),
        "NVIDIA, Container Toolkit, Support for CDI; Docker, CDI devices",
        entry="F08",
    ),
    Signature(
        "CDI002",
        (
            "invalid CDI Spec version",
            "unsupported spec version",
            "the spec version must be at least {needed:version} but was {found:version}",
            "failed to read CDI Spec… unmarshal",
            'json: unknown field "additionalGids"',
            'unknown field "additionalGids"',
            'unknown field "hostPath"… cdi',
        ),
        "the CDI specification is of a newer version than this engine reads",
        Fix(
            "Update the engine (Docker 26.1, Podman 5.1, containerd 1.7.16 or newer), or write the older form.",
            (
                "sudo nvidia-ctk cdi generate --feature-flag no-additional-gids-for-device-nodes"
                " --output=/var/run/cdi/nvidia.yaml",
            ),
            root=True,
            docs=_CDI_DOCS,
        ),
        "NVIDIA/nvidia-container-toolkit issue 1940",
        confidence=Confidence.LIKELY,
        entry="F09",
    ),
    Signature(
        "CDI001",
        (
            "failed to stat CDI host device {device:text}",
            "CDI host device",
            "failed to fulfil mount request: open {path:name}: no such file or directory",
            "failed to fulfil mount request",
            "error stat'ing file {path:name}: No such file or directory: OCI runtime attempted to invoke a command"
            " that was not found",
        ),
        "the CDI specification names a file of the driver that is no longer there: it was written before the last"
        " driver update"
        " or for other devices",
        WRITE_CDI,
        "NVIDIA/nvidia-container-toolkit issue 885; NVIDIA, Container Toolkit, Support for CDI",
        confidence=Confidence.LIKELY,
        beside=("nvidia", "cdi", "/dev/dri"),
        entry="F14",
    ),
    Signature(
        "F10",
        (
            "invoking the NVIDIA Container Runtime Hook directly",
            "Please use the NVIDIA Container Runtime (e.g. specify the --runtime=nvidia flag) instead",
        ),
        "the toolkit is set to CDI mode, which does not serve Docker's --gpus",
        Fix(
            "Start the container with `--runtime=nvidia` and NVIDIA_VISIBLE_DEVICES, or by CDI; or set the mode to"
            " auto.",
            (
                "sudo nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",
                "sudo systemctl restart docker",
            ),
            root=True,
            restart=Restart.ENGINE,
        ),
        "NVIDIA/nvidia-container-toolkit issue 1246",
        entry="F10",
    ),
    Signature(
        "CDI003",
        ("invalid device, empty device edits",),
        "the CDI specification was written without device nodes, so containers get libraries and no GPU",
        WRITE_CDI,
        "kaito-project/kaito issue 2326",
        entry="F12",
    ),
    Signature(
        "CON001",
        (
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
    ),
    Signature(
        "CON001",
        (
            "libcuda.so.1: cannot open shared object file",
            "ImportError: libcuda.so.1",
            "Could not load dynamic library 'libcuda.so.1'",
            "dlopen: libcuda.so.1",
        ),
        "the driver's library libcuda.so.1 is not here: the container was started without a GPU or without the"
        " capability compute",
        GIVE_GPU,
        "NVIDIA/nvidia-docker issue 1226",
        confidence=Confidence.LIKELY,
        unless=("/usr/lib/wsl/lib/libcuda.so.1",),
        entry="F16",
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
        "F17",
        ("groups: cannot find name for group ID {gid:number}",),
        "a harmless line: the device's group {gid} has no name in the image",
        Fix("Nothing to do.", where=Side.IMAGE),
        "NVIDIA, Container Toolkit, Release notes",
        severity=Severity.NOTE,
        entry="F17",
    ),
    Signature(
        "F18",
        (
            "initialization error: driver error: failed to process request",
            "initialization error: driver rpc error: failed to process request",
            "initialization error: driver rpc error: timed out",
            "driver rpc error: failed to process request",
        ),
        "the toolkit and the driver do not understand each other: one is much newer than the other, or the driver"
        " hangs",
        UPDATE_TOOLKIT,
        "NVIDIA/nvidia-container-toolkit issue 183; docker/for-win issue 11246",
        confidence=Confidence.LIKELY,
        entry="F18",
    ),
    Signature(
        "CTK004",
        (
            "Failed to initialize NVML: Unknown Error… container",
            "cgroup… devices lost… daemon-reload",
        ),
        "a container lost its GPU after systemd reloaded",
        RECREATE,
        "NVIDIA/nvidia-container-toolkit issue 48",
        confidence=Confidence.POSSIBLE,
        entry="F01",
    ),
    Signature(
        "CTK003",
        ("unsupported runtime type nvidia", "nvidia-container-runtime did not terminate successfully: exit status"),
        "the nvidia runtime failed before the container started",
        Fix(
            "Read its whole message and run its own test.",
            ("sudo nvidia-container-cli -k -d /dev/stderr info",),
            root=True,
        ),
        "NVIDIA/nvidia-docker issues 1492 and 1496",
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        entry="F15",
    ),
    Signature(
        "CTK001",
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
)
