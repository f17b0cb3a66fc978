"""Mounts as dev containers, docker run and Compose write them, and requests for GPUs in device names."""

import re
from collections.abc import Mapping

from devkit.facts.project_parts import Mount
from devkit.probe.documents import Node
from devkit.probe.project_files import ProjectFiles

CDI_GPU = re.compile(r"^nvidia\.com/(?:gpu|mig\S*)=\S+")
_SPLIT = re.compile(r":(?![^{]*\})")
_LOCAL = re.compile(r"\$\{(?:localEnv|env):(\w+)(?::([^}]*))?\}")
_DEFAULT = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_DRIVE = re.compile(r"^[A-Za-z]:[\\/]")


def mount_of(text: str, files: ProjectFiles, *, path: str, line: int) -> Mount | None:
    """A mount from `type=bind,source=…,target=…` or `source:target:options`; None for what is neither."""
    if "target=" in text or "dst=" in text or "destination=" in text:
        pairs = dict(part.partition("=")[::2] for part in text.split(","))
        target = pairs.get("target") or pairs.get("dst") or pairs.get("destination") or ""
        source = pairs.get("source") or pairs.get("src") or ""
        return made_mount(files, kind=pairs.get("type", "volume"), source=source, target=target, path=path, line=line)
    drive = text[:2] if _DRIVE.match(text) else ""
    parts = _SPLIT.split(text.removeprefix(drive))
    if len(parts) == 1:
        return made_mount(files, kind="volume", source="", target=parts[0], path=path, line=line)
    source = drive + parts[0]
    kind = "bind" if drive or source.startswith(("/", ".", "~", "$")) else "volume"
    return made_mount(files, kind=kind, source=source, target=parts[1], path=path, line=line)


def mount_of_node(node: Node, files: ProjectFiles) -> Mount | None:
    """A mount from an item of a list: text, or an object with type, source and target."""
    if node.fields:
        return made_mount(
            files,
            kind=node.at("type").text or "volume",
            source=node.at("source").text or node.at("src").text,
            target=node.at("target").text or node.at("dst").text,
            path=node.file,
            line=node.line,
        )
    return mount_of(node.text, files, path=node.file, line=node.line) if node.is_plain else None


def made_mount(files: ProjectFiles, *, kind: str, source: str, target: str, path: str, line: int) -> Mount | None:
    """A mount with what is known of its source on this side; None without a target."""
    if not target:
        return None
    exists, owner = None, None
    real = _real(source, files, beside=path) if kind == "bind" else None
    if real is not None:
        found = files.host.stat(real)
        exists, owner = found is not None, found.uid if found else None
    return Mount(kind, source, target, path, line, exists, owner)


def _real(source: str, files: ProjectFiles, *, beside: str) -> str | None:
    """The absolute path of a bind mount's source, None when a variable that is not set here decides."""
    env = files.host.env
    text = source.replace("${localWorkspaceFolder}", files.folder)
    text = _LOCAL.sub(lambda found: env.get(found[1], "") or found[2] or "", text)
    text = _DEFAULT.sub(lambda found: _value(found, env), text)
    if text.startswith("~/"):
        text = f"{env.get('HOME', '')}{text[1:]}"
    if "$" in text or not text:
        return None
    if text.startswith("/") or _DRIVE.match(text):
        return text
    return files.absolute(f"{beside.rpartition('/')[0] or '.'}/{text}")


def _value(found: re.Match[str], env: Mapping[str, str]) -> str:
    return env.get(found[1] or found[3], "") or found[2] or found[0]
