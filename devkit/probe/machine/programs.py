"""Programs and shared libraries, as the shell and the loader find them."""

import re

from devkit.facts.values import Release, Unknown
from devkit.probe.host import SYSTEM_PROGRAM_FOLDERS, Host, explain_failure

LOADER_CACHE = ("ldconfig", "-p")
ANY_EXECUTE_BIT = 0o111
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib64",
    "/lib",
)
_FOREIGN = re.compile(r"\((?!libc6,(?:x86-64|AArch64))")
"""Cache entries of another word size, such as the i386 libraries beside Steam."""


def find_program(host: Host, name: str, *, folders: tuple[str, ...] | None = None) -> str:
    """Find the path of the first executable `name` in `folders` (default: PATH, then the system's), "" for none."""
    if folders is None:
        folders = (*split_search_path(host.env.get("PATH", "")), *SYSTEM_PROGRAM_FOLDERS)
    for folder in dict.fromkeys(folders):
        path = f"{folder}\\{name}.exe" if "\\" in folder else f"{folder}/{name}"
        found = host.stat(path)
        if found is not None and found.kind == "file" and found.mode & ANY_EXECUTE_BIT:
            return path
    return ""


def find_program_or_path(host: Host, name: str, *, folders: tuple[str, ...] | None = None) -> str:
    """Find a program as exec does: by PATH, or at the path itself where the name holds a slash; "" for none."""
    if "/" not in name:
        return find_program(host, name, folders=folders)
    folder, _, base = name.rpartition("/")
    return find_program(host, base, folders=(folder,))


def read_loader_cache(host: Host) -> dict[str, tuple[str, ...]] | Unknown:
    """Read every library name in the loader's cache with its paths, first wins; native word size only."""
    done = host.run(LOADER_CACHE)
    if done.code != 0:
        return explain_failure(LOADER_CACHE, done, f"ldconfig -p ended with status {done.code}")
    found: dict[str, tuple[str, ...]] = {}
    for line in done.out.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        if arrow and not _FOREIGN.search(name):
            soname = name.split(" ", 1)[0]
            found[soname] = (*found.get(soname, ()), path)
    return found


def find_libraries(
    host: Host, soname: str, cache: dict[str, tuple[str, ...]] | Unknown, *, search_path: str | None = None
) -> tuple[str, ...]:
    """Find every path of `soname` that the loader would try: LD_LIBRARY_PATH, then its cache, then the default folders.

    `search_path` stands for another value of that variable.
    """
    folders = host.env.get("LD_LIBRARY_PATH", "") if search_path is None else search_path
    candidates = [f"{folder}/{soname}" for folder in split_search_path(folders)]
    if isinstance(cache, dict):
        candidates += cache.get(soname, ())
    candidates += [f"{folder}/{soname}" for folder in _LIBRARY_FOLDERS]
    first_of: dict[str, str] = {}
    for path in candidates:
        real = host.link(path)
        if real is not None:
            first_of.setdefault(real, path)
    return tuple(first_of.values())


def read_library_release(host: Host, path: str) -> Release | Unknown:
    """Read the version in a library's real file name: libcuda.so.1 -> libcuda.so.580.95.05."""
    real = host.link(path) or path
    tail = real.rpartition(".so.")[2]
    if "." not in tail:
        return Unknown(f"the file name {real} does not contain a version")
    try:
        return Release.parse(tail)
    except ValueError:
        return Unknown(f"the file name {real} does not contain a version")


def split_search_path(path: str) -> tuple[str, ...]:
    """Split the absolute directories of a PATH-like variable, in order."""
    if re.match(r"[A-Za-z]:\\", path):
        return tuple(folder.rstrip("\\") for folder in path.split(";") if folder)
    return tuple(folder.rstrip("/") or "/" for folder in path.split(":") if folder.startswith("/"))
