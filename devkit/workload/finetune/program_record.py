"""run.json: what a run was asked, what it decided and why, what came of it."""

import contextlib
from dataclasses import asdict
from typing import Any

from devkit.errors import DevkitError
from devkit.text import on_one_line
from devkit.workload.finetune import program_output
from devkit.workload.finetune.decisions import Decisions
from devkit.workload.finetune.events import METRICS_FILE, read_events
from devkit.workload.finetune.loop import End, Position
from devkit.workload.finetune.micro_batch import Memory
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.packages import environment


class Record:
    """Written before anything else, so that the folder is known as ours and no end of an earlier run is taken for this
    one's; again when everything is decided, and when the run ends."""

    def __init__(self, settings: FinetuneSettings, *, gpu: str | None, world: int) -> None:
        self._output = settings.output
        self._fields: dict[str, Any] = {
            "status": "running",
            "settings": _settings(settings),
            "decisions": [],
            "warnings": [],
            "environment": environment(),
            "gpu": gpu,
            "world": world,
            "estimated": None,
        }
        self.summary: dict[str, Any] = {}

    def begin(self) -> None:
        """Write what is known before anything was read."""
        program_output.write_record(self._output, self._fields)

    def decided(self, settings: FinetuneSettings, decisions: Decisions) -> None:
        """Write what is known before the first step. `settings` have the rows that the model can read."""
        self._fields |= {
            "settings": _settings(settings),
            "decisions": [asdict(each) for each in decisions.reasons],
            "warnings": list(decisions.warnings),
            "estimated": _estimated(decisions),
        }
        program_output.write_record(self._output, self._fields)

    def stop(self, ended: End) -> None:
        """Write how a run ended that took no step of which anything could be said."""
        self._fields |= {"status": str(ended)}
        program_output.write_record(self._output, self._fields)

    def fail(self, error: Exception) -> None:
        """Write that `error` ended the run. A disk that takes nothing more is not told of once more."""
        self._fields |= {"status": "failed", "error": on_one_line(str(error))}
        with contextlib.suppress(DevkitError):
            program_output.write_record(self._output, self._fields)

    def finish(self, ended: End, position: Position, memory: Memory) -> None:
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
        program_output.write_record(self._output, self._fields)

    def _files(self, ended: End) -> dict[str, dict[str, str]]:
        """The result's files with their SHA-256, by folder."""
        if ended is not End.DONE:
            return {}
        names = (program_output.ADAPTER_FOLDER, program_output.MODEL_FOLDER)
        folders = [self._output / name for name in names if (self._output / name).is_dir()]
        return {folder.name: program_output.hashes_of(folder) for folder in folders}


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


def _measured(memory: Memory) -> dict[str, int] | None:
    """The peaks under the estimate's names; None where nothing counts them."""
    if not memory.reserved:
        return None
    return {"allocated_peak_bytes": memory.allocated, "reserved_peak_bytes": memory.reserved}


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return [str(each) for each in value] if isinstance(value, tuple) else str(value)
