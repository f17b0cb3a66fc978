"""setup.cfg and setup.py: what setuptools reads. setup.py is parsed and never run.

Source: https://setuptools.pypa.io/en/latest/userguide/declarative_config.html
"""

import ast
import configparser
from collections.abc import Iterator

from devkit.probe.dependencies_reading import Reading, line_of
from devkit.probe.dependencies_requirements import read_requirements

SETUP_CFG = "setup.cfg"
SETUP_PY = "setup.py"
COMPUTED = "it is computed when setup.py runs, and devkit runs no setup.py"


def read_setup_cfg(found: Reading) -> None:
    """install_requires and python_requires of [options]."""
    content = found.text(SETUP_CFG)
    if content is None:
        return
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(content)
    except configparser.Error as error:
        line = getattr(error, "lineno", None)
        found.cannot_read(SETUP_CFG, line or 1, "it is not an INI file")
        return
    python = parser.get("options", "python_requires", fallback="").strip()
    if python:
        found.needs_python(python, SETUP_CFG, line_of(content, "python_requires"))
    listed = parser.get("options", "install_requires", fallback="").strip()
    if listed.startswith("file:"):
        for name in listed.removeprefix("file:").split(","):
            read_requirements(name.strip(), found)
        return
    start = line_of(content, "install_requires") - 1
    for entry in (line.strip() for line in listed.replace(";\n", "\n").splitlines()):
        if entry and not entry.startswith("#"):
            found.need(entry, SETUP_CFG, line_of(content, entry, after=start))


def read_setup_py(found: Reading) -> None:
    """install_requires and python_requires of the call of setup(), as far as they are written down."""
    content = found.text(SETUP_PY)
    if content is None:
        return
    try:
        tree = ast.parse(content)
        call = next(_setup_calls(tree), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found.cannot_read(SETUP_PY, getattr(error, "lineno", None) or 1, "it is not Python")
        return
    if call is None:
        return
    named = dict(_literals(tree))
    for keyword in call.keywords:
        if keyword.arg in ("install_requires", "python_requires"):
            _keyword(keyword.arg, keyword.value, named, found)
        elif keyword.arg is None:
            found.cannot_read(SETUP_PY, call.lineno, COMPUTED)


def _setup_calls(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "setup":
                yield node


def _literals(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that the module gives a value once, at its top."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _keyword(name: str, value: ast.expr, named: dict[str, ast.expr], found: Reading) -> None:
    if isinstance(value, ast.Name):
        value = named.get(value.id, value)
    entries = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    for entry in entries:
        if not (isinstance(entry, ast.Constant) and isinstance(entry.value, str)):
            found.cannot_read(SETUP_PY, entry.lineno, f"{name}: {COMPUTED}")
        elif name == "python_requires":
            found.needs_python(entry.value, SETUP_PY, entry.lineno)
        else:
            found.need(entry.value, SETUP_PY, entry.lineno)
