"""Builds a bundle for a place without a network: the project's files, the prepared base image, the wheels, and the texts around.

The engine prepares the image and fetches the wheels, and a manifest lists their hashes. It is built in a hidden folder beside
its destination, which gets its final name only once it is complete.
"""

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from devkit.errors import DevkitError
from devkit.facts.secrets import redact_tokens
from devkit.reading import hash_file
from devkit.release import __version__
from devkit.render.changes import Action
from devkit.render.container.packages import (
    BUILT_FOR_TORCH,
    DEVKIT_PYTHON,
    build_install_commands,
    build_project_install_commands,
    find_export_tools,
)
from devkit.render.container.settings import (
    ContainerSettings,
    build_mirror_variables,
    find_torch_index,
    format_reason_comment,
)
from devkit.render.devkit_lock import LOCK_PATH, parse_lock, parse_locked_plan
from devkit.render.files import DEVCONTAINER_FOLDER, Artifact, read_file
from devkit.render.project import DevkitProject, build_container_settings, compute_project_changes
from devkit.render.templates import render_template
from devkit.render.wheel import build_devkit_wheel
from devkit.solver.output import serialize_plan
from devkit.solver.plan import Plan
from devkit.text import format_bytes, format_count
from devkit.verify.dev_container import WorkingEngine
from devkit.verify.process import Progress, run_streaming
from devkit.whole_files import write_whole

OCI_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architecture in a plan -> its name in OCI images."""

_OFFLINE_PART = "\nFROM prepared\n"


@dataclass(frozen=True)
class Bundle:
    """The texts of a bundle, before anything is built or downloaded.

    `files` are the project's, by their paths in it; `wheels_dockerfile` has the stages `prepared`, `listing` and
    `wheels`, and reads the project's own lists below `root`. `image` is the prepared image's name without the
    architecture at its end.
    """

    plan: Plan
    name: str
    image: str
    files: tuple[Artifact, ...]
    wheels_dockerfile: str
    root: Path

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures of its images, by their OCI names."""
        return tuple(OCI_ARCHITECTURES[machine] for machine in self.plan.architectures)

    def render_texts(self) -> tuple[Artifact, ...]:
        """Render load.sh and README.txt."""
        values = {"devkit_version": __version__, "architectures": self.architectures, "plan": self.plan}
        return (
            Artifact.from_text("load.sh", render_template("bundle/load.sh.j2", image=self.image, **values), 0o755),
            Artifact.from_text("README.txt", render_template("bundle/README.txt.j2", name=self.name, **values)),
        )


def prepare_bundle(project: DevkitProject) -> Bundle:
    """Prepare the bundle of a project from its devkit.lock, with the user's edits of its files.

    The files are those that `devkit init` would write for a build from a wheelhouse: the image installs devkit from the
    wheel beside them. `project.settings.wheelhouse` must be set.
    Raises: DevkitError for a project without a lock, and where edits and that form of the files conflict.
    """
    content = read_file(project.root, LOCK_PATH)
    if content is None:
        raise DevkitError(
            f"{project.root} has no {LOCK_PATH}, so nothing can be bundled", f"Run `devkit init {project.root}`."
        )
    lock = parse_lock(content)
    plan, source = parse_locked_plan(lock.plan), build_devkit_wheel()
    plan.require_torch("a bundle")
    project = project.for_plan(plan)
    changes = compute_project_changes(project, plan, machines=lock.machines, source=source)
    files = tuple(change.artifact for change in changes if change.action is not Action.REMOVE)
    settings = build_container_settings(project, source=source)
    is_locked = any(file.path == f"{DEVCONTAINER_FOLDER}/requirements.lock" for file in files)
    dockerfile = next(file.content.decode() for file in files if file.path == f"{DEVCONTAINER_FOLDER}/Dockerfile")
    wheels = _render_wheels_dockerfile(plan, settings, dockerfile, is_locked=is_locked)
    image = f"localhost/devkit-base/{settings.slug}:{hashlib.sha256(wheels.encode()).hexdigest()[:12]}"
    # The build also reads the project's own requirement files, which are beside .devcontainer.
    requirement_files = []
    for path in build_project_install_commands(plan, settings, build_install_commands(plan, settings)).files:
        content = read_file(project.root, path)
        if content is None:
            raise DevkitError(f"{path} is gone", "Run `devkit init` again to remove the need for it.")
        requirement_files.append(Artifact(path, content))
    return Bundle(plan, project.settings.name, image, (*files, *requirement_files), wheels, project.root)


def _render_wheels_dockerfile(plan: Plan, settings: ContainerSettings, dockerfile: str, *, is_locked: bool) -> str:
    prepared, found, _ = dockerfile.partition(_OFFLINE_PART)
    if not found:
        raise DevkitError(
            f"{DEVCONTAINER_FOLDER}/Dockerfile no longer has the line {_OFFLINE_PART.strip()!r}",
            "Put it back before the instructions that install Python packages, or run `devkit init --force`.",
        )
    online = replace(settings, uses_wheelhouse=False)
    install = build_install_commands(plan, online)
    return render_template(
        "bundle/wheels.Dockerfile.j2",
        plan=plan,
        prepared=prepared.rstrip(),
        because=lambda field: format_reason_comment(plan, field),
        install=install,
        mounts=install.mounts.replace("/root/.cache/uv", "/root/.cache/pip").replace("-uv", "-pip"),
        project=build_project_install_commands(plan, online, install),
        tools=find_export_tools(settings),
        built_for_torch=BUILT_FOR_TORCH,
        mirrors=build_mirror_variables(settings),
        devkit_python=DEVKIT_PYTHON,
        torch_index=find_torch_index(plan, settings),
        is_locked=is_locked,
    )


BUNDLE_SCHEMA = "devkit.bundle/1"
CHECKSUMS_FILE = "SHA256SUMS"
MANIFEST_FILE = "manifest.json"
_MARGIN_BYTES = 64 << 20
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_HINTS = (
    ("exec format error", "This engine cannot run programs for that processor. Build the bundle on such a machine."),
    ("no space left", "Free some space on the engine's disk."),
    ("No matching distribution", "The index has no release of that package for this Python and processor."),
    ("401", "The index requires a login: set DEVKIT_NETRC to a .netrc file that has one."),
)


@dataclass(frozen=True)
class FetchedWheel:
    """A wheel as the engine fetched it."""

    file: str
    sha256: str
    size_bytes: int

    def is_intact_at(self, path: Path) -> bool:
        """Return whether the file at `path` is this wheel, by size and hash."""
        return path.is_file() and path.stat().st_size == self.size_bytes and hash_file(path) == self.sha256


@dataclass(frozen=True)
class BundleBuilder:
    """The engine that builds a bundle's parts in `folder`; `netrc` holds the login for mirrors, None for none."""

    bundle: Bundle
    engine: WorkingEngine
    folder: Path
    netrc: Path | None
    progress: Progress

    def run(self, step: str, *arguments: str) -> str:
        """Run the engine's program and return its output. Raises DevkitError, with its last line, when it fails."""
        done = run_streaming(
            [self.engine.program, *arguments], progress=lambda line: self.progress(redact_tokens(line))
        )
        if done.code != 0:
            log = "\n".join((*done.log, done.out))
            hint = next((hint for sign, hint in _HINTS if sign in log), "See the lines above for details.")
            raise DevkitError(f"{step} failed: {redact_tokens(done.last_line)}", hint)
        return done.out.strip()

    def build(self, step: str, architecture: str, *options: str) -> None:
        """Build a stage of the bundle's Dockerfile for a processor architecture."""
        proxies = [name for upper in _PROXIES for name in (upper, upper.lower()) if os.environ.get(name)]
        self.run(
            step,
            *("build", "--platform", f"linux/{architecture}"),
            *(word for name in proxies for word in ("--build-arg", name)),
            *(("--secret", f"id=netrc,src={self.netrc}") if self.netrc else ()),
            *("--file", str(self.folder / ".wheels.Dockerfile")),
            *("--build-context", f"project={self.bundle.root}"),
            *options,
            str(self.folder / "project" / DEVCONTAINER_FOLDER),
        )

    def save_image(self, architecture: str) -> str:
        """Save the prepared base image, unless the folder has it. Returns the image's id."""
        tag = f"{self.bundle.image}-{architecture}"
        step = f"preparing the base image for {architecture}"
        loads = ("--load",) if self.engine.program == "docker" else ()
        self.build(step, architecture, *loads, "--target", "prepared", "--tag", tag)
        image_id, size = self.run(step, "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag).split()
        saved, mark = self.folder / f"images/base-{architecture}.tar", self.folder / f".saved-{architecture}"
        if saved.exists() and mark.exists() and mark.read_text(encoding="ascii") == image_id:
            self.progress(f"{saved.name} already exists")
            return image_id
        self.progress(f"saving the base image, {format_bytes(int(size))} …")
        require_disk_space(self.folder, int(size))
        saved.parent.mkdir(exist_ok=True)
        part = saved.with_suffix(".part")
        self.run(f"saving {tag}", "save", "--output", str(part), tag)
        part.replace(saved)
        mark.write_text(image_id, encoding="ascii")
        return image_id

    def fetch_wheels(self, architecture: str) -> set[str]:
        """Fetch the wheels that the folder lacks. Returns the file names of all that this architecture needs."""
        step = f"fetching the wheels for {architecture}"
        listing, fetched = self.folder / ".listing", self.folder / ".fetched"
        self.build(step, architecture, "--target", "listing", "--output", f"type=local,dest={listing}")
        lines = re.findall(r"^(\d+)  (.+)$", (listing / "bytes").read_text(encoding="utf-8"), re.MULTILINE)
        sizes_bytes = {name: int(size) for size, name in lines}
        hashes = re.findall(r"^([0-9a-f]{64})  (.+)$", (listing / "sha256").read_text(), re.MULTILINE)
        wheels = [FetchedWheel(name, sha256, sizes_bytes[name]) for sha256, name in hashes]
        shutil.rmtree(listing)
        wheelhouse = self.folder / "wheelhouse"
        missing = [wheel for wheel in wheels if not wheel.is_intact_at(wheelhouse / wheel.file)]
        missing_bytes = sum(wheel.size_bytes for wheel in missing)
        self.progress(f"{format_count(len(wheels), 'wheel')}, {format_bytes(missing_bytes)} of them to write …")
        if missing:
            require_disk_space(self.folder, missing_bytes)
            self.build(step, architecture, "--target", "wheels", "--output", f"type=local,dest={fetched}")
            wheelhouse.mkdir(exist_ok=True)
            for wheel in missing:
                if not wheel.is_intact_at(fetched / wheel.file):
                    raise DevkitError(f"{wheel.file} was damaged during the download", "Run this again.")
                (fetched / wheel.file).chmod(0o644)
                (fetched / wheel.file).replace(wheelhouse / wheel.file)
            shutil.rmtree(fetched)
        return {wheel.file for wheel in wheels}


def prepare_partial_folder(output: Path, *, force: bool) -> Path:
    """Create the folder beside `output` in which the bundle is built; an interrupted build is continued there.

    Raises: DevkitError where `output` holds something other than a bundle, or a bundle without `force`.
    """
    if not output.parent.is_dir():
        raise DevkitError(f"{output.parent} is not a directory", "Make it first, or name another --output.")
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        if output.is_dir() and not (output / CHECKSUMS_FILE).is_file():
            raise DevkitError(f"{output} holds other files", "Name a new folder with --output.")
        if not force:
            raise DevkitError(f"{output} exists already", "Pass --force to replace it, or name another --output.")
    folder = output.with_name(f".{output.name}.devkit-partial")
    folder.mkdir(exist_ok=True)
    return folder


def build_bundle(builder: BundleBuilder, output: Path) -> dict[str, Any]:
    """Build all parts of the bundle and move it to `output`. Returns its manifest as a document.

    Finished parts stay in the folder when this is interrupted or fails, and the next run reuses them.
    Raises: DevkitError when the engine cannot build, fetch or save a part, or the disk is too full.
    """
    bundle, folder = builder.bundle, builder.folder
    shutil.rmtree(folder / "project", ignore_errors=True)
    write_artifacts(folder / "project", bundle.files)
    write_artifacts(
        folder, (Artifact.from_text(".wheels.Dockerfile", bundle.wheels_dockerfile), *bundle.render_texts())
    )
    wheels: set[str] = set()
    images: dict[str, str] = {}
    for architecture in bundle.architectures:
        images[architecture] = builder.save_image(architecture)
        wheels |= builder.fetch_wheels(architecture)
    for path in (folder / "wheelhouse").iterdir():
        if path.name not in wheels:
            path.unlink()
    for leftover in folder.glob(".*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    document = _write_manifest(bundle, folder, images)
    publish_bundle(folder, output)
    return document


def discard_unfinished(folder: Path) -> bool:
    """Remove the folder of a build without a finished part. Returns False if it has one."""
    if any((folder / "wheelhouse").glob("*.whl")) or any(folder.glob(".saved-*")):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def require_disk_space(folder: Path, wanted_bytes: int) -> None:
    """Raise DevkitError when the disk of `folder` has too little free space."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes + _MARGIN_BYTES:
        raise DevkitError(
            f"the bundle needs {format_bytes(wanted_bytes)} more, but {folder.parent} has {format_bytes(free)} left",
            "Free disk space, or name a folder on another disk with --output. Finished parts are kept.",
        )


def write_artifacts(folder: Path, artifacts: Iterable[Artifact]) -> None:
    """Write files into the folder, each under its path."""
    for artifact in artifacts:
        target = folder / artifact.path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, artifact.content)
        target.chmod(artifact.mode)


def iterate_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file's path relative to the folder and its full path, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _write_manifest(bundle: Bundle, folder: Path, images: dict[str, str]) -> dict[str, Any]:
    """Write the manifest and the list of hashes, and return the manifest."""
    hashes: dict[str, str] = {}
    files: list[dict[str, Any]] = []
    wheels: list[dict[str, str]] = []
    for path, file in iterate_files(folder):
        if path in (MANIFEST_FILE, CHECKSUMS_FILE):
            continue
        hashes[path] = hash_file(file)
        files.append({"path": path, "bytes": file.stat().st_size, "sha256": hashes[path]})
        if path.startswith("wheelhouse/"):
            name, version, _, _ = parse_wheel_filename(file.name)
            wheels.append({"name": name, "version": str(version), "path": path})
    document = {
        "schema": BUNDLE_SCHEMA,
        "devkit": __version__,
        "name": bundle.name,
        "architectures": list(bundle.architectures),
        "image": {"name": bundle.image, "base": bundle.plan.base_image, "ids": images},
        "plan": serialize_plan(bundle.plan),
        "wheels": wheels,
        "bytes": sum(file["bytes"] for file in files),
        "files": files,
    }
    manifest = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_artifacts(folder, [Artifact.from_text(MANIFEST_FILE, manifest)])
    hashes[MANIFEST_FILE] = hash_file(folder / MANIFEST_FILE)
    checksums = "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes))
    write_artifacts(folder, [Artifact.from_text(CHECKSUMS_FILE, checksums)])
    return document | {"sums_sha256": hash_file(folder / CHECKSUMS_FILE)}


def publish_bundle(folder: Path, output: Path) -> None:
    """Move the complete bundle to `output`: as a folder, or as one file where `output` ends with .tar.

    An earlier bundle is kept until its successor has taken its place.
    """
    if output.suffix != ".tar":
        previous = output.with_name(f".{output.name}.devkit-before")
        shutil.rmtree(previous, ignore_errors=True)
        if output.exists():
            output.rename(previous)
        folder.rename(output)
        shutil.rmtree(previous, ignore_errors=True)
        return
    part = output.with_name(f".{output.name}.devkit-part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, path in iterate_files(folder):
                archive.add(path, f"{output.stem}/{name}", recursive=False, filter=_anonymize)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    shutil.rmtree(folder)


def _anonymize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out of the archive who built it, and when: equal bundles are equal bytes."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    return entry
