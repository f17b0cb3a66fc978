"""Fills a bundle: the engine prepares the base image and fetches the wheels, and their hashes are written down."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.artifact import FOLDER, Artifact
from devkit.render.bundle import Bundle
from devkit.solver.explain import plan_document
from devkit.text import count_of, human_bytes
from devkit.verify.bundle_folder import MANIFEST, SUMS, files_in, finish, put, require_room, sha256_of
from devkit.verify.engine import WorkingEngine
from devkit.verify.process import stream
from devkit.verify.report import without_secrets

SCHEMA = "devkit.bundle/1"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_HINTS = (
    ("exec format error", "This engine runs no programs of that processor. Make the bundle on such a machine."),
    ("no space left", "Make room on the engine's disk."),
    ("No matching distribution", "Such a package has no release for this Python and processor on the index."),
    ("401", "The index wants a login: set DEVKIT_NETRC to a .netrc file that has one."),
)


@dataclass(frozen=True)
class Wheel:
    """A wheel as the engine fetched it."""

    file: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Workshop:
    """Where a bundle grows, the engine that makes its parts, and the login for mirrors, None for none."""

    bundle: Bundle
    engine: WorkingEngine
    folder: Path
    netrc: Path | None
    progress: Callable[[str], None]

    def run(self, what: str, *words: str) -> str:
        """What the engine's program printed. Raises DevkitError, with its last line, when it fails."""
        done = stream([self.engine.program, *words], progress=lambda line: self.progress(without_secrets(line)))
        if done.code != 0:
            log = "\n".join((*done.log, done.out))
            hint = next((hint for sign, hint in _HINTS if sign in log), "The lines above say more.")
            raise DevkitError(f"{what} failed: {without_secrets(done.last_line)}", hint)
        return done.out.strip()

    def build(self, what: str, architecture: str, *words: str) -> None:
        """Build a stage of the bundle's Dockerfile for a processor."""
        proxies = [name for upper in _PROXIES for name in (upper, upper.lower()) if os.environ.get(name)]
        login = ["--secret", f"id=netrc,src={self.netrc}"] if self.netrc else []
        arguments = [word for name in proxies for word in ("--build-arg", name)]
        file, context = self.folder / ".wheels.Dockerfile", self.folder / "project" / FOLDER
        shared = ["--platform", f"linux/{architecture}", *arguments, *login, "--file", str(file)]
        lists = ["--build-context", f"project={self.bundle.root}"]
        self.run(what, "build", *shared, *lists, *words, str(context))


def make_bundle(workshop: Workshop, output: Path) -> dict[str, Any]:
    """Fill the bundle and give it its name. Returns its manifest as a document.

    What was finished stays in the folder when this is interrupted or fails, and the next run takes it as it is.
    Raises: DevkitError when the engine cannot build, fetch or save a part, or the disk has no room.
    """
    bundle, folder = workshop.bundle, workshop.folder
    shutil.rmtree(folder / "project", ignore_errors=True)
    put(folder / "project", bundle.files)
    put(folder, (Artifact.text(".wheels.Dockerfile", bundle.wheels_dockerfile), *bundle.texts()))
    wheels: dict[str, Wheel] = {}
    images: dict[str, str] = {}
    for architecture in bundle.architectures:
        images[architecture] = _image(workshop, architecture)
        wheels |= _wheels(workshop, architecture)
    _remove_others(folder / "wheelhouse", wheels)
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    document = _written_down(bundle, folder, images)
    finish(folder, output)
    return document


def _image(workshop: Workshop, architecture: str) -> str:
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
    workshop.progress(f"saving the base image, {human_bytes(size_bytes)} …")
    require_room(workshop.folder, size_bytes)
    saved.parent.mkdir(exist_ok=True)
    part = saved.with_suffix(".part")
    workshop.run(f"saving {tag}", "save", "--output", str(part), tag)
    part.replace(saved)
    mark.write_text(image_id, encoding="ascii")
    return image_id


def _wheels(workshop: Workshop, architecture: str) -> dict[str, Wheel]:
    """Take over the wheels that the folder lacks. Returns all that this processor needs, by file name."""
    what = f"fetching the wheels for {architecture}"
    listing, fetched = workshop.folder / ".listing", workshop.folder / ".fetched"
    workshop.build(what, architecture, "--target", "listing", "--output", f"type=local,dest={listing}")
    wheels = {wheel.file: wheel for wheel in _listed(listing)}
    shutil.rmtree(listing)
    house = workshop.folder / "wheelhouse"
    missing = [wheel for wheel in wheels.values() if not _is_whole(house / wheel.file, wheel)]
    missing_bytes = sum(wheel.size_bytes for wheel in missing)
    workshop.progress(f"{count_of(len(wheels), 'wheel')}, {human_bytes(missing_bytes)} of them still to be written …")
    if missing:
        require_room(workshop.folder, missing_bytes)
        workshop.build(what, architecture, "--target", "wheels", "--output", f"type=local,dest={fetched}")
        house.mkdir(exist_ok=True)
        for wheel in missing:
            if not _is_whole(fetched / wheel.file, wheel):
                raise DevkitError(f"{wheel.file} did not arrive as it was fetched", "Run this again.")
            (fetched / wheel.file).chmod(0o644)
            (fetched / wheel.file).replace(house / wheel.file)
        shutil.rmtree(fetched)
    return wheels


def _listed(listing: Path) -> Iterable[Wheel]:
    lines = re.findall(r"^(\d+)  (.+)$", (listing / "bytes").read_text(encoding="utf-8"), re.MULTILINE)
    sizes_bytes = {name: int(size) for size, name in lines}
    for sha256, name in re.findall(r"^([0-9a-f]{64})  (.+)$", (listing / "sha256").read_text(), re.MULTILINE):
        yield Wheel(name, sha256, sizes_bytes[name])


def _is_whole(path: Path, wheel: Wheel) -> bool:
    return path.is_file() and path.stat().st_size == wheel.size_bytes and sha256_of(path) == wheel.sha256


def _remove_others(house: Path, wheels: Iterable[str]) -> None:
    for path in house.iterdir():
        if path.name not in wheels:
            path.unlink()


def _written_down(bundle: Bundle, folder: Path, images: dict[str, str]) -> dict[str, Any]:
    """Write the manifest and the list of hashes, and return the manifest."""
    files = [
        {"path": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for name, path in files_in(folder)
        if name not in (MANIFEST, SUMS)
    ]
    document = {
        "schema": SCHEMA,
        "devkit": __version__,
        "name": bundle.name,
        "architectures": list(bundle.architectures),
        "image": {"name": bundle.image, "base": bundle.plan.base_image, "ids": images},
        "plan": plan_document(bundle.plan),
        "wheels": [_package(str(file["path"])) for file in files if str(file["path"]).startswith("wheelhouse/")],
        "bytes": sum(int(str(file["bytes"])) for file in files),
        "files": files,
    }
    put(folder, [Artifact.text(MANIFEST, json.dumps(document, indent=2, ensure_ascii=False) + "\n")])
    sums = [(str(file["sha256"]), str(file["path"])) for file in files]
    sums.append((sha256_of(folder / MANIFEST), MANIFEST))
    text = "".join(f"{sha256}  {path}\n" for sha256, path in sorted(sums, key=lambda pair: pair[1]))
    put(folder, [Artifact.text(SUMS, text)])
    return document | {"sums_sha256": sha256_of(folder / SUMS)}


def _package(path: str) -> dict[str, str]:
    name, version, _, _ = parse_wheel_filename(Path(path).name)
    return {"name": name, "version": str(version), "path": path}
