"""The folder that a run writes: whose it is, what stands in it at the end, and the record of the run."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.checkpoint_folders import is_leftover
from devkit.workload.finetune.events import METRICS_FILE, written

SCHEMA = "devkit.finetune/1"
RECORD_FILE = "run.json"
ADAPTER_FOLDER = "adapter"
MODEL_FOLDER = "model"
EARLIER = "earlier"

_RESULTS = {True: ADAPTER_FOLDER, False: MODEL_FOLDER}


def prepare(output: Path, *, resume: bool) -> None:
    """Make `output` ready for a run.

    Without `resume` what an earlier run left is moved into a folder of its own. Raises DevkitError for a folder that
    holds anything of somebody else.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in output.iterdir() if not is_leftover(each.name)}
    except OSError as error:
        raise DevkitError(
            f"cannot use {output} for output: {error.strerror}", "Name a folder that you may write to with --output."
        ) from None
    if names and not _is_ours(output):
        shown = ", ".join(sorted(names)[:3])
        raise DevkitError(
            f"{output} holds files that no run of devkit wrote: {shown}",
            "Name a new or empty folder with --output.",
        )
    if names and not resume:
        _set_aside(output)


def _is_ours(output: Path) -> bool:
    """Whether a run of ours began in `output`. Its record is the first thing that it writes."""
    try:
        document = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def _set_aside(output: Path) -> None:
    number = next(n for n in range(1, 1_000_000) if not (output / f"{EARLIER}-{n}").exists())
    target = output / f"{EARLIER}-{number}"
    target.mkdir()
    for each in list(output.iterdir()):
        is_of_a_run = each.name in (METRICS_FILE, RECORD_FILE, ADAPTER_FOLDER, MODEL_FOLDER, "latest")
        if is_of_a_run or each.name.startswith("step-"):
            each.rename(target / each.name)


def as_text(document: Mapping[str, Any]) -> str:
    """JSON for people to read. Raises ValueError for a number that JSON cannot hold."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write_record(output: Path, document: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all. Raises DevkitError where the disk does not take it."""
    path = output / RECORD_FILE
    new = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with written(path):
        _write_whole(path, new, {"schema": SCHEMA, **document})


def _write_whole(path: Path, new: Path, document: Mapping[str, Any]) -> None:
    with new.open("w", encoding="utf-8") as stream:
        stream.write(as_text(document))
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)


def publish(output: Path, checkpoint: Path, *, is_adapter: bool, write_beside: Callable[[Path], object]) -> Path:
    """Put the trained weights of a checkpoint where people look for them: adapter/, or model/ for a whole model.

    `write_beside` adds what goes with them, such as the tokenizer. What an earlier part of the run put there is
    replaced.
    """
    target = output / _RESULTS[is_adapter]
    new = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for each in _weights_in(checkpoint):
        shutil.copyfile(each, new / each.name)
    write_beside(new)
    if target.exists():
        old = target.with_name(f"{target.name}.old-{os.getpid()}")
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
    else:
        new.rename(target)
    return target


def _weights_in(checkpoint: Path) -> list[Path]:
    mine = {"manifest.json", "optimizer.safetensors"}
    return [each for each in checkpoint.iterdir() if each.is_file() and each.name not in mine]


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in `folder`, by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found
