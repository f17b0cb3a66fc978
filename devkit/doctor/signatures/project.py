"""Errors of dev containers and Compose."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.model import Signature

PROJECT: tuple[Signature, ...] = (
    Signature(
        "PRJ002",
        (
            "unknown flag: --gpus all",
            "unknown flag: --runtime nvidia",
            "unknown flag: --device /dev/…",
            "unknown flag: --shm-size {size:number}",
            "Unable to find image 'all:latest' locally",
        ),
        "devcontainer.json passes the option and its value to Docker as one word, or the value alone",
        Fix('Write them apart: "runArgs": ["--gpus", "all"].', where=Side.PROJECT),
        "microsoft/vscode-remote-release issue 6989",
        entry="J01",
    ),
    Signature(
        "ENG005",
        (
            "Additional properties are not allowed ('devices' was unexpected)",
            "Additional property devices is not allowed",
            "services.{service:name}.deploy.resources.reservations value Additional properties are not allowed",
            "deploy.resources.reservations Additional property devices is not allowed",
            "deploy.resources.limits Additional property devices is not allowed",
            "Unsupported config option for services.{service:name}: 'runtime'",
            "services.{service:name} Additional property gpus is not allowed",
            "Additional property gpus is not allowed",
            "Additional properties are not allowed ('gpus' was unexpected)",
            "Additional properties are not allowed ('runtime' was unexpected)",
        ),
        "this Compose is too old to request GPUs, or the request stands in the wrong place of the file",
        Fix(
            "Use `docker compose` version 2 (2.30 for `gpus: all`); `devices` belongs under"
            " deploy.resources.reservations.",
            ("docker compose version",),
            docs="https://docs.docker.com/compose/how-tos/gpu-support/",
        ),
        "docker/compose issue 8142",
        confidence=Confidence.LIKELY,
        entry="J06",
        also=("PRJ012",),
    ),
    Signature(
        "PRJ013",
        (
            '"count" and "device_ids" attributes are exclusive',
            "count and device_ids attributes are exclusive",
            "devices.{index:number} capabilities is required",
            'devices.{index:number} Missing property "capabilities"',
            "devices Additional property… capabilities",
            "missing property 'capabilities'",
            "'capabilities' is a required property",
        ),
        "the Compose file's request for a GPU is not valid: `capabilities: [gpu]` must be there, and only one of"
        " count and device_ids",
        Fix(
            "Write driver, count or device_ids, and capabilities; or `gpus: all` with Compose 2.30.",
            where=Side.PROJECT,
            docs="https://docs.docker.com/compose/how-tos/gpu-support/",
        ),
        "docker/docs pull request 12315; compose-spec",
        entry="J07",
    ),
    Signature(
        "CON013",
        (
            "EACCES: permission denied, open '{path:name}'",
            "EACCES: permission denied, mkdir '{path:name}'",
            "Unable to write file 'vscode-remote://dev-container",
            "Unable to write file… EACCES: permission denied",
            "NoPermissions (FileSystemError)",
        ),
        "the container's user may not write into the folder: its user number is not the owner's",
        Fix(
            "Give the container's user the number of the host's user.",
            ('"updateRemoteUserUID": true, "remoteUser": "…"', "stat -c %u . && id -u"),
            where=Side.PROJECT,
            docs="https://code.visualstudio.com/remote/advancedcontainers/add-nonroot-user",
        ),
        "microsoft/vscode-remote-release issues 8425 and 10030",
        confidence=Confidence.POSSIBLE,
        unless=("node_modules", "npm ERR", "npm error"),
        entry="J08",
    ),
)
