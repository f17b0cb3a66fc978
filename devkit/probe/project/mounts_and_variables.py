"""Mounts and environment variables, as dev containers, docker run and Compose write them; no secret becomes a fact."""

import re
from collections.abc import Mapping
from dataclasses import replace

from devkit.facts.project import Mount, Origin, Variable
from devkit.facts.secrets import contains_token, redact_tokens
from devkit.probe.documents import DocumentNode
from devkit.probe.project.files import ProjectFiles

CDI_GPU = re.compile(r"^nvidia\.com/(?:gpu|mig\S*)=\S+")
_SPLIT = re.compile(r":(?![^{]*\})")
_LOCAL = re.compile(r"\$\{(?:localEnv|env):(\w+)(?::([^}]*))?\}")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?[^}]*\}|\$(\w+)")
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")

# Secrets by name and by value.
_SECRET_WORDS = frozenset({"TOKEN", "SECRET", "APIKEY", "CREDENTIAL", "CREDENTIALS"})
_KEY_WORDS = frozenset({"API", "ACCESS", "SECRET", "PRIVATE", "AUTH"})
_NO_SECRET_ENDS = frozenset({"PATH", "FILE", "DIR", "URL", "URI", "NAME", "ID", "TYPE", "TTL", "LIMIT", "ENDPOINT"})
HARMLESS_VARIABLES = frozenset(
    (
        *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "TRANSFORMERS_CACHE", "LD_LIBRARY_PATH"),
        *("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DISABLE_REQUIRE", "CUDA_VISIBLE_DEVICES"),
        *("TORCH_CUDA_ARCH_LIST", "UV_TORCH_BACKEND", "PIP_CONSTRAINT", "UV_CONSTRAINT", "HOME"),
    )
)
"""Variables whose value matters for GPUs and holds no secret."""
_STAND_IN = re.compile(r"^(?:|x+|\*+|\.+|<.*>|.*(?:change[-_ ]?me|your[-_ ]|placeholder|example|dummy|todo).*)$", re.I)


def parse_mount_node(node: DocumentNode, files: ProjectFiles) -> Mount | None:
    """Parse a mount from an item of a list: text, or an object with type, source and target."""
    if node.fields:
        mount = build_mount(
            files,
            kind=node.at("type").text or "volume",
            source=node.at("source").text or node.at("src").text,
            target=node.at("target").text or node.at("dst").text,
            path=node.file,
            line=node.line,
        )
        return mount and replace(mount, is_read_only=node.at("read_only").text == "true")
    return parse_mount(node.text, files, path=node.file, line=node.line) if node.is_scalar else None


def build_variable(name: str, value: str | None, *, place: str, path: str, line: int) -> Variable:
    """Build a variable without its value, unless the name never holds a secret. None means the host's value."""
    text = "" if value is None else value.strip()
    is_variable = value is None or "$" in text
    origin = Origin.VARIABLE if is_variable else Origin.EMPTY if _STAND_IN.match(text) else Origin.LITERAL
    return Variable(
        name=name,
        place=place,
        path=path,
        line=line,
        origin=origin,
        value=redact_tokens(text) if name in HARMLESS_VARIABLES else "",
        names_secret=is_secret_name(name),
        holds_token=contains_token(text),
    )


def is_relevant(found: Variable) -> bool:
    """Return whether a variable belongs in the facts: one about GPUs, caches or secrets."""
    return found.name in HARMLESS_VARIABLES or found.names_secret or found.holds_token


def parse_mount(text: str, files: ProjectFiles, *, path: str, line: int) -> Mount | None:
    """Parse a mount from `type=bind,source=…,target=…` or `source:target:options`; None without a target."""
    if "target=" in text or "dst=" in text or "destination=" in text:
        pairs = dict(part.partition("=")[::2] for part in text.split(","))
        target = pairs.get("target") or pairs.get("dst") or pairs.get("destination") or ""
        kind, source = pairs.get("type", "volume"), pairs.get("source") or pairs.get("src") or ""
        is_read_only = not {"readonly", "ro"}.isdisjoint(pairs)
    else:
        drive = text[:2] if _DRIVE.match(text) else ""
        parts = _SPLIT.split(text.removeprefix(drive))
        source, target = (drive + parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
        kind = "bind" if source and (drive or source.startswith(("/", ".", "~", "$"))) else "volume"
        named = replace_variables(source, files.host.env)
        if re.fullmatch(r"\w[\w.-]*", named):  # by its variable or default
            kind, source = "volume", named
        is_read_only = "ro" in parts[-1].split(",") and len(parts) > 2
    mount = build_mount(files, kind=kind, source=source, target=target, path=path, line=line)
    return mount and replace(mount, is_read_only=is_read_only)


def build_mount(files: ProjectFiles, *, kind: str, source: str, target: str, path: str, line: int) -> Mount | None:
    """Build a mount with what is known of its source on this side; None without a target."""
    if not target:
        return None
    exists, owner = None, None
    real = _real(source, files, beside=path) if kind == "bind" else None
    if real is not None:
        found = files.host.stat(real)
        exists, owner = found is not None, found.uid if found else None
    return Mount(kind, source, target, path, line, exists, owner)


def replace_variables(text: str, values: Mapping[str, str]) -> str:
    """Replace variables as Compose does; one without value or default stays as written."""
    return _VARIABLE.sub(lambda found: values.get(found[1] or found[3], "") or found[2] or found[0], text)


def _real(source: str, files: ProjectFiles, *, beside: str) -> str | None:
    """The absolute path of a bind mount's source, None when a variable that is not set here decides."""
    env = files.host.env
    text = source.replace("${localWorkspaceFolder}", files.folder)
    text = _LOCAL.sub(lambda found: env.get(found[1], "") or found[2] or "", text)
    text = replace_variables(text, env)
    if text.startswith("~/"):
        text = f"{env.get('HOME', '')}{text[1:]}"
    if "$" in text or not text:
        return None
    if text.startswith("/") or _DRIVE.match(text):
        return text
    return files.absolute(f"{beside.rpartition('/')[0] or '.'}/{text}")


def is_secret_name(name: str) -> bool:
    """Return whether a variable is named like a token or key: HF_TOKEN, WANDB_API_KEY; not HF_TOKEN_PATH."""
    words = re.split(r"[_\W]+", name.upper())
    if words[-1] in _NO_SECRET_ENDS:
        return False
    has_key = "KEY" in words and any(word in _KEY_WORDS for word in words)
    return has_key or any(word in _SECRET_WORDS for word in words)
