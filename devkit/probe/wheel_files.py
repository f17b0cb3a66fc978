"""The modules of wheels and what they import, and single files of them: a wheel of 900 MB takes a few requests for ranges.

What was read is kept in the user's data folder by the wheel's address, which names one file forever.
"""

import contextlib
import io
import json
import os
import re
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from devkit.errors import DevkitError
from devkit.probe.dependencies.imports import list_dotted_imports
from devkit.user_folder import find_user_file, write_user_file

DEADLINE_S = 12.0
"""For all wheels together; those that have not answered by then are not checked."""
CALL_DEADLINE_S = 5.0
CONNECTIONS = 8
MAX_WHOLE_BYTES = 5 << 20
"""A wheel of an index that answers no ranges is read up to this size."""
MAX_STEPS = 3
"""Steps from what a project imports, through the modules that this imports, to what is read last."""
MAX_MODULES = 400
"""Modules of all wheels that are read."""
_MAX_SOURCE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16
_AHEAD_BYTES = 1 << 18
"""Bytes of one request at least: a file is read in small pieces."""
_INSTALLED = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")
"""Files below it are installed beside the others."""
_VENDORED = re.compile(r"(?:.*/)?_?(?:vendor(?:ed)?|third_?party|extern(?:al)?)/([^/.]+)")
"""A module that a wheel has for itself, in a folder that its code adds to the path."""
_BINARY = re.compile(r"\.(?:cpython|cp|abi3|pypy)[\w.-]*\.so|\.so|\.pyd")


class WheelReader:
    """Reads the wheels of packages, each by its address; those that could not be read by a deadline are left out."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._wheels = {name: _Wheel(url) for name, url in urls.items()}

    @cached_property
    def modules(self) -> dict[str, frozenset[str]]:
        """The top modules of each package."""
        return run_side_by_side({name: wheel.read_modules for name, wheel in self._wheels.items()}, DEADLINE_S)

    def list_imports(self, names: Iterable[str]) -> dict[str, tuple[str, str, int]]:
        """List what packages import where `names` are imported: the modules of these names, and what those import at once.

        Returns: each top module with the file and line of the import that is the fewest steps away. What is more than
        `MAX_STEPS` away, or beyond `MAX_MODULES`, is left out.
        """
        homes: dict[str, list[str]] = {}
        for package, modules in self.modules.items():
            for module in modules:
                homes.setdefault(module, []).append(package)
        ends_at, seen = time.monotonic() + DEADLINE_S, set[str]()
        found: dict[str, tuple[str, str, int]] = {}
        for _ in range(MAX_STEPS):
            # An import of a.b runs a first.
            parts = {part for name in names for part in accumulate(name.split("."), "{}.{}".format)} - seen
            wanted: dict[str, list[str]] = {}
            for part in sorted(parts)[: max(0, MAX_MODULES - len(seen))]:
                for package in homes.get(part.partition(".")[0], ()):
                    wanted.setdefault(package, []).append(part)
            seen |= parts
            tasks = {package: partial(self._wheels[package].read_imports, each) for package, each in wanted.items()}
            files = run_side_by_side(tasks, ends_at - time.monotonic()).values()
            steps = sorted((name, path, line) for read in files for path, each in read.items() for name, line in each)
            for name, path, line in steps:
                found.setdefault(top := name.partition(".")[0], (top, path, line))
            names = {name for name, _, _ in steps}
        return found


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def run_side_by_side(
    tasks: Mapping[_Key, Callable[[], _Value]], deadline_s: float, connections: int = CONNECTIONS
) -> dict[_Key, _Value]:
    """Run tasks; what fails, or has no answer by the deadline, is left out. The end of the program waits for none."""
    waiting: dict[_Key, Future[_Value]] = {key: Future() for key in tasks}
    ends_at, left = time.monotonic() + deadline_s, iter(tasks.items())

    def work() -> None:
        for key, task in left:
            if ends_at < time.monotonic():
                return
            try:
                waiting[key].set_result(task())
            except BaseException as error:  # noqa: BLE001 - left out below
                waiting[key].set_exception(error)

    for _ in range(min(connections, len(tasks))):
        Thread(target=work, daemon=True).start()
    wait(waiting.values(), timeout=max(deadline_s, 0))
    return {key: each.result() for key, each in waiting.items() if each.done() and each.exception() is None}


class _Wheel:
    """A wheel at an address, of which each file is read once for all commands."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._record = f"wheels/{sha256(url.encode()).hexdigest()}"
        self._known: dict[str, Any] = {"imports": {}}
        with contextlib.suppress(OSError, ValueError):
            self._known = json.loads(Path(find_user_file(self._record) or os.devnull).read_text(encoding="utf-8"))

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return open_wheel(self._url)

    def read_modules(self) -> frozenset[str]:
        if "modules" not in self._known:
            self._known["modules"] = sorted(find_modules(self._archive.namelist()))
            self._keep()
        return frozenset(self._known["modules"])

    def read_imports(self, names: Iterable[str]) -> dict[str, list[tuple[str, int]]]:
        """Return the files of those modules that it has in Python, each with its imports."""
        known = self._known["imports"]
        if lacking := [name for name in names if name not in known]:
            files = {_INSTALLED.sub("", each.filename): each for each in self._archive.infolist()}
            vendored = {found[1] for found in map(_VENDORED.match, files) if found}
            ends = ("/__init__.py", ".py")
            stems = ((name, name.replace(".", "/")) for name in lacking)
            paths = {name: next((stem + end for end in ends if stem + end in files), "") for name, stem in stems}
            # Neighbors come with one request.
            for name, path in sorted(paths.items(), key=lambda each: files[each[1]].header_offset if each[1] else 0):
                source = self._archive.open(files[path]).read(_MAX_SOURCE_BYTES) if path else b""
                imports = list_dotted_imports(source.decode(errors="replace"), path.split("/")[:-1])
                known[name] = path, [each for each in imports if each[0].partition(".")[0] not in vendored]
            self._keep()
        return {known[name][0]: known[name][1] for name in names if known[name][0]}

    def _keep(self) -> None:
        with contextlib.suppress(DevkitError):
            write_user_file(self._record, json.dumps(self._known).encode())


def find_modules(files: Iterable[str]) -> frozenset[str]:
    """Find the modules that can be imported from a wheel with these files: folders with code, and single files of it."""
    found = set()
    for file in files:
        top, _, rest = _INSTALLED.sub("", file).partition("/")
        name = _BINARY.sub("", top.removesuffix(".py")) if not rest else top
        if name.isidentifier() and file.endswith((".py", ".so", ".pyd")):
            found.add(name)
    return frozenset(found)


def open_wheel(url: str, login: str = "") -> zipfile.ZipFile:
    """Open a wheel. Raises OSError and zipfile.BadZipFile. `login` is the header for its server, "" for none."""
    local = urllib.request.url2pathname(urlsplit(url).path) if url.startswith("file:") else ""
    return zipfile.ZipFile(local or _RemoteFile(url, login))


def send_request(url: str, login: str = "", **headers: str) -> Any:  # noqa: ANN401 - urllib's answer is not typed
    """Send a request to a server. Raises OSError. A server that it is sent on to does not get the login."""
    if not url.startswith(("https://", "http://")):
        raise OSError("this is not a server address")
    request = urllib.request.Request(url, headers={"User-Agent": "devkit", **headers})  # noqa: S310
    if login:
        request.add_unredirected_header("Authorization", login)
    return urllib.request.urlopen(request, timeout=CALL_DEADLINE_S)  # noqa: S310


class _RemoteFile(io.BytesIO):
    """A file on a server, of which only what is read is fetched; its end is, with the first request."""

    def __init__(self, url: str, login: str = "") -> None:
        super().__init__()
        self._url, self._login = url, login
        self._place = 0
        self._tail = self._fetch(f"-{_TAIL_BYTES}", _TAIL_BYTES)
        self._ahead = (0, b"")

    def _fetch(self, span: str, max_bytes: int) -> bytes:
        with send_request(self._url, self._login, Range=f"bytes={span}") as answer:
            if answer.status == 206:
                self._size = int(answer.headers["Content-Range"].rpartition("/")[2])
                # A server may send without end.
                content: bytes = answer.read(max_bytes)
                return content
            self._size = int(answer.headers["Content-Length"])
            if self._size > MAX_WHOLE_BYTES:
                raise OSError("the server does not support ranges")
            return bytes(answer.read(MAX_WHOLE_BYTES))

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._place + size, self._size)
        start, tail = self._place, self._size - len(self._tail)
        self._place = end
        if end <= start:
            return b""
        if start >= tail:
            return self._tail[start - tail : end - tail]
        first, content = self._ahead
        if not first <= start <= end <= first + len(content):
            until = min(max(end, start + _AHEAD_BYTES), self._size)
            first, content = start, self._fetch(f"{start}-{until - 1}", until - start)
            self._ahead = first, content
        return content[start - first : end - first]
