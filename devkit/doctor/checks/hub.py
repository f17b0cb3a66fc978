"""Checks of the access to the model hub: variables, token, proxies, certificates, and its answers with --deep."""

from collections.abc import Iterator, Mapping
from shlex import quote

from devkit.doctor.model import Confidence, Finding, Fix, NotApplicable, Severity, Side, check
from devkit.doctor.preconditions import (
    find_platform,
    is_in_container,
    is_in_wsl,
    require,
    require_python,
    require_system,
)
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.doctor.wheels import find_workload_side
from devkit.facts.model import Facts, Hub, HubCall, Platform, WslSettings
from devkit.facts.values import Release, Unknown

_ENVIRONMENT_GUIDE = "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables"

_TOKEN_GUIDE = "https://huggingface.co/docs/hub/security-tokens"  # noqa: S105 - a page about tokens

_FIRST_HUB_WITH_HTTPX = Release.parse("1.0")
"""From here on huggingface_hub asks by httpx, and knows no hf_transfer. Source: huggingface_hub, migration to 1.0."""

_LOOPBACK = ("localhost", "127.", "[::1]", "0.0.0.0")  # noqa: S104 - read, not bound

_SCHEMES = ("http", "https", "socks5", "socks5h", "socks4", "socks4a")

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY_REQUESTS = 401, 403, 404, 429

_PROXY_AUTHENTICATION = 407

_REASONS: Mapping[str, tuple[str, str]] = {
    "name": (
        "its name is not known to this side's name servers",
        "Check the name servers; a VPN often brings its own.",
    ),
    "refused": ("the connection is refused", "Check the proxy and the firewall."),
    "timed-out": ("it does not answer in time", "Check the proxy and the firewall: one that drops says nothing."),
    "certificate": (
        "its certificate is not trusted",
        "Where a company's proxy opens TLS, name its certificate in REQUESTS_CA_BUNDLE and SSL_CERT_FILE.",
    ),
    "proxy": ("the proxy refuses", "Check the proxy's address and login in the variables."),
    "unreachable": ("the network is not reachable", "Check the network of this side; a container may have none."),
}


def _require_hub(facts: Facts) -> Hub:
    return require(facts.hub)


@check("HUB001", causes=("HUB007", "HUB008"))
def hub_is_online(facts: Facts) -> Iterator[Finding]:
    hub = _require_hub(facts)
    if not hub.is_offline:
        return
    caches = [] if isinstance(facts.storage, Unknown) else facts.storage.directories
    has_cache = any(directory.purpose == "hub cache" and directory.exists for directory in caches)
    variable = require(hub.offline_by)
    yield Finding(
        Severity.NOTE if has_cache else Severity.WARNING,
        f"{variable} keeps the hub library offline: only models in the cache can be loaded"
        if has_cache
        else f"{variable} keeps the hub library offline, and there is no cache: no model can be loaded",
        Fix(
            "Remove the variable for the first download.",
            (f"unset {quote(variable)}",),
            find_workload_side(facts),
            docs=_ENVIRONMENT_GUIDE,
        ),
        evidence=(f"{variable} is set",),
        confidence=Confidence.LIKELY,
    )


@check("HUB002", causes=("HUB007", "HUB008"))
def hub_endpoint_is_a_url(facts: Facts) -> Iterator[Finding]:
    endpoint = _require_hub(facts).endpoint
    if not endpoint:
        return
    scheme, separator, rest = endpoint.partition("://")
    if separator and scheme in ("http", "https") and rest.strip("/"):
        return
    corrected = f"https://{(rest or scheme).strip('/')}"
    yield Finding(
        Severity.ERROR,
        f"HF_ENDPOINT is {endpoint!r}, which is no address: no model can be downloaded",
        Fix(
            "Write it with its scheme, or remove it to use the hub itself.",
            (f"export HF_ENDPOINT={quote(corrected)}", "unset HF_ENDPOINT"),
            find_workload_side(facts),
            docs=_ENVIRONMENT_GUIDE,
        ),
        evidence=(f"HF_ENDPOINT={endpoint}",),
    )


@check("HUB003", causes=("HUB008",))
def hub_token_is_well_formed(facts: Facts) -> Iterator[Finding]:
    hub = _require_hub(facts)
    problem = require(hub.token_problem)
    if not hub.token_from or not problem:
        return
    place = require(hub.token_path) if hub.token_from == "file" else hub.token_from  # noqa: S105 - a place, no token
    yield Finding(
        Severity.WARNING,
        f"the hub token in {place} cannot be one: {problem}; gated models, and even public ones, are refused",
        Fix(
            "Make a token with read access, and pass it into the container by secret or remoteEnv, never by ENV.",
            ("hf auth login",) if hub.token_from == "file" else (f"unset {quote(hub.token_from)}",),  # noqa: S105
            find_workload_side(facts),
            docs=_TOKEN_GUIDE,
        ),
        subject=place,
        evidence=(f"the token comes from {place}: {problem}",),
        confidence=Confidence.LIKELY,
    )


@check("HUB004", causes=("HUB007", "HUB008"))
def proxies_are_usable(facts: Facts) -> Iterator[Finding]:
    for proxy in require(_require_hub(facts).proxies):
        scheme, separator, rest = proxy.url.partition("://")
        host = rest if separator else scheme
        if not separator or scheme.lower() not in _SCHEMES:
            scheme_name = f"the unknown scheme {scheme}://" if separator and scheme else "no scheme"
            yield Finding(
                Severity.WARNING,
                f"{proxy.variable} has {scheme_name}: Python's clients stop before they send anything",
                Fix(
                    "Write it as http://…, or as socks5://… with the package socksio installed.",
                    (f"unset {quote(proxy.variable)}",),
                    find_workload_side(facts),
                ),
                subject=proxy.variable,
                evidence=(f"{proxy.variable}={proxy.url}",),
                confidence=Confidence.LIKELY,
            )
        elif host.lower().startswith(_LOOPBACK) and (problem := _describe_loopback(facts)):
            yield Finding(
                Severity.WARNING,
                f"{proxy.variable} points to {proxy.url}, which here is {problem}",
                Fix(
                    "Name the proxy as it is reached from this side, or remove the variable.",
                    (f"unset {quote(proxy.variable)}",),
                    find_workload_side(facts),
                ),
                subject=proxy.variable,
                evidence=(f"{proxy.variable}={proxy.url}",),
                confidence=Confidence.POSSIBLE,
            )


def _describe_loopback(facts: Facts) -> str:
    """What an address of the machine itself means on this side, "" where it is what the user means."""
    if is_in_container(facts):
        return "the container itself, not the host"
    if find_platform(facts) is not Platform.WSL2:
        return ""
    settings = require_system(facts).wsl_settings
    if isinstance(settings, WslSettings) and settings.networking == "mirrored":
        return ""
    return "the WSL guest itself, not Windows"


@check("HUB005", causes=("HUB007", "HUB008"))
def certificates_exist(facts: Facts) -> Iterator[Finding]:
    for bundle in require(_require_hub(facts).ca_bundles):
        if not bundle.exists:
            yield Finding(
                Severity.WARNING,
                f"{bundle.variable} names {bundle.path}, which does not exist here: https requests of Python fail",
                Fix(
                    "Bring the file to this side, or remove the variable.",
                    (f"unset {quote(bundle.variable)}",),
                    find_workload_side(facts),
                ),
                subject=bundle.path,
                evidence=(f"{bundle.variable}={bundle.path}", "no such file"),
                confidence=Confidence.LIKELY,
            )


@check("HUB006")
def hf_transfer_is_installed(facts: Facts) -> Iterator[Finding]:
    if not require(_require_hub(facts).wants_hf_transfer):
        return
    packages = {package.name: package.version for package in require_python(facts).packages}
    if "huggingface-hub" not in packages:
        raise NotApplicable("huggingface_hub is not installed in this Python")
    version = packages["huggingface-hub"]
    if "hf-transfer" in packages or Release.parse(version) >= _FIRST_HUB_WITH_HTTPX:
        return
    yield Finding(
        Severity.ERROR,
        "HF_HUB_ENABLE_HF_TRANSFER is set, but hf_transfer is not installed: downloads of large files fail",
        Fix(
            "Install the package, or remove the variable.",
            ("pip install hf_transfer", "unset HF_HUB_ENABLE_HF_TRANSFER"),
            find_workload_side(facts),
            docs=_ENVIRONMENT_GUIDE,
        ),
        evidence=("HF_HUB_ENABLE_HF_TRANSFER is set", f"huggingface_hub {version}, no hf_transfer"),
    )


def _require_hub_call(facts: Facts) -> HubCall:
    return require(require(facts.deep).hub)


@check("HUB007", causes=("HUB008",))
def hub_answers(facts: Facts) -> Iterator[Finding]:
    call = _require_hub_call(facts)
    if not call.failure and call.status != _PROXY_AUTHENTICATION:
        return
    hub = facts.hub
    proxies = () if not isinstance(hub, Hub) or isinstance(hub.proxies, Unknown) else hub.proxies
    why, what = _REASONS.get(call.failure or "proxy", (call.message, "Check the network of this side."))
    yield Finding(
        Severity.ERROR,
        f"the model hub cannot be reached at {call.url}: {why}",
        Fix(what, (f"curl -sSI {quote(call.url)} | head -1",), find_workload_side(facts)),
        subject=call.url,
        evidence=(
            f"HEAD {call.url}: {call.message or call.status} after {call.took_ms} ms",
            *(f"{proxy.variable}={proxy.url}" for proxy in proxies),
        ),
    )


@check("HUB008")
def hub_grants_the_model(facts: Facts) -> Iterator[Finding]:
    call = _require_hub_call(facts)
    if call.token_status == _UNAUTHORIZED:
        yield Finding(
            Severity.ERROR,
            "the hub refuses the token: with it, even public models cannot be downloaded",
            Fix(
                "Make a new token with read access, and log in again.",
                ("hf auth login",),
                find_workload_side(facts),
                docs=_TOKEN_GUIDE,
            ),
            evidence=(f"whoami: status {call.token_status}",),
        )
    yield from _find_model_problems(facts, call)


def _find_model_problems(facts: Facts, call: HubCall) -> Iterator[Finding]:
    status = call.model_status
    if not call.model or isinstance(status, Unknown):
        return
    error = call.model_error if isinstance(call.model_error, str) else ""
    evidence = (f"HEAD {call.model}/resolve/main/config.json: {status} {error}".strip(),)
    if error == "GatedRepo":
        has_token = not isinstance(call.token_status, Unknown) and call.token_status < _UNAUTHORIZED
        yield Finding(
            Severity.NOTE if has_token else Severity.ERROR,
            f"{call.model} is gated: the account of your token must have accepted its license"
            if has_token
            else f"{call.model} is gated, and there is no token here: it cannot be downloaded",
            Fix(
                "Accept the license on the model's page, and give the token the right to read gated models. Pass it"
                " into the container by secret or remoteEnv.",
                () if has_token else ("hf auth login",),
                find_workload_side(facts),
                docs=f"https://huggingface.co/{call.model}",
            ),
            subject=call.model,
            evidence=evidence,
        )
    elif status in (_UNAUTHORIZED, _NOT_FOUND):
        yield Finding(
            Severity.WARNING,
            f"the hub knows no public model {call.model}: it is misspelled, private, or has no config.json",
            Fix("Check the name on the hub; a private model needs a token that may read it.", (), Side.PROJECT),
            subject=call.model,
            evidence=evidence,
            confidence=Confidence.LIKELY,
        )
    elif status in (_FORBIDDEN, _TOO_MANY_REQUESTS):
        why = "refuses this address" if status == _FORBIDDEN else "got too many requests from this address"
        yield Finding(
            Severity.WARNING,
            f"the hub {why}: {call.model} cannot be downloaded now",
            Fix(
                "Log in, which lifts the limit for anonymous downloads; else wait.",
                ("hf auth login",),
                find_workload_side(facts),
            ),
            subject=call.model,
            evidence=evidence,
            confidence=Confidence.LIKELY,
        )


@check("HUB009")
def clock_agrees_with_hub(facts: Facts) -> Iterator[Finding]:
    ahead = require(_require_hub_call(facts).clock_ahead_s)
    if abs(ahead) <= CLOCK_SKEW_S.value:
        return
    in_wsl = is_in_wsl(facts)
    yield Finding(
        Severity.WARNING,
        f"this clock is {abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the hub's: signed downloads are refused",
        Fix(
            "Set the clock of the guest from the hardware's." if in_wsl else "Let the host keep its clock by NTP.",
            ("sudo hwclock -s",) if in_wsl else ("sudo timedatectl set-ntp true",),
            Side.WSL if in_wsl else Side.HOST,
            root=True,
        ),
        evidence=(f"this clock minus the Date header: {ahead} s",),
        confidence=Confidence.LIKELY,
    )
