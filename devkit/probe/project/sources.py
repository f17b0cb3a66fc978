"""What COPY and ADD take in, from a stage or the build context, and the nearest name where that does not have it."""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from devkit.probe.documents import DocumentNode
from devkit.probe.host import Host
from devkit.probe.project.devcontainer import LOCAL_FOLDER, find_compose_file_nodes
from devkit.probe.project.dockerfile import FLAGS, Instruction

_FROM = re.compile(r"--from=([\w-]+)(?=\s)")
"""A stage, or an image without a tag."""
_UNCERTAIN = re.compile(r"[*?\[$@]|<<|://|\\")


def find_context(roots: Iterable[DocumentNode], dockerfile: str) -> DocumentNode | None:
    """Find the build of a Dockerfile in Compose files and devcontainer.json. The node's text is the context's folder in the project."""
    every = tuple(roots)
    for root in every:
        base, services = posixpath.dirname(find_base(every, root.file)), root.fields.get("services")
        owners = services.fields.values() if services else (root,)
        for build in (each.fields["build"] for each in owners if "build" in each.fields):
            context, named = build.fields.get("context"), build.fields.get("dockerfile")
            folder = posixpath.normpath(posixpath.join(base, (context.text if context else build.text) or "."))
            path = posixpath.join(folder if services else base, named.text if named else "Dockerfile")
            if posixpath.normpath(path) == dockerfile:
                return replace(build, text=folder, line=context.line if context else build.line)
    return None


def find_base(roots: Iterable[DocumentNode], file: str) -> str:
    """Find the Compose file whose folder the paths in a file are relative to: the first that a devcontainer.json names with it."""
    for root in roots:
        named = [each.text.replace(LOCAL_FOLDER, "/") for each in find_compose_file_nodes(root)]
        paths = [
            posixpath.normpath(posixpath.join("/", posixpath.dirname(root.file), each)).lstrip("/") for each in named
        ]
        if file in paths:
            return paths[0]
    return file


def judge_sources(
    host: Host,
    folder: str,
    context: DocumentNode | None,
    instruction: Instruction,
    filled: str,
    stages: Mapping[str, int],
) -> tuple[str, str]:
    """Return what is wrong with what an instruction takes in, and what mends that; empty for nothing.

    `stages` has the line of each stage of the file by its name, or by "line 3" where it has none.
    """
    if instruction.keyword not in ("COPY", "ADD") or instruction.heredoc:
        return "", ""
    if found := _FROM.search(filled):
        line = stages.get(name := found[1].lower(), 0)
        above = [each for each in stages if stages[each] < instruction.line]
        near = get_close_matches(name, above, 1)
        if above and name == above[-1]:
            other = next((each for each in above[-2::-1] if " " not in each), "NAME")
            return f"the stage {name} copies from itself", f"write --from={other} in place of --from={name}"
        if line > instruction.line:
            return (
                f"the stage {name} begins only in line {line}",
                f"move that stage above the one of line {instruction.line}",
            )
        return (
            (f"no stage is called {name}", f"write --from={near[0]} in place of --from={name}")
            if near and not line and not name.isdecimal()
            else ("", "")
        )
    if context is None or "--from" in filled:
        return "", ""
    text = FLAGS.sub("", filled).strip()
    try:
        words = [str(each) for each in json.loads(text)] if text.startswith("[") else text.split()
    except ValueError:
        return "", ""
    faults = (_find_fault(host, folder, context, each) for each in words[:-1] if not _UNCERTAIN.search(each))
    return next(filter(any, faults), ("", ""))


def _find_fault(host: Host, folder: str, context: DocumentNode, source: str) -> tuple[str, str]:
    root = posixpath.normpath(posixpath.join(folder, context.text))
    path = posixpath.normpath(f"/{source}")[1:]
    above, _, name = path.rpartition("/")
    target, names = host.link(f"{root}/{path}"), host.list(f"{root}/{above}")
    if target is not None and f"{target}/".startswith(f"{host.link(root)}/"):
        return "", ""
    if target is not None or name in names:
        where = target or "a path that is not there"
        return (
            f"{path} is a link to {where}, which the build context does not hold",
            f"put a copy in the place of the link {path}",
        )
    where = "the project's folder" if context.text == "." else context.text
    note = f"{path} is not in the build context, {where}"
    if near := get_close_matches(name, names, 1):
        return note, f"write {posixpath.join(above, near[0])} in place of {path}"
    if context.text != "." and host.stat(f"{folder}/{path}") is not None:
        wanted = posixpath.relpath(".", posixpath.dirname(context.file) or ".")
        return note, f"set the context in {context.file}:{context.line} to {wanted}, as {path} is there"
    return note, f"add {path} to {where}, or remove it from the instruction"
