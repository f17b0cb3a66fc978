"""Checks of the access to the model hub: variables, token, proxies, certificates, and its answers with --deep."""

from collections.abc import Iterator

from devkit.doctor.model import check
from devkit.doctor.preconditions import find_platform, is_in_container, require, skip_if
from devkit.doctor.problems import Problem, problem
from devkit.doctor.thresholds import CLOCK_SKEW_S
from devkit.facts.machine import Platform
from devkit.facts.model import Facts
from devkit.facts.runs import Hub, HubCall
from devkit.facts.values import Release, Unknown

_FIRST_HUB_WITH_HTTPX = Release.parse("1.0")
"""From here on huggingface_hub asks by httpx, and knows no hf_transfer. Source: huggingface_hub, migration to 1.0."""
_LOOPBACK = ("localhost", "127.", "[::1]", "0.0.0.0")  # noqa: S104 - read, not bound
_SCHEMES = ("http", "https", "socks5", "socks5h", "socks4", "socks4a")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY_REQUESTS = 401, 403, 404, 429
_PROXY_AUTHENTICATION = 407
_KNOWN_FAILURES = ("name", "refused", "timed-out", "certificate", "proxy", "unreachable")


@check("HUB001", causes=("HUB007", "HUB008"))
def hub_is_online(facts: Facts) -> Iterator[Problem]:
    hub = require(facts.hub)
    if not hub.is_offline:
        return
    caches = () if isinstance(facts.storage, Unknown) else facts.storage.directories
    has_cache = any(directory.purpose == "hub cache" and directory.exists for directory in caches)
    variable = require(hub.offline_by)
    yield problem(
        "offline" if has_cache else "offline-without-cache", variable=variable, evidence=(f"{variable} is set",)
    )


@check("HUB002", causes=("HUB007", "HUB008"))
def hub_endpoint_is_a_url(facts: Facts) -> Iterator[Problem]:
    endpoint = require(facts.hub).endpoint
    scheme, separator, rest = endpoint.partition("://")
    if not endpoint or (separator and scheme in ("http", "https") and rest.strip("/")):
        return
    corrected = f"https://{(rest or scheme).strip('/')}"
    yield problem("no-address", endpoint=endpoint, corrected=corrected, evidence=(f"HF_ENDPOINT={endpoint}",))


@check("HUB003", causes=("HUB008",))
def hub_token_is_well_formed(facts: Facts) -> Iterator[Problem]:
    hub = require(facts.hub)
    fault = require(hub.token_problem)
    if not hub.token_from or not fault:
        return
    kept_in = "file" if hub.token_from == "file" else "variable"  # noqa: S105 - a place, no token
    place = require(hub.token_path) if kept_in == "file" else hub.token_from
    evidence = (f"the token comes from {place}: {fault}",)
    yield problem("no-token", place=place, kept_in=kept_in, fault=fault, subject=place, evidence=evidence)


@check("HUB004", causes=("HUB007", "HUB008"))
def proxies_are_usable(facts: Facts) -> Iterator[Problem]:
    settings = require(facts.system).wsl_settings if find_platform(facts) is Platform.WSL2 else None
    for proxy in require(require(facts.hub).proxies):
        scheme, separator, rest = proxy.url.partition("://")
        host = rest if separator else scheme
        if not separator or scheme.lower() not in _SCHEMES:
            name = "unknown-scheme" if separator and scheme else "no-scheme"
        elif not host.lower().startswith(_LOOPBACK):
            continue
        elif is_in_container(facts):
            name = "container-itself"
        elif find_platform(facts) is Platform.WSL2 and getattr(settings, "networking", "") != "mirrored":
            name = "guest-itself"
        else:
            continue  # the machine itself is what the user means
        yield problem(
            name,
            variable=proxy.variable,
            url=proxy.url,
            scheme=scheme,
            subject=proxy.variable,
            evidence=(f"{proxy.variable}={proxy.url}",),
        )


@check("HUB005", causes=("HUB007", "HUB008"))
def certificates_exist(facts: Facts) -> Iterator[Problem]:
    for bundle in require(require(facts.hub).ca_bundles):
        if not bundle.exists:
            yield problem(
                "missing",
                variable=bundle.variable,
                path=bundle.path,
                evidence=(f"{bundle.variable}={bundle.path}", "no such file"),
            )


@check("HUB006")
def hf_transfer_is_installed(facts: Facts) -> Iterator[Problem]:
    if not require(require(facts.hub).wants_hf_transfer):
        return
    packages = {package.name: package.version for package in require(facts.python).packages}
    skip_if("huggingface-hub" not in packages, "huggingface_hub is not installed in this Python")
    version = packages["huggingface-hub"]
    if "hf-transfer" not in packages and Release.parse(version) < _FIRST_HUB_WITH_HTTPX:
        evidence = ("HF_HUB_ENABLE_HF_TRANSFER is set", f"huggingface_hub {version}, no hf_transfer")
        yield problem("missing", evidence=evidence)


def _require_hub_call(facts: Facts) -> HubCall:
    return require(require(facts.deep).hub)


@check("HUB007", causes=("HUB008",))
def hub_answers(facts: Facts) -> Iterator[Problem]:
    call = _require_hub_call(facts)
    if not call.failure and call.status != _PROXY_AUTHENTICATION:
        return
    hub = facts.hub
    proxies = () if not isinstance(hub, Hub) or isinstance(hub.proxies, Unknown) else hub.proxies
    failure = call.failure or "proxy"
    yield problem(
        failure if failure in _KNOWN_FAILURES else "other-error",
        url=call.url,
        error=call.message,
        subject=call.url,
        evidence=(
            f"HEAD {call.url}: {call.message or call.status} after {call.took_ms} ms",
            *(f"{proxy.variable}={proxy.url}" for proxy in proxies),
        ),
    )


@check("HUB008")
def hub_grants_the_model(facts: Facts) -> Iterator[Problem]:
    call = _require_hub_call(facts)
    if call.token_status == _UNAUTHORIZED:
        yield problem("token-refused", evidence=(f"whoami: status {call.token_status}",))
    if not call.model or isinstance(call.model_status, Unknown):
        return
    error = call.model_error if isinstance(call.model_error, str) else ""
    name = {
        _UNAUTHORIZED: "unknown-model",
        _NOT_FOUND: "unknown-model",
        _FORBIDDEN: "address-refused",
        _TOO_MANY_REQUESTS: "too-many-requests",
    }.get(call.model_status, "")
    if error == "GatedRepo":
        has_token = not isinstance(call.token_status, Unknown) and call.token_status < _UNAUTHORIZED
        name = "gated" if has_token else "gated-without-token"
    if name:
        evidence = f"HEAD {call.model}/resolve/main/config.json: {call.model_status} {error}".strip()
        yield problem(name, model=call.model, subject=call.model, evidence=(evidence,))


@check("HUB009")
def clock_agrees_with_hub(facts: Facts) -> Iterator[Problem]:
    ahead = require(_require_hub_call(facts).clock_ahead_s)
    if abs(ahead) > CLOCK_SKEW_S:
        evidence = (f"this clock minus the Date header: {ahead} s",)
        yield problem("ahead" if ahead > 0 else "behind", seconds=abs(ahead), evidence=evidence)
