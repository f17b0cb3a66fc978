"""The line of a setting in the project's files, by its path of keys: the one way in which a fix finds its place."""

import posixpath
import re
from collections.abc import Iterator, Sequence

from devkit.probe.documents import ABSENT, DocumentNode, InvalidDocument, parse_jsonc_tree, parse_yaml_tree
from devkit.probe.host import Host

_FOLDERS = ("", ".devcontainer")
_FILE = re.compile(r"[\w.-]+\.ya?ml|\.?devcontainer\.json")
_MAX_FILES = 30
_PATH = re.compile(r"\b(?:services|networks|volumes|configs|secrets)(?:\.[\w-]+|\[[\w-]+\])+")
"""A setting in the words of Compose: `services.app.privileged`, `services[app].stop_grace_period`."""
_QUOTED = re.compile(r"[\"']([\w.-]+)[\"']")


def locate_setting(host: Host, folder: str, keys: Sequence[str], value: str = "") -> str:
    """Return "file:line" of a setting in the project in `folder`: of the deepest key of its path that a file has.

    The short form of a list has no keys, so that below the last one the `value` counts. "" where no file has the first two keys.
    """
    found = [_descend(root, keys, posixpath.basename(value)) for root in _read_files(host, folder)]
    # A file that overrides others comes after them.
    depth, _, node = max(reversed(found), key=lambda each: each[:2], default=(0, 0, ABSENT))
    return f"{node.file}:{node.line}" if depth >= min(2, len(keys)) else ""


def locate_words(host: Host, folder: str, words: str) -> tuple[str, ...]:
    """Return the setting that Compose's words name, as "key in file:line"; empty where they name none."""
    named, quoted = _PATH.search(words), _QUOTED.findall(words)
    keys = re.findall(r"[\w-]+", named[0]) if named else ["services", *quoted[:1]]
    place = locate_setting(host, folder, keys, "" if named else quoted[-1]) if named or quoted else ""
    return (f"{'.'.join(keys)} in {place}",) if place else ()


def _read_files(host: Host, folder: str) -> Iterator[DocumentNode]:
    """Yield the Compose files and those of dev containers that lie in the project, the overriding ones last."""
    paths = [posixpath.join(below, name) for below in _FOLDERS for name in host.list(posixpath.join(folder, below))]
    able = sorted(path for path in paths if _FILE.fullmatch(posixpath.basename(path)))
    for path in sorted(able, key=lambda each: "override" in each)[:_MAX_FILES]:
        parse = parse_jsonc_tree if path.endswith(".json") else parse_yaml_tree
        try:
            yield parse(host.read(f"{folder}/{path}") or "", file=path)
        except InvalidDocument:
            continue  # what is wrong with it, another check says


def _descend(node: DocumentNode, keys: Sequence[str], value: str) -> tuple[int, int, DocumentNode]:
    """Return how many keys are there, how many steps lead from the last of them to the value, and where they end."""
    depth = 0
    for key in keys:
        if key not in node.fields:
            break
        node, depth = node.fields[key], depth + 1
    path = _search(node, value, set()) if value else ()
    return depth, len(path), path[-1] if path else node


def _search(node: DocumentNode, value: str, seen: set[int]) -> tuple[DocumentNode, ...]:
    """Return the nodes from this one to the first that has the value; empty for none. Anchors are followed once."""
    if id(node) in seen:
        return ()
    seen.add(id(node))
    if value in node.text:
        return (node,)
    below = (_search(each, value, seen) for each in (*node.fields.values(), *node.items))
    return next(((node, *path) for path in below if path), ())
