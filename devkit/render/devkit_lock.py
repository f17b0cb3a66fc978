"""devkit.lock: what was generated, from what, so that a later run knows its own files and what they said.

The text of each file is kept line by line. A later run joins three versions of an edited file with it, and whoever
reviews a change of the lock sees the same lines change as in the file itself.
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
"""The schema before, which names only the SHA-256 of each file. It can still be read."""
LOCK_PATH = "devkit.lock"
_MOST_KEPT_BYTES = 64 << 10
"""Larger files are lists that programs write for programs; nobody edits them by hand."""


@dataclass(frozen=True)
class WrittenFile:
    """A file as devkit wrote it. `text` is None for one that is no text, and where the lock does not tell."""

    sha256: str
    text: str | None = None


@dataclass(frozen=True)
class DevkitLock:
    """The part of a lock that a later run reads: the files by path, the machines, and the plan as a document.

    `repaired` are files of the user's that devkit changed in place, with the codes of the findings that asked for it.
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
    """SHA-256 of a file's contents, in hexadecimal."""
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
    """The lock file for a plan, the files made from it, the machines that it was solved for, and files changed."""
    document: dict[str, object] = {
        "schema": LOCK_SCHEMA,
        "devkit": __version__,
        **({"target": target} if target else {}),
        "data_as_of": plan.data_as_of,
        "machines": [_machine_document(machine) for machine in machines],
        "plan": serialize_plan(plan),
        "files": {artifact.path: _file_document(artifact) for artifact in sorted(artifacts, key=lambda a: a.path)},
    }
    if repaired:
        document["repaired"] = {path: list(codes) for path, codes in sorted(repaired.items())}
    if ignored:
        document["ignored"] = {path: list(lines) for path, lines in sorted(ignored.items())}
    return Artifact.from_text(LOCK_PATH, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def parse_lock(content: bytes) -> DevkitLock:
    """What a lock file says. Raises DevkitError when it is not one that this devkit can read."""
    try:
        document = json.loads(content)
        schema = document["schema"]
        if schema in (LOCK_SCHEMA, _WITHOUT_TEXTS):
            files = {path: _written(entry) for path, entry in document["files"].items()}
            machines = tuple(_machine(entry) for entry in document.get("machines", ()))
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
    """The lock of a project, an empty one where there is none. Raises DevkitError as `read_lock` does."""
    content = read_file(root, LOCK_PATH)
    return parse_lock(content) if content is not None else DevkitLock()


def _file_document(artifact: Artifact) -> dict[str, object]:
    document: dict[str, object] = {"sha256": compute_digest(artifact.path, artifact.content)}
    if artifact.path.endswith(".whl"):
        document["of"] = "members"
    if artifact.path.endswith(".lock"):
        return document  # Nobody edits a lock by hand, and its thousand lines would only stand here again.
    try:
        text = artifact.content.decode() if len(artifact.content) <= _MOST_KEPT_BYTES else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        return document
    return document | {"lines": text.split("\n")}


def _written(entry: object) -> WrittenFile:
    if isinstance(entry, str):
        return WrittenFile(entry)
    if not isinstance(entry, dict) or not isinstance(entry["sha256"], str):
        raise TypeError("a file's entry is no table with its SHA-256")
    lines = entry.get("lines")
    return WrittenFile(entry["sha256"], None if lines is None else "\n".join(lines))


def _machine_document(machine: Machine) -> dict[str, object]:
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


def _machine(entry: Mapping[str, Any]) -> Machine:
    return Machine(
        driver=_release(entry["driver"]),
        cuda=_release(entry["cuda"]),
        gpus=tuple((str(gpu["name"]), ComputeCapability.parse(gpu["compute_capability"])) for gpu in entry["gpus"]),
        machine=str(entry["machine"]),
        platform=str(entry["platform"]),
        glibc=_release(entry["glibc"]),
        origin=str(entry["origin"]),
        notes=tuple(map(str, entry.get("notes", ()))),
        amd_gpus=tuple((str(gpu["name"]), str(gpu["target"])) for gpu in entry.get("amd_gpus", ())),
        toolkit=_release(entry.get("toolkit")),
    )


def _release(text: str | None) -> Release | None:
    return Release.parse(text) if text is not None else None


# The plan that devkit.lock keeps, as it was solved.


def parse_locked_plan(document: Mapping[str, Any]) -> Plan:
    """The plan of a lock's document, without its warnings. Raises DevkitError when it is none."""
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
            f"{LOCK_PATH} holds no plan", "Write it anew with `devkit init`, in the version that wrote the project."
        ) from None
