"""Checks of what the model hub really answered: only with `devkit doctor --deep`."""

from collections.abc import Iterator, Mapping

from devkit.doctor.applies import is_in_wsl, known
from devkit.doctor.checks.hub import TOKEN_GUIDE, here
from devkit.doctor.limits import CLOCK_SKEW_S
from devkit.doctor.model import Confidence, Finding, Fix, Severity, Side, check
from devkit.facts.model import Facts, Hub, HubCall
from devkit.facts.values import Unknown

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_MANY = 401, 403, 404, 429
PROXY_LOGIN = 407

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


def _call(facts: Facts) -> HubCall:
    return known(known(facts.deep).hub)


@check(
    "HUB007",
    "The model hub answers",
    covers=("K02",),
    symptoms=(
        "LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
        "Temporary failure in name resolution",
        "SSLError: certificate verify failed: unable to get local issuer certificate",
        "We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    causes=("HUB008",),
)
def hub_answers(facts: Facts) -> Iterator[Finding]:
    """A request for the hub's front page is answered, through the proxies and with the certificates of this side.

    Why it matters: models that are not in the cache cannot be loaded, and the library's message rarely says why.
    How it is seen: one request with a deadline, in a process of its own; how it ended tells names, proxies,
    certificates and silence apart. Any status but a proxy's refusal counts as an answer.
    Source: huggingface_hub, "Environment variables"; Python, urllib.request.
    """
    call = _call(facts)
    if not call.failure and call.status != PROXY_LOGIN:
        return
    why, what = _REASONS.get(call.failure or "proxy", (call.message, "Check the network of this side."))
    yield Finding(
        Severity.ERROR,
        f"the model hub cannot be reached at {call.url}: {why}",
        Fix(what, (f"curl -sSI {call.url} | head -1",), here(facts)),
        subject=call.url,
        evidence=(f"HEAD {call.url}: {call.message or call.status} after {call.took_ms} ms", *_proxies(facts)),
    )


def _proxies(facts: Facts) -> tuple[str, ...]:
    hub = facts.hub
    if not isinstance(hub, Hub) or isinstance(hub.proxies, Unknown):
        return ()
    return tuple(f"{proxy.variable}={proxy.url}" for proxy in hub.proxies)


@check(
    "HUB008",
    "The hub accepts the token and gives the model",
    covers=("K01",),
    symptoms=(
        "GatedRepoError: 401 Client Error. Cannot access gated repo for url",
        "Access to model is restricted. You must be authenticated to access it",
        "You are trying to access a gated repo",
        "403 Client Error. Your request to access model is awaiting a review from the repo authors",
        "RepositoryNotFoundError: 401 Client Error",
    ),
)
def hub_gives_the_model(facts: Facts) -> Iterator[Finding]:
    """The hub knows the token, and the model that MODEL_ID names is open to whoever asks.

    Why it matters: a gated model needs an account that accepted its licence and a token that may read it; neither is
    in a fresh container. A wrong token shuts out public models too.
    How it is seen: the hub is asked whose token it is, the only request that carries the token, and only at its own
    host; the model's config.json is asked for without it. 401 and the hub's own error name tell gated from unknown.
    Source: huggingface/huggingface_hub issue 2586; skypilot-org/skypilot issue 2634.
    """
    call = _call(facts)
    if call.token_status == UNAUTHORIZED:
        yield Finding(
            Severity.ERROR,
            "the hub refuses the token: with it, even public models cannot be downloaded",
            Fix(
                "Make a new token with read access, and log in again.",
                ("hf auth login",),
                here(facts),
                docs=TOKEN_GUIDE,
            ),
            evidence=(f"whoami: status {call.token_status}",),
        )
    yield from _of_model(facts, call)


def _of_model(facts: Facts, call: HubCall) -> Iterator[Finding]:
    status = call.model_status
    if not call.model or isinstance(status, Unknown):
        return
    error = call.model_error if isinstance(call.model_error, str) else ""
    evidence = (f"HEAD {call.model}/resolve/main/config.json: {status} {error}".strip(),)
    if error == "GatedRepo":
        yield _gated(facts, call, evidence)
    elif status in (UNAUTHORIZED, NOT_FOUND):
        yield Finding(
            Severity.WARNING,
            f"the hub knows no public model {call.model}: it is misspelt, private, or has no config.json",
            Fix("Check the name on the hub; a private model needs a token that may read it.", (), Side.PROJECT),
            subject=call.model,
            evidence=evidence,
            confidence=Confidence.LIKELY,
        )
    elif status in (FORBIDDEN, TOO_MANY):
        why = "refuses this address" if status == FORBIDDEN else "was asked too often from this address"
        yield Finding(
            Severity.WARNING,
            f"the hub {why}: {call.model} cannot be downloaded now",
            Fix("Log in, which lifts the limit for anonymous downloads; else wait.", ("hf auth login",), here(facts)),
            subject=call.model,
            evidence=evidence,
            confidence=Confidence.LIKELY,
        )


def _gated(facts: Facts, call: HubCall, evidence: tuple[str, ...]) -> Finding:
    has_token = not isinstance(call.token_status, Unknown) and call.token_status < UNAUTHORIZED
    return Finding(
        Severity.NOTE if has_token else Severity.ERROR,
        f"{call.model} is gated: the account of your token must have accepted its licence"
        if has_token
        else f"{call.model} is gated, and there is no token here: it cannot be downloaded",
        Fix(
            "Accept the licence on the model's page, and give the token the right to read gated models. Pass it"
            " into the container by secret or remoteEnv.",
            () if has_token else ("hf auth login",),
            here(facts),
            docs=f"https://huggingface.co/{call.model}",
        ),
        subject=call.model,
        evidence=evidence,
    )


@check(
    "HUB009",
    "The clock agrees with the hub's",
    covers=("K05",),
    symptoms=("certificate verify failed: certificate is not yet valid", "RequestTimeTooSkewed"),
)
def clock_agrees_with_hub(facts: Facts) -> Iterator[Finding]:
    """This side's clock tells the time that the hub tells.

    Why it matters: signed download addresses are refused some minutes off, certificates somewhat later.
    How it is seen: the Date header of the hub's answer, or of the proxy's, against the clock.
    Source: RFC 9110, "Date"; microsoft/WSL issue 10006.
    """
    ahead = known(_call(facts).clock_ahead_s)
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
