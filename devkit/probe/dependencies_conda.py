"""environment.yml of conda, and the tables of pixi: packages of conda, and those of the Python package index.

Sources: https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-environments.html,
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html,
https://pixi.sh/latest/reference/pixi_manifest/
"""

import re
from collections.abc import Mapping
from typing import Any

from devkit.facts.dependencies import OF_THE_PROJECT
from devkit.probe.dependencies_locks import FROM_CONDA
from devkit.probe.dependencies_poetry import pep_440
from devkit.probe.dependencies_reading import PYTHON, Reading, line_of
from devkit.probe.dependencies_requirements import read_lines
from devkit.probe.documents import Kind, Node, WrongDocument, read_yaml
from devkit.probe.shapes import part, parts, text, texts

BY_CONDA = "conda brings it, and the image is made with Python's own packages"
_SPEC = re.compile(r"(?:[\w./:-]+::)?([A-Za-z0-9_][\w.-]*)(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_BUILD = re.compile(r"^(={1,2}\s*[^=\s]+)(?:=\S+|\s+\S+)$")
_OF_THE_PLAN = ("pip", "setuptools", "wheel", "uv", PYTHON, "pytorch-cuda", "cudatoolkit", "cuda-version")
"""What every environment of devkit has, or torch brings, so that nothing is missing."""


def read_environment(path: str, found: Reading) -> None:
    """An environment.yml: conda's packages limit versions, those under `pip` are installed."""
    content = found.text(path)
    if content is None:
        return
    try:
        root = read_yaml(content, file=path)
    except WrongDocument as wrong:
        found.cannot_read(path, wrong.line, f"it is not YAML: {wrong.problem}")
        return
    for item in root.at("dependencies").items:
        if item.kind is Kind.TEXT:
            _conda_spec(item.text, path, item.line, found)
        for line in _pip_lines(item):
            read_lines(iter([line]), path, found)


def _pip_lines(item: Node) -> list[tuple[int, str]]:
    return [(line.line, line.text.strip()) for line in item.at("pip").items if line.kind is Kind.TEXT]


def _conda_spec(spec: str, path: str, line: int, found: Reading) -> None:
    named = _SPEC.fullmatch(spec.strip())
    if named is None:
        found.cannot_read(path, line, f"{ascii(spec)[:60]} is no package of conda")
        return
    take_conda(named[1], named[2], path, line, found)


def take_conda(name: str, version: str, path: str, line: int, found: Reading) -> None:
    """One package of conda: it limits the plan where the plan holds it, and is left out by name where not."""
    name = name.lower()
    specifier = conda_version(version)
    if name == PYTHON:
        if specifier:
            found.needs_python(specifier, path, line)
        return
    known = FROM_CONDA.get(name, name)
    if specifier and re.fullmatch(r"[a-z0-9](?:[\w.-]*[a-z0-9])?", known):
        found.need(f"{known}{specifier}", path, line, is_limit=True)
    if known not in _OF_THE_PLAN and known != "torch":
        found.leave_out(name, path, line, BY_CONDA)


def conda_version(written: str) -> str:
    """A version of conda as PEP 440 says it: `=1.26` is ==1.26.*, and the build behind it is left out."""
    written = _BUILD.sub(r"\1", written.strip())
    if not written or written == "*" or "|" in written:
        return ""
    clauses = []
    for clause in (each.strip() for each in written.split(",")):
        fuzzy = re.fullmatch(r"=?\s*(\d[\w.!+]*?)(?:\.\*|\*)?", clause)
        if fuzzy:
            clauses.append(f"=={fuzzy[1]}.*" if clause.startswith("=") or clause.endswith("*") else f"=={fuzzy[1]}")
        elif clause not in ("", "*"):
            clauses.append(clause)
    return ",".join(clauses)


def read_pixi(document: Mapping[str, Any], content: str, path: str, found: Reading) -> None:
    """pixi's tables, in pixi.toml or below [tool.pixi]: the default environment on Linux."""
    target = part(document, "target")
    tables = (document, part(target, "linux"), part(target, "linux-64"))
    for table in tables:
        for name, wanted in part(table, "dependencies").items():
            version = text(wanted, "version") if isinstance(wanted, dict) else str(wanted)
            take_conda(name, version, path, line_of(content, name), found)
        for name, wanted in part(table, "pypi-dependencies").items():
            _from_index(name, wanted, path, line_of(content, name), found)
    for name in part(document, "feature"):
        because = "only pixi's default environment is looked at"
        found.leave_out(f"the feature {name}", path, line_of(content, f"feature.{name}"), because)
    for channel in parts(part(document, "workspace"), "channels"):
        found.index(text(channel, "channel"), path, line_of(content, "channels"))


def _from_index(name: str, wanted: object, path: str, line: int, found: Reading) -> None:
    table = wanted if isinstance(wanted, dict) else {"version": str(wanted)}
    if "path" in table:
        found.leave_out(name, path, line, OF_THE_PROJECT)
        return
    extras = ",".join(texts(table, "extras"))
    git = text(table, "git")
    revision = text(table, "rev") or text(table, "tag") or text(table, "branch")
    url = f"git+{git}@{revision}".rstrip("@") if git else text(table, "url")
    version = "" if url else pep_440(text(table, "version"))
    found.need(f"{name}[{extras}]{version}" if extras else f"{name}{version}", path, line, url=url)
