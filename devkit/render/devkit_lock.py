"""devkit.lock: the plan, its machines and the generated files, by which a later run knows its own files.

The text of each file is kept line by line: it is the base of the three-way merge of an edited file, and whoever reviews
a change of the lock sees the same lines change as in the file itself.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from devkit import __version__
from devkit.errors import DevkitError
from devkit.facts.values import ComputeCapability, Release
from devkit.render.files import Artifact, read_file
from devkit.solver.output import serialize_plan
from devkit.solver.plan import Machine, Plan, Reason, Vendor

LOCK_SCHEMA = "devkit.lock/2"
_WITHOUT_TEXTS = "devkit.lock/1"
"""The schema before, with only the SHA-256 of each file. It can still be read."""
LOCK_PATH = "devkit.lock"
_MAX_TEXT_BYTES = 64 << 10
"""Larger files are lists that programs write for programs; they are not edited by hand."""


@dataclass(frozen=True)
class WrittenFile:
    """A file as devkit wrote it. `text` is None for a file that is not text, and where the lock does not have it."""

    sha256: str
    text: str | None = None


@dataclass(frozen=True)
class DevkitLock:
    """The part of a lock that a later run reads: the files by path, the machines, and the plan as a document.

    `repaired` are files of the user's that devkit changed in place, with the codes of the findings.
    `ignored` are lines that devkit added to the user's own ignore files. `target` is the engine whose files these are,
    "" for those of a dev container.
    """

    files: Mapping[str, WrittenFile] = field(default_factory=dict)
    machines: tuple[Machine, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    repaired: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    target: str = ""


def compute_sha256(content: bytes) -> str:
    """Return the SHA-256 of the content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@lru_cache(maxsize=4)
def compute_digest(path: str, content: bytes) -> str:
    """Return the SHA-256 by which the lock knows a file.

    For a wheel that is the SHA-256 of its members' names and contents: another zlib compresses them to other bytes.
    """
    if not path.endswith(".whl"):
        return compute_sha256(content)
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [[name, compute_sha256(archive.read(name))] for name in sorted(archive.namelist())]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError):
        return compute_sha256(content)
    return compute_sha256(json.dumps(members).encode())


def render_lock(
    plan: Plan,
    artifacts: Iterable[Artifact],
    machines: Iterable[Machine] = (),
    repaired: Mapping[str, tuple[str, ...]] | None = None,
    *,
    ignored: Mapping[str, tuple[str, ...]] | None = None,
    target: str = "",
) -> Artifact:
    """Render the lock of a plan, the files generated from it, its machines, and the user's files that were changed."""
    document: dict[str, object] = {
        "schema": LOCK_SCHEMA,
        "devkit": __version__,
        **({"target": target} if target else {}),
        "data_as_of": plan.data_as_of,
        "machines": [_serialize_machine(machine) for machine in machines],
        "plan": serialize_plan(plan),
        "files": {artifact.path: _serialize_file(artifact) for artifact in sorted(artifacts, key=lambda a: a.path)},
    }
    if repaired:
        document["repaired"] = {path: list(codes) for path, codes in sorted(repaired.items())}
    if ignored:
        document["ignored"] = {path: list(lines) for path, lines in sorted(ignored.items())}
    return Artifact.from_text(LOCK_PATH, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _serialize_file(artifact: Artifact) -> dict[str, object]:
    document: dict[str, object] = {"sha256": compute_digest(artifact.path, artifact.content)}
    if artifact.path.endswith(".whl"):
        document["of"] = "members"
    # A lock's thousand lines would only be repeated here.
    if artifact.path.endswith(".lock") or len(artifact.content) > _MAX_TEXT_BYTES:
        return document
    try:
        return document | {"lines": artifact.content.decode().split("\n")}
    except UnicodeDecodeError:
        return document


def _serialize_machine(machine: Machine) -> dict[str, object]:
    document: dict[str, object] = {
        "driver": str(machine.driver) if machine.driver else None,
        "cuda": str(machine.cuda) if machine.cuda else None,
        "gpus": [{"name": name, "compute_capability": str(capability)} for name, capability in machine.gpus],
        "machine": machine.machine,
        "platform": machine.platform,
        "glibc": str(machine.glibc) if machine.glibc else None,
        "origin": machine.origin,
    }
    if machine.notes:
        document["notes"] = list(machine.notes)
    if machine.amd_gpus:
        document["amd_gpus"] = [{"name": name, "target": target} for name, target in machine.amd_gpus]
    if machine.toolkit:
        document["toolkit"] = str(machine.toolkit)
    return document


def parse_lock(content: bytes) -> DevkitLock:
    """Parse a lock. Raises DevkitError when it is damaged or of an unknown schema."""
    try:
        document = json.loads(content)
        schema = document["schema"]
        if schema in (LOCK_SCHEMA, _WITHOUT_TEXTS):
            files = {path: _parse_file(entry) for path, entry in document["files"].items()}
            machines = tuple(_parse_machine(entry) for entry in document.get("machines", ()))
            repaired, ignored = (
                {path: tuple(map(str, listed)) for path, listed in document.get(name, {}).items()}
                for name in ("repaired", "ignored")
            )
            plan, target = dict(document.get("plan", {})), str(document.get("target", ""))
            return DevkitLock(files, machines, plan, repaired, ignored, target)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DevkitError(
            f"{LOCK_PATH} is damaged",
            "Restore it from version control. Without it devkit cannot tell its files from yours.",
        ) from None
    raise DevkitError(f"{LOCK_PATH} has schema {schema!r}, this devkit reads {LOCK_SCHEMA}", "Update devkit.")


def read_project_lock(root: Path) -> DevkitLock:
    """Read the lock of a project, an empty one where there is none. Raises DevkitError as `parse_lock` does."""
    content = read_file(root, LOCK_PATH)
    return parse_lock(content) if content is not None else DevkitLock()


def _parse_file(entry: object) -> WrittenFile:
    if isinstance(entry, str):
        return WrittenFile(entry)
    if not isinstance(entry, dict) or not isinstance(entry["sha256"], str):
        raise TypeError("a file's entry is not a table with its SHA-256")
    lines = entry.get("lines")
    return WrittenFile(entry["sha256"], None if lines is None else "\n".join(lines))


def _parse_machine(entry: Mapping[str, Any]) -> Machine:
    return Machine(
        driver=_parse_release(entry["driver"]),
        cuda=_parse_release(entry["cuda"]),
        gpus=tuple((str(gpu["name"]), ComputeCapability.parse(gpu["compute_capability"])) for gpu in entry["gpus"]),
        machine=str(entry["machine"]),
        platform=str(entry["platform"]),
        glibc=_parse_release(entry["glibc"]),
        origin=str(entry["origin"]),
        notes=tuple(map(str, entry.get("notes", ()))),
        amd_gpus=tuple((str(gpu["name"]), str(gpu["target"])) for gpu in entry.get("amd_gpus", ())),
        toolkit=_parse_release(entry.get("toolkit")),
    )


def _parse_release(text: str | None) -> Release | None:
    return Release.parse(text) if text is not None else None


def parse_locked_plan(document: Mapping[str, Any]) -> Plan:
    """Parse the plan of a lock, without its warnings. Raises DevkitError when there is none."""
    try:
        return Plan(
            vendor=Vendor(document["vendor"]),
            base_image=str(document["base_image"]),
            python=str(document["python"]),
            torch=str(document["torch"]),
            variant=str(document["variant"]),
            cuda=document["cuda"],
            torch_index=str(document["torch_index"]),
            packages=tuple((str(name), str(version)) for name, version in document["packages"].items()),
            gpu_request=str(document["gpu_request"]),
            architectures=tuple(map(str, document["architectures"])),
            reasons=tuple(Reason(**reason) for reason in document["reasons"]),
            warnings=(),
            data_as_of=str(document["data_as_of"]),
            rocm=document.get("rocm"),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DevkitError(
            f"{LOCK_PATH} holds no plan", "Write it again with `devkit init`, in the version that wrote the project."
        ) from None
