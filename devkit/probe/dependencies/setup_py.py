"""setup.py: what it hands to setup(), as far as that follows from its text. It is parsed and never run.

Evaluated are literals, lists that are put together from them, and the two patterns that are everywhere: Hugging Face's
table of requirements by name, and requirement files that setup.py reads. What a call returns is left to the build.
Source: https://setuptools.pypa.io/en/latest/references/keywords.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from devkit.probe.dependencies.requirements import COMPUTED, RequirementCollector, read_requirements_file

SETUP_PY = "setup.py"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r"[\w./-]*requirements?[\w./-]*\.txt")
_MAX_ITEMS = 2000


class _Text(str):
    """A text of the file, with its line."""

    __slots__ = ("line",)
    line: int


class _Computed:
    """A value that only running the program tells."""

    def __init__(self, node: ast.expr | ast.stmt) -> None:
        self.node = node


def read_setup_py(found: RequirementCollector) -> None:
    """Read the requirements, the chosen extras and the Python of the call of setup()."""
    content = found.text(SETUP_PY)
    if content is None:
        return
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found.add_unreadable(SETUP_PY, getattr(error, "lineno", None) or 1, "it is not Python")
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = ((call, {getattr(call.func, "id", ""), getattr(call.func, "attr", "")}) for call in calls)
    call = next((call for call, named in names if "setup" in named), None)
    if call is None:
        return
    module = _Module(tree)
    keywords: dict[str, Any] = {}
    for keyword in call.keywords:
        value = module.evaluate(keyword.value)
        if keyword.arg:
            keywords[keyword.arg] = value
        elif isinstance(value, dict):
            keywords |= value
        else:
            found.is_computed = True
            found.add_unreadable(SETUP_PY, keyword.value.lineno, f"the arguments of setup() are {COMPUTED}")
    python = keywords.get("python_requires")
    if isinstance(python, _Text):
        found.add_python(python, SETUP_PY, python.line)
    elif isinstance(python, _Computed):
        found.add_unreadable(SETUP_PY, python.node.lineno, "python_requires is computed when it runs")
    _need_all(keywords.get("install_requires", []), module, found)
    extras: dict[str, Any] = value if isinstance(value := keywords.get("extras_require"), dict) else {}
    for extra in found.select_extras(extras):
        _need_all(extras[extra], module, found)


def _need_all(value: Any, module: "_Module", found: RequirementCollector) -> None:  # noqa: ANN401 - what it is
    """Add what a value asks for, each line with its place; what cannot be evaluated is left to the build."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, _Text):
            for line in each.splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    found.need(line, SETUP_PY, each.line)
        elif isinstance(each, _Computed):
            # The requirement files that the program names where it computes the value.
            paths = [text for text in module.list_texts(each.node) if _FILE.fullmatch(text) and found.files.has(text)]
            role = found.role
            for path in paths:
                read_requirements_file(path, found)
            found.role = role
            if not paths:
                found.is_computed = True
                found.add_unreadable(SETUP_PY, each.node.lineno, f"its requirements are {COMPUTED}")


class _Module:
    """The values that a module gives names at its top, in the order of its statements, and its functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.values: dict[str, Any] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._table: dict[Any, _Text] = {}
        for node in tree.body:
            self._follow(node)

    def _follow(self, node: ast.stmt) -> None:
        values = self.values
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = self.evaluate(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                values[name] = self.evaluate(value)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                values[name] = _add(values.get(name), self.evaluate(value), node)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key))]):
                if isinstance(values.get(name), dict):
                    values[name] = {**values[name], key: self.evaluate(node.value)}
            case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how), args=[value])):
                if how in ("append", "extend"):
                    values[name] = _add(values.get(name), self.evaluate(value), node)
            case ast.FunctionDef(name=name):
                self._functions[name] = node
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                # What a list had counts where the statement only adds to it; what it makes of it is open.
                for name, is_added in _list_changes(node):
                    known = values.get(name)
                    values[name] = (
                        [*known, _Computed(node)] if is_added and isinstance(known, list) else _Computed(node)
                    )
            case _:
                pass

    def list_texts(self, node: ast.AST, seen: set[str] | None = None) -> Iterator[str]:
        """List the texts in a part of the program, in the values of its names, and in the functions that it calls."""
        seen = set() if seen is None else seen
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
            elif isinstance(each, ast.Name) and each.id in self._functions and each.id not in seen:
                seen.add(each.id)
                yield from self.list_texts(self._functions[each.id], seen)
            elif isinstance(each, ast.Name) and isinstance(self.values.get(each.id), str):
                yield self.values[each.id]

    def evaluate(self, node: ast.expr) -> Any:  # noqa: ANN401 - what it is
        """Evaluate an expression to a text, a list or a dictionary; to `_Computed` where it takes running the program."""
        try:
            return self._evaluate(node)
        except RecursionError:
            return _Computed(node)

    def _evaluate(self, node: ast.expr) -> Any:  # noqa: ANN401 - what it is
        match node:
            case ast.Constant(value=str() as value):
                return _text(value, node.lineno)
            case ast.Name(id=name):
                return self.values.get(name, _Computed(node))
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                found: list[Any] = []
                for each in entries:
                    found = _add(found, self.evaluate(each.value if isinstance(each, ast.Starred) else each), node)
                    if not isinstance(found, list):
                        break
                return found
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {key.value: self.evaluate(value) for key, value in pairs if isinstance(key, ast.Constant)}
            case ast.DictComp():
                # Hugging Face's {name: line for … in lines}, which splits lines by a regular expression.
                inner = (each for part in node.generators for each in ast.walk(part.iter) if isinstance(each, ast.Name))
                lists = (self.values.get(each.id) for each in inner)
                lines = [each for known in lists if isinstance(known, list) for each in known]
                texts = (each for each in lines if isinstance(each, _Text))
                self._table = {named[0]: line for line in texts if (named := _NAME.match(line))}
                return self._table
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(), *_] as words) if name in self._functions:
                # Hugging Face's deps_list("torch", "peft"): lines of the table, by their names.
                names = [getattr(word, "value", None) for word in words]
                is_listed = all(each in self._table for each in names)
                return [_text(self._table[each], node.lineno) for each in names] if is_listed else _Computed(node)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _add(self.evaluate(left), self.evaluate(right), node)
            case ast.Subscript(value=table, slice=ast.Constant(value=key)):
                known = self.evaluate(table)
                looked_up = known.get(key, _Computed(node)) if isinstance(known, dict) else _Computed(node)
                # A line of a table counts where it is looked up.
                return _text(looked_up, node.lineno) if isinstance(looked_up, str) else looked_up
            case ast.Call(func=ast.Name(id="list" | "tuple" | "sorted"), args=[value], keywords=[]):
                return self.evaluate(value)
            case _:
                return _Computed(node)


def _text(value: str, line: int) -> _Text:
    text = _Text(value)
    text.line = line
    return text


def _add(first: Any, second: Any, node: ast.expr | ast.stmt) -> Any:  # noqa: ANN401 - what they are
    """Add a list or one value to a list: of what is not known, a hole."""
    more = second if isinstance(second, list) else [second]
    is_short = isinstance(first, list) and len(first) + len(more) <= _MAX_ITEMS
    return [*first, *more] if is_short else _Computed(node)


def _list_changes(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """List the names that a statement changes, and whether it only adds to each."""
    for node in ast.walk(statement):
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                yield name, True
            case ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" | "insert" | "update"):
                yield name, True
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, False
            case _:
                pass
