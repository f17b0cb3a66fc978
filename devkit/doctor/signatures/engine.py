"""Errors of the Docker engine and its clients."""

from devkit.doctor.model import Confidence, Fix, Restart, Severity, Side
from devkit.doctor.signatures.fixes import INSTALL_TOOLKIT, JOIN_GROUP, REGISTER_RUNTIME, START_ENGINE
from devkit.doctor.signatures.model import Signature

_ONE_ENGINE = Fix(
    "Use one engine, the one that runs where the GPU is: not Docker Desktop's virtual machine, not the snap package.",
    ("docker context use default", "snap list docker && sudo snap remove --purge docker"),
)


ENGINE: tuple[Signature, ...] = (
    Signature(
        "ENG001",
        (
            "permission denied while trying to connect to the Docker daemon socket",
            "permission denied while trying to connect to the docker API at",
            "Got permission denied while trying to connect to the Docker daemon socket",
            "dial unix /var/run/docker.sock: connect: permission denied",
            "PermissionError: [Errno 13] Permission denied: '/var/run/docker.sock'",
            "DockerException: Error while fetching server API version: ('Connection aborted.', PermissionError(13",
            "Got permission denied issue",
        ),
        "this user may not talk to Docker: not in the group docker, or not logged in again since",
        JOIN_GROUP,
        "docker/for-linux; Docker, Post-installation steps for Linux",
        entry="E01",
    ),
    Signature(
        "ENG001",
        (
            "Cannot connect to the Docker daemon at {place:name}. Is the docker daemon running",
            "Cannot connect to the Docker daemon…Is the docker daemon running",
            "failed to connect to the docker API at {place:name}",
            "error during connect: …Is the docker daemon running",
            "dial unix /var/run/docker.sock: connect: no such file or directory",
            "dial unix /var/run/docker.sock: connect: connection refused",
            "error during connect: This error may indicate that the docker daemon is not running",
            "open //./pipe/docker_engine: The system cannot find the file specified",
            "open //./pipe/dockerDesktopLinuxEngine: The system cannot find the file specified",
            "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
            "('Connection aborted.', ConnectionRefusedError(111",
            "failed to connect to the docker API at…check if the path is correct and if the daemon is running",
        ),
        "no container engine answers: it does not run, or the client looks in another place",
        START_ENGINE,
        "Docker, Troubleshooting the Docker daemon",
        entry="E02",
    ),
    Signature(
        "ENG002",
        (
            "load library failed: libnvidia-ml.so.1",
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file",
            "load library failed: libnvidia-ml.so.1: cannot open shared object file",
        ),
        "the engine runs where no NVIDIA driver is: Docker Desktop's virtual machine, the snap package, a host"
        " without driver, or a"
        " toolkit that looks in the wrong folder",
        _ONE_ENGINE,
        "NVIDIA/nvidia-docker issues 1647 and 1711; NVIDIA/nvidia-container-toolkit issue 154",
        confidence=Confidence.LIKELY,
        entry="E03",
        also=("ENG003", "CTK007", "DRV001"),
    ),
    Signature(
        "ENG003",
        ("/snap/docker/", "/var/snap/docker/", "snap.docker.dockerd"),
        "this Docker is the snap package, which sees neither the driver's libraries nor the toolkit's settings",
        Fix(
            "Remove the snap and install Docker's own packages; then configure the toolkit anew.",
            (
                "sudo snap remove --purge docker",
                "sudo nvidia-ctk runtime configure --runtime=docker",
                "sudo systemctl restart docker",
            ),
            root=True,
            restart=Restart.ENGINE,
        ),
        "NVIDIA/nvidia-container-toolkit issue 154",
        confidence=Confidence.LIKELY,
        beside=("nvidia", "gpu"),
        entry="E04",
    ),
    Signature(
        "CTK001",
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            'could not select device driver "nvidia" with capabilities: [[gpu]]',
            "could not select device driver… with capabilities: [[gpu",
            'could not select device driver "nvidia" with capabilities',
            "could not select device driver…capabilities:…gpu",
        ),
        "the engine knows no way to give a GPU to a container: the NVIDIA Container Toolkit is missing, or the engine"
        " was not"
        " restarted since",
        INSTALL_TOOLKIT,
        "NVIDIA/nvidia-docker issue 1034",
        entry="E05",
        also=("ENG010", "PRJ011"),
    ),
    Signature(
        "CTK002",
        (
            "failed to discover GPU vendor from CDI: no known GPU vendor found",
            "failed to discover GPU vendor from CDI",
        ),
        "Docker looks for GPUs in CDI specifications and finds none: the toolkit is missing or wrote none, or there"
        " is no such GPU",
        Fix(
            "Install the toolkit where it is missing, write the specification and restart Docker; on a machine"
            " without an NVIDIA"
            " GPU drop the request.",
            ("sudo nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml", "sudo systemctl restart docker"),
            root=True,
            restart=Restart.ENGINE,
        ),
        "ShaneIsrael/fireshare issue 689",
        entry="E06",
        also=("PRJ011",),
    ),
    Signature(
        "CTK003",
        (
            "unknown or invalid runtime name: nvidia",
            "Unknown runtime specified nvidia",
            "Unknown runtime specified nvidia-container-runtime",
            "default runtime nvidia not found",
            "invalid runtime name nvidia",
            "specified default runtime 'nvidia' does not exist",
            'no runtime for "nvidia" is configured',
            'invalid default OCI runtime name "nvidia"',
            'OCI runtime "nvidia" not found',
            'exec: "nvidia-container-runtime": executable file not found in $PATH',
            "nvidia-container-runtime: executable file not found",
        ),
        "the engine has no runtime named nvidia",
        REGISTER_RUNTIME,
        "NVIDIA/nvidia-container-toolkit issue 150; NVIDIA/nvidia-docker issue 501",
        entry="E07",
    ),
    Signature(
        "CTK001",
        (
            'exec: "nvidia-container-runtime-hook": executable file not found in $PATH',
            "nvidia-container-runtime-hook: no such file or directory",
            "nvidia-container-runtime-hook: executable file not found",
            "nvidia-container-cli: executable file not found",
            "fork/exec /usr/bin/nvidia-container-runtime-hook: no such file or directory",
            "could not find nvidia-container-cli",
            "nvidia-container-toolkit: no such file or directory",
        ),
        "the engine is configured for the NVIDIA Container Toolkit, whose programs are missing",
        INSTALL_TOOLKIT,
        "NVIDIA/nvidia-docker issue 1034",
        entry="E05",
    ),
    Signature(
        "ENG006",
        (
            "unable to configure the Docker daemon with file {file:name}: {reason:text}",
            "unable to configure the Docker daemon with file",
            "the following directives are specified both as a flag and in the configuration file",
            "the following directives don't match any configuration option",
        ),
        "the engine does not start because its settings file is wrong",
        Fix(
            "Repair the file where the message says, check it, and start the engine.",
            ("sudo dockerd --validate --config-file=/etc/docker/daemon.json", "sudo systemctl restart docker"),
            root=True,
            restart=Restart.ENGINE,
        ),
        "NVIDIA/nvidia-docker issue 542",
        entry="E08",
    ),
    Signature(
        "ENG011",
        (
            "unknown flag: --gpus",
            "unknown shorthand flag: 'g' in -gpus",
            "flag provided but not defined: --gpus",
            "invalid argument… --gpus… requires API version",
        ),
        "this command is older than 19.03 and does not know --gpus",
        Fix("Install a Docker of this decade.", ("docker version",), docs="https://docs.docker.com/engine/install/"),
        "NVIDIA/nvidia-docker issue 1165",
        unless=("unknown flag: --gpus all", "runArgs"),
        entry="E09",
    ),
    Signature(
        "ENG011",
        ("client version {client:version} is too old. Minimum supported API version is {least:version}",),
        "the client speaks API {client}, and the engine wants at least {least}",
        Fix(
            "Update the client; a tool that brings its own client takes DOCKER_API_VERSION.",
            ("docker version", "export DOCKER_API_VERSION=1.44"),
        ),
        "moby/moby, API version negotiation",
        entry="E09",
    ),
    Signature(
        "ENG010",
        ("client version {client:version} is too new. Maximum supported API version is {most:version}",),
        "the client speaks API {client}, and the engine knows at most {most}",
        Fix("Update the engine, or tell the client.", ("docker version", "export DOCKER_API_VERSION=1.41")),
        "moby/moby, API version negotiation",
        entry="E09",
    ),
    Signature(
        "ENG012",
        ("Emulate Docker CLI using podman",),
        "docker is Podman here, and older Podman ignores --gpus without a word",
        Fix("Give the GPU by CDI.", ("podman run --device nvidia.com/gpu=all …",), where=Side.PROJECT),
        "NVIDIA/nvidia-container-runtime issue 190",
        severity=Severity.NOTE,
        entry="E10",
        also=("ENG004",),
    ),
    Signature(
        "ENG014",
        ("Error loading config file: {file:name}", "Error loading config file"),
        "the docker command cannot read its own settings, and works without them",
        Fix(
            "Repair the file, or make it yours.",
            ("ls -l ~/.docker/config.json", "python3 -m json.tool ~/.docker/config.json"),
        ),
        "docker/cli, cli/config",
        severity=Severity.WARNING,
        beside=("docker",),
        entry="E12",
    ),
    Signature(
        "PRJ006",
        ("No GPU support found yet a GPU was required", "can't evaluate field Runtimes in type"),
        "the dev container tool looks for a runtime named nvidia, and this engine has none or is Podman: it leaves"
        " the GPU out",
        Fix(
            'Ask for the GPU yourself: "runArgs": ["--gpus", "all"], or tell the tool: devcontainer up'
            " --gpu-availability all.",
            where=Side.PROJECT,
        ),
        "devcontainers/cli, src/spec-node/utils.ts",
        severity=Severity.WARNING,
        entry="J03",
        also=("ENG008", "PRJ011"),
    ),
    Signature(
        "CTK001",
        ("could not select device driver",),
        "the engine knows no way to give the device that was asked for to a container, mostly a GPU",
        INSTALL_TOOLKIT,
        "moby/moby, daemon/devices.go",
        confidence=Confidence.LIKELY,
        entry="E05",
        also=("ENG010",),
    ),
)
