"""The model hub: the variables, token, proxies and certificates that this process would use, and real requests."""

import re
from urllib.parse import quote

from devkit.facts.runs import CaBundle, Hub, HubCall, Proxy
from devkit.facts.values import Unknown
from devkit.probe.children.protocol import build_child_command, find_last_line, merge_json_lines
from devkit.probe.documents import get_int, get_object, strip_url_credentials
from devkit.probe.host import TIMED_OUT, Host
from devkit.probe.machine.resources import find_hub_cache, find_hub_home

OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
CA_BUNDLE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
TRUE_VALUES = ("1", "ON", "YES", "TRUE")
"""Source: huggingface_hub, constants.py, `ENV_VARS_TRUE_VALUES`."""
_TOKEN = re.compile(r"(?:hf|api_org|hf_oauth)_[A-Za-z0-9._-]{8,}")
_PLACEHOLDER = re.compile(r"(?i)[$<>{}*]|your|token|change.?me|replace|xxx")
_FILLER = re.compile(r"(.)\1{5}")
_SHORTEST = 30

# Real requests to the hub, for the deep tier alone.
HUB_URL = "https://huggingface.co"
MODEL_VARIABLES = ("HF_MODEL_ID", "MODEL_ID")
"""Variables with which serving images and training jobs name their model."""


def read_hub_call(host: Host, *, deadline_s: float) -> HubCall | Unknown:
    """Read how the hub answered within `deadline_s` seconds; Unknown where the hub is switched off."""
    hub = read_hub(host)
    if hub.is_offline:
        return Unknown(f"{hub.offline_by} switches the hub off")
    endpoint = (host.env.get("HF_ENDPOINT") or HUB_URL).strip().rstrip("/")
    # A repository on the hub, and not a folder.
    named = (host.env.get(name, "") for name in MODEL_VARIABLES)
    named = (name for name in named if name.count("/") == 1 and not name.startswith((".", "/", "~")))
    model = next((name for name in named if name.isprintable() and " " not in name), "")
    done = host.run(build_child_command(host, "ask_hub", endpoint, find_token_path(host), model), deadline_s=deadline_s)
    reply = merge_json_lines(done)
    door = reply.get("door")
    if not isinstance(door, dict):
        if done.code == TIMED_OUT:
            message = f"no answer within {deadline_s:g} s"
            door = {"status": 0, "failure": "timed-out", "message": message, "took_ms": round(deadline_s * 1000)}
        else:
            return Unknown(f"the hub child ended with status {done.code}: {find_last_line(done)}")
    shown, token, ahead = get_object(reply, "model"), get_int(reply, "token"), get_int(door, "ahead_s")
    no_model = Unknown("no model was given")
    return HubCall(
        url=strip_url_credentials(endpoint),
        status=get_int(door, "status") or 0,
        failure=str(door.get("failure", "")),
        message=str(door.get("message", "")),
        took_ms=get_int(door, "took_ms") or 0,
        clock_ahead_s=Unknown("the answer has no date") if ahead is None else ahead,
        token_status=token or Unknown("no token was sent"),
        model=model,
        model_status=(get_int(shown, "status") or 0) if shown.get("status") else no_model,
        model_error=str(shown.get("error", "")) if shown.get("status") else no_model,
    )


def read_hub(host: Host) -> Hub:
    """Read the settings of huggingface_hub as it would itself; of a token only its source."""
    variable = next((name for name in TOKEN_VARIABLES if host.env.get(name, "").strip()), "")
    path = find_token_path(host)
    token = host.env.get(variable, "") if variable else host.read(path) or ""
    offline = next((name for name in OFFLINE_VARIABLES if host.env.get(name)), "")
    is_offline = is_enabled(host, offline)
    return Hub(
        endpoint=strip_url_credentials(host.env.get("HF_ENDPOINT", "").strip()),
        is_offline=is_offline,
        token_from=variable or ("file" if token.strip() else ""),
        offline_by=offline if is_offline else "",
        token_problem=_token_problem(token.strip()),
        token_path=path,
        wants_hf_transfer=is_enabled(host, "HF_HUB_ENABLE_HF_TRANSFER"),
        proxies=tuple(
            Proxy(name, strip_url_credentials(host.env[name])) for name in PROXY_VARIABLES if host.env.get(name)
        ),
        ca_bundles=tuple(
            CaBundle(name, host.env[name], host.stat(host.env[name]) is not None)
            for name in CA_BUNDLE_VARIABLES
            if host.env.get(name)
        ),
    )


def read_model_config(host: Host, model: str) -> str | Unknown:
    """Read the config.json of a repository's main branch: from the hub, or from the cache if the hub does not answer."""
    folder = f"{find_hub_cache(host)}/models--{model.replace('/', '--')}"
    cached = host.read(f"{folder}/snapshots/{(host.read(f'{folder}/refs/main') or '').strip()}/config.json")
    hub = read_hub(host)
    if hub.is_offline:
        reason = f"{hub.offline_by} switches the hub off, and the model is not in the cache"
    else:
        from devkit.probe.children import ask_hub

        endpoint = (host.env.get("HF_ENDPOINT") or HUB_URL).strip().rstrip("/")
        text, reason = ask_hub.download(
            f"{endpoint}/{quote(model)}/resolve/main/config.json", endpoint, find_token_path(host)
        )
        cached = text or cached
    return Unknown(reason) if cached is None else cached


def _token_problem(token: str) -> str:
    """Return why `token` cannot be one, without anything of its text."""
    if not token:
        return ""
    if token[0] in "'\"" or token[-1] in "'\"":
        return "it is in quotation marks"
    if any(letter.isspace() for letter in token):
        return "it has a space or a line break in it"
    if _FILLER.search(token):
        return "it is a placeholder"
    if _TOKEN.fullmatch(token):
        return ""
    return "it is a placeholder" if _PLACEHOLDER.search(token) else "" if len(token) >= _SHORTEST else "it is too short"


def is_enabled(host: Host, variable: str) -> bool:
    """Return whether the hub library takes the variable's value for true."""
    return host.env.get(variable, "").upper() in TRUE_VALUES


def find_token_path(host: Host) -> str:
    """Find where the hub library keeps the token: HF_TOKEN_PATH, else beside its cache; "" without a home."""
    home = find_hub_home(host)
    return host.env.get("HF_TOKEN_PATH") or (f"{home}/token" if home else "")
