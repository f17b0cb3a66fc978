"""Poetry's own way to write requirements, as PEP 440 says the same.

Source: https://python-poetry.org/docs/dependency-specification/
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from devkit.facts.dependencies import OF_THE_PROJECT
from devkit.probe.dependencies_pyproject import DEV, PYPROJECT
from devkit.probe.dependencies_reading import PYTHON, Reading, line_of
from devkit.probe.shapes import part, text, texts

_VERSION = re.compile(r"([\^~])\s*v?(\d+(?:\.\d+)*)(.*)")
_BARE = re.compile(r"v?\d[\w.]*(?:\.\*)?(?:\+[\w.]+)?")


def read_poetry(document: Mapping[str, Any], content: str, found: Reading) -> None:
    """[tool.poetry.dependencies] and the group dev; optional packages and other groups are left out by name."""
    poetry = part(part(document, "tool"), "poetry")
    for name, group, wanted in _wanted(poetry):
        line = _line(content, name)
        if name.lower() == PYTHON:
            found.needs_python(pep_440(wanted if isinstance(wanted, str) else ""), PYPROJECT, line)
            continue
        for each in wanted if isinstance(wanted, list) else [wanted]:
            _need(name, each, found, line=line, group=group)
    for group, table in part(poetry, "group").items():
        if group != DEV and isinstance(table, dict):
            because = f"only the group {DEV} is installed besides the main one"
            found.leave_out(f"the group {group}", PYPROJECT, line_of(content, f"tool.poetry.group.{group}"), because)


def poetry_groups(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The group dev, where there is one in Poetry's own words."""
    poetry = part(part(document, "tool"), "poetry")
    is_there = DEV in part(poetry, "group") or "dev-dependencies" in poetry
    return (DEV,) if is_there else ()


def _wanted(poetry: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    dev = part(part(part(poetry, "group"), DEV), "dependencies")
    tables = ((part(poetry, "dependencies"), ""), (dev, DEV), (part(poetry, "dev-dependencies"), DEV))
    for table, group in tables:
        for name, wanted in table.items():
            yield name, group, wanted


def _need(name: str, wanted: object, found: Reading, *, line: int, group: str) -> None:
    """One dependency: a version, or a table with a version or a source."""
    table = wanted if isinstance(wanted, dict) else {"version": wanted}
    if "path" in table:
        found.leave_out(name, PYPROJECT, line, OF_THE_PROJECT)
        return
    if table.get("optional") is True:
        found.leave_out(name, PYPROJECT, line, "it is optional")
        return
    extras = ",".join(texts(table, "extras"))
    marker = " and ".join(f"({each})" for each in _markers(table))
    written = f"{name}[{extras}]" if extras else name
    git = text(table, "git")
    revision = text(table, "rev") or text(table, "tag") or text(table, "branch")
    url = f"git+{git}@{revision}".rstrip("@") if git else text(table, "url")
    version = "" if url else pep_440(text(table, "version"))
    found.need(f"{written}{version}{f' ; {marker}' if marker else ''}", PYPROJECT, line, group=group, url=url)


def _markers(table: Mapping[str, Any]) -> Iterator[str]:
    if markers := text(table, "markers"):
        yield markers
    if python := text(table, "python"):
        clauses = [clause for clause in pep_440(python).split(",") if clause]
        for found in filter(None, (re.fullmatch(r"\s*([<>=!~]+)\s*([\w.*]+)", clause) for clause in clauses)):
            yield f"python_version {found[1]} '{found[2]}'"
    if platform := text(table, "platform"):
        yield f"sys_platform == '{platform}'"


def pep_440(written: str) -> str:
    """Poetry's version in the words of PEP 440: ^1.2 is >=1.2,<2, ~1.2.3 is >=1.2.3,<1.3, and 1.2 is ==1.2.

    Alternatives such as "^1 || ^2" become the widest range around them where they are in order, else no limit.
    """
    alternatives = [each.strip() for each in re.split(r"\|\|?", written) if each.strip()]
    if len(alternatives) > 1:
        first, last = pep_440(alternatives[0]), pep_440(alternatives[-1])
        lower = [clause for clause in first.split(",") if clause.startswith(">")]
        upper = [clause for clause in last.split(",") if clause.startswith("<")]
        return ",".join([*lower, *upper])
    clauses = [_clause(each.strip()) for each in re.split(r",|(?<=[\w*])\s+(?=[<>=!^~])", written) if each.strip()]
    return ",".join(clause for clause in clauses if clause)


def _clause(clause: str) -> str:
    if clause in ("*", "x"):
        return ""
    found = _VERSION.fullmatch(clause)
    if found is None or clause.startswith("~="):
        return f"=={clause}" if _BARE.fullmatch(clause) else clause
    numbers = [int(part) for part in found[2].split(".") if len(part) < 10]
    place = _caret(numbers) if found[1] == "^" else min(1, len(numbers) - 1)
    above = [*numbers[:place], numbers[place] + 1] if numbers else [1]
    return f">={found[2]}{found[3]},<{'.'.join(map(str, above))}"


def _caret(numbers: list[int]) -> int:
    """Which number a caret lets not grow: the first that is not zero, else the last."""
    return next((place for place, number in enumerate(numbers) if number), max(len(numbers) - 1, 0))


def _line(content: str, name: str) -> int:
    for number, line in enumerate(content.splitlines(), 1):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line):
            return number
    return 1
