"""Fills a bundle: the engine prepares the base image and fetches the wheels, and their hashes are written down."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.bundle import Bundle
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact
from devkit.solver.output import serialize_plan
from devkit.text import format_bytes, format_count
from devkit.verify.engine import WorkingEngine
from devkit.verify.process import run_streaming
from devkit.verify.report import redact_secrets

# The folder that a bundle grows in. It takes the bundle's name only when it is whole.

CHECKSUMS_FILE = "SHA256SUMS"
MANIFEST_FILE = "manifest.json"
_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def prepare_partial_folder(output: Path, *, force: bool) -> Path:
    """Where the bundle grows, beside `output`; what an interrupted run left there is gone on with.

    Raises: DevkitError where `output` is taken by something that is no bundle, or by one without `force`.
    """
    if not output.parent.is_dir():
        raise DevkitError(f"{output.parent} is no directory", "Make it first, or name another --output.")
    if output.is_dir() and any(output.iterdir()) and not (output / CHECKSUMS_FILE).is_file():
        raise DevkitError(f"{output} holds other files", "Name a folder that is not there yet with --output.")
    if os.path.lexists(output) and not force and not (output.is_dir() and not any(output.iterdir())):
        raise DevkitError(f"{output} exists already", "Pass --force to replace it, or name another --output.")
    folder = output.with_name(f".{output.name}.devkit-partial")
    folder.mkdir(exist_ok=True)
    return folder


def require_disk_space(folder: Path, wanted_bytes: int) -> None:
    """Raise DevkitError now when the disk could not take that much."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes + _MARGIN_BYTES:
        raise DevkitError(
            f"the bundle needs {format_bytes(wanted_bytes)} more, {folder.parent} has {format_bytes(free)} left",
            "Make room, or name a folder on another disk with --output. What is done so far is kept.",
        )


def write_artifacts(folder: Path, artifacts: Iterable[Artifact]) -> None:
    """Write files into the folder, each under its path."""
    for artifact in artifacts:
        target = folder / artifact.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(artifact.content)
        target.chmod(artifact.mode)


def hash_file(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()


def iterate_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file with its path in the folder, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def publish_bundle(folder: Path, output: Path) -> None:
    """Give the whole bundle its name: as a folder, or as one file where `output` ends with .tar."""
    if output.suffix != ".tar":
        with _moved_away(output):
            folder.rename(output)
        return
    part = output.with_name(f".{output.name}.devkit-part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, path in iterate_files(folder):
                archive.add(path, f"{output.stem}/{name}", recursive=False, filter=_anonymous)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    shutil.rmtree(folder)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made a bundle, and when, is nobody's business."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    return entry


@contextlib.contextmanager
def _moved_away(output: Path) -> Iterator[None]:
    """Keep what stands there until its successor has taken its place."""
    before = output.with_name(f".{output.name}.devkit-before")
    shutil.rmtree(before, ignore_errors=True)
    if output.exists():
        output.rename(before)
    yield
    shutil.rmtree(before, ignore_errors=True)


BUNDLE_SCHEMA = "devkit.bundle/1"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_HINTS = (
    ("exec format error", "This engine runs no programs of that processor. Make the bundle on such a machine."),
    ("no space left", "Make room on the engine's disk."),
    ("No matching distribution", "Such a package has no release for this Python and processor on the index."),
    ("401", "The index wants a login: set DEVKIT_NETRC to a .netrc file that has one."),
)


@dataclass(frozen=True)
class FetchedWheel:
    """A wheel as the engine fetched it."""

    file: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class BundleBuilder:
    """Where a bundle grows, the engine that makes its parts, and the login for mirrors, None for none."""

    bundle: Bundle
    engine: WorkingEngine
    folder: Path
    netrc: Path | None
    progress: Callable[[str], None]

    def run(self, what: str, *words: str) -> str:
        """What the engine's program printed. Raises DevkitError, with its last line, when it fails."""
        done = run_streaming([self.engine.program, *words], progress=lambda line: self.progress(redact_secrets(line)))
        if done.code != 0:
            log = "\n".join((*done.log, done.out))
            hint = next((hint for sign, hint in _HINTS if sign in log), "The lines above say more.")
            raise DevkitError(f"{what} failed: {redact_secrets(done.last_line)}", hint)
        return done.out.strip()

    def build(self, what: str, architecture: str, *words: str) -> None:
        """Build a stage of the bundle's Dockerfile for a processor."""
        proxies = [name for upper in _PROXIES for name in (upper, upper.lower()) if os.environ.get(name)]
        login = ["--secret", f"id=netrc,src={self.netrc}"] if self.netrc else []
        arguments = [word for name in proxies for word in ("--build-arg", name)]
        file, context = self.folder / ".wheels.Dockerfile", self.folder / "project" / DEVCONTAINER_FOLDER
        shared = ["--platform", f"linux/{architecture}", *arguments, *login, "--file", str(file)]
        lists = ["--build-context", f"project={self.bundle.root}"]
        self.run(what, "build", *shared, *lists, *words, str(context))


def build_bundle(workshop: BundleBuilder, output: Path) -> dict[str, Any]:
    """Fill the bundle and give it its name. Returns its manifest as a document.

    What was finished stays in the folder when this is interrupted or fails, and the next run takes it as it is.
    Raises: DevkitError when the engine cannot build, fetch or save a part, or the disk has no room.
    """
    bundle, folder = workshop.bundle, workshop.folder
    shutil.rmtree(folder / "project", ignore_errors=True)
    write_artifacts(folder / "project", bundle.files)
    write_artifacts(
        folder, (Artifact.from_text(".wheels.Dockerfile", bundle.wheels_dockerfile), *bundle.render_texts())
    )
    wheels: dict[str, FetchedWheel] = {}
    images: dict[str, str] = {}
    for architecture in bundle.architectures:
        images[architecture] = _image(workshop, architecture)
        wheels |= _wheels(workshop, architecture)
    _remove_others(folder / "wheelhouse", wheels)
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    document = _written_down(bundle, folder, images)
    publish_bundle(folder, output)
    return document


def _image(workshop: BundleBuilder, architecture: str) -> str:
    """Save the prepared base image, unless the folder has it. Returns the image's id."""
    tag = f"{workshop.bundle.image}-{architecture}"
    loads = ("--load",) if workshop.engine.program == "docker" else ()
    what = f"preparing the base image for {architecture}"
    workshop.build(what, architecture, *loads, "--target", "prepared", "--tag", tag)
    asked = workshop.run(what, "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag).split()
    image_id, size_bytes = asked[0], int(asked[1])
    saved, mark = workshop.folder / f"images/base-{architecture}.tar", workshop.folder / f".saved-{architecture}"
    if saved.exists() and mark.exists() and mark.read_text(encoding="ascii") == image_id:
        workshop.progress(f"{saved.name} is there already")
        return image_id
    workshop.progress(f"saving the base image, {format_bytes(size_bytes)} …")
    require_disk_space(workshop.folder, size_bytes)
    saved.parent.mkdir(exist_ok=True)
    part = saved.with_suffix(".part")
    workshop.run(f"saving {tag}", "save", "--output", str(part), tag)
    part.replace(saved)
    mark.write_text(image_id, encoding="ascii")
    return image_id


def _wheels(workshop: BundleBuilder, architecture: str) -> dict[str, FetchedWheel]:
    """Take over the wheels that the folder lacks. Returns all that this processor needs, by file name."""
    what = f"fetching the wheels for {architecture}"
    listing, fetched = workshop.folder / ".listing", workshop.folder / ".fetched"
    workshop.build(what, architecture, "--target", "listing", "--output", f"type=local,dest={listing}")
    wheels = {wheel.file: wheel for wheel in _listed(listing)}
    shutil.rmtree(listing)
    house = workshop.folder / "wheelhouse"
    missing = [wheel for wheel in wheels.values() if not _is_whole(house / wheel.file, wheel)]
    missing_bytes = sum(wheel.size_bytes for wheel in missing)
    workshop.progress(
        f"{format_count(len(wheels), 'wheel')}, {format_bytes(missing_bytes)} of them still to be written …"
    )
    if missing:
        require_disk_space(workshop.folder, missing_bytes)
        workshop.build(what, architecture, "--target", "wheels", "--output", f"type=local,dest={fetched}")
        house.mkdir(exist_ok=True)
        for wheel in missing:
            if not _is_whole(fetched / wheel.file, wheel):
                raise DevkitError(f"{wheel.file} did not arrive as it was fetched", "Run this again.")
            (fetched / wheel.file).chmod(0o644)
            (fetched / wheel.file).replace(house / wheel.file)
        shutil.rmtree(fetched)
    return wheels


def _listed(listing: Path) -> Iterable[FetchedWheel]:
    lines = re.findall(r"^(\d+)  (.+)$", (listing / "bytes").read_text(encoding="utf-8"), re.MULTILINE)
    sizes_bytes = {name: int(size) for size, name in lines}
    for sha256, name in re.findall(r"^([0-9a-f]{64})  (.+)$", (listing / "sha256").read_text(), re.MULTILINE):
        yield FetchedWheel(name, sha256, sizes_bytes[name])


def _is_whole(path: Path, wheel: FetchedWheel) -> bool:
    return path.is_file() and path.stat().st_size == wheel.size_bytes and hash_file(path) == wheel.sha256


def _remove_others(house: Path, wheels: Iterable[str]) -> None:
    for path in house.iterdir():
        if path.name not in wheels:
            path.unlink()


def _written_down(bundle: Bundle, folder: Path, images: dict[str, str]) -> dict[str, Any]:
    """Write the manifest and the list of hashes, and return the manifest."""
    files = [
        {"path": name, "bytes": path.stat().st_size, "sha256": hash_file(path)}
        for name, path in iterate_files(folder)
        if name not in (MANIFEST_FILE, CHECKSUMS_FILE)
    ]
    document = {
        "schema": BUNDLE_SCHEMA,
        "devkit": __version__,
        "name": bundle.name,
        "architectures": list(bundle.architectures),
        "image": {"name": bundle.image, "base": bundle.plan.base_image, "ids": images},
        "plan": serialize_plan(bundle.plan),
        "wheels": [_package(str(file["path"])) for file in files if str(file["path"]).startswith("wheelhouse/")],
        "bytes": sum(int(str(file["bytes"])) for file in files),
        "files": files,
    }
    write_artifacts(
        folder, [Artifact.from_text(MANIFEST_FILE, json.dumps(document, indent=2, ensure_ascii=False) + "\n")]
    )
    sums = [(str(file["sha256"]), str(file["path"])) for file in files]
    sums.append((hash_file(folder / MANIFEST_FILE), MANIFEST_FILE))
    text = "".join(f"{sha256}  {path}\n" for sha256, path in sorted(sums, key=lambda pair: pair[1]))
    write_artifacts(folder, [Artifact.from_text(CHECKSUMS_FILE, text)])
    return document | {"sums_sha256": hash_file(folder / CHECKSUMS_FILE)}


def _package(path: str) -> dict[str, str]:
    name, version, _, _ = parse_wheel_filename(Path(path).name)
    return {"name": name, "version": str(version), "path": path}
