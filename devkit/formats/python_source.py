"""What a Python module defines, by its source: it is parsed, never imported or run."""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_SOURCE_BYTES = 2 << 20
_EXPORTS = re.compile(r"__all__|import|submod|lazy|export", re.IGNORECASE)
"""Names of variables, and of functions, that list what a module loads on demand."""
_FIELDS = re.compile(r"dataclass|\battrs?\b|\bdefine\b|\bs\(")


@dataclass
class Module:
    """The names of a module.

    `defined` are the nodes that it defines itself, None for other names; `imported` the module and the name that each imported
    one comes from; `exported` the names that it loads on demand, with the submodule where it is said; `stars` the modules it
    takes everything from. `mentioned` are its other strings, which count only where `is_lazy`.
    """

    name: str
    is_package: bool
    defined: dict[str, ast.AST | None] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    mentioned: set[str] = field(default_factory=set)
    is_lazy: bool = False
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))


def parse_module(name: str, source: bytes, *, is_package: bool) -> Module | None:
    """Parse a module's source; None for what Python of this release cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Module(name, is_package, tree=tree)
    for node in _list_statements(tree.body):
        _read_statement(node, module)
    return module


def _list_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """List the statements that run on import, those within conditions, loops and try included."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _list_statements(getattr(node, block, []))
            for handler in getattr(node, "handlers", ()):
                yield from _list_statements(handler.body)


def _read_statement(node: ast.stmt, module: Module) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        module.defined[node.name] = node
        if node.name == "__getattr__":
            module.is_lazy = True
            module.exported |= dict.fromkeys(_list_strings(node), "")
    elif isinstance(node, ast.Import | ast.ImportFrom):
        _read_import(node, module)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        _read_assignment(node, module)


def _read_import(node: ast.Import | ast.ImportFrom, module: Module) -> None:
    if isinstance(node, ast.Import):
        for each in node.names:
            bound = each.asname or each.name.partition(".")[0]
            module.imported[bound] = (each.name if each.asname else bound, "")
    else:
        source = resolve_relative(module, node)
        for each in node.names:
            if each.name == "*":
                module.stars.append(source)
            else:
                module.imported[each.asname or each.name] = (source, each.name)


def _read_assignment(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr, module: Module) -> None:
    targets: list[ast.expr] = []
    if not isinstance(node, ast.Expr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for each in () if isinstance(target, ast.Subscript) else ast.walk(target):
            if isinstance(each, ast.Name):
                module.defined.setdefault(each.id, None)
    if node.value is not None and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        _read_exports(targets, node.value, module)


def _read_exports(targets: list[ast.expr], value: ast.expr, module: Module) -> None:
    """Read the names that a module lists for loading on demand, and the other strings of a statement."""
    call = value.func if isinstance(value, ast.Call) else None
    says = " ".join(
        ast.unparse(each) for each in (*targets, *([call] if call else [])) if not isinstance(each, ast.Expr)
    )
    module.is_lazy |= "_LazyModule" in says or "__getattr__" in says or "attach" in says
    if not _EXPORTS.search(says):
        module.mentioned |= _list_strings(value)
        return
    submodule = ""
    for target in targets:
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            submodule = str(target.slice.value)
    owner = call.value if isinstance(call, ast.Attribute) else None
    if isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant):
        submodule = str(owner.slice.value)
    module.exported |= dict.fromkeys(_list_strings(value), submodule)
    for found in (each for each in ast.walk(value) if isinstance(each, ast.Dict)):
        for key, names in zip(found.keys, found.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and isinstance(key.value, str)
                and isinstance(names, ast.List | ast.Tuple | ast.Set)
            ):
                module.exported |= dict.fromkeys(_list_strings(names), key.value)


def _list_strings(node: ast.AST) -> set[str]:
    values = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {each for each in values if isinstance(each, str)}


def mentions(module: Module, name: str) -> bool:
    """Say if a module's code has a word anywhere, as one has that sets its names in a loop: those of an enumeration."""
    for node in ast.walk(module.tree):
        words = (getattr(node, each, "") for each in ("id", "attr", "name", "asname", "arg", "value"))
        if any(isinstance(each, str) and each == name for each in words):
            return True
    return False


def resolve_relative(module: Module, node: ast.ImportFrom) -> str:
    """Return the full name of the module that `from .x import y` names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join((*parts, *([node.module] if node.module else [])))


def list_members(node: ast.ClassDef) -> set[str]:
    """List what a class defines: methods, attributes of the class, and those that its methods give to self."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and isinstance(inner.value, ast.Name):
            found |= {inner.attr} if inner.value.id == "self" else set()
    return found


def find_method(node: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Find a method of a class."""
    return next(
        (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name),
        None,
    )


def has_fields(node: ast.ClassDef) -> bool:
    """Say if a class takes its annotated attributes as arguments."""
    return any(_FIELDS.search(ast.unparse(each)) for each in node.decorator_list)


def takes_argument(node: ast.FunctionDef | ast.AsyncFunctionDef, argument: str) -> bool | None:
    """Say if a function takes a keyword; None where it takes any. A deprecated name that a decorator still takes counts."""
    stated = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    if argument in stated or any(argument in _list_strings(row) for row in node.decorator_list):
        return True
    return None if node.args.kwarg else False


def asks_for(module: Module, name: str, *, package: str, owner: str, is_argument: bool) -> bool:
    """Say if a module's code imports, reads or passes what a library lacks, without a guard by try."""
    guarded = {
        id(each)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Try)
        for part in node.body
        for each in ast.walk(part)
    }
    callee = owner.removesuffix(".__init__").rpartition(".")[2]
    for node in ast.walk(module.tree):
        if id(node) in guarded and isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if is_argument and isinstance(node, ast.Call) and any(each.arg == name for each in node.keywords):
            if not callee or ast.unparse(node.func).rpartition(".")[2] in (callee, "__init__", "cls"):
                return True
        elif isinstance(node, ast.ImportFrom) and not is_argument and not owner:
            source = resolve_relative(module, node)
            if source.partition(".")[0] == package and any(
                f"{source}.{each.name}".endswith(f".{name}") or source == name for each in node.names
            ):
                return True
        elif isinstance(node, ast.Attribute) and not is_argument and node.attr == name.rpartition(".")[2]:
            return True
    return False
