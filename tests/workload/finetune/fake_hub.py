"""A hub on this machine: folders of models and data sets behind the addresses, codes and headers of huggingface.co.

Source of the headers: huggingface_hub, utils/_http.py, hf_raise_for_status.
"""

import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.loopback import QuietHandler, serving

COMMIT = "1" * 40
IMPATIENT = Path(__file__).parent / "impatient"
ERROR_HEADERS = ("X-Error-Code", "X-Error-Message")
REFUSED = {
    "owner/gated": {"": (401, "GatedRepo"), "stranger": (403, "GatedRepo")},
    "owner/revoked": {"": (403, None), "stranger": (403, None)},
    "owner/busy": {"": (429, None), "stranger": (429, None)},
    "owner/broken": {"": (500, None), "stranger": (500, None)},
    "owner/disabled": {"": (403, "disabled"), "stranger": (403, "disabled")},
    "datasets/owner/gated": {"": (401, "GatedRepo"), "stranger": (403, "GatedRepo")},
    "datasets/owner/revoked": {"": (403, None), "stranger": (403, None)},
    "datasets/owner/busy": {"": (429, None), "stranger": (429, None)},
}
"""Model -> token -> what the hub answers. Everything unknown is 401 to strangers and 404 to an account.

What the hub says about a gated model, its list of files included, is open; its files are not.
"""


@dataclass
class StandIn:
    """`models` maps a hub id to the folder that holds it; ids of data sets begin with datasets/.

    `asked` collects what was requested.
    """

    models: dict[str, Path]
    address: str = ""
    asked: list[str] = field(default_factory=list)


class Handler(QuietHandler):
    """The requests that huggingface_hub makes for a model, answered from folders."""

    stand_in: StandIn

    def do_GET(self):  # noqa: N802
        """Refuse or serve a file, whose size and hash the client asks for first, or what the interface says of a model."""
        path = unquote(urlsplit(self.path).path).strip("/")
        self.stand_in.asked.append(f"{self.command} {path}")
        name, words = named(path)
        refused = self.refusal(name, words)
        if refused:
            headers = {name: value for name, value in zip(ERROR_HEADERS, refused[1:], strict=True) if value}
            self.reply(status=refused[0], headers=headers)
            return
        folder = self.stand_in.models[name]
        if path.startswith("api/"):
            self.reply(json.dumps(listing(folder, (words or ["info"])[0])).encode())
        else:
            file = folder / "/".join(words[2:])
            self.reply(file.read_bytes(), headers={"X-Repo-Commit": COMMIT, "ETag": f'"{oid(file)}"'})

    do_HEAD = do_GET  # noqa: N815 - a name that http.server calls

    def refusal(self, model, rest):
        """Status, error code and message; None where there is nothing to refuse."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token == "forged":
            return 401, None, "Invalid credentials in Authorization header"
        if model in REFUSED and not (model in self.stand_in.models and rest[:1] == ["revision"]):
            status, code = REFUSED[model][token]
            return (
                (status, None, "Access to this resource is disabled.") if code == "disabled" else (status, code, None)
            )
        if model not in self.stand_in.models:
            return 404 if token else 401, "RepoNotFound", None
        if rest[1:2] and rest[1] not in ("main", COMMIT):
            return 404, "RevisionNotFound", None
        if rest[:1] == ["resolve"] and not (self.stand_in.models[model] / "/".join(rest[2:])).is_file():
            return 404, "EntryNotFound", None
        return None


def client_environment(address, cache, *, token="", offline=False):
    """The environment of a process whose client of the hub asks this one, and nobody else, without waiting in between."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    env |= {"HF_ENDPOINT": address, "HF_HOME": f"{cache}", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(IMPATIENT), *filter(None, [env.get("PYTHONPATH")])])
    env |= {"HF_TOKEN": token} if token else {}
    env |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    for proxy in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        env.pop(proxy, None)
    return env


@contextmanager
def hub(models):
    """The hub with these models, until the context ends."""
    stand_in = StandIn(models)
    with serving(type("Handler", (Handler,), {"stand_in": stand_in})) as stand_in.address:
        yield stand_in


def named(path):
    """The id that a path is about, and the words that follow it."""
    words = path.removeprefix("api/").removeprefix("models/").split("/")
    length = 3 if words[0] == "datasets" else 2
    return "/".join(words[:length]), words[length:]


def listing(folder, kind):
    """What the interface says of a model: its tree, or itself."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    if kind == "tree":
        return [
            {"type": "file", "path": f"{each.relative_to(folder)}", "size": each.stat().st_size, "oid": oid(each)}
            for each in files
        ]
    siblings = [{"rfilename": f"{each.relative_to(folder)}"} for each in files]
    return {"id": folder.name, "sha": COMMIT, "siblings": siblings}


def oid(file):
    """The hash by which the hub names a file's content."""
    return hashlib.sha1(file.read_bytes()).hexdigest()
