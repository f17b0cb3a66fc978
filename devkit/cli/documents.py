"""`devkit schema`: the types of the JSON documents that `--json` prints, and the JSON Schemas made from them.

Fields may be added without a new number, so that no schema forbids others; none is removed or renamed.
"""

import dataclasses
import json
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

import click

from devkit.devcontainer.onboarding import Need
from devkit.doctor.model import Confidence, Restart, Severity, Side
from devkit.errors import DevkitError
from devkit.estimate.memory import Interval, Term
from devkit.estimate.settings import InferenceSettings, TrainingSettings
from devkit.render.changes import Action
from devkit.text import format_table, join_words
from devkit.verify.report import ProofLocation, ProofVerdict
from devkit.verify.report_check import PointStatus, ReportPoint
from devkit.workload.proof.stages import StageResult

Json = dict[str, Any]
Objects = list[Json]


class Age(TypedDict):
    data_as_of: str
    data_age_days: NotRequired[int]


class File(TypedDict):
    path: str
    action: Action
    conflicts: NotRequired[Objects]


class Said(TypedDict):
    rule: str | None
    says: str
    source: str


class Reason(TypedDict):
    field: str
    value: str
    because: str
    source: str
    confidence: str


class Plan(TypedDict):
    """The versions that were chosen, each with its reason."""

    vendor: str
    base_image: str
    python: str
    torch: str
    variant: str
    cuda: str | None
    rocm: str | None
    torch_index: str
    packages: dict[str, str]
    framework: str
    gpu_request: str
    architectures: list[str]
    nvcc: str
    compiled: Objects
    reasons: list[Reason]
    data_as_of: str


class Conflict(TypedDict):
    """The rules that refuse a plan, and the nearest one."""

    wanted: str
    blockers: list[Said]
    nearest: Plan | None
    nearest_changes: str


class Fix(TypedDict):
    """The repair of a finding. `is_automatic`: `devkit doctor --fix` can do it."""

    summary: str
    commands: list[str]
    where: Side
    root: bool
    restart: Restart
    docs: str
    is_automatic: bool


class Match(TypedDict):
    """A known error that a text shows."""

    code: str | None
    title: str | None
    severity: Severity
    cause: str
    confidence: Confidence
    matched: str
    line: int | None
    source: str | None
    follows_from: str | None
    also: list[str]
    fix: Fix
    alternatives: Objects
    consequences: Objects


class GpuVerdict(TypedDict):
    """One GPU, and if it holds the run."""

    name: str
    count: int
    memory_bytes: int
    verdict: Literal["fits", "tight", "does-not-fit"]
    recommended: Objects


class Group(TypedDict):
    """Machines with the same hardware."""

    kind: str
    of: str
    nodes: int
    odd: Objects
    without_majority: Objects


class _Answer(Age):
    verdict: Literal["plan", "conflict"]
    plan: Plan | None
    resolution: Json | None
    warnings: list[str]
    conflict: Conflict | None


class _Files(TypedDict):
    """Files that are compared with a plan, or written; a repaired dev container of others may need no plan."""

    verdict: Literal["unchanged", "would-lock", "would-write", "written", "plan", "conflict", "conflicts", "refused"]
    files: list[File]
    plan: NotRequired[Plan | None]
    conflict: NotRequired[Conflict | None]
    warnings: NotRequired[list[str]]
    data_as_of: NotRequired[str]


class Checked(TypedDict):
    code: str
    title: str
    covers: list[str]
    symptoms: list[str]
    docs: str


class Choice(TypedDict):
    choice: str
    rule: str | None
    says: str
    source: str


class Step(TypedDict):
    name: str
    status: Literal["done", "kept", "failed", "stopped", "skipped"]
    detail: str


class TableState(TypedDict):
    name: str
    as_of: str
    age_days: int | None
    rows: int
    origin: str


DOCUMENTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "devkit.checks/1": ("devkit doctor --list --json", {"checks": list[Checked]}),
    "devkit.explain/1": (
        "devkit explain --json",
        {"matches": list[Match], "nearest": NotRequired[Objects], "check": NotRequired[Json]},
    ),
    "devkit.plan/1": ("devkit plan --json", get_type_hints(_Answer, include_extras=True)),
    "devkit.why/1": (
        "devkit plan --why FIELD --json",
        {
            "verdict": Literal["plan", "conflict"],
            "field": str,
            "value": str | None,
            "because": str | None,
            "source": str | None,
            "confidence": str | None,
            "others": list[Choice],
            "conflict": Conflict | None,
        }
        | get_type_hints(Age, include_extras=True),
    ),
    "devkit.init/1": ("devkit init --json", get_type_hints(_Files, include_extras=True)),
    "devkit.update/1": ("devkit update --json", get_type_hints(_Files, include_extras=True)),
    "devkit.template/1": ("devkit template --json", {"directory": str, "files": list[File]}),
    "devkit.feature/1": ("devkit feature --json", {"directory": str, "files": list[File]}),
    "devkit.bundle/1": (
        "devkit bundle --json",
        {"verdict": Literal["written", "would-write"], "output": str, "architectures": list[str], "image": Json},
    ),
    "devkit.up/1": (
        "devkit up --json",
        {
            "action": Literal["created", "recreated", "started", "kept"],
            "container": str,
            "container_id": str,
            "image_id": str,
            "user": str,
            "workspace_folder": str,
            "changed": list[str],
            "built": list[str],
            "volume": str | None,
        },
    ),
    "devkit.onboard/1": (
        "devkit onboard --json",
        {"verdict": Literal["done", "stopped"], "needs": list[Need], "steps": list[Step], "next": list[str]},
    ),
    "devkit.estimate/1": (
        "devkit estimate --json",
        {
            "model": Json,
            "settings": TrainingSettings | InferenceSettings,
            "method": str,
            "phase": str,
            "terms": list[Term],
            "overheads": list[Term],
            "phases": dict[str, int],
            "allocated_peak_bytes": int,
            "reserved_peak_bytes": Interval,
            "device_peak_bytes": Interval,
            "warnings": list[str],
            "gpus": list[GpuVerdict],
            "recommended": Json | None,
        },
    ),
    "devkit.verify/1": (
        "devkit verify --json",
        {
            "taken_at": str,
            "verdict": ProofVerdict,
            "where": ProofLocation,
            "conclusion": str,
            "inputs": Json,
            "device": Json,
            "environment": Json,
            "stages": list[StageResult],
            "log": list[str],
            "report_sha256": str,
        },
    ),
    "devkit.verify-check/1": (
        "devkit verify --check REPORT --json",
        {"of": str, "verdict": PointStatus, "points": list[ReportPoint]},
    ),
    "devkit.generate/1": (
        "devkit generate --json",
        {"model": str, "adapter": str | None, "answers": Objects, "speed": Json},
    ),
    "devkit.model/1": (
        "devkit model fetch --json",
        {"name": str, "folder": str, "architecture": str, "bytes": int, "license": str | None, "origin": str | None},
    ),
    "devkit.export/1": (
        "devkit export TARGET --json",
        {
            "verdict": Literal["unchanged", "would-write", "written", "conflicts", "refused", "drifted"],
            "target": NotRequired[str],
            "output": NotRequired[str],
            "task": NotRequired[Json],
            "estimate": NotRequired[Json | None],
            "files": NotRequired[list[File]],
            "notes": NotRequired[list[str]],
            "next": NotRequired[list[str]],
            "drifted": NotRequired[list[str]],
        },
    ),
    "devkit.compare/1": (
        "devkit fleet compare --json",
        {"verdict": Literal["alike", "differ"], "nodes": int, "groups": list[Group], "unreadable": Objects},
    ),
    "devkit.data/1": ("devkit data show --json", {"tables": list[TableState], "faults": Objects | list[str]}),
    "devkit.benchmark/1": ("devkit benchmark --json", {"parts": dict[str, Json]}),
}
"""`schema` of a document -> the command that prints it, and its fields beside `schema`. devkit.doctor/1 has a file of its own."""

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def build_document_schema(name: str) -> Json:
    """Build the JSON Schema of a document from its type."""
    command, fields = DOCUMENTS[name]
    found = _build_object({"schema": Literal[name], **fields})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, "description": command, **found}


def _build_object(fields: Mapping[str, Any]) -> Json:
    required = [name for name, kind in fields.items() if get_origin(kind) is not NotRequired]
    return {
        "type": "object",
        "required": required,
        "properties": {name: _build_schema(kind) for name, kind in fields.items()},
    }


def _build_schema(kind: Any) -> Json:  # noqa: ANN401 - any type
    origin, parts = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return _build_schema(parts[0])
    if origin in (Union, types.UnionType):
        return {"anyOf": [_build_schema(part) for part in parts]}
    if origin is Literal:
        return {"enum": [*parts]}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _build_schema(parts[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _build_schema(parts[1])}
    if is_typeddict(kind):
        return _build_object(get_type_hints(kind, include_extras=True))
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return _build_object({field.name: hints[field.name] for field in dataclasses.fields(kind)})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    return {"type": _SCALARS[kind]} if kind in _SCALARS else {}


DOCTOR_SCHEMA = Path(__file__).with_name("doctor.schema.json")
"""Says more of its texts than types can."""


@click.command()
@click.argument("name", required=False, default="")
def schema(name: str) -> None:
    """Print the JSON Schema of a document, such as plan or devkit.plan/1; without NAME list the documents."""
    doctor = json.loads(DOCTOR_SCHEMA.read_text(encoding="utf-8"))
    if not name:
        rows = [
            (doctor["title"], "devkit doctor --json"),
            *((each, command) for each, (command, _) in DOCUMENTS.items()),
        ]
        click.echo(format_table(rows))
        return
    found = next((each for each in (doctor["title"], *DOCUMENTS) if name in (each, each[7:-2])), None)
    if found is None:
        known = join_words((each[7:-2] for each in (doctor["title"], *DOCUMENTS)), "or")
        raise DevkitError(f"no document is called {name!r}", f"Name one: {known}")
    document = doctor if found == doctor["title"] else build_document_schema(found)
    click.echo(json.dumps(document, indent=1, ensure_ascii=False))
