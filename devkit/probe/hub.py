"""How this process would reach the model hub: variables, token, proxies, certificates. No request is made."""

import re

from devkit.facts.model import CaBundle, Hub, Proxy
from devkit.probe.engine_traits import without_login
from devkit.probe.host import Host

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
TRUE = ("1", "ON", "YES", "TRUE")
"""Source: huggingface_hub, constants.py, `ENV_VARS_TRUE_VALUES`."""

_TOKEN = re.compile(r"(?:hf|api_org|hf_oauth)_[A-Za-z0-9._-]{8,}")
_STAND_IN = re.compile(r"(?i)[$<>{}*]|your|token|change.?me|replace|xxx")
_FILLER = re.compile(r"(.)\1{5}")
_SHORTEST = 30


def read_hub(host: Host) -> Hub:
    """The settings of huggingface_hub as it would read them itself; of a token only where it comes from."""
    variable = next((name for name in TOKENS if host.env.get(name, "").strip()), "")
    path = token_path(host)
    token = host.env.get(variable, "") if variable else host.read(path) or ""
    offline = next((name for name in OFFLINE if host.env.get(name)), "")
    is_offline = is_true(host, offline)
    return Hub(
        endpoint=without_login(host.env.get("HF_ENDPOINT", "").strip()),
        is_offline=is_offline,
        token_from=variable or ("file" if token.strip() else ""),
        offline_by=offline if is_offline else "",
        token_problem=_token_problem(token.strip()),
        token_path=path,
        wants_hf_transfer=is_true(host, "HF_HUB_ENABLE_HF_TRANSFER"),
        proxies=tuple(Proxy(name, without_login(host.env[name])) for name in PROXIES if host.env.get(name)),
        ca_bundles=tuple(
            CaBundle(name, host.env[name], host.stat(host.env[name]) is not None)
            for name in CA_BUNDLES
            if host.env.get(name)
        ),
    )


def is_true(host: Host, variable: str) -> bool:
    """Whether the hub library takes the variable's value for yes."""
    return host.env.get(variable, "").upper() in TRUE


def token_path(host: Host) -> str:
    """Where the hub library keeps the token: HF_TOKEN_PATH, else beside its cache; "" without a home."""
    env = host.env
    if path := env.get("HF_TOKEN_PATH"):
        return path
    home = env.get("HOME") or env.get("USERPROFILE")
    caches = env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    hub = env.get("HF_HOME") or (f"{caches}/huggingface" if caches else "")
    return f"{hub}/token" if hub else ""


def _token_problem(token: str) -> str:
    """Why `token` cannot be one. The answer holds nothing of it."""
    if not token:
        return ""
    if token[0] in "'\"" or token[-1] in "'\"":
        return "it stands in quotation marks"
    if any(letter.isspace() for letter in token):
        return "it has a space or a line break in it"
    if _FILLER.search(token):
        return "it is a stand-in that nobody filled in"
    if _TOKEN.fullmatch(token):
        return ""
    if _STAND_IN.search(token):
        return "it is a stand-in that nobody filled in"
    return "" if len(token) >= _SHORTEST else "it is too short"
