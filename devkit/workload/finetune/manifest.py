"""What a checkpoint holds and whether it still does: written last, read first. Importable without torch."""

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SCHEMA = "devkit.checkpoint/1"

Value = str | int | float | bool | None | list[str]
"""What a setting may be, as JSON has it."""

_AT_ONCE_BYTES = 1 << 22


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint: its size and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run got: optimizer steps, tokens seen, steps skipped as not finite, seconds over all its parts.

    `scaler` is the state of a GradScaler, empty without one.
    """

    step: int
    tokens: int = 0
    skipped: int = 0
    seconds: float = 0.0
    scaler: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`settings` are those that the numbers depend on; `world` and `versions` may differ when the run goes on."""

    progress: Progress
    settings: Mapping[str, Value]
    world: int
    versions: Mapping[str, str]
    files: Mapping[str, FileRecord]

    def text(self) -> str:
        """As it is written: a JSON object whose `sha256` is that of `content`, so that a flipped bit shows here too."""
        content = asdict(self)
        return json.dumps({"schema": SCHEMA, "sha256": _hash_of(content), "content": content}, indent=1) + "\n"


class BrokenError(Exception):
    """A checkpoint that cannot be gone on from; the text says why, after its name: "adapter.safetensors is missing"."""


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises BrokenError."""
    path = folder / MANIFEST
    _size_of_plain_file(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        content = document["content"]
        if document["schema"] != SCHEMA:
            raise BrokenError(f"is of the form {document['schema']!r}, and this devkit reads {SCHEMA}")
        if document["sha256"] != _hash_of(content):
            raise BrokenError(f"{MANIFEST} was changed after it was written")
        return _manifest(content)
    except OSError as error:
        raise BrokenError(f"{MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BrokenError(f"{MANIFEST} is damaged") from None


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are what it says, byte by byte. Raises BrokenError."""
    manifest = read(folder)
    for name, record in manifest.files.items():
        path = folder / name
        size = _size_of_plain_file(path)
        if size != record.bytes:
            raise BrokenError(f"{name} has {size} bytes of {record.bytes}")
    for name, record in manifest.files.items():
        try:
            if _hash_of_file(folder / name) != record.sha256:
                raise BrokenError(f"{name} is not as it was written")
        except OSError as error:
            raise BrokenError(f"{name} cannot be read: {error.strerror}") from None
    return manifest


_IN_WORDS = {
    "data": "the texts are others than those it learned from",
    "model": "the model is another than the one it was made from",
}
"""What is compared by fingerprints, which say nothing to people."""

_SHAPES_TEXTS = frozenset({"sequence", "completion_only", "eval_share", "model"})
"""Settings that change which token ids come of the same texts."""


def differences(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """What differs, in the order of `now`: "rank was 8, now 16".

    That the token ids are others is told only where no setting explains it.
    """
    names = [*now, *(name for name in before if name not in now)]
    differ = [name for name in names if before.get(name) != now.get(name)]
    is_explained = not _SHAPES_TEXTS.isdisjoint(differ)
    return [
        _IN_WORDS.get(name) or f"{name} was {_shown(before.get(name))}, now {_shown(now.get(name))}"
        for name in differ
        if name != "data" or not is_explained
    ]


def _shown(value: Value) -> str:
    return " ".join(value) if isinstance(value, list) else "unset" if value is None else str(value)


def _manifest(content: dict[str, Any]) -> Manifest:
    return Manifest(
        progress=Progress(**content["progress"]),
        settings=content["settings"],
        world=content["world"],
        versions=content["versions"],
        files={name: FileRecord(**record) for name, record in content["files"].items()},
    )


def _size_of_plain_file(path: Path) -> int:
    """Raises BrokenError for what is missing, and for what is no file of its own: a link may lead anywhere."""
    try:
        found = path.lstat()
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise BrokenError(f"{path.name} {'is missing' if gone else f'cannot be read: {error.strerror}'}") from None
    if not stat.S_ISREG(found.st_mode):
        raise BrokenError(f"{path.name} is not a plain file")
    return found.st_size


def _hash_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _hash_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_AT_ONCE_BYTES):
            digest.update(block)
    return digest.hexdigest()
