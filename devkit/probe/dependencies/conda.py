"""environment.yml of conda, and the tables of pixi: conda packages, and those of the Python package index.

Sources: https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-environments.html,
https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html,
https://pixi.sh/latest/reference/pixi_manifest/
"""

import re
from collections.abc import Mapping
from typing import Any

from devkit.probe.dependencies.lock_files import FROM_CONDA
from devkit.probe.dependencies.manifests import convert_poetry_version
from devkit.probe.dependencies.requirements import PYTHON, RequirementCollector, find_line, read_requirement_lines
from devkit.probe.documents import InvalidDocument, NodeKind, get_object, get_objects, get_text, parse_yaml_tree

BY_CONDA = "conda brings it, and the image is made with Python's own packages"
_SPEC = re.compile(r"(?:[\w./:-]+::)?([A-Za-z0-9_][\w.-]*)(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_BUILD = re.compile(r"^(={1,2}\s*[^=\s]+)(?:=\S+|\s+\S+)$")
_OF_THE_PLAN = ("pip", "setuptools", "wheel", "uv", PYTHON, "pytorch-cuda", "cudatoolkit", "cuda-version")
"""Packages that every environment of devkit has, or that torch brings."""


def read_conda_environment(path: str, found: RequirementCollector) -> None:
    """Read an environment.yml: conda's packages limit versions, those under `pip` are installed."""
    content = found.text(path)
    if content is None:
        return
    try:
        root = parse_yaml_tree(content, file=path)
    except InvalidDocument as wrong:
        found.add_unreadable(path, wrong.line, f"it is not YAML: {wrong.problem}")
        return
    for item in root.at("dependencies").items:
        if item.kind is NodeKind.TEXT:
            named = _SPEC.fullmatch(item.text.strip())
            if named is None:
                found.add_unreadable(path, item.line, f"{ascii(item.text)[:60]} is no package of conda")
            else:
                add_conda_package(named[1], named[2], path, item.line, found)
        lines = [(line.line, line.text.strip()) for line in item.at("pip").items if line.kind is NodeKind.TEXT]
        read_requirement_lines(iter(lines), path, found)


def read_pixi_tables(document: Mapping[str, Any], content: str, path: str, found: RequirementCollector) -> None:
    """Read pixi's tables, in pixi.toml or below [tool.pixi]: the default environment on Linux."""
    target = get_object(document, "target")
    tables = (document, get_object(target, "linux"), get_object(target, "linux-64"))
    for table in tables:
        for name, wanted in get_object(table, "dependencies").items():
            version = get_text(wanted, "version") if isinstance(wanted, dict) else str(wanted)
            add_conda_package(name, version, path, find_line(content, name), found)
        for name, wanted in get_object(table, "pypi-dependencies").items():
            table = wanted if isinstance(wanted, dict) else {"version": str(wanted)}
            version = convert_poetry_version(get_text(table, "version"))
            found.need_table(name, table, path, find_line(content, name), version=version)
    for name in get_object(document, "feature"):
        because = "only pixi's default environment is looked at"
        found.exclude(f"the feature {name}", path, find_line(content, f"feature.{name}"), because)
    for channel in get_objects(get_object(document, "workspace"), "channels"):
        found.index(get_text(channel, "channel"), path, find_line(content, "channels"))


def add_conda_package(name: str, version: str, path: str, line: int, found: RequirementCollector) -> None:
    """Add one package of conda: a constraint where the plan has the package, else excluded by name."""
    name = name.lower()
    specifier = convert_conda_version(version)
    if name == PYTHON:
        if specifier:
            found.add_python(specifier, path, line)
        return
    known = FROM_CONDA.get(name, name)
    if specifier and re.fullmatch(r"[a-z0-9](?:[\w.-]*[a-z0-9])?", known):
        found.need(f"{known}{specifier}", path, line, is_limit=True)
    if known not in _OF_THE_PLAN and known != "torch":
        found.exclude(name, path, line, BY_CONDA)


def convert_conda_version(written: str) -> str:
    """Convert a version of conda to PEP 440: `=1.26` is ==1.26.*; the build string is left out."""
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
