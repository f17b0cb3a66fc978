"""Checks of how the model hub would be reached: variables, token, proxies and certificates. None asks the network."""

from collections.abc import Iterator

from devkit.doctor.applies import is_in_container, known, platform_of, python_of, system_of
from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.facts.model import Facts, Hub, Platform, Proxy, WslSettings
from devkit.facts.values import Release, Unknown

ENVIRONMENT_GUIDE = "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables"
TOKEN_GUIDE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens
FIRST_HUB_WITH_HTTPX = Release.read("1.0")
"""From here on huggingface_hub asks by httpx, and knows no hf_transfer. Source: huggingface_hub, migration to 1.0."""

_LOOPBACK = ("localhost", "127.", "[::1]", "0.0.0.0")  # noqa: S104 - read, not bound
_SCHEMES = ("http", "https", "socks5", "socks5h", "socks4", "socks4a")


def here(facts: Facts) -> Side:
    """The side on which the variables stand."""
    return Side.CONTAINER if is_in_container(facts) else Side.HOST


def _hub(facts: Facts) -> Hub:
    return known(facts.hub)


@check(
    "HUB001",
    "The model hub is not switched off",
    covers=("K02",),
    symptoms=("OfflineModeIsEnabled: Cannot reach https://huggingface.co: offline mode is enabled",),
    causes=("HUB007", "HUB008"),
)
def hub_is_switched_on(facts: Facts) -> Iterator[Finding]:
    """No variable tells the hub library to stay offline while it has nothing in its cache.

    Why it matters: HF_HUB_OFFLINE=1, left over from a cluster or an image, makes every model "not found" that is not in
    the cache already.
    How it is seen: HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and whether there is a cache. With one, it may well be
    meant.
    Source: huggingface_hub, "Environment variables", HF_HUB_OFFLINE.
    """
    hub = _hub(facts)
    if not hub.is_offline:
        return
    caches = [] if isinstance(facts.storage, Unknown) else facts.storage.directories
    has_cache = any(directory.purpose == "hub cache" and directory.exists for directory in caches)
    variable = known(hub.offline_by)
    yield Finding(
        Severity.NOTE if has_cache else Severity.WARNING,
        f"{variable} keeps the hub library offline: only models in the cache can be loaded"
        if has_cache
        else f"{variable} keeps the hub library offline, and there is no cache: no model can be loaded",
        Fix("Remove the variable for the first download.", (f"unset {variable}",), here(facts), docs=ENVIRONMENT_GUIDE),
        evidence=(f"{variable} is set",),
        confidence=Confidence.LIKELY,
    )


@check(
    "HUB002",
    "HF_ENDPOINT is an address",
    covers=("K02",),
    symptoms=("MissingSchema: Invalid URL: No scheme supplied", "UnsupportedProtocol: Request URL is missing"),
    causes=("HUB007", "HUB008"),
)
def endpoint_is_an_address(facts: Facts) -> Iterator[Finding]:
    """Where HF_ENDPOINT names another hub, it does so with a scheme and a host.

    Why it matters: the library puts the variable in front of every path. Without https:// each download ends in an
    error that names neither the variable nor its value.
    How it is seen: the variable as it stands.
    Source: huggingface_hub, constants.py, ENDPOINT; "Environment variables", HF_ENDPOINT.
    """
    endpoint = _hub(facts).endpoint
    if not endpoint:
        return
    scheme, separator, rest = endpoint.partition("://")
    if separator and scheme in ("http", "https") and rest.strip("/"):
        return
    better = f"https://{(rest or scheme).strip('/')}"
    yield Finding(
        Severity.ERROR,
        f"HF_ENDPOINT is {endpoint!r}, which is no address: no model can be downloaded",
        Fix(
            "Write it with its scheme, or remove it to use the hub itself.",
            (f"export HF_ENDPOINT={better}", "unset HF_ENDPOINT"),
            here(facts),
            docs=ENVIRONMENT_GUIDE,
        ),
        evidence=(f"HF_ENDPOINT={endpoint}",),
    )


@check(
    "HUB003",
    "The hub token is a token",
    covers=("K01",),
    symptoms=("401 Client Error: Unauthorized", "Invalid credentials in Authorization header"),
    causes=("HUB008",),
)
def token_is_a_token(facts: Facts) -> Iterator[Finding]:
    """What stands where the hub library looks for a token has the shape of one.

    Why it matters: the library sends whatever is there. A stand-in such as ${HF_TOKEN} or a value with quotation marks
    is refused, and then even public models are.
    How it is seen: by shape alone, where the value is read; neither the value nor a part of it is kept. That there is
    no token is no finding: public models need none.
    Source: huggingface_hub, utils/_auth.py, `get_token`; Hugging Face, "User access tokens".
    """
    hub = _hub(facts)
    problem = known(hub.token_problem)
    if not hub.token_from or not problem:
        return
    place = known(hub.token_path) if hub.token_from == "file" else hub.token_from  # noqa: S105 - a place, no token
    yield Finding(
        Severity.WARNING,
        f"the hub token in {place} cannot be one: {problem}; gated models, and even public ones, are refused",
        Fix(
            "Make a token with read access, and pass it into the container by secret or remoteEnv, never by ENV.",
            ("hf auth login",) if hub.token_from == "file" else (f"unset {hub.token_from}",),  # noqa: S105
            here(facts),
            docs=TOKEN_GUIDE,
        ),
        subject=place,
        evidence=(f"the token comes from {place}: {problem}",),
        confidence=Confidence.LIKELY,
    )


@check(
    "HUB004",
    "The proxies lead somewhere from here",
    covers=("K02",),
    symptoms=(
        "ProxyError: Cannot connect to proxy",
        "ValueError: Unknown scheme for proxy URL URL('socks://127.0.0.1:7890/')",
        "Proxy URL had no scheme, should start with http:// or https://",
        "wsl: A localhost proxy configuration was detected but not mirrored into WSL",
    ),
    causes=("HUB007", "HUB008"),
)
def proxies_lead_somewhere(facts: Facts) -> Iterator[Finding]:
    """Each proxy variable has a scheme that Python's clients know, and an address that means the same on this side.

    Why it matters: in a container, 127.0.0.1 is the container itself; in WSL with NAT it is the guest. A proxy program
    of the host is not there, and every download is refused. socks:// stops httpx before it sends anything.
    How it is seen: the variables without their logins. A proxy may also run on this very side, so an address of the
    machine itself is only likely to be wrong.
    Source: microsoft/WSL issues 10379 and 10753; danielgatis/rembg issue 855; pdm-project/pdm issue 3390.
    """
    for proxy in known(_hub(facts).proxies):
        scheme, separator, rest = proxy.url.partition("://")
        host = rest if separator else scheme
        if not separator or scheme.lower() not in _SCHEMES:
            yield _odd_scheme(facts, proxy, scheme if separator else "")
        elif host.lower().startswith(_LOOPBACK) and (problem := _elsewhere(facts)):
            yield Finding(
                Severity.WARNING,
                f"{proxy.variable} points to {proxy.url}, which here is {problem}",
                Fix(
                    "Name the proxy as it is reached from this side, or remove the variable.",
                    (f"unset {proxy.variable}",),
                    here(facts),
                ),
                subject=proxy.variable,
                evidence=(f"{proxy.variable}={proxy.url}",),
                confidence=Confidence.POSSIBLE,
            )


def _odd_scheme(facts: Facts, proxy: Proxy, scheme: str) -> Finding:
    said = f"the unknown scheme {scheme}://" if scheme else "no scheme"
    return Finding(
        Severity.WARNING,
        f"{proxy.variable} has {said}: Python's clients stop before they send anything",
        Fix(
            "Write it as http://…, or as socks5://… with the package socksio installed.",
            (f"unset {proxy.variable}",),
            here(facts),
        ),
        subject=proxy.variable,
        evidence=(f"{proxy.variable}={proxy.url}",),
        confidence=Confidence.LIKELY,
    )


def _elsewhere(facts: Facts) -> str:
    """What an address of the machine itself means on this side, "" where it is what the user means."""
    if is_in_container(facts):
        return "the container itself, not the host"
    if platform_of(facts) is not Platform.WSL2:
        return ""
    settings = system_of(facts).wsl_settings
    if isinstance(settings, WslSettings) and settings.networking == "mirrored":
        return ""
    return "the WSL guest itself, not Windows"


@check(
    "HUB005",
    "The certificates that variables name are there",
    covers=("K02", "E12"),
    symptoms=("OSError: Could not find a suitable TLS CA certificate bundle, invalid path",),
    causes=("HUB007", "HUB008"),
)
def certificates_are_there(facts: Facts) -> Iterator[Finding]:
    """The file of each certificate variable exists on this side.

    Why it matters: a company's bundle is named in the shell, and the variable is passed into a container or kept after
    the file moved. Every https request then fails, before it is sent.
    How it is seen: REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE and SSL_CERT_FILE against the files.
    Source: psf/requests, adapters.py, `cert_verify`; Python, `ssl.get_default_verify_paths`.
    """
    for bundle in known(_hub(facts).ca_bundles):
        if not bundle.exists:
            yield Finding(
                Severity.WARNING,
                f"{bundle.variable} names {bundle.path}, which does not exist here: https requests of Python fail",
                Fix(
                    "Bring the file to this side, or remove the variable.",
                    (f"unset {bundle.variable}",),
                    here(facts),
                ),
                subject=bundle.path,
                evidence=(f"{bundle.variable}={bundle.path}", "no such file"),
                confidence=Confidence.LIKELY,
            )


@check(
    "HUB006",
    "Fast downloads have their package",
    covers=("K02",),
    symptoms=(
        "ValueError: Fast download using 'hf_transfer' is enabled (HF_HUB_ENABLE_HF_TRANSFER=1) but 'hf_transfer'"
        " package is not available in your environment",
    ),
)
def fast_downloads_have_package(facts: Facts) -> Iterator[Finding]:
    """Where HF_HUB_ENABLE_HF_TRANSFER is set, the package hf_transfer is installed.

    Why it matters: before huggingface_hub 1.0 the variable is an order, not a wish: without the package every download
    of a large file fails.
    How it is seen: the variable, and the packages of the workload's Python by their metadata.
    Source: huggingface_hub 0.x, file_download.py, `http_get`; huggingface_hub 1.0 has no hf_transfer any more.
    """
    if not known(_hub(facts).wants_hf_transfer):
        return
    packages = {package.name: package.version for package in python_of(facts).packages}
    if "huggingface-hub" not in packages:
        raise NotApplicable("huggingface_hub is not installed in this Python")
    version = packages["huggingface-hub"]
    if "hf-transfer" in packages or Release.read(version) >= FIRST_HUB_WITH_HTTPX:
        return
    yield Finding(
        Severity.ERROR,
        "HF_HUB_ENABLE_HF_TRANSFER is set, but hf_transfer is not installed: downloads of large files fail",
        Fix(
            "Install the package, or remove the variable.",
            ("pip install hf_transfer", "unset HF_HUB_ENABLE_HF_TRANSFER"),
            here(facts),
            docs=ENVIRONMENT_GUIDE,
        ),
        evidence=("HF_HUB_ENABLE_HF_TRANSFER is set", f"huggingface_hub {version}, no hf_transfer"),
    )
