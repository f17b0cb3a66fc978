"""Source distributions, read for what their builds need: downloaded within bounds, never run, never written to disk."""

import gzip
import io
import tarfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from urllib.parse import urlsplit

from devkit.compat.version_tables import load_tables
from devkit.facts.dependencies import SourceBuild
from devkit.probe.dependencies.build_files import CMAKE, MESON, PYPROJECT, SCRIPT, SETUP_PY, SOURCES, read_source_build
from devkit.probe.package_indexes import find_offline_setting
from devkit.probe.wheel_files import run_side_by_side

DEADLINE_S = 12.0
"""For all of them together; those that have not answered by then are not read."""
CALL_DEADLINE_S = 5.0
CONNECTIONS = 4
MAX_BYTES = 32 << 20
"""The largest archive that is downloaded."""
MAX_UNPACKED_BYTES = 256 << 20
MAX_MEMBERS = 20_000
MAX_FILE_BYTES = 512 << 10
MAX_TEXT_BYTES = 16 << 20
"""For all sources of an archive that are read."""
_BUILD_FILES = (SETUP_PY, PYPROJECT, CMAKE, MESON)
_TOP_MODULES = ".egg-info/top_level.txt"
_DEPTH = 2
_CHUNK_BYTES = 1 << 18


def read_source_builds(sources: Mapping[str, str]) -> tuple[SourceBuild, ...]:
    """Read the build files of each package by the address of its source distribution.

    Those that could not be read within the bounds are left out.
    """
    tasks = {name: partial(_read, name, url) for name, url in sources.items()}
    return tuple(run_side_by_side(tasks, DEADLINE_S, CONNECTIONS).values())


@lru_cache
def _read(package: str, url: str) -> SourceBuild:
    content = _download(url)
    is_zip = urlsplit(url).path.endswith(".zip")
    paths: list[str] = []
    files: dict[str, str] = {}
    left = MAX_TEXT_BYTES
    for full_path, size, read in _list_zip(content) if is_zip else _list_tar(content):
        # Below the archive's top folder. It is a key of a dictionary: no path of an archive is opened or written.
        path = full_path.removeprefix("./").partition("/")[2]
        paths.append(path)
        is_source = path.endswith(SOURCES)
        # Near the top are build files, and the modules and scripts that setup.py takes.
        is_build_file = path.rpartition("/")[2] in _BUILD_FILES or path.endswith((".py", SCRIPT))
        is_wanted = (is_build_file and path.count("/") < _DEPTH) or path.endswith(_TOP_MODULES)
        if ((is_source and size <= left) or is_wanted) and size <= MAX_FILE_BYTES:
            files[path] = read().decode(errors="replace")
            left -= size if is_source else 0
    known = load_tables().system_packages
    build = read_source_build(package, files, paths, programs=known.programs(), headers=known.libraries())
    listed = next((text for path, text in files.items() if path.endswith(_TOP_MODULES)), "").split()
    return replace(build, provides=frozenset(listed))


def _download(url: str) -> bytes:
    if not url.startswith(("https://", "http://", "file:")):
        raise OSError(f"{url} is not a server address")
    if not url.startswith("file:") and (setting := find_offline_setting()):
        raise OSError(f"{setting} is set")
    request = urllib.request.Request(url, headers={"User-Agent": "devkit"})  # noqa: S310
    ends_at, content = time.monotonic() + DEADLINE_S, bytearray()
    with urllib.request.urlopen(request, timeout=CALL_DEADLINE_S) as answer:  # noqa: S310
        while chunk := answer.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_BYTES or time.monotonic() > ends_at:
                raise OSError(f"{url} is too large, or too slow")
    return bytes(content)


class _Bounded(io.RawIOBase):
    """What a gzip file unpacks to, up to a size: a small file may hold gigabytes, in a header as in a member."""

    def __init__(self, content: bytes) -> None:
        self._file = gzip.GzipFile(fileobj=io.BytesIO(content))
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(found)
        if self._left < 0:
            raise OSError("the archive unpacks to more than is read")
        return found


def _list_tar(content: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """List the files of a .tar.gz, each with its size and what reads it before the next one."""
    with tarfile.open(fileobj=_Bounded(content), mode="r|") as archive:
        for member in islice(archive, MAX_MEMBERS):
            # Of a link there is nothing to read.
            if member.isreg() and (file := archive.extractfile(member)):
                yield member.name, member.size, file.read


def _list_zip(content: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist()[:MAX_MEMBERS]:
            if not member.is_dir():
                yield member.filename, member.file_size, partial(archive.read, member)
