"""The model hub, really asked: for the deep tier alone."""

from typing import Any

from devkit.facts.model import HubCall
from devkit.facts.values import Unknown
from devkit.probe.children import asking, last_line, lines_of
from devkit.probe.engine_traits import without_login
from devkit.probe.host import TIMED_OUT, Done, Host
from devkit.probe.hub import read_hub, token_path

THE_HUB = "https://huggingface.co"
MODELS = ("HF_MODEL_ID", "MODEL_ID")
"""Variables with which serving images and training jobs name their model."""


def read_hub_call(host: Host, *, deadline_s: float) -> HubCall | Unknown:
    """How the hub answered within `deadline_s` seconds; Unknown where the hub is switched off."""
    hub = read_hub(host)
    if hub.is_offline:
        return Unknown(f"{hub.offline_by} switches the hub off")
    endpoint = (host.env.get("HF_ENDPOINT") or THE_HUB).strip().rstrip("/")
    model = next((value for name in MODELS if _is_model(value := host.env.get(name, ""))), "")
    done = host.run(asking(host, "ask_hub", endpoint, token_path(host), model), deadline_s=deadline_s)
    said = _said(done)
    door = said.get("door")
    if not isinstance(door, dict):
        if done.code == TIMED_OUT:
            message = f"no answer within {deadline_s:g} s"
            door = {"status": 0, "failure": "timed-out", "message": message, "took_ms": round(deadline_s * 1000)}
        else:
            return Unknown(f"the hub child ended with status {done.code}: {last_line(done)}")
    return _call(without_login(endpoint), model, door, said)


def _call(url: str, model: str, door: dict[str, Any], said: dict[str, Any]) -> HubCall:
    shown = said.get("model")
    seen = shown if isinstance(shown, dict) and shown.get("status") else None
    ahead = door.get("ahead_s")
    token = said.get("token")
    return HubCall(
        url=url,
        status=_number(door.get("status")),
        failure=str(door.get("failure", "")),
        message=str(door.get("message", "")),
        took_ms=_number(door.get("took_ms")),
        clock_ahead_s=ahead if isinstance(ahead, int) else Unknown("the answer has no date"),
        token_status=token if isinstance(token, int) and token else Unknown("no token was sent"),
        model=model,
        model_status=_number(seen.get("status")) if seen else Unknown("no model was asked for"),
        model_error=str(seen.get("error", "")) if seen else Unknown("no model was asked for"),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _is_model(name: str) -> bool:
    """Whether the variable names a repository on the hub, and not a folder."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and name.isprintable() and " " not in name


def _said(done: Done) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for words in lines_of(done):
        said.update(words)
    return said
