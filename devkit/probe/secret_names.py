"""Which names and values are secrets, so that none of them ever becomes a fact."""

import re

from devkit.facts.project_parts import Origin, Variable
from devkit.facts.redact import SECRETS

_SECRET_WORDS = frozenset({"TOKEN", "SECRET", "APIKEY", "CREDENTIAL", "CREDENTIALS"})
_KEY_WORDS = frozenset({"API", "ACCESS", "SECRET", "PRIVATE", "AUTH"})
_NO_SECRET_ENDS = frozenset({"PATH", "FILE", "DIR", "URL", "URI", "NAME", "ID", "TYPE", "TTL", "LIMIT", "ENDPOINT"})

HARMLESS = frozenset(
    {
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN_PATH",
        "TRANSFORMERS_CACHE",
        "LD_LIBRARY_PATH",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DISABLE_REQUIRE",
        "CUDA_VISIBLE_DEVICES",
        "TORCH_CUDA_ARCH_LIST",
        "UV_TORCH_BACKEND",
        "HOME",
    }
)
"""Variables whose value matters for GPUs and holds no secret."""

_STAND_IN = re.compile(r"^(?:|x+|\*+|\.+|<.*>|.*(?:change[-_ ]?me|your[-_ ]|placeholder|example|dummy|todo).*)$", re.I)
_ASSIGNED = re.compile(r"(?P<name>\b[A-Za-z_]\w*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"']+)")


def names_secret(name: str) -> bool:
    """Whether a variable's name says that it holds a token or key: HF_TOKEN, WANDB_API_KEY; not HF_TOKEN_PATH."""
    words = re.split(r"[_\W]+", name.upper())
    if words[-1] in _NO_SECRET_ENDS:
        return False
    has_key = "KEY" in words and any(word in _KEY_WORDS for word in words)
    return has_key or any(word in _SECRET_WORDS for word in words)


def holds_token(text: str) -> bool:
    """Whether a text has the shape of an access token in it."""
    return any(shape.search(text) for shape in SECRETS)


def shown(text: str) -> str:
    """`text` with tokens and the values of variables that are named like secrets blanked."""
    for shape in SECRETS:
        text = shape.sub("…", text)
    return _ASSIGNED.sub(lambda found: f"{found['name']}=…" if names_secret(found["name"]) else found[0], text)


def variable(name: str, value: str | None, *, place: str, path: str, line: int) -> Variable:
    """A variable without its value, unless the name is one that never holds a secret. None: the host's value."""
    text = "" if value is None else value.strip()
    if value is None or "$" in text:
        origin = Origin.VARIABLE
    else:
        origin = Origin.EMPTY if _STAND_IN.match(text) else Origin.LITERAL
    return Variable(
        name=name,
        place=place,
        path=path,
        line=line,
        origin=origin,
        value=shown(text) if name in HARMLESS else "",
        names_secret=names_secret(name),
        holds_token=holds_token(text),
    )


def matters(found: Variable) -> bool:
    """Whether a variable belongs into the facts: one that is about GPUs and caches, or about secrets."""
    return found.name in HARMLESS or found.names_secret or found.holds_token
