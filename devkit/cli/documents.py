"""`devkit schema`: the JSON Schemas of the documents that `--json` prints, built from their dataclasses."""

import json
from dataclasses import dataclass, field
from typing import Literal

import click

from devkit.cli.command import Command
from devkit.cli.tables import TablesDocument
from devkit.devcontainer.onboarding import Need
from devkit.doctor.comparison import Group
from devkit.doctor.report.documents import ChecksDocument, DoctorDocument, ExplainDocument
from devkit.errors import DevkitError
from devkit.estimate.report import EstimateDocument
from devkit.formats.documents import MAY_LACK, Json, build_schema
from devkit.render.changes import Action
from devkit.solver.output import AnswerDocument, ConflictDocument, PlanDocument
from devkit.solver.why import WhyDocument
from devkit.text import format_table, join_words
from devkit.verify.report import VerifyDocument


@dataclass(frozen=True, kw_only=True)
class FileDocument:
    """A file that a command writes."""

    path: str
    action: Action
    diff: str | None = field(default=None, metadata=MAY_LACK)
    conflicts: list[Json] | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True, kw_only=True)
class FilesDocument:
    """Files that are compared with a plan, or written; a repaired dev container of others may need no plan."""

    verdict: Literal["unchanged", "would-lock", "would-write", "written", "plan", "conflict", "conflicts"]
    files: list[FileDocument]
    plan: PlanDocument | None = field(default=None, metadata=MAY_LACK)
    conflict: ConflictDocument | None = field(default=None, metadata=MAY_LACK)
    warnings: list[str] | None = field(default=None, metadata=MAY_LACK)
    data_as_of: str | None = field(default=None, metadata=MAY_LACK)
    digest: str | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True, kw_only=True)
class FolderDocument:
    """A folder to be published."""

    directory: str
    files: list[FileDocument]


@dataclass(frozen=True, kw_only=True)
class BundleDocument:
    """A bundle for closed networks."""

    verdict: Literal["written", "would-write"]
    output: str
    architectures: list[str]
    image: Json


@dataclass(frozen=True, kw_only=True)
class UpDocument:
    """A dev container that runs."""

    action: Literal["created", "recreated", "started", "kept"]
    container: str
    container_id: str
    image_id: str
    user: str
    workspace_folder: str
    changed: list[str]
    built: list[str]
    volume: str | None


@dataclass(frozen=True, kw_only=True)
class StepDocument:
    """A step of an onboarding."""

    name: str
    status: Literal["done", "kept", "failed", "stopped", "skipped"]
    detail: str


@dataclass(frozen=True, kw_only=True)
class OnboardDocument:
    """An onboarding."""

    verdict: Literal["done", "stopped"]
    needs: list[Need]
    steps: list[StepDocument]
    next: list[str]


@dataclass(frozen=True, kw_only=True)
class GenerateDocument:
    """Answers of a model."""

    model: str
    adapter: str | None
    answers: list[Json]
    speed: Json


@dataclass(frozen=True, kw_only=True)
class ModelDocument:
    """A model that was fetched."""

    name: str
    folder: str
    architecture: str
    bytes: int
    license: str | None
    origin: str | None


@dataclass(frozen=True, kw_only=True)
class ExportDocument:
    """A job as files of a target."""

    verdict: Literal["unchanged", "would-write", "written", "conflicts", "refused"]
    target: str | None = field(default=None, metadata=MAY_LACK)
    output: str | None = field(default=None, metadata=MAY_LACK)
    task: Json | None = field(default=None, metadata=MAY_LACK)
    estimate: Json | None = field(default=None, metadata=MAY_LACK)
    files: list[FileDocument] | None = field(default=None, metadata=MAY_LACK)
    notes: list[str] | None = field(default=None, metadata=MAY_LACK)
    next: list[str] | None = field(default=None, metadata=MAY_LACK)


@dataclass(frozen=True, kw_only=True)
class CompareDocument:
    """Machines that are compared."""

    verdict: Literal["alike", "differ"]
    nodes: int
    groups: list[Group]
    unreadable: list[Json]


@dataclass(frozen=True, kw_only=True)
class BenchmarkDocument:
    """Measurements of a machine."""

    parts: dict[str, Json]


DOCUMENTS: dict[str, tuple[str, type]] = {
    "devkit.doctor/1": ("devkit doctor --json", DoctorDocument),
    "devkit.checks/1": ("devkit doctor --list --json", ChecksDocument),
    "devkit.explain/1": ("devkit explain --json", ExplainDocument),
    "devkit.plan/1": ("devkit plan --json", AnswerDocument),
    "devkit.why/1": ("devkit plan --why FIELD --json", WhyDocument),
    "devkit.init/1": ("devkit init --json", FilesDocument),
    "devkit.update/1": ("devkit update --json", FilesDocument),
    "devkit.feature/1": ("devkit init --as-feature --json", FolderDocument),
    "devkit.bundle/1": ("devkit bundle --json", BundleDocument),
    "devkit.up/1": ("devkit up --json", UpDocument),
    "devkit.onboard/1": ("devkit onboard --json", OnboardDocument),
    "devkit.estimate/1": ("devkit estimate --json", EstimateDocument),
    "devkit.verify/1": ("devkit verify --json", VerifyDocument),
    "devkit.generate/1": ("devkit generate --json", GenerateDocument),
    "devkit.model/1": ("devkit fetch --json", ModelDocument),
    "devkit.export/1": ("devkit export TARGET --json", ExportDocument),
    "devkit.compare/1": ("devkit fleet compare --json", CompareDocument),
    "devkit.data/1": ("devkit tables --json", TablesDocument),
    "devkit.benchmark/1": ("devkit verify --bench --json", BenchmarkDocument),
}
"""`schema` of a document -> the command that prints it, and its type."""


def build_document_schema(name: str) -> Json:
    """Build the JSON Schema of a document."""
    command, kind = DOCUMENTS[name]
    return build_schema(name, kind, about=command)


@click.command(cls=Command)
@click.argument("name", required=False, default="")
def schema(name: str) -> None:
    """Print the JSON Schema of a document, such as plan or devkit.plan/1; without NAME list the documents."""
    if not name:
        click.echo(format_table([(each, command) for each, (command, _) in DOCUMENTS.items()]))
        return
    found = next((each for each in DOCUMENTS if name in (each, each[7:-2])), None)
    if found is None:
        known = join_words((each[7:-2] for each in DOCUMENTS), "or")
        raise DevkitError(f"no document is named {name!r}", f"Name one: {known}")
    click.echo(json.dumps(build_document_schema(found), indent=1, ensure_ascii=False))
