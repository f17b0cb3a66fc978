"""Small wheels, made here, for tests that install or resolve without a network."""

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    files: Mapping[str, str] = {},
) -> Path:
    """A wheel in `folder` that holds `files`, by default a module of its own name."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    members = dict(files or {f"{stem}/__init__.py": f'__version__ = "{version}"\n'})
    members[f"{info}/METADATA"] = "\n".join([*metadata, ""])
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    members[f"{info}/RECORD"] = "\n".join([*(_recorded(path, text) for path, text in members.items()), ""])
    target = folder / f"{stem}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in members.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return target


def make_archive(folder: Path, stem: str, files: Mapping[str, str]) -> Path:
    """A .tar.gz in `folder` with these files in the folder `stem`; one that starts with "/" or ".." is left as it is."""
    target = folder / f"{stem}.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path if path.startswith(("/", "..")) else f"{stem}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target


def _recorded(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(text.encode())}"


def make_index(folder: Path, wheels: Sequence[Path]) -> str:
    """A package index (PEP 503) of these wheels, as a file URL; its pages tell no hashes."""
    pages: dict[str, list[str]] = {}
    for wheel in wheels:
        pages.setdefault(wheel.name.split("-")[0].replace("_", "-").lower(), []).append(
            f'<a href="{wheel.resolve().as_uri()}">{wheel.name}</a>'
        )
    for name, links in pages.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "index.html").write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")
    return folder.resolve().as_uri()
