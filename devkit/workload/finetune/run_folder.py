"""run.json: what a run was asked, what it decided and why, what came of it."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devkit.errors import DevkitError
from devkit.text import to_one_line
from devkit.workload.environment import describe_environment
from devkit.workload.finetune.checkpoint import is_leftover
from devkit.workload.finetune.decisions import Decisions
from devkit.workload.finetune.distributed import Ranks
from devkit.workload.finetune.events import METRICS_FILE, explain_write_errors, read_events
from devkit.workload.finetune.loop import RunOutcome, TrainState
from devkit.workload.finetune.memory import DeviceMemory
from devkit.workload.finetune.settings import FinetuneSettings

# One run at a time in an output folder: two would take turns at overwriting each other's checkpoints.


@contextmanager
def lock_run_folder(output: Path, ranks: Ranks) -> Iterator[None]:
    """Keep other runs out of `output`, which exists. The system lets go of it however this process ends.

    Raises DevkitError in all processes when another run is in there.
    """
    held = ranks.on_rank0_broadcast(lambda: _lock(output))
    try:
        yield
    finally:
        if held is not None and ranks.is_rank0:
            os.close(held)


def _lock(output: Path) -> int | None:
    """The descriptor that holds the lock; None where the system or the file system knows none."""
    if os.name != "posix":
        return None
    import fcntl

    descriptor = os.open(output, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DevkitError(
            f"another run is training into {output}",
            "Wait for it or end it. Several processes of one run are started by torchrun: srun and mpirun alone start "
            "as many runs.",
        ) from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


# The folder that a run writes: whose it is, what stands in it at the end, and the record of the run.

RUN_SCHEMA = "devkit.finetune/1"
RECORD_FILE = "run.json"
ADAPTER_FOLDER = "adapter"
MODEL_FOLDER = "model"
EARLIER_PREFIX = "earlier"

_RESULTS = {True: ADAPTER_FOLDER, False: MODEL_FOLDER}


def prepare_run_folder(output: Path, *, resume: bool) -> None:
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
    return isinstance(document, dict) and document.get("schema") == RUN_SCHEMA


def _set_aside(output: Path) -> None:
    number = next(n for n in range(1, 1_000_000) if not (output / f"{EARLIER_PREFIX}-{n}").exists())
    target = output / f"{EARLIER_PREFIX}-{number}"
    target.mkdir()
    for each in list(output.iterdir()):
        is_of_a_run = each.name in (METRICS_FILE, RECORD_FILE, ADAPTER_FOLDER, MODEL_FOLDER, "latest")
        if is_of_a_run or each.name.startswith("step-"):
            each.rename(target / each.name)


def format_run_json(document: Mapping[str, Any]) -> str:
    """JSON for people to read. Raises ValueError for a number that JSON cannot hold."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def write_run_record(output: Path, document: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all. Raises DevkitError where the disk does not take it."""
    path = output / RECORD_FILE
    new = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with explain_write_errors(path):
        _write_whole(path, new, {"schema": RUN_SCHEMA, **document})


def _write_whole(path: Path, new: Path, document: Mapping[str, Any]) -> None:
    with new.open("w", encoding="utf-8") as stream:
        stream.write(format_run_json(document))
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)


def publish_result(output: Path, checkpoint: Path, *, is_adapter: bool, write_beside: Callable[[Path], object]) -> Path:
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


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file in `folder`, by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as stream:
            found[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


class RunRecord:
    """Written before anything else, so that the folder is known as ours and no end of an earlier run is taken for this
    one's; again when everything is decided, and when the run ends."""

    def __init__(self, settings: FinetuneSettings, *, gpu: str | None, world: int) -> None:
        self._output = settings.output
        self._fields: dict[str, Any] = {
            "status": "running",
            "settings": _settings(settings),
            "decisions": [],
            "warnings": [],
            "environment": describe_environment(),
            "gpu": gpu,
            "world": world,
            "estimated": None,
        }
        self.summary: dict[str, Any] = {}

    def begin(self) -> None:
        """Write what is known before anything was read."""
        write_run_record(self._output, self._fields)

    def decided(self, settings: FinetuneSettings, decisions: Decisions) -> None:
        """Write what is known before the first step. `settings` have the rows that the model can read."""
        self._fields |= {
            "settings": _settings(settings),
            "decisions": [asdict(each) for each in decisions.reasons],
            "warnings": list(decisions.warnings),
            "estimated": _estimated(decisions),
        }
        write_run_record(self._output, self._fields)

    def stop(self, ended: RunOutcome) -> None:
        """Write how a run ended that took no step of which anything could be said."""
        self._fields |= {"status": str(ended)}
        write_run_record(self._output, self._fields)

    def fail(self, error: Exception) -> None:
        """Write that `error` ended the run. A disk that takes nothing more is not told of once more."""
        self._fields |= {"status": "failed", "error": to_one_line(str(error))}
        with contextlib.suppress(DevkitError):
            write_run_record(self._output, self._fields)

    def finish(self, ended: RunOutcome, position: TrainState, memory: DeviceMemory) -> None:
        """Write what came of it; `summary` holds the numbers that people want to see."""
        steps = [each for each in read_events(self._output / METRICS_FILE) if each["event"] == "step"]
        self.summary = {
            "step": position.step,
            "first_loss": steps[0]["loss"] if steps else None,
            "last_loss": steps[-1]["loss"] if steps else None,
            "tokens": position.tokens,
            "seconds": round(position.seconds, 3),
            "tokens_per_s": round(position.tokens / position.seconds, 1) if position.seconds else None,
        }
        self._fields |= {
            "status": str(ended),
            **self.summary,
            "micro_batch": position.micro_batch,
            "measured": _measured(memory),
            "files": self._files(ended),
        }
        write_run_record(self._output, self._fields)

    def _files(self, ended: RunOutcome) -> dict[str, dict[str, str]]:
        """The result's files with their SHA-256, by folder."""
        if ended is not RunOutcome.DONE:
            return {}
        names = (ADAPTER_FOLDER, MODEL_FOLDER)
        folders = [self._output / name for name in names if (self._output / name).is_dir()]
        return {folder.name: hash_files(folder) for folder in folders}


def _settings(settings: FinetuneSettings) -> dict[str, object]:
    return {name: _json_value(value) for name, value in vars(settings).items()}


def _estimated(decisions: Decisions) -> dict[str, Any] | None:
    estimate = decisions.estimate
    if estimate is None:
        return None
    return {
        "allocated_peak_bytes": estimate.allocated_peak_bytes,
        "reserved_peak_bytes": vars(estimate.reserved_peak_bytes),
        "device_peak_bytes": vars(estimate.device_peak_bytes),
    }


def _measured(memory: DeviceMemory) -> dict[str, int] | None:
    """The peaks under the estimate's names; None where nothing counts them."""
    if not memory.reserved:
        return None
    return {"allocated_peak_bytes": memory.allocated, "reserved_peak_bytes": memory.reserved}


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return [str(each) for each in value] if isinstance(value, tuple) else str(value)
