"""setup.py: what it hands to setup(), as far as that follows from its text. It is parsed and never run.

Evaluated are texts, lists and dictionaries put together from them, and the two patterns that are everywhere: Hugging
Face's table of requirements by name, and requirement files that setup.py reads.
Source: https://setuptools.pypa.io/en/latest/references/keywords.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from devkit.compat.specifiers import canonicalize_name
from devkit.probe.dependencies.requirements import COMPUTED, RequirementCollector, read_requirements_file

SETUP_PY = "setup.py"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r"[\w./-]*requirements?[\w./-]*\.txt")
_MAX_ITEMS = 2000
"""Items of a list, and characters of a text."""
_MAX_STEPS = 20_000
_MAX_DEPTH = 20


class _Text(str):
    """A text of the file, with its line."""

    __slots__ = ("line",)
    line: int


class _Computed:
    """A value that only running the program tells."""

    def __init__(self, node: ast.expr | ast.stmt) -> None:
        self.node = node


class _ByName(dict[str, Any]):
    """Requirements by the name of their package."""


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
            found.add_unreadable(SETUP_PY, keyword.value.lineno, f"what it hands to setup() is {COMPUTED}")
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
        if isinstance(each, list):
            _need_all(each, module, found)
        elif isinstance(each, _Text):
            for line in each.splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    found.need(line, SETUP_PY, each.line)
        elif isinstance(each, _Computed) and not _read_files(each, module, found):
            found.is_computed = True
            found.add_unreadable(SETUP_PY, each.node.lineno, f"its requirements are {COMPUTED}")


def _read_files(value: _Computed, module: "_Module", found: RequirementCollector) -> bool:
    """Read the requirement files that the program names where it computes the value. False where it names none."""
    paths = [text for text in module.list_texts(value.node) if _FILE.fullmatch(text) and found.files.has(text)]
    role = found.role
    for path in paths:
        read_requirements_file(path, found)
    found.role = role
    return bool(paths)


class _Module:
    """The values that a module gives names at its top, in the order of its statements."""

    def __init__(self, tree: ast.Module) -> None:
        self._values: dict[str, Any] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._steps = self._depth = 0
        for node in tree.body:
            self._follow(node)

    def _follow(self, node: ast.stmt) -> None:
        values = self._values
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = self.evaluate(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                values[name] = self.evaluate(value)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                values[name] = _add(values.get(name), self.evaluate(value), node)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value):
                if isinstance(values.get(name), dict) and isinstance(key := self.evaluate(key), str):
                    values[name] = {**values[name], str(key): self.evaluate(value)}
            case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how), args=[value])):
                if how in ("append", "extend"):
                    added = self.evaluate(value)
                    values[name] = _add(values.get(name), [added] if how == "append" else added, node)
            case ast.FunctionDef(name=name):
                self._functions[name] = node
            case ast.If(orelse=[_, *_]):
                self._follow_branches(node)
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                for name in _list_changed_names(node):
                    self._forget(name, node)
            case _:
                pass

    def _follow_branches(self, node: ast.If) -> None:
        """Follow both branches: what a list has after either of them is certain, the rest is not."""
        before, after = self._values, []
        for branch in (node.body, node.orelse):
            self._values = dict(before)
            for statement in branch:
                self._follow(statement)
            after.append(self._values)
        self._values = before
        for name in _list_changed_names(node):
            first, second = (values.get(name) for values in after)
            if isinstance(first, list) and isinstance(second, list):
                both = [each for each in first if each in second]
                before[name] = both if len(both) == len(first) == len(second) else [*both, _Computed(node)]
            else:
                self._forget(name, node)

    def _forget(self, name: str, node: ast.stmt) -> None:
        """Leave open what a statement makes of a name; what a list had before it still counts."""
        known = self._values.get(name)
        self._values[name] = [*known, _Computed(node)] if isinstance(known, list) else _Computed(node)

    def list_texts(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> Iterator[str]:
        """List the texts in a part of the program, in the values of its names, and in the functions that it calls."""
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
            elif isinstance(each, ast.Name) and each.id in self._functions and each.id not in seen:
                yield from self.list_texts(self._functions[each.id], seen | {each.id})
            elif isinstance(each, ast.Name) and isinstance(self._values.get(each.id), str):
                yield self._values[each.id]

    def evaluate(self, node: ast.expr, local: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - what it is
        """Evaluate an expression to a text, a list or a dictionary; to `_Computed` where it takes running the program."""
        self._steps += 1
        if self._steps > _MAX_STEPS or self._depth > _MAX_DEPTH:
            return _Computed(node)
        self._depth += 1
        try:
            return self._evaluate(node, local or {})
        finally:
            self._depth -= 1

    def _evaluate(self, node: ast.expr, local: dict[str, Any]) -> Any:  # noqa: ANN401 - what it is
        match node:
            case ast.Constant(value=str() as value):
                return _text(value, node.lineno)
            case ast.Name(id=name):
                return local.get(name, self._values.get(name, _Computed(node)))
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return self._evaluate_list(entries, local)
            case ast.Dict() | ast.DictComp():
                return self._evaluate_dict(node, local)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _add(self.evaluate(left, local), self.evaluate(right, local), node)
            case ast.Subscript(value=table, slice=key):
                return self._look_up(node, self.evaluate(table, local), self.evaluate(key, local))
            case ast.ListComp(elt=entry, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]):
                values = self.evaluate(items, local)
                if isinstance(values, list):
                    return [self.evaluate(entry, {**local, name: value}) for value in values]
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "sorted" | "copy" | "deepcopy")
                | ast.Attribute(attr="copy" | "deepcopy"),
                args=[value],
                keywords=[],
            ):
                return self.evaluate(value, local)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return {each.arg: self.evaluate(each.value, local) for each in keywords if each.arg}
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in self._functions:
                return self._call(node, self._functions[name], [self.evaluate(each, local) for each in arguments])
            case _:
                pass
        return _Computed(node)

    def _evaluate_list(self, entries: list[ast.expr], local: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for entry in entries:
            if isinstance(entry, ast.Starred):
                values = self.evaluate(entry.value, local)
                found += values if isinstance(values, list) else [_Computed(entry)]
            else:
                found.append(self.evaluate(entry, local))
        return found

    def _evaluate_dict(self, node: ast.Dict | ast.DictComp, local: dict[str, Any]) -> dict[str, Any]:
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {
                key.value: self.evaluate(value, local)
                for key, value in pairs
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        # Hugging Face's {name: line for … in lines} splits lines by a regular expression.
        names = (each for part in node.generators for each in ast.walk(part.iter) if isinstance(each, ast.Name))
        lists = (self._values.get(name.id) for name in names)
        lines = [line for values in lists if isinstance(values, list) for line in values if isinstance(line, _Text)]
        return _ByName((canonicalize_name(named[0]), line) for line in lines if (named := _NAME.match(line)))

    def _look_up(self, node: ast.expr, table: Any, key: Any) -> Any:  # noqa: ANN401 - what they are
        if not isinstance(table, dict) or not isinstance(key, str):
            return _Computed(node)
        value = table.get(canonicalize_name(key) if isinstance(table, _ByName) else key, _Computed(node))
        # A line of a table counts where it is looked up.
        return _text(value, node.lineno) if isinstance(value, str) else value

    def _call(self, node: ast.expr, function: ast.FunctionDef, values: list[Any]) -> Any:  # noqa: ANN401 - what it is
        """Call a function that only returns an expression of its arguments."""
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return _Computed(node)
        names = [argument.arg for argument in function.args.args]
        local: dict[str, Any] = dict(zip(names, values, strict=False))
        if function.args.vararg:
            local[function.args.vararg.arg] = values[len(names) :]
        found = self.evaluate(body[0].value, local)
        if isinstance(found, list):
            return [_text(each, node.lineno) if isinstance(each, _Text) else each for each in found]
        return _text(found, node.lineno) if isinstance(found, _Text) else _Computed(node)


def _text(value: str, line: int) -> _Text:
    text = _Text(value)
    text.line = line
    return text


def _add(first: Any, second: Any, node: ast.expr | ast.stmt) -> Any:  # noqa: ANN401 - what they are
    """The sum of two lists or texts; of a list and what is not known, the list with a hole."""
    if isinstance(first, list) and isinstance(second, _Computed):
        second = [second]
    if isinstance(first, list) and isinstance(second, list) and len(first) + len(second) <= _MAX_ITEMS:
        return first + second
    if isinstance(first, _Text) and isinstance(second, _Text) and len(first) + len(second) <= _MAX_ITEMS:
        return _text(str(first) + str(second), first.line)
    return _Computed(node)


def _list_changed_names(statement: ast.stmt) -> set[str]:
    """List the names to which a statement gives a value or adds one."""
    changed = set()
    for node in ast.walk(statement):
        is_stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.Name) and is_stored:
            changed.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
            is_method = getattr(node, "attr", "") in ("append", "extend", "insert", "update")
            changed |= {node.value.id} if is_stored or is_method else set()
    return changed
