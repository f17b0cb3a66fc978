"""Errors of the hub of models, its cache and the way there."""

from devkit.doctor.model import Confidence, Fix, Side
from devkit.doctor.signatures.fixes import OWN_CACHE
from devkit.doctor.signatures.model import Signature

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
        also=("PRJ019",),
    ),
    Signature(
        "HUB008",
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
        "HUB008",
        (
            "is awaiting a review from the repo authors",
            "is restricted. You must be authenticated to access it",
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
        "HUB003",
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
        "HUB007",
        (
            "An error happened while trying to locate the file on the Hub",
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
        also=("HUB004", "HUB001"),
    ),
    Signature(
        "HUB001",
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
        "HUB007",
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
        also=("HUB005",),
    ),
    Signature(
        "HUB009",
        (
            "certificate verify failed: certificate is not yet valid",
            "certificate has expired or is not yet valid",
            "RequestTimeTooSkewed",
        ),
        "this machine's clock is wrong, or the certificate really has expired; the clock of WSL stops while Windows"
        " sleeps",
        Fix("Compare the clock, and set it.", ("date -u", "sudo hwclock -s"), root=True),
        "microsoft/WSL issue 10006",
        confidence=Confidence.LIKELY,
        entry="K05",
        also=("WSL010", "ENG015"),
    ),
    Signature(
        "HUB004",
        (
            "ProxyError('Cannot connect to proxy",
            "ProxyError: Cannot connect to proxy",
            "Unable to connect to proxy",
            "Unknown scheme for proxy URL",
            "Proxy URL had no scheme, should start with http:// or https://",
            "A localhost proxy configuration was detected but not mirrored into WSL",
        ),
        "a proxy that the environment names cannot be reached from here, or is not written as an address",
        Fix(
            "Look at the proxies of this shell: inside of a container or WSL localhost is another machine.",
            ("env | grep -i proxy",),
            where=Side.CONTAINER,
        ),
        "psf/requests; encode/httpx; microsoft/WSL",
        entry="K02",
    ),
    Signature(
        "HUB005",
        ("Could not find a suitable TLS CA certificate bundle, invalid path",),
        "REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names a file that is not here",
        Fix("Name the file that is here, or none.", ("env | grep -i -e CA_BUNDLE -e SSL_CERT",), where=Side.CONTAINER),
        "psf/requests, adapters.py",
        entry="K02",
    ),
    Signature(
        "HUB006",
        (
            "Fast download using 'hf_transfer' is enabled (HF_HUB_ENABLE_HF_TRANSFER=1) but 'hf_transfer' package is"
            " not"
            " available",
        ),
        "HF_HUB_ENABLE_HF_TRANSFER is set, and the package hf_transfer is not installed",
        Fix("Install it, or unset the variable.", ("pip install hf_transfer",), where=Side.CONTAINER),
        "huggingface/huggingface_hub, file_download.py",
        entry="K02",
    ),
    Signature(
        "HUB002",
        (
            "MissingSchema: Invalid URL",
            "No scheme supplied. Perhaps you meant",
            "UnsupportedProtocol: Request URL is missing",
        ),
        "an address without https:// in front was asked for: mostly HF_ENDPOINT is not an address",
        Fix(
            "Write the whole address, or unset the variable.",
            ("echo $HF_ENDPOINT", "unset HF_ENDPOINT"),
            where=Side.CONTAINER,
        ),
        "psf/requests, models.py; encode/httpx",
        confidence=Confidence.POSSIBLE,
        entry="K02",
    ),
    Signature(
        "HUB007",
        ("Temporary failure in name resolution",),
        "names are not resolved here, so the hub cannot be reached",
        Fix(
            "Check name resolution in the container.",
            ("cat /etc/resolv.conf", "getent hosts huggingface.co"),
            where=Side.CONTAINER,
        ),
        "huggingface/huggingface_hub",
        confidence=Confidence.LIKELY,
        beside=("huggingface", "hf.co"),
        entry="K02",
    ),
)
