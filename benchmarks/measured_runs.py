"""Published runs whose memory was measured, to score the estimates by."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from devkit.compat.version_tables import KeyedArray, Table, TableRow
from devkit.estimate.settings import InferenceSettings, TrainingSettings, decode_settings
from devkit.facts.decode import decode_fields

MIB = 1 << 20
TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, kw_only=True)
class RunGroup(TableRow):
    """Runs of one program on one machine. `settings` are what its runs have in common.

    `lingering` says that the loop holds the model's outputs until the next forward pass replaces them, `emptied` that
    it gives torch's cached memory back after each step.
    """

    id: str
    grade: str
    gpu: str
    versions: str
    settings: Mapping[str, Any]
    lingering: bool = False
    emptied: bool = False
    excluded: str = ""


@dataclass(frozen=True)
class RunRow:
    """A run as the table has it."""

    id: str
    group: str
    model: str
    settings: Mapping[str, Any]
    allocated_mib: float = 0.0
    reserved_mib: float = 0.0
    weights_mib: float = 0.0
    optimizer_mib: float = 0.0
    excluded: str = ""


class MeasuredTable(Table):
    """The table of published runs and their groups."""

    groups = KeyedArray("group", RunGroup, unique=("id",))

    @property
    def runs(self) -> tuple[RunRow, ...]:
        """Every run; its source is its group's."""
        return tuple(RunRow(**decode_fields(row, RunRow)) for row in self._document["run"])


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A published run, in bytes, 0 where one was not published. `excluded` says why it is shown and not counted."""

    id: str
    group: RunGroup
    model: str
    settings: TrainingSettings | InferenceSettings
    allocated_bytes: int
    reserved_bytes: int
    weights_bytes: int
    """Base and adapters."""
    optimizer_bytes: int
    excluded: str

    @property
    def is_counted(self) -> bool:
        """True if the run counts in the score of the estimates."""
        return not self.excluded


@cache
def load_measured_runs() -> tuple[MeasuredRun, ...]:
    """Load every published run, in the table's order."""
    table = MeasuredTable(tomllib.loads(TABLE.read_text(encoding="utf-8")))
    found = []
    for run in table.runs:
        group = table.groups[run.group]
        values = {**group.settings, **run.settings}
        kind: type[TrainingSettings | InferenceSettings] = InferenceSettings if "new" in values else TrainingSettings
        found.append(
            MeasuredRun(
                id=run.id,
                group=group,
                model=run.model,
                settings=decode_settings(kind, values),
                allocated_bytes=round(run.allocated_mib * MIB),
                reserved_bytes=round(run.reserved_mib * MIB),
                weights_bytes=round(run.weights_mib * MIB),
                optimizer_bytes=round(run.optimizer_mib * MIB),
                excluded=run.excluded or group.excluded,
            )
        )
    return tuple(found)
