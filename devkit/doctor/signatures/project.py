"""Errors of dev containers, Compose, and the hub of models."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.fixes import OWN_CACHE
from devkit.doctor.signatures.model import Signature

PROJECT: tuple[Signature, ...] = (
    Signature(
        "J01",
        (
            "unknown flag: --gpus all",
            "unknown flag: --gpus=all all",
            "unknown flag: --runtime nvidia",
            "unknown flag: --runtime=nvidia ",
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
    ),
    Signature(
        "J07",
        (
            '"count" and "device_ids" attributes are exclusive',
            "count and device_ids attributes are exclusive",
            "cannot set both Count and DeviceIDs on device request",
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
        "J08",
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
    Signature(
        "J11",
        (
            "mkdir: cannot create directory '/root/.vscode-server'",
            "Cannot create /root/.vscode-server",
            "cannot create directory '/root/.vscode-server': Permission denied",
            "Command failed: mkdir -p '/root/.vscode-server",
        ),
        "the editor's server cannot write to the home of the container's user, mostly with rootless Podman",
        Fix(
            "Keep the user's number inside of the container.",
            ('"runArgs": ["--userns=keep-id"], "containerUser": "vscode"',),
            where=Side.PROJECT,
        ),
        "microsoft/vscode-remote-release issue 9656",
        confidence=Confidence.LIKELY,
        entry="J11",
    ),
)

HUB: tuple[Signature, ...] = (
    Signature(
        "STO001",
        (
            "PermissionError: [Errno 13] Permission denied: '{path:name}.cache/huggingface",
            "Permission denied: '{path:name}huggingface",
            "There was a problem when trying to write in your cache folder",
            "PermissionError at {path:name} when downloading",
            "Permission denied: '/.cache'",
            "Permission denied: '/.cache/huggingface'",
            "PermissionError… /root/.cache/huggingface",
        ),
        "the cache of models belongs to another user: the engine created it as root, or HOME is not set",
        OWN_CACHE,
        "bmaltais/kohya_ss issue 1143; huggingface/datasets issue 1581",
        entry="J09",
    ),
    Signature(
        "K01",
        (
            "GatedRepoError: 401 Client Error",
            "Cannot access gated repo for url {url:name}",
            "You are trying to access a gated repo",
            "Access to model {model:name} is restricted",
            "Access to this resource is disabled… gated",
        ),
        "the model may be had only with an accepted licence and a token, and no valid token came along",
        Fix(
            "Accept the licence on the model's page, and give the container a token as a secret.",
            ("hf auth login", "hf auth whoami"),
            where=Side.CONTAINER,
            docs="https://huggingface.co/docs/hub/models-gated",
        ),
        "huggingface/huggingface_hub issue 2586",
        entry="K01",
    ),
    Signature(
        "K01",
        (
            "403 Client Error… you are not in the authorized list",
            "is not in the authorized list. Visit https://huggingface.co/",
            "Please enable access to public gated repositories in your fine-grained token settings",
            "Your request to access model {model:name} is awaiting a review",
            "Your request to access model {model:name} has been rejected",
        ),
        "the token is known, and its account or its rights do not include this model",
        Fix(
            "Accept the licence with the token's own account; a fine-grained token needs the right to read gated"
            " repositories.",
            ("hf auth whoami",),
            where=Side.CONTAINER,
            docs="https://huggingface.co/settings/tokens",
        ),
        "huggingface/huggingface_hub issue 2586",
        entry="K01",
    ),
    Signature(
        "K01",
        (
            "Invalid credentials in Authorization header",
            "Invalid user token",
            "Invalid username or password… huggingface.co",
            "401 Client Error: Unauthorized for url: https://huggingface.co/",
            "RepositoryNotFoundError: 401 Client Error",
            "is not a local folder and is not a valid model identifier listed on",
        ),
        "the hub does not accept the token, or the name is wrong: for a private or misspelt name it answers the same",
        Fix("Check the name, and log in anew.", ("hf auth whoami", "hf auth login"), where=Side.CONTAINER),
        "huggingface/huggingface_hub, errors.py",
        confidence=Confidence.LIKELY,
        entry="K01",
    ),
    Signature(
        "K02",
        (
            "We couldn't connect to 'https://huggingface.co' to load",
            "couldn't connect to 'https://{hub:name}' to load",
            "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
            "(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co'",
            "HTTPSConnectionPool(host='cdn-lfs",
            "An error happened while trying to locate the file on the Hub and we cannot find the requested files in"
            " the local cache",
            "LocalEntryNotFoundError: Connection error, and we cannot find the requested files in the disk cache",
            "we cannot find the requested files in the local cache. Please check your connection",
            "Failed to resolve 'huggingface.co'",
            "Couldn't reach 'https://huggingface.co",
        ),
        "the hub cannot be reached from here, and the cache does not have the files",
        Fix(
            "Check name resolution and proxy in the container; or download elsewhere and mount the cache.",
            ("env | grep -i -e proxy -e HF_", "curl -sSI https://huggingface.co"),
            where=Side.CONTAINER,
            docs="https://huggingface.co/docs/transformers/installation#offline-mode",
        ),
        "huggingface/huggingface_hub, errors.py; huggingface/transformers, hub.py",
        confidence=Confidence.LIKELY,
        entry="K02",
    ),
    Signature(
        "K02",
        (
            "OfflineModeIsEnabled",
            "offline mode is enabled",
            "outgoing traffic has been disabled. To enable repo look-ups and downloads online",
            "Cannot reach {url:name}: offline mode is enabled",
            "outgoing traffic has been disabled",
        ),
        "HF_HUB_OFFLINE is set, and the cache does not have the files",
        Fix(
            "Download them once with the hub allowed.",
            ("unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",),
            where=Side.CONTAINER,
        ),
        "huggingface/huggingface_hub, errors.py",
        entry="K02",
    ),
    Signature(
        "K02",
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]",
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason:text}",
            "certificate verify failed: self-signed certificate in certificate chain",
            "certificate verify failed: unable to get local issuer certificate",
        ),
        "a proxy of the company puts its own certificate in between, and this Python does not trust it",
        Fix(
            "Give Python the company's certificate.",
            (
                "export REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
                " SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ),
            where=Side.CONTAINER,
        ),
        "psf/requests, SSL certificate verification",
        confidence=Confidence.LIKELY,
        unless=("certificate is not yet valid", "certificate has expired"),
        entry="K02",
    ),
    Signature(
        "K05",
        (
            "certificate verify failed: certificate is not yet valid",
            "certificate has expired or is not yet valid",
            "x509: certificate has expired or is not yet valid",
        ),
        "this machine's clock is wrong, or the certificate really has expired; the clock of WSL stops while Windows"
        " sleeps",
        Fix("Compare the clock, and set it.", ("date -u", "sudo hwclock -s"), root=True),
        "microsoft/WSL issue 10006",
        confidence=Confidence.LIKELY,
        entry="K05",
    ),
)
