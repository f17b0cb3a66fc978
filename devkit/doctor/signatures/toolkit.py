"""Errors of the NVIDIA Container Toolkit and of rootless engines."""

from devkit.doctor.model import Confidence, Fix, Restart
from devkit.doctor.signatures.fixes import UPDATE_TOOLKIT
from devkit.doctor.signatures.model import Signature

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
        also=("CTK011",),
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
        also=("CON012", "DRV003", "DRV006"),
    ),
    Signature(
        "CTK010",
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
        "CTK013",
        (
            "initialization error: driver error: failed to process request",
            "initialization error: driver rpc error: failed to process request",
            "initialization error: driver rpc error: timed out",
            "initialization error: driver error: timed out",
            "initialization error: nvcgo rpc error: timed out",
            "driver rpc error: failed to process request",
        ),
        "the toolkit gave up waiting for the driver: without its persistence daemon it starts slowly, or it hangs, or"
        " one of"
        " the two is much older",
        Fix(
            "Keep the driver awake, and try again after a reboot; then update the toolkit.",
            ("sudo systemctl enable --now nvidia-persistenced", "time nvidia-smi"),
            root=True,
        ),
        "NVIDIA/nvidia-container-toolkit issues 183, 556 and 2102",
        confidence=Confidence.LIKELY,
        entry="F18",
    ),
    Signature(
        "CTK011",
        ("container error: cgroup subsystem devices not found",),
        "this old toolkit does not know version 2 of control groups",
        UPDATE_TOOLKIT,
        "NVIDIA/nvidia-docker issue 1447",
        entry="F15",
    ),
    Signature(
        "CTK009",
        ("ldcache error: open failed: {path:name}: no such file or directory",),
        "the toolkit is set to call an ldconfig that is not there: {path}",
        Fix(
            "Name the right one in /etc/nvidia-container-runtime/config.toml: @/sbin/ldconfig.real on Ubuntu and"
            " Debian,"
            " @/sbin/ldconfig elsewhere.",
            ("sudo nvidia-ctk config --in-place --set nvidia-container-cli.ldconfig=@/sbin/ldconfig",),
            root=True,
        ),
        "NVIDIA/libnvidia-container, src/nvc_ldcache.c",
        entry="F04",
    ),
    Signature(
        "CTK008",
        ("unable to load config file", "could not parse config"),
        "the toolkit's settings file is not valid",
        Fix(
            "Repair it, or write it anew with the defaults.",
            ("sudo nvidia-ctk config --in-place",),
            root=True,
        ),
        "NVIDIA/nvidia-container-toolkit, internal/config",
        confidence=Confidence.LIKELY,
        beside=("nvidia",),
        entry="F04",
    ),
)
