"""Packages that a project's programs import and none of its files asks for.

Files are parsed and never run, notebooks too. Only names of the table of imports become packages: anybody can register a name.
"""

import ast
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.dependencies import ImportedPackage
from devkit.probe.dependencies.setup_py import SETUP_PY
from devkit.probe.project.files import ProjectFiles

MAX_FILES = 400
MAX_DEPTH = 5
MAX_CHARACTERS = 2 << 20
"""Of all files together."""

IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_AUDIO_FILES = re.compile(r"\btorchaudio\.(?:load|save)\(")
"""Since torchaudio 2.9 these take torchcodec, which does not come with it: https://github.com/pytorch/audio/pull/4039."""
NOTEBOOK = ".ipynb"
_OF_JUPYTER = re.compile(r"^([ \t]*)([!%].*|\?.*)$", re.MULTILINE)
_INSTALLED = re.compile(r"^[ \t]*pass  # [!%] *(?:uv +)?pip3? +install +(.+)$", re.MULTILINE)
"""A cell's `!pip install` or `%pip install`."""
_KERNELS = frozenset(("ipykernel", "jupyter", "jupyterlab", "notebook"))
_SKIPPED = re.compile(
    r"(?i)\..*|venv|env|node_modules|site-packages|build|dist|docs?|third[_-]party|vendor|extern(?:al)?"
)
_PYTHON_2 = re.compile("Missing parentheses in call to|multiple exception types must be parenthesized")
_TESTS = re.compile(r"(?i)tests?")
_ASIDE = re.compile(
    r"(?i)examples?|benchmarks?|demos?|experiments?|extensions?|plugins?|projects?|playground|tools|scripts"
)
"""Folders of programs that a project's own package does without."""
_STAND_INS = re.compile(r"-(?:python|cpu|binary)$")
"""Ends of names whose package has others that bring the same module, such as opencv-python-headless."""


def find_imported_packages(
    files: ProjectFiles, *, declared: Collection[str], distributions: Mapping[str, str], is_for_work: bool = False
) -> tuple[ImportedPackage, ...]:
    """Find the packages that programs import and that are not among the `declared` ones, each at its first import.

    Imports that may fail, below `try`, do not count. Where the project declares packages, neither do those inside
    functions and conditions, those of programs outside its package, and modules that `distributions` lacks. For work on
    the project only the last do not, and its tests are programs: an editor shows each import that is missing. Who reads
    or writes files with torchaudio imports torchcodec, for it.
    """
    is_top_only = bool(declared) and not is_for_work
    programs = dict(read_programs(files, is_library=is_top_only, with_tests=is_for_work))
    local = {part for path in programs for part in path.removesuffix(".py").split("/")}
    known = local | sys.stdlib_module_names | {"torch", "triton", "__future__"}
    names = {canonicalize_name(name) for name in declared}
    found: dict[str, ImportedPackage] = {}
    for path, text in programs.items():
        candidates = set(IMPORT.findall(text)) - known - found.keys()
        if declared:
            candidates = {
                each for each in candidates & distributions.keys() if not is_among(distributions[each], names)
            }
        for module, line in list_imports(text, is_top_only=is_top_only, with_tried=is_for_work) if candidates else ():
            name = distributions.get(module, "")
            if module not in known and (name or not declared) and not is_among(name or module, names):
                found.setdefault(module, ImportedPackage(module, name, path, line))
        if "torchcodec" not in names and (call := _AUDIO_FILES.search(text)):
            line = text.count("\n", 0, call.start()) + 1
            found.setdefault("torchcodec", ImportedPackage("torchaudio", "torchcodec", path, line))
        for installed in _INSTALLED.finditer(text) if path.endswith(NOTEBOOK) else ():
            line, modules = (
                text.count("\n", 0, installed.start()) + 1,
                {name: each for each, name in distributions.items()},
            )
            for name in map(canonicalize_name, re.findall(r"""(?<![^\s'"])[A-Za-z][\w.-]*""", installed[1])):
                if name in modules and not is_among(name, names):
                    found.setdefault(modules[name], ImportedPackage(modules[name], name, path, line))
        if text and path.endswith(NOTEBOOK) and not names & _KERNELS:
            found.setdefault("ipykernel", ImportedPackage("ipykernel", "ipykernel", path, 1))
    return tuple(found.values())


def find_unprovided_imports(
    files: ProjectFiles, provided: Collection[str], reached: Iterable[tuple[str, str, int]] = ()
) -> tuple[tuple[str, str, int], ...]:
    """Find the modules that programs import at once and that are neither `provided` nor the project's own.

    Returns: each module with the file and line of its first import, first those of `reached`: what the programs import that
    the guide runs.
    """
    programs = dict(read_programs(files, is_library=True))
    own = {part for path in programs for part in path.removesuffix(".py").split("/")} | {*files.names(".")}
    known = {*own, *sys.stdlib_module_names, *provided, "__future__"}
    found: dict[str, tuple[str, str, int]] = {}
    for name, path, line in reached:
        if (top := name.partition(".")[0]) not in known:
            found.setdefault(top, (top, path, line))
    for path, text in programs.items():
        if set(IMPORT.findall(text)) <= known | found.keys():
            continue
        for module, line in list_imports(text, is_top_only=True):
            if module not in known:
                found.setdefault(module, (module, path, line))
    return tuple(found.values())


def is_among(name: str, declared: Collection[str]) -> bool:
    """Return whether a package, or one that brings the same module, is among the `declared` ones."""
    stem = _STAND_INS.sub("", name)
    return any(each in (name, stem) or each.startswith(f"{stem}-") for each in declared)


def read_programs(files: ProjectFiles, *, is_library: bool, with_tests: bool = False) -> Iterator[tuple[str, str]]:
    """Read the project's Python files, those nearest to its folder first; of a library no programs aside of it.

    What setup.py imports is needed by a build alone. With tests, which only who works on the project asks for, more is read.
    """
    aside = [_SKIPPED, *([] if with_tests else [_TESTS]), *([_ASIDE] if is_library else [])]
    times = 4 if with_tests else 1
    folders, left, size = [""], times * MAX_FILES, 0
    for _ in range(MAX_DEPTH * times):
        inner: list[str] = []
        for folder in folders:
            for name in files.names(folder or "."):
                path = f"{folder}/{name}" if folder else name
                if "." not in name and not any(each.fullmatch(name) for each in aside):
                    inner.append(path)
                elif name.endswith((".py", NOTEBOOK)) and path != SETUP_PY and left and size < times * MAX_CHARACTERS:
                    text = files.read(path, "program") or ""
                    text = convert_notebook(text) if name.endswith(NOTEBOOK) else text
                    left, size = left - 1, size + len(text)
                    yield path, text
        folders = inner


def convert_notebook(text: str) -> str:
    """Return the code of a notebook as one program, with lines for the shell and for Jupyter as comments; "" for none."""
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return _OF_JUPYTER.sub(r"\1pass  # \2", "\n".join(each for each in sources if not each.startswith("%%")))


def parse_program(text: str) -> ast.Module | None:
    """Parse a file; None for one that is not Python of this release, such as syntax of a newer one."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def list_imports(text: str, *, is_top_only: bool, with_tried: bool = False) -> Iterator[tuple[str, int]]:
    """List the modules that a file imports, with their lines; nothing for a file that cannot be parsed or what is tried."""
    for node in _list_nodes(text, is_top_only=is_top_only, with_tried=with_tried):
        yield from list_names([node])


def list_dotted_imports(text: str, package: Sequence[str]) -> Iterator[tuple[str, int]]:
    """List what a file of `package` imports at once, by full names with their lines; of `from a import b` it is a.b.

    What is relative to a folder whose name no import can have, such as Wan2.2, is of the project and has no full name.
    """
    for node in _list_nodes(text, is_top_only=True):
        base = ""
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            if not all(each.isidentifier() for each in above):
                continue
            base = ".".join((*above, *([node.module] if node.module else []), ""))
        yield from ((f"{base}{alias.name}", node.lineno) for alias in node.names)


def list_uses(text: str, modules: Collection[str]) -> Iterator[tuple[str, int]]:
    """List what a file uses of these top modules, with lines: a.b of `from a import b`, and of `import a` with `a.b`."""
    tree = parse_program(text) if any(each in text for each in modules) else None
    nodes = list(ast.walk(tree)) if tree else []
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
            names |= {(top := each.name.partition(".")[0]): top for each in node.names if not each.asname}
            found = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found = [f"{node.module}.{each.name}".removesuffix(".*") for each in node.names]
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        else:
            continue
        yield from ((each, node.lineno) for each in found if each.partition(".")[0] in modules)
    # A variable or an argument of the same name may be something else.
    bound = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    bound |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in bound:
            name = names.get(node.value.id, "")
            if name.partition(".")[0] in modules:
                yield f"{name}.{node.attr}", node.lineno


@lru_cache(maxsize=MAX_FILES)
def find_syntax_error(text: str) -> Exception | None:
    """Return why this Python cannot parse a file; None where it can."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error.with_traceback(None)
    return None


def find_python_2(text: str) -> int:
    """Return the first line of a file that is Python 2, as the error of this Python says; 0 for none."""
    error = find_syntax_error(text)
    return getattr(error, "lineno", 0) if _PYTHON_2.search(str(error)) else 0


@lru_cache(maxsize=4 * MAX_FILES)
def _list_nodes(text: str, *, is_top_only: bool, with_tried: bool = False) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """List the import statements of a file. A guide runs many programs of one project, and each reaches the same files."""
    return tuple(_walk_imports(parse_program(text), is_top_only=is_top_only, with_tried=with_tried))


def _walk_imports(
    tree: ast.Module | None, *, is_top_only: bool, with_tried: bool
) -> Iterator[ast.Import | ast.ImportFrom]:
    waiting: list[ast.AST] = list(tree.body) if tree else []
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif isinstance(node, ast.Try) and not with_tried:
            # A module whose absence raises an error, or that the handler imports from another place, cannot be missing.
            handled = [each for handler in node.handlers for each in handler.body]
            tried = {name for name, _ in list_names(node.body)}
            if any(isinstance(each, ast.Raise) for each in handled):
                waiting[:0] = node.body
            else:
                again = (each for each in handled if tried & {name for name, _ in list_names([each])})
                yield from (each for each in again if isinstance(each, ast.Import | ast.ImportFrom))
        elif not is_top_only or isinstance(node, ast.Try):
            waiting += ast.iter_child_nodes(node)


def list_names(body: list[ast.stmt]) -> list[tuple[str, int]]:
    """List the top modules that statements import, with their lines."""
    found: list[tuple[str, int]] = []
    for node in body:
        if isinstance(node, ast.Import):
            found += [(alias.name.partition(".")[0], node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.module.partition(".")[0], node.lineno))
    return found
