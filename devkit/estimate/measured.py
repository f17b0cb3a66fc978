"""Peak memory that was measured: published runs, each with its settings and its source."""

from collections.abc import Mapping
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.compat.rows import Row
from devkit.compat.table import KeyedArray, LazyDocument, Table
from devkit.estimate.settings import InferenceSettings, TrainingSettings
from devkit.estimate.spelled import settings_from
from devkit.facts.record import keyword_record, record

MIB = 1 << 20


@keyword_record
class Group(Row):
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


@record
class Run:
    """One row as the table has it."""

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
    """Groups and their runs."""

    groups = KeyedArray("group", Group, unique=("id",), key=lambda row: row.id)

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every row; its source is its group's."""
        return tuple(Run(**row) for row in self._document["run"])


@keyword_record
class MeasuredRun:
    """A published run, in bytes, 0 where one was not published. `excluded` says why it is shown and not counted."""

    id: str
    group: Group
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
        """Whether the estimates claim to know this run."""
        return not self.excluded


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """Every published run, in the table's order."""
    table = MeasuredTable(LazyDocument((get_data("devkit.estimate", "tables/measured.toml") or b"").decode()))
    return tuple(_typed(run, table.groups[run.group]) for run in table.runs)


def _typed(run: Run, group: Group) -> MeasuredRun:
    spelled = {**group.settings, **run.settings}
    return MeasuredRun(
        id=run.id,
        group=group,
        model=run.model,
        settings=_settings(spelled),
        allocated_bytes=round(run.allocated_mib * MIB),
        reserved_bytes=round(run.reserved_mib * MIB),
        weights_bytes=round(run.weights_mib * MIB),
        optimizer_bytes=round(run.optimizer_mib * MIB),
        excluded=run.excluded or group.excluded,
    )


def _settings(spelled: Mapping[str, Any]) -> TrainingSettings | InferenceSettings:
    if "prompt" in spelled:
        return settings_from(InferenceSettings, spelled)
    return settings_from(TrainingSettings, spelled)
