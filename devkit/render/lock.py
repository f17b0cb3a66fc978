"""devkit.lock: what was generated, from what, so that a later run knows its own files."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devkit import __version__
from devkit.errors import DevkitError
from devkit.render.artifact import Artifact
from devkit.solver.explain import plan_document
from devkit.solver.model import Plan

SCHEMA = "devkit.lock/1"
LOCK_PATH = "devkit.lock"


@dataclass(frozen=True)
class Lock:
    """The part of a lock that a later run reads: the SHA-256 of each generated file, by path."""

    files: Mapping[str, str] = field(default_factory=dict)


def digest(content: bytes) -> str:
    """SHA-256 of a file's contents, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def lock_artifact(plan: Plan, artifacts: Iterable[Artifact]) -> Artifact:
    """The lock file for a plan and the files made from it."""
    document = {
        "schema": SCHEMA,
        "devkit": __version__,
        "data_as_of": plan.data_as_of,
        "plan": plan_document(plan),
        "files": {artifact.path: digest(artifact.content) for artifact in sorted(artifacts, key=lambda a: a.path)},
    }
    return Artifact.text(LOCK_PATH, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def read_lock(content: bytes) -> Lock:
    """What a lock file says. Raises DevkitError when it is not one that this devkit can read."""
    hint = "Restore it from version control. Without it devkit cannot tell its files from yours."
    try:
        document = json.loads(content)
        schema, files = document["schema"], document["files"]
    except (ValueError, KeyError, TypeError):
        raise DevkitError(f"{LOCK_PATH} is damaged", hint) from None
    if schema != SCHEMA:
        raise DevkitError(f"{LOCK_PATH} has schema {schema!r}, this devkit reads {SCHEMA}", "Update devkit.")
    if not isinstance(files, dict) or not all(isinstance(value, str) for value in files.values()):
        raise DevkitError(f"{LOCK_PATH} is damaged", hint)
    return Lock(files)
