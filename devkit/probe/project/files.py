"""Files of one project and of nothing else: no link leads out of it, and no file is too large."""

import posixpath
import re

from devkit.facts.project import FileState, ProjectFile
from devkit.probe.host import Host

MAX_BYTES = 1 << 20
DEPENDENCY_FILE_NAMES = re.compile(
    r"(?i:[\w.-]*(?:requirements?|reqs)[\w.-]*)|pyproject\.toml|(?:uv|poetry|pdm)\.lock|pixi\.toml|Pipfile(?:\.lock)?"
    r"|environment\.ya?ml|conda-lock\.ya?ml|setup\.(?:cfg|py)|\.python-version"
)
"""The names of all files in a project's own folder that are read."""
OTHER_LANGUAGES = re.compile(
    r"Cargo\.toml|go\.mod|package\.json|pom\.xml|build\.gradle(?:\.kts)?|Gemfile|Package\.swift|mix\.exs|build\.zig"
    r"|dune-project|.*\.(?:cabal|sln|csproj|vcxproj)"
)
"""Build files of languages besides Python, C and C++."""
C_BUILDS = re.compile(r"CMakeLists\.txt|meson\.build|(?:GNUm|[Mm])akefile")
"""Build files of C and C++, which projects of other languages have, too."""
MAX_FOLDERS = 50
"""Folders of the project in which a requirement file is looked for, where its own folder has none."""
CONTAINER_FILE_NAMES = re.compile(
    r"(?i)\.devcontainer|.*compose|.*docker|.*container|.*deploy|\.env|.*requirements|environment|pyproject|pipfile|conda|devkit\.toml|.*\.lock"
)
"""How the names begin of all files and folders that are read in a project's own folder."""


class ProjectFiles:
    """The files of the project in `folder`. Paths are relative to it, with slashes. Keeps what became of each."""

    def __init__(self, host: Host, folder: str, *, most_bytes: int = MAX_BYTES) -> None:
        self.host = host
        self._most_bytes = most_bytes
        self.folder = folder.replace("\\", "/").rstrip("/") or "/"
        self._root = (host.link(self.folder) or self.folder).rstrip("/")
        self._seen: dict[str, ProjectFile] = {}

    @property
    def seen(self) -> tuple[ProjectFile, ...]:
        """Every file that was read or named, in that order."""
        return tuple(self._seen.values())

    def within(self, path: str, *, beside: str = "") -> str | None:
        """Return `path`, as the file `beside` writes it, relative to the project; None when it leads out of it."""
        path = path.replace("\\", "/")
        if path.startswith(start := f"{self.folder.rstrip('/')}/"):
            path = path.removeprefix(start)
        elif path.startswith("/") or "://" in path:
            return None
        else:
            path = posixpath.join(posixpath.dirname(beside), path)
        path = posixpath.normpath(path)
        return None if path.startswith("..") else path

    def has(self, path: str) -> bool:
        """Return whether there is a file, a folder or a link of this name, even one that leads nowhere."""
        folder, _, name = self.absolute(path).rpartition("/")
        return self.host.stat(self.absolute(path)) is not None or name in self.host.list(folder or "/")

    def names(self, folder: str) -> tuple[str, ...]:
        """List the sorted names in a folder of the project."""
        return self.host.list(self.absolute(folder)) if self._is_inside(folder) else ()

    def absolute(self, path: str) -> str:
        """Return the path from the root of the file system."""
        return posixpath.normpath(posixpath.join(self.folder, path))

    def read(self, path: str, kind: str, *, named_by: str = "", line: int = 1) -> str | None:
        """Read a file; None when it is missing or cannot be read. `named_by` is the file that expects it."""
        relative = self.within(path, beside=named_by)
        if relative is None:
            self._note(path, kind, FileState.OUTSIDE, named_by, line)
            return None
        found, text = self.host.stat(self.absolute(relative)), None
        if found is None or found.kind == "directory":
            is_broken_link = found is None and self.has(relative)
            state = FileState.UNREADABLE if is_broken_link else FileState.MISSING
        elif not self._is_inside(relative):
            state = FileState.OUTSIDE
        elif found.size > self._most_bytes:
            state = FileState.TOO_LARGE
        else:
            text = self.host.read(self.absolute(relative)) if found.kind == "file" else None
            state = FileState.UNREADABLE if text is None else FileState.READ
        if state is not FileState.MISSING or named_by:
            self._note(relative, kind, state, named_by, line)
        return text

    def expect(self, path: str, kind: str, *, named_by: str, line: int) -> None:
        """Remember a file or folder, relative to the project, that another file names, if it does not exist."""
        if not self.has(path):
            self._note(path, kind, FileState.MISSING, named_by, line)

    def broken(self, path: str, problem: str, line: int) -> None:
        """Remember that a file which was read is not what its name says."""
        seen = self._seen[path]
        self._seen[path] = ProjectFile(path, seen.kind, FileState.BROKEN, problem, line, seen.named_by)

    def _is_inside(self, path: str) -> bool:
        real = self.host.link(self.absolute(path))
        return real is not None and f"{real}/".startswith(f"{self._root}/")

    def _note(self, path: str, kind: str, state: FileState, named_by: str, line: int) -> None:
        if path not in self._seen or self._seen[path].state is not FileState.BROKEN:
            self._seen[path] = ProjectFile(path, kind, state, "", line, named_by)
