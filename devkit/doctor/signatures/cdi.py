"""Errors of CDI specifications, with Docker and Podman."""

from devkit.doctor.model import Confidence, Fix, Restart
from devkit.doctor.signatures.fixes import WRITE_CDI
from devkit.doctor.signatures.model import Signature

_CDI_DOCS = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"


CDI: tuple[Signature, ...] = (
    Signature(
        "CDI003",
        (
            "failed to inject CDI devices",
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
        also=("CTK002", "CDI002", "CDI007", "CDI008", "GPU021", "PRJ011"),
    ),
    Signature(
        "CDI007",
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
        also=("PRJ012",),
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
        "CDI004",
        (
            'failed to stat CDI host device "{device:text}"',
            "failed to fulfil mount request: open {path:name}nvidia…",
            "failed to fulfil mount request: open {path:name}/libcuda…",
            "error stat'ing file {path:name}nvidia{rest:name}: No such file or directory: OCI runtime attempted to"
            " invoke a command"
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
        also=("CDI001", "CDI006"),
    ),
    Signature(
        "CDI005",
        ("invalid device, empty device edits", "No devices found. Waiting indefinitely"),
        "the CDI specification was written without device nodes, so containers get libraries and no GPU",
        WRITE_CDI,
        "kaito-project/kaito issue 2326",
        entry="F12",
        also=("CDI003", "CTK013"),
    ),
)
