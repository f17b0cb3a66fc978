"""The modules that wheels bring, and single files of them: a wheel of 900 MB takes a few requests for ranges.

What a list of files says is kept in the user's data folder by the wheel's address, which names one file forever.
"""

import contextlib
import io
import os
import re
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devkit.user_folder import find_user_file
from devkit.whole_files import write_whole

DEADLINE_S = 12.0
"""For all wheels together; those that have not answered by then are not checked."""
CALL_DEADLINE_S = 5.0
CONNECTIONS = 8
MAX_WHOLE_BYTES = 5 << 20
"""A wheel of an index that answers no ranges is read up to this size."""
_TAIL_BYTES = 1 << 16
_AHEAD_BYTES = 1 << 17
"""Bytes of one request at least: a file is read in small pieces."""
_BINARY = re.compile(r"\.(?:cpython|cp|abi3|pypy)[\w.-]*\.so|\.so|\.pyd")


def list_wheel_modules(wheels: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """List the top modules of each package by the address of its wheel; those that could not be read are left out."""
    pool = ThreadPoolExecutor(CONNECTIONS)
    waiting = {name: pool.submit(_list_modules_of, url) for name, url in wheels.items()}
    wait(waiting.values(), timeout=DEADLINE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    done = {name: future for name, future in waiting.items() if future.done() and not future.cancelled()}
    return {name: future.result() for name, future in done.items() if future.exception() is None}


def find_modules(files: Iterable[str]) -> frozenset[str]:
    """Find the modules that can be imported from a wheel with these files: folders with code, and single files of it."""
    found = set()
    for file in files:
        top, _, rest = file.partition("/")
        if top.endswith(".data"):
            # Files of NAME.data/purelib and platlib are installed beside the others.
            scheme, _, inner = rest.partition("/")
            top, _, rest = inner.partition("/") if scheme in ("purelib", "platlib") else ("", "", "")
        name = _BINARY.sub("", top.removesuffix(".py")) if not rest else top
        if name.isidentifier() and file.endswith((".py", ".so", ".pyd")):
            found.add(name)
    return frozenset(found)


def _list_modules_of(url: str) -> frozenset[str]:
    folder = find_user_file("wheel-modules")
    path = Path(folder or os.devnull, sha256(url.encode()).hexdigest())
    with contextlib.suppress(OSError):
        return frozenset(path.read_text(encoding="utf-8").split())
    with open_wheel(url) as archive:
        found = find_modules(archive.namelist())
    if folder:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, "\n".join(sorted(found)).encode())
    return found


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
