"""What a source distribution is built with: what its own build files say, which are parsed and never run."""

import ast
import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from devkit.compat.specifiers import canonicalize_name
from devkit.facts.dependencies import BuildNeed, SourceBuild
from devkit.probe.dependencies.imports import list_names, parse_program
from devkit.probe.documents import get_object, get_text, get_texts, parse_object_or_empty, parse_toml

SETUP_PY = "setup.py"
PYPROJECT = "pyproject.toml"
CMAKE = "CMakeLists.txt"
MESON = "meson.build"
SCRIPT = ".sh"
PROGRAM, LIBRARY, HEADER, MODULE = "program", "library", "header", "module"
SOURCES = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".pyx")
MAX_MODULES = 12
"""Modules of the package itself that setup.py imports and that are followed."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([\w./+-]+)[>\"]", re.MULTILINE)
_CMAKE_COMMENT = re.compile(r"#\[\[(?s:.*?)\]\]|#.*")
_CMAKE_CALL = re.compile(
    r"^[ \t]*(find_package|pkg_check_modules|pkg_search_module|if|endif)\s*\(((?:[^()]|\([^()]*\))*)\)", re.I | re.M
)
_COMMENT = re.compile(r"#.*")
_MESON_OPTIONAL = re.compile(r"required\s*:\s*(?:false|get_option)|fallback")
_MESON_CALL = re.compile(r"\bdependency\s*\(\s*'([^']+)'((?:[^()']|'[^']*'|\([^()]*\))*)\)")
_CMAKE_WORDS = frozenset(
    ("REQUIRED", "QUIET", "IMPORTED_TARGET", "GLOBAL", "EXACT", "MODULE", "CONFIG", "NO_MODULE", "NO_CMAKE_PATH")
)
_BRINGS = {"scikit-build-core": {"cmake", "ninja"}, "meson-python": {"meson", "ninja"}, "maturin": {"cargo"}}
"""What these backends ask for where the system lacks it: their get_requires_for_build_wheel (PEP 517)."""
_MODULES = {"skbuild": "scikit-build", "Cython": "cython", "setuptools_rust": "setuptools-rust"}
_BUILT_IN = sys.stdlib_module_names | {"setuptools", "pkg_resources", "distutils", "_distutils_hack"}
_COMPILED_WITH = frozenset(("torch", "numpy", "Cython", "pybind11"))
"""Modules that count in functions, too: they bring headers, or translate sources."""
_COMMAND = re.compile(r"([\w./+-]+)(?: -.*)?", re.DOTALL)
_OTHER_SYSTEM = re.compile(r"win32|windows|msvc|darwin|macos|\bnt\b", re.IGNORECASE)
_NOT_BUILT = re.compile(
    r"(?:^|/)(?:tests?|examples?|benchmarks?|docs?|third_?party|extern(?:al)?|vendor(?:ed)?|deps|submodules)/",
    re.IGNORECASE,
)
"""Folders of what is not built, or is bundled to be built without the system's libraries."""


def read_source_build(
    package: str,
    files: Mapping[str, str],
    paths: Iterable[str],
    *,
    programs: Collection[str],
    headers: Collection[str],
) -> SourceBuild:
    """Read what the build of a source distribution needs beyond a C++ compiler.

    Args:
        package: its normalized name.
        files: the texts of its build files and sources by their path below its top folder.
        paths: every path in it.
        programs: the programs that count, where setup.py names them.
        headers: the headers of libraries that count, where sources include them.
    """
    return _Reader(files, frozenset(paths), programs, headers).read(package)


class _Reader:
    """The build files of one distribution."""

    def __init__(
        self, files: Mapping[str, str], paths: frozenset[str], programs: Collection[str], headers: Collection[str]
    ) -> None:
        self._files = files
        self._programs = programs
        self._headers = headers
        self._paths = paths
        self._folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        system = get_object(parse_object_or_empty(files.get(PYPROJECT), parse_toml), "build-system")
        self._requires = get_texts(system, "requires")
        self._backend = get_text(system, "build-backend")
        names = {canonicalize_name(name[0]) for each in self._requires if (name := _REQUIREMENT.match(each))}
        self._brought = names.union(*(_BRINGS.get(name, ()) for name in names))
        self._needs: dict[tuple[str, str], str] = {}

    def read(self, package: str) -> SourceBuild:
        """Read all of them."""
        if "torch" in self._brought:
            # An isolated build would fetch a different torch than the plan's.
            self._need(MODULE, "torch", PYPROJECT)
        if SETUP_PY in self._files and (not self._backend or self._backend.startswith("setuptools")):
            self._read_setup_py()
        if self._uses_cmake:
            self._read_cmake()
            if "ninja" not in self._brought:
                self._need(PROGRAM, "make", self._needs.get((PROGRAM, "cmake"), CMAKE))
        if "meson-python" in self._brought:
            self._read_meson()
        if "setuptools-rust" in self._brought:
            self._need(PROGRAM, "cargo", PYPROJECT)
        if not self._uses_cmake:
            self._read_sources()
        needs = tuple(
            BuildNeed(kind, name, origin)
            for (kind, name), origin in self._needs.items()
            if kind != PROGRAM or name not in self._brought
        )
        return SourceBuild(package, needs, tuple(self._requires))

    @property
    def _uses_cmake(self) -> bool:
        return "cmake" in self._brought or (PROGRAM, "cmake") in self._needs

    def _need(self, kind: str, name: str, origin: str) -> None:
        self._needs.setdefault((kind, name), origin)

    def _read_setup_py(self) -> None:
        followed: set[str] = set()
        waiting = [SETUP_PY]
        while waiting and len(followed) < MAX_MODULES:
            path = waiting.pop(0)
            tree = parse_program(self._files.get(path, ""))
            if path in followed or tree is None:
                continue
            followed.add(path)
            for module, line in _list_imports(tree):
                stem = module.replace(".", "/")
                waiting += [each for each in (f"{stem}.py", f"{stem}/__init__.py") if each in self._files]
                self._need_module(module, f"{path}:{line}")
        if tree := parse_program(self._files[SETUP_PY]):
            # What setuptools itself fetches, once setup.py has run to its end for the first time.
            keywords = (
                each for each in ast.walk(tree) if isinstance(each, ast.keyword) and each.arg == "setup_requires"
            )
            texts = (each.value for one in keywords for each in ast.walk(one) if isinstance(each, ast.Constant))
            names = filter(None, (_REQUIREMENT.match(str(each)) for each in texts))
            self._brought |= {canonicalize_name(name[0]) for name in names}
            for module, line in _list_imports(tree, in_functions=True):
                if module.partition(".")[0] in _COMPILED_WITH:
                    self._need_module(module, f"{SETUP_PY}:{line}")
            self._read_texts(tree)

    def _need_module(self, module: str, origin: str) -> None:
        top = module.partition(".")[0]
        name = canonicalize_name(_MODULES.get(top, top))
        # Where setup.py puts a folder on the path, a module of the distribution's own is not asked of the index.
        is_moved = "sys.path" in self._files.get(SETUP_PY, "") and top not in _COMPILED_WITH
        is_own = top in self._folders or f"{top}.py" in self._paths
        is_own |= is_moved and any(path.endswith(f"/{top}.py") for path in self._paths)
        if not is_own and top not in _BUILT_IN and name not in self._brought:
            self._need(MODULE, name, origin)

    def _read_texts(self, tree: ast.Module) -> None:
        """Read the programs that setup.py names, and the libraries that its extensions link."""
        for node in _walk_linux(tree):
            origin = f"{SETUP_PY}:{getattr(node, 'lineno', 0)}"
            match node:
                case ast.Constant(value=str() as text):
                    if (command := _COMMAND.fullmatch(text)) and command[1] in self._programs:
                        self._need(PROGRAM, command[1], origin)
                    for word in text.split():
                        self._read_script(PurePosixPath(word).name)
                    if text.endswith(".i") and " " not in text:
                        self._need(PROGRAM, "swig", origin)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if "librar" in name.lower():
                    self._need_libraries(value, origin)
                case ast.keyword(arg="libraries", value=value):
                    self._need_libraries(value, origin)
                case _:
                    pass

    def _read_script(self, name: str) -> None:
        """Read the programs that begin the lines of a shell script, which setup.py names."""
        for path in sorted(self._files) if name.endswith(SCRIPT) else ():
            for number, line in enumerate(self._files[path].splitlines(), 1) if path.rpartition("/")[2] == name else ():
                if (word := line.split()[:1]) and word[0] in self._programs:
                    self._need(PROGRAM, word[0], f"{path}:{number}")

    def _need_libraries(self, node: ast.expr, origin: str) -> None:
        if isinstance(node, ast.List | ast.Tuple):
            for each in node.elts:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    self._need(LIBRARY, each.value, origin)

    def _read_cmake(self) -> None:
        """Read what the first CMakeLists.txt finds in any case."""
        found = sorted(
            (path for path in self._files if path.rpartition("/")[2] == CMAKE), key=lambda path: path.count("/")
        )
        # The lines of a comment stay: others are counted by them.
        text = _CMAKE_COMMENT.sub(lambda each: "\n" * each[0].count("\n"), self._files[found[0]]) if found else ""
        depth = 0
        for call in _CMAKE_CALL.finditer(text):
            name, words = call[1].lower(), call[2].split()
            depth += {"if": 1, "endif": -1}.get(name, 0)
            if depth or "REQUIRED" not in words:
                continue
            origin = f"{found[0]}:{text.count(chr(10), 0, call.start()) + 1}"
            if name == "find_package":
                self._need(LIBRARY, words[0], origin)
            else:
                self._need(PROGRAM, "pkg-config", origin)
                for word in words[1:]:
                    if word not in _CMAKE_WORDS:
                        self._need(LIBRARY, re.split("[<>=]", word)[0], origin)

    def _read_meson(self) -> None:
        for path in sorted(self._files):
            text = _COMMENT.sub("", self._files[path]) if path.rpartition("/")[2] == MESON else ""
            for call in _MESON_CALL.finditer(text):
                if not _MESON_OPTIONAL.search(call[2]):
                    origin = f"{path}:{text.count(chr(10), 0, call.start()) + 1}"
                    self._need(PROGRAM, "pkg-config", origin)
                    self._need(LIBRARY, call[1], origin)

    def _read_sources(self) -> None:
        """Read which headers of known libraries the sources include and do not hold."""
        own = {path.rpartition("/")[2] for path in self._paths}
        for path in sorted(self._files):
            if path.endswith(SOURCES) and not _NOT_BUILT.search(path):
                for found in _INCLUDE.finditer(self._files[path]):
                    if found[1] in self._headers and found[1].rpartition("/")[2] not in own:
                        line = self._files[path].count("\n", 0, found.start()) + 1
                        self._need(HEADER, found[1], f"{path}:{line}")


def _walk_linux(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a program but for what it does on another system, and for the requirements of what it builds."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        if isinstance(node, ast.keyword) and (node.arg or "").endswith(("_requires", "_require")):
            continue
        if isinstance(node, ast.If) and _OTHER_SYSTEM.search(ast.unparse(node.test)):
            waiting += node.orelse
        elif not (isinstance(node, ast.FunctionDef) and _OTHER_SYSTEM.search(node.name)):
            waiting += ast.iter_child_nodes(node)


def _is_optional(node: ast.AST) -> bool:
    """Return whether a statement's failure is caught, and does not end the build with another error."""
    if not isinstance(node, ast.Try) or not node.handlers:
        return False
    # Either form of `from pip._internal.req import x` and `from pip.req import x` needs pip.
    handled = [part for handler in node.handlers for part in handler.body]
    if dict(list_names(node.body)).keys() & dict(list_names(handled)).keys():
        return False
    ends = (each for part in handled for each in ast.walk(part))
    return not any(isinstance(each, ast.Raise) or getattr(each, "attr", "") == "exit" for each in ends)


def _list_imports(tree: ast.Module, *, in_functions: bool = False) -> Iterator[tuple[str, int]]:
    """List the modules that a program imports at once, with their lines; those in functions, too, if wanted."""
    waiting: deque[ast.AST] = deque(tree.body)
    while waiting:
        node = waiting.popleft()
        match node:
            case ast.Import(names=names):
                yield from ((each.name, node.lineno) for each in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield module, node.lineno
            case ast.Try() if _is_optional(node):
                continue
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef() | ast.Lambda() if not in_functions:
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                continue
            case _:
                waiting += ast.iter_child_nodes(node)
