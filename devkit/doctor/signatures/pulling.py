"""Errors of pulling and storing images and models: registries, proxies, clocks and full disks."""

from devkit.doctor.model import Confidence, Fix, Restart
from devkit.doctor.signatures.fixes import MAKE_ROOM
from devkit.doctor.signatures.model import Signature

PULLING: tuple[Signature, ...] = (
    Signature(
        "ENG014",
        (
            "toomanyrequests: You have reached your pull rate limit",
            "You have reached your unauthenticated pull rate limit",
            "toomanyrequests:",
            "429 Too Many Requests - Server message: toomanyrequests",
        ),
        "the registry refuses: too many pulls from this address",
        Fix(
            "Log in to the registry, or pull from a mirror.",
            ("docker login",),
            docs="https://docs.docker.com/docker-hub/usage/",
        ),
        "Docker, Docker Hub usage and limits",
        entry="E12",
        confidence=Confidence.POSSIBLE,
    ),
    Signature(
        "ENG013",
        ("x509: certificate signed by unknown authority",),
        "the engine does not trust the certificate of the registry or of a proxy in between",
        Fix(
            "Add the certificate of the company's proxy to the machine that runs the engine and restart it.",
            (
                "sudo cp company.crt /usr/local/share/ca-certificates/ && sudo update-ca-certificates",
                "sudo systemctl restart docker",
            ),
            root=True,
            restart=Restart.ENGINE,
            docs="https://docs.docker.com/engine/daemon/proxy/",
        ),
        "Docker, Daemon proxy configuration",
        unless=("kube", "etcd"),
        entry="E12",
        also=("HUB005",),
        confidence=Confidence.LIKELY,
    ),
    Signature(
        "ENG013",
        (
            "Get {url:name}: net/http: request canceled while waiting for connection",
            "registry-1.docker.io/v2/…: dial tcp: lookup",
            "registry-1.docker.io…i/o timeout",
            "registry-1.docker.io…proxyconnect tcp",
            "proxyconnect tcp: dial tcp",
            "registry-1.docker.io…context deadline exceeded",
            "registry-1.docker.io…net/http: TLS handshake timeout",
            "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
            "failed to resolve reference…dial tcp…i/o timeout",
            "failed to resolve reference: dial tcp: i/o timeout",
        ),
        "the engine cannot reach the registry: the daemon has its own proxy and name settings, not the shell's",
        Fix(
            "Give the daemon its proxy and restart it.",
            (
                "sudo systemctl edit docker  # [Service] Environment=HTTPS_PROXY=http://proxy:3128",
                "sudo systemctl restart docker",
            ),
            root=True,
            restart=Restart.ENGINE,
            docs="https://docs.docker.com/engine/daemon/proxy/",
        ),
        "Docker, Daemon proxy configuration",
        confidence=Confidence.LIKELY,
        entry="E12",
    ),
    Signature(
        "STO002",
        (
            "no space left on device",
            "[Errno 28] No space left on device",
            "You don't have enough free space in /var/cache/apt",
            "Not enough free disk space to download the file",
            "OSError: Not enough free disk space",
        ),
        "the disk is full: of the engine's images, or of downloaded models",
        MAKE_ROOM,
        "Docker, docker system prune",
        confidence=Confidence.LIKELY,
        unless=("dev/shm", "posix_fallocate", "shared memory"),
        entry="E11",
        also=("STO004",),
    ),
    Signature(
        "ENG014",
        (
            "error getting credentials - err: exec: {helper:text}: executable file not found in $PATH",
            "error getting credentials - err:",
        ),
        "~/.docker/config.json names a helper for credentials that is not installed here, so nothing can be pulled",
        Fix("Take credsStore and credHelpers out of the file, or install the helper.", ("cat ~/.docker/config.json",)),
        "docker/for-win, docker-credential-helpers",
        entry="E12",
    ),
    Signature(
        "ENG015",
        ("x509: certificate has expired or is not yet valid",),
        "the engine's clock is wrong, or the registry's certificate really has expired; WSL's clock stops while Windows"
        " sleeps",
        Fix("Compare the clock, and set it.", ("date -u", "sudo hwclock -s"), root=True),
        "microsoft/WSL issue 10006",
        confidence=Confidence.LIKELY,
        also=("WSL010", "HUB009"),
        unless=("kube", "etcd"),
        entry="K05",
    ),
    Signature(
        "WSL010",
        ("Release file for {url:name} is not valid yet", "Release file is not valid yet"),
        "apt finds files from the future: the clock is behind; WSL's clock stops while Windows sleeps",
        Fix("Set the clock.", ("date -u", "sudo hwclock -s"), root=True),
        "microsoft/WSL issue 10006",
        confidence=Confidence.LIKELY,
        also=("ENG015",),
        entry="K05",
    ),
)
