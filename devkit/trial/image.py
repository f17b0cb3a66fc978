"""An image of a few files of this machine: a shell and its C library, of which a container can be started."""

import io
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from devkit.facts.values import Unknown
from devkit.probe.host import Host

_SHELL = "/bin/sh"
_NEIGHBORS = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1")
"""What NVIDIA's libraries load beside glibc. Source: their dynamic sections."""
_GLIBC = "libc.so.6"
_EMPTY_FOLDERS = ("dev", "proc", "sys", "etc", "tmp", "run", "var", "usr/bin", "usr/lib", "usr/lib64")
_LINKED_FOLDERS = ("bin", "sbin", "lib", "lib64")
"""Links into /usr on today's distributions, where an engine mounts the driver's files."""
_LISTED = re.compile(r"(?:=> )?(/\S+)(?= \(0x)")
"""A library in the output of ldd: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`."""
MAX_IMAGE_BYTES = 64 << 20


def build_image(host: Host) -> bytes | Unknown:
    """Build the archive that an engine imports as an image; a few megabytes, in some hundredths of a second."""
    libraries = [*list_shell_files(host).values()][1:]
    if not libraries:
        return Unknown("this machine's shell names no libraries (ldd) for the trial image")
    wanted = {_SHELL, *libraries}
    for path in libraries:
        folder, _, name = path.rpartition("/")
        if name == _GLIBC:
            wanted |= {f"{folder}/{each}" for each in _NEIGHBORS}
    archive = io.BytesIO()
    try:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for entry, content in _list_entries(wanted):
                tar.addfile(entry, io.BytesIO(content))
    except OSError as error:
        return Unknown(f"{error.filename}, which the trial image needs, cannot be read: {error.strerror}")
    if archive.tell() > MAX_IMAGE_BYTES:
        return Unknown(f"this machine's shell and its libraries are larger than {MAX_IMAGE_BYTES >> 20} MiB")
    return archive.getvalue()


def list_shell_files(host: Host) -> dict[str, str]:
    """List this machine's shell and its libraries by name, the loader with them; empty where ldd does not tell them."""
    listed = host.run(("ldd", _SHELL))
    libraries = _LISTED.findall(listed.out) if listed.code == 0 else []
    return {"sh": _SHELL, **{posixpath.basename(each): each for each in libraries}} if libraries else {}


def has_glibc(image: bytes) -> bool:
    """Say if the image has glibc, whose loader alone can load NVIDIA's libraries."""
    with tarfile.open(fileobj=io.BytesIO(image)) as tar:
        return any(name.endswith(f"/{_GLIBC}") for name in tar.getnames())


def _list_entries(paths: set[str]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    linked = {name: str(Path("/", name).resolve())[1:] for name in _LINKED_FOLDERS if Path("/", name).is_symlink()}
    for name in sorted({*_EMPTY_FOLDERS, *linked.values()}):
        yield _make_entry(name, tarfile.DIRTYPE), b""
    for name, target in linked.items():
        link = _make_entry(name, tarfile.SYMTYPE)
        link.linkname = target
        yield link, b""
    # In the folder where the name leads, with the name by which it is loaded. What is not there glibc has within itself.
    files = {str(Path(path).parent.resolve() / Path(path).name): Path(path) for path in paths if Path(path).exists()}
    for name, file in sorted(files.items()):
        content = file.read_bytes()
        entry = _make_entry(name[1:], tarfile.REGTYPE)
        entry.size = len(content)
        yield entry, content


def _make_entry(name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, 0o755
    return entry
