"""devkit.lock: the plan, its machines and the generated files by their hashes, by which a later run knows its own files."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.decode import decode_fields
from devkit.facts.dependencies import BuildNeed, Resolved, SourceBuild
from devkit.facts.values import ComputeCapability, Release
from devkit.formats.jsonc import format_json, format_json_error
from devkit.probe.host import ask_git
from devkit.release import __version__
from devkit.render.files import Artifact, read_file
from devkit.solver.output import serialize_plan
from devkit.solver.plan import Machine, Plan, Reason
from devkit.user_folder import find_user_file

LOCK_SCHEMA = "devkit.lock/3"
LOCK_PATH = "devkit.lock"
_OF_PLAN = {each.name for each in fields(Plan)} - {"packages", "reasons", "limits", "resolution", "compiled", "nvcc"}
"""Fields of a plan that a lock holds as they are."""


@dataclass(frozen=True)
class DevkitLock:
    """The part of a lock that a later run reads: the machines, and the plan as a document.

    `files` are paths with the Git blob id that devkit wrote, "" for one that is kept out of version control.
    `repaired` are files of the user's that devkit changed in place, with the codes of the findings.
    `ignored` are lines that devkit added to the user's own ignore files. `target` is the engine whose files these are,
    "" for those of a dev container. `proof` says how the plan was tried, "" for not at all.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[Machine, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    repaired: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    target: str = ""
    proof: str = ""

    def is_for(self, plan: Plan) -> bool:
        """Return whether it holds the packages of this plan."""
        document = json.loads(json.dumps(_serialize_plan(plan)))  # as it would be read
        return all(self.plan.get(key) == document.get(key) for key in ("python", "torch", "packages", "resolution"))


def render_lock(
    plan: Plan,
    artifacts: Iterable[Artifact],
    machines: Iterable[Machine] = (),
    repaired: Mapping[str, tuple[str, ...]] | None = None,
    *,
    ignored: Mapping[str, tuple[str, ...]] | None = None,
    target: str = "",
    proof: str = "",
) -> Artifact:
    """Render the lock of a plan, the files generated from it, its machines, and the user's files that were changed."""
    document: dict[str, object] = {
        "schema": LOCK_SCHEMA,
        "devkit": __version__,
        **({"target": target} if target else {}),
        "data_as_of": plan.data_as_of,
        "machines": [_serialize_machine(machine) for machine in machines],
        "plan": _serialize_plan(plan),
        **({"proof": proof} if proof else {}),
        "files": {
            artifact.path: "" if artifact.is_local else compute_blob_id(artifact.content)
            for artifact in sorted(artifacts, key=lambda a: a.path)
        },
    }
    if repaired:
        document["repaired"] = {path: list(codes) for path, codes in sorted(repaired.items())}
    if ignored:
        document["ignored"] = {path: list(lines) for path, lines in sorted(ignored.items())}
    # A review of the lock shows the machine, the reason and the file that changed, each on its line.
    return Artifact.from_text(LOCK_PATH, format_json(document, width=240, listed=2, deepest=2) + "\n")


def _serialize_plan(plan: Plan) -> dict[str, object]:
    """Serialize the plan with its whole resolution, of which the image holds all but what is `open`."""
    document: dict[str, object] = dict(serialize_plan(plan))
    found = plan.resolution
    if isinstance(found, Resolved):
        held = {f"{name}=={version}": name for name, version in found.packages}
        if limits := [limit for limit in plan.limits if limit not in held]:
            document["limits"] = limits
        else:
            document.pop("limits", None)
        names = {held[limit] for limit in plan.limits if limit in held}
        builds = {
            each.package: {"requires": each.requires, "needs": [[one.kind, one.name, one.origin] for one in each.needs]}
            for each in found.builds
        }
        # Of some packages, Debian's library is needed only beside the wheel for every machine.
        rows = load_tables().system_packages.needs
        wheels = {
            name: url.rpartition("/")[2] for name, url in found.wheels if name in rows and rows[name].kind == "pure"
        }
        document["resolution"] = {
            "packages": dict(found.packages),
            "open": [name for name, _ in found.packages if name not in names],
            "from_source": list(found.from_source),
            "not_checked": list(found.unread),
            **({"wheels": wheels} if wheels else {}),
            **({"builds": builds} if builds else {}),
            **({"absent": list(found.absent)} if found.absent else {}),
        }
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
        if schema == LOCK_SCHEMA:
            files = {str(path): _parse_id(entry) for path, entry in document["files"].items()}
            machines = tuple(_parse_machine(entry) for entry in document.get("machines", ()))
            repaired, ignored = (
                {path: tuple(map(str, listed)) for path, listed in document.get(name, {}).items()}
                for name in ("repaired", "ignored")
            )
            plan, target = dict(document.get("plan", {})), str(document.get("target", ""))
            return DevkitLock(files, machines, plan, repaired, ignored, target, str(document.get("proof", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cause = f": not JSON: {format_json_error(error)}" if isinstance(error, json.JSONDecodeError) else ""
        raise DevkitError(
            f"{LOCK_PATH} is damaged{cause}",
            "Restore it from version control. Without it, devkit cannot distinguish its files from yours.",
        ) from None
    raise DevkitError(
        f"{LOCK_PATH} has schema {schema!r}, but this devkit reads {LOCK_SCHEMA}",
        "Use the devkit version that wrote it, or remove it and the files that it lists, and run `devkit init` again.",
    )


def read_project_lock(root: Path) -> DevkitLock:
    """Read the lock of a project, an empty one where there is none. Raises DevkitError as `parse_lock` does."""
    content = read_file(root, LOCK_PATH)
    return parse_lock(content) if content is not None else DevkitLock()


def _parse_id(entry: object) -> str:
    # It becomes the name of a file in the data folder and a word for git.
    if not isinstance(entry, str) or not re.fullmatch(r"(?:[0-9a-f]{40})?", entry):
        raise TypeError("a file's entry is not its ID")
    return entry


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
        packages = tuple((str(name), str(version)) for name, version in document["packages"].items())
        from_project = document.get("from_project", ())
        found = document.get("resolution")
        pairs = tuple((str(name), str(version)) for name, version in found["packages"].items()) if found else ()
        still_open = found["open"] if found else ()
        held = (f"{name}=={version}" for name, version in pairs if name not in still_open)
        return Plan(
            **decode_fields({key: document[key] for key in _OF_PLAN & document.keys()}, Plan),
            packages=tuple(pair for pair in packages if pair[0] not in from_project),
            reasons=tuple(Reason(**reason) for reason in document["reasons"]),
            warnings=(),
            project_packages=tuple(pair for pair in packages if pair[0] in from_project),
            limits=(*map(str, document.get("limits", ())), *held),
            resolution=Resolved(
                pairs,
                tuple(found["from_source"]),
                tuple(found["not_checked"]),
                wheels=tuple((str(name), str(file)) for name, file in found.get("wheels", {}).items()),
                builds=tuple(_parse_build(name, each) for name, each in found.get("builds", {}).items()),
                absent=tuple(map(str, found.get("absent", ()))),
            )
            if found
            else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DevkitError(
            f"{LOCK_PATH} holds no plan", "Write it again with `devkit init`, using the version that wrote the project."
        ) from None


def _parse_build(package: str, entry: Mapping[str, Any]) -> SourceBuild:
    needs = tuple(BuildNeed(str(kind), str(name), str(origin)) for kind, name, origin in entry["needs"])
    return SourceBuild(package, needs, tuple(map(str, entry["requires"])))


# Versions of generated files by content address: the base of a three-way merge, without a copy of it in devkit.lock.
#
# The address is Git's, so a version that was committed is in the project's own repository. Every version that this user's
# devkit wrote is also kept in the user's data folder, for what was edited before the first commit.


def compute_blob_id(content: bytes) -> str:
    """Return Git's id of the content, as `git hash-object` does."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def find_version(root: Path, blob_id: str) -> bytes | None:
    """Find the content with this id: in the user's data folder, else in the Git repository of `root`."""
    store = find_user_file("versions")
    with contextlib.suppress(OSError):
        content = Path(store or os.devnull, blob_id).read_bytes()
        if compute_blob_id(content) == blob_id:
            return content
    found = ask_git(root, "cat-file", "blob", blob_id)
    content = found.out.encode(errors="surrogateescape")
    return content if found.code == 0 and compute_blob_id(content) == blob_id else None


def keep_versions(contents: Iterable[bytes]) -> None:
    """Keep these contents in the user's data folder. A folder that refuses is not an error: an edit is then only refused."""
    store = find_user_file("versions")
    if store is None:
        return
    with contextlib.suppress(OSError):
        Path(store).mkdir(parents=True, exist_ok=True)
        for content in contents:
            path = Path(store, compute_blob_id(content))
            if not path.exists():
                staged = path.with_name(f"{path.name}.{os.getpid()}")
                staged.write_bytes(content)
                staged.replace(path)
