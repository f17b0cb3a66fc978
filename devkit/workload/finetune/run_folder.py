"""The folder of a run: its lock, its record run.json, the result published in it, and the checks of a run's inputs.

Importable without torch: a wrong path costs a second, not the twenty of torch's import.
"""

import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.folder_lock import hold_folder, remove_if_empty
from devkit.reading import hash_file
from devkit.text import to_one_line
from devkit.whole_files import write_whole
from devkit.workload.environment import describe_environment
from devkit.workload.finetune.events import ADAPTER_FOLDER, METRICS_FILE, WRITE_HINT, read_events
from devkit.workload.finetune.files import inspect_model, resolve_model_folder
from devkit.workload.finetune.process import RunOutcome
from devkit.workload.finetune.records import RecordReader
from devkit.workload.finetune.settings import FinetuneSettings

if TYPE_CHECKING:
    from devkit.workload.device import DeviceMemory
    from devkit.workload.finetune.checkpoint import TrainProgress
    from devkit.workload.finetune.decisions import Decisions
    from devkit.workload.finetune.distributed import Ranks

SettingValue = str | int | float | bool | None | list[str]
"""A setting as JSON has it."""

LEFTOVER = re.compile(
    r"(?:step-\d{1,18}|latest|run\.json|metrics\.jsonl|adapter|model)\.(?:tmp|old)(?:-\d{1,18})?"
    r"|\.(?:run\.json|metrics\.jsonl)\.\d{1,18}-\d{1,18}"
)
"""Names of what a run was writing when it was killed; earlier releases added their process number."""


def to_setting_value(value: object) -> SettingValue:
    """Return `value` as JSON gives it back, so that what was read compares equal to a setting."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return [str(each) for each in value] if isinstance(value, (tuple, list)) else str(value)


RUN_SCHEMA = "devkit.finetune/1"
RECORD_FILE = "run.json"
MODEL_FOLDER = "model"
EARLIER_PREFIX = "earlier"


def prepare_run_folder(output: Path, *, resume: bool) -> None:
    """Prepare the locked folder `output` for a run: it is empty, or one of ours.

    Without `resume`, an earlier run's files are moved into a separate folder. Raises DevkitError for a folder with
    files that devkit did not write.
    """
    if require_own_folder(output) and not resume:
        number = next(n for n in range(1, 1_000_000) if not (output / f"{EARLIER_PREFIX}-{n}").exists())
        target = output / f"{EARLIER_PREFIX}-{number}"
        target.mkdir()
        for each in list(output.iterdir()):
            is_of_run = each.name in (METRICS_FILE, RECORD_FILE, ADAPTER_FOLDER, MODEL_FOLDER, "latest")
            if is_of_run or each.name.startswith("step-"):
                each.rename(target / each.name)


def require_own_folder(output: Path) -> bool:
    """Return True if the folder holds an earlier run. Raises DevkitError for files that devkit did not write."""
    try:
        names = {each.name for each in output.iterdir() if not LEFTOVER.fullmatch(each.name)}
    except OSError as error:
        raise _refuse_output(output, error) from None
    document = None
    # The record is the first thing that a run writes.
    with contextlib.suppress(OSError, ValueError):
        document = json.loads((output / RECORD_FILE).read_text(encoding="utf-8"))
    if names and not (isinstance(document, dict) and document.get("schema") == RUN_SCHEMA):
        shown = ", ".join(sorted(names)[:3])
        raise DevkitError(
            f"{output} contains files that devkit did not write: {shown}", "Choose a new or empty folder with --output."
        )
    return bool(names)


@contextmanager
def lock_run_folder(output: Path, ranks: "Ranks") -> Iterator[None]:
    """Make the folder `output` and keep other runs out of it.

    Two runs would overwrite each other's checkpoints. Raises DevkitError on all ranks if another run stays in there.
    """
    with ExitStack() as stack:

        def lock() -> None:
            for folder in reversed([each for each in (output, *output.parents) if not each.exists()]):
                stack.callback(remove_if_empty, folder)
            try:
                output.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _refuse_output(output, error) from None
            try:
                stack.enter_context(hold_folder(output, report_wait=lambda line: sys.stderr.write(f"{line}\n")))
            except DevkitError as error:
                raise DevkitError(
                    error.message,
                    "Wait for it, or end it. Use torchrun to start several processes of one run: srun and mpirun alone "
                    "start as many runs.",
                ) from None

        ranks.on_rank0_broadcast(lock)
        yield


def _refuse_output(output: Path, error: OSError) -> DevkitError:
    return DevkitError(
        f"cannot use {output} for output: {error.strerror}", "Choose a folder that you can write to with --output."
    )


def write_run_record(output: Path, document: Mapping[str, Any]) -> None:
    """Write run.json completely or not at all. Raises DevkitError if the disk does not take it."""
    text = json.dumps({"schema": RUN_SCHEMA, **document}, indent=2, allow_nan=False) + "\n"
    write_whole(output / RECORD_FILE, text.encode(), hint=WRITE_HINT)


class RunRecord:
    """The content of run.json: settings, decisions with reasons, and results.

    It is written before anything else, so that the folder is known as ours and its status is never that of an earlier
    run; again when all decisions are made, and when the run ends.
    """

    def __init__(self, settings: FinetuneSettings, *, gpu: str | None, world_size: int) -> None:
        self._output = settings.output
        self._fields: dict[str, Any] = {
            "status": "running",
            "settings": _settings_fields(settings),
            "decisions": [],
            "warnings": [],
            "environment": describe_environment(),
            "gpu": gpu,
            "world": world_size,
            "estimated": None,
        }
        self.summary: dict[str, Any] = {}
        self._is_first = False

    def begin(self) -> None:
        self._is_first = not (self._output / RECORD_FILE).exists()
        write_run_record(self._output, self._fields)

    def record_decisions(self, settings: FinetuneSettings, decisions: "Decisions") -> None:
        """Write what is known before the first step. `settings` have the final sequence length."""
        estimate = decisions.estimate
        self._fields |= {
            "settings": _settings_fields(settings),
            "decisions": [asdict(each) for each in decisions.reasons],
            "warnings": list(decisions.warnings),
            "estimated": None
            if estimate is None
            else {
                "allocated_peak_bytes": estimate.allocated_peak_bytes,
                "reserved_peak_bytes": vars(estimate.reserved_peak_bytes),
                "device_peak_bytes": vars(estimate.device_peak_bytes),
            },
        }
        write_run_record(self._output, self._fields)

    def stop(self, outcome: RunOutcome) -> None:
        """Write the outcome of a run that ended outside the training loop."""
        self._fields |= {"status": str(outcome)}
        write_run_record(self._output, self._fields)

    def fail(self, error: Exception) -> None:
        """Write that `error` ended the run. An error of a full disk is not reported a second time.

        Wrong input that one process finds before it decides anything leaves nothing behind.
        """
        if (
            self._is_first
            and isinstance(error, DevkitError)
            and self._fields["world"] == 1
            and not self._fields["decisions"]
        ):
            for name in (METRICS_FILE, RECORD_FILE):
                (self._output / name).unlink(missing_ok=True)
            return
        self._fields |= {"status": "failed", "error": to_one_line(str(error))}
        with contextlib.suppress(DevkitError):
            write_run_record(self._output, self._fields)

    def fail_for_rank0(self, error: Exception) -> None:
        """Write that rank 0 was lost, which keeps the record and the folder for as long as it lives."""
        with contextlib.suppress(DevkitError, OSError, ValueError), hold_folder(self._output, timeout_s=1.0):
            record = json.loads((self._output / RECORD_FILE).read_text(encoding="utf-8"))
            if record["status"] == "running":
                lost = f"rank 0 was lost: {to_one_line(str(error))}"
                write_run_record(self._output, {**record, "status": "failed", "error": lost})

    def finish(
        self, outcome: RunOutcome, progress: "TrainProgress", memory: "DeviceMemory", *, micro_batch: int
    ) -> None:
        """Write the results; `summary` then holds the numbers of the event "end"."""
        steps = [each for each in read_events(self._output / METRICS_FILE) if each["event"] == "step"]
        self.summary = {
            "step": progress.step,
            "first_loss": steps[0]["loss"] if steps else None,
            "last_loss": steps[-1]["loss"] if steps else None,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "tokens_per_s": round(progress.tokens / progress.seconds, 1) if progress.seconds else None,
        }
        measured = {"allocated_peak_bytes": memory.allocated, "reserved_peak_bytes": memory.reserved}
        folders = [self._output / name for name in (ADAPTER_FOLDER, MODEL_FOLDER)]
        published = [each for each in folders if each.is_dir()] if outcome is RunOutcome.DONE else []
        self._fields |= {
            "status": str(outcome),
            **self.summary,
            "micro_batch": micro_batch,
            # CPUs count no peaks.
            "measured": measured if memory.reserved else None,
            "files": {folder.name: hash_files(folder) for folder in published},
        }
        write_run_record(self._output, self._fields)


def _settings_fields(settings: FinetuneSettings) -> dict[str, object]:
    return {name: to_setting_value(value) for name, value in vars(settings).items()}


def publish_result(
    output: Path,
    checkpoint: Path,
    *,
    is_adapter: bool,
    write_metadata: Callable[[Path], object],
    left_out: Collection[str] = (),
) -> Path:
    """Publish the trained weights of a checkpoint as adapter/, or model/ for a whole model, and return the folder.

    `write_metadata` adds what belongs to them, such as the tokenizer; `left_out` are files of the checkpoint that do
    not. An earlier result is replaced.
    """
    target = output / (ADAPTER_FOLDER if is_adapter else MODEL_FOLDER)
    new = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for each in checkpoint.iterdir():
        if each.is_file() and each.name not in left_out:
            shutil.copyfile(each, new / each.name)
    write_metadata(new)
    if target.exists():
        old = target.with_name(f"{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
    else:
        new.rename(target)
    return target


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in `folder`, by name."""
    return {path.name: hash_file(path) for path in sorted(folder.iterdir())}


READING_S = 1.0
"""How long records are read ahead. What is wrong further on is reported when all of them are read."""


def check_inputs(settings: FinetuneSettings) -> None:
    """Check output folder, model and data as far as this machine holds them. Raises DevkitError as the run would.

    Several processes agree on who reports an error once they have met: here nothing is checked for them.
    """
    if settings.objective is not Objective.SFT and importlib.util.find_spec("trl") is None:
        raise DevkitError(f"--objective {settings.objective} needs TRL, which is not installed", "pip install trl")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return
    if settings.reward:
        require_reward_function(settings.reward)
    if settings.output.exists():
        require_own_folder(settings.output)
    for names in (settings.data, settings.eval_data):
        sources = RecordReader(names, settings.objective).sources if names else ()
        # Others are read by libraries whose import takes as long as torch's.
        texts = tuple(each for each in sources if Path(each).is_file() and not each.lower().endswith(".parquet"))
        deadline_s = time.monotonic() + READING_S
        if texts == sources and texts:
            for _ in RecordReader(texts, settings.objective):
                if time.monotonic() > deadline_s:
                    break
    inspect_model(resolve_model_folder(settings.model))


def require_reward_function(reward: str) -> tuple[Path, str]:
    """Return file and name of FILE.py:FUNCTION, which is parsed and not run. Raises DevkitError."""
    file, _, name = reward.rpartition(":")
    path, hint = Path(file).expanduser(), "Give --reward FILE.py:FUNCTION, a function in your own file."
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DevkitError(f"--reward {reward}: cannot read {file or reward}: {error.strerror}", hint) from None
    except (SyntaxError, ValueError) as error:
        raise DevkitError(f"--reward {reward}: {path} is not Python: {error}", hint) from None
    known = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    if name not in known:
        raise DevkitError(f"--reward {reward}: {path} defines {', '.join(known) or 'no function'}, not {name}", hint)
    return path, name
