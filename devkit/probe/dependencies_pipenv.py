"""Pipfile and Pipfile.lock. Source: https://pipenv.pypa.io/en/latest/pipfile.html."""

import re
from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from devkit.facts.dependencies import OF_THE_PROJECT
from devkit.probe.dependencies_pyproject import DEV, read_toml
from devkit.probe.dependencies_reading import Reading, line_of
from devkit.probe.shapes import json_of, part, parts, text, texts

PIPFILE = "Pipfile"
PIPFILE_LOCK = "Pipfile.lock"
_FOR_CUDA = re.compile(r"torch|triton|nvidia-.*|cuda-.*")


def read_pipfile(found: Reading) -> None:
    """The packages of a Pipfile, those for development too."""
    read = read_toml(PIPFILE, found)
    if read is None:
        return
    document, content = read
    requires = part(document, "requires")
    if python := text(requires, "python_version") or text(requires, "python_full_version"):
        specifier = f"=={python}.*" if python.count(".") == 1 else f"=={python}"
        found.needs_python(specifier, PIPFILE, line_of(content, "python_"))
    for table, group in ((part(document, "packages"), ""), (part(document, "dev-packages"), DEV)):
        for name, wanted in table.items():
            _need(name, wanted, found, line=line_of(content, name), group=group)
    for source in parts(document, "source"):
        if url := text(source, "url"):
            found.index(url, PIPFILE, line_of(content, url))


def _need(name: str, wanted: object, found: Reading, *, line: int, group: str) -> None:
    table = wanted if isinstance(wanted, dict) else {"version": wanted}
    if "path" in table or table.get("editable") is True:
        found.leave_out(name, PIPFILE, line, OF_THE_PROJECT)
        return
    extras = ",".join(texts(table, "extras"))
    written = f"{name}[{extras}]" if extras else name
    version = text(table, "version").replace("*", "") if text(table, "version") == "*" else text(table, "version")
    git = text(table, "git")
    url = f"git+{git}@{text(table, 'ref')}".rstrip("@") if git else text(table, "file")
    marker = f" ; {text(table, 'markers')}" if text(table, "markers") else ""
    found.need(f"{written}{'' if url else version}{marker}", PIPFILE, line, group=group, url=url)


def read_pipfile_lock(found: Reading) -> tuple[str, ...]:
    """Limit every package to its locked version. Returns what is there for torch, as far as names tell."""
    content = found.text(PIPFILE_LOCK)
    if content is None:
        return ()
    try:
        document = json_of(content)
    except ValueError as error:
        found.cannot_read(PIPFILE_LOCK, getattr(error, "lineno", 1), "it is not JSON")
        return ()
    asked = {need.name for need in found.needs}
    table: Mapping[str, Any] = document if isinstance(document, dict) else {}
    locked = {**part(table, "default"), **part(table, "develop")}
    for name, entry in locked.items():
        if isinstance(entry, dict) and text(entry, "version"):
            marker = f" ; {text(entry, 'markers')}" if text(entry, "markers") else ""
            line = line_of(content, f'"{name}": {{')
            found.need(f"{name}{text(entry, 'version')}{marker}", PIPFILE_LOCK, line, is_limit=True)
    names = {canonicalize_name(name) for name in locked}
    return tuple(sorted(name for name in names if name == "torch" or (_FOR_CUDA.fullmatch(name) and name not in asked)))
