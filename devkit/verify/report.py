"""The report of a proof: the document devkit.verify/1, the text that people read, and why a stage failed."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from devkit.facts.decode import decode_fields
from devkit.facts.secrets import redact_tokens
from devkit.formats.documents import build_from, encode, load
from devkit.text import format_count, format_duration, format_number, format_table, join_words, wrap_text
from devkit.verify.process import Progress
from devkit.workload.proof.stages import (
    PROGRAMS,
    PROJECT_STAGES,
    STAGES,
    Depth,
    ReadingValue,
    StageResult,
    StageSpec,
    StageStatus,
)

REPORT_SCHEMA = "devkit.verify/1"
HASH_FIELD = "report_sha256"
PROGRAM, BECAUSE = "proof", "proof_because"
"""The inputs that name a smaller proof than the full one, and why it ran."""
MAX_TEXT_CHARACTERS = 40
SHOWN_LOG_LINES = 20


@dataclass(frozen=True)
class ProofRequest:
    """A proof that takes at most `timeout_s` seconds.

    `model` is the user's, a path or an id as the place of the proof sees it, `command` one of the project that must work there.
    """

    depth: Depth
    timeout_s: float
    progress: Progress
    model: str = ""
    command: str = ""


class ProofLocation(StrEnum):
    """The place where the proof ran."""

    CONTAINER = "container"
    HERE = "here"


class ProofVerdict(StrEnum):
    """The answer: proved, or not."""

    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class StageCause:
    """The likely cause of a failed stage, and what to do about it: a sentence or "", and commands."""

    summary: str
    advice: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class StageRow:
    """One row: a reason that matches `words` (a regular expression) at `stage`, any of them for "", leads to a check."""

    code: str
    summary: str
    words: str
    stage: str = ""


@cache
def load_rows() -> tuple[StageRow, ...]:
    """Return the rows of stage_causes.toml."""
    return tuple(StageRow(**decode_fields(row, StageRow)) for row in load("devkit.verify", "stage_causes")["causes"])


@dataclass(frozen=True, kw_only=True)
class VerifyDocument:
    """Printed by devkit verify --json; `report_sha256` is the hash of the other fields."""

    schema: Literal["devkit.verify/1"] = "devkit.verify/1"
    taken_at: str
    verdict: ProofVerdict
    where: ProofLocation
    conclusion: str
    inputs: dict[str, Any]
    device: dict[str, Any]
    environment: dict[str, Any]
    stages: tuple[StageResult, ...]
    log: tuple[str, ...]
    report_sha256: str = ""


@dataclass(frozen=True)
class VerificationReport:
    """The stages of one proof, with its place, device and software. `log` holds the last output of a process that crashed.

    `inputs` are the settings and the depth of the proof, `taken_at` its start (ISO 8601, UTC); both may be empty in
    reports of older releases and where the proof did not start.
    """

    where: ProofLocation
    device: dict[str, Any]
    environment: dict[str, Any]
    stages: tuple[StageResult, ...]
    log: tuple[str, ...] = field(default=())
    inputs: dict[str, Any] = field(default_factory=dict)
    taken_at: str = ""

    @property
    def verdict(self) -> ProofVerdict:
        """Passed when a claim was proved and no stage failed: a proof that skipped everything shows nothing."""
        statuses = [stage.status for stage in self.stages]
        return ProofVerdict.PASSED if StageStatus.FAILED not in statuses and self._claims() else ProofVerdict.FAILED

    def _claims(self) -> list[str]:
        passed = {stage.name for stage in self.stages if stage.status is StageStatus.PASSED}
        return [stage.claim for stage in self._specs if stage.claim and stage.name in passed]

    @property
    def _specs(self) -> tuple[StageSpec, ...]:
        return (*PROGRAMS.get(self.inputs.get(PROGRAM, ""), STAGES), *PROJECT_STAGES)

    @property
    def conclusion(self) -> str:
        """One sentence: the claims that were proved and the device, or the failed stages."""
        device = f"{self.device.get('kind', 'unknown device')}"
        failed = [stage.name for stage in self.stages if stage.status is StageStatus.FAILED]
        claims = self._claims()
        if self.verdict is ProofVerdict.FAILED:
            proved = f"; still proved on {device}: {join_words(claims)}" if claims else ""
            total = format_count(len(self.stages), "stage")
            return f"not proved: {len(failed)} of {total} failed ({', '.join(failed) or 'none ran'}){proved}"
        place = "in the dev container, on" if self.where is ProofLocation.CONTAINER else "on"
        claimed = {stage.name for stage in self._specs if stage.claim and stage.is_reported_when_skipped}
        skipped = {
            stage.name: stage.reason
            for stage in self.stages
            if stage.status is StageStatus.SKIPPED and stage.name in claimed
        }
        reasons = "; ".join(dict.fromkeys(skipped.values()))
        not_proved = f" (not proved: {', '.join(skipped)}; {reasons})" if skipped else ""
        return f"proved {place} {device}: {join_words(claims)}{not_proved}"

    def find_cause(self, stage: StageResult) -> StageCause | None:
        """Find the likely cause of a stage that failed, by its reason, then by the log; None for another stage, or if unknown."""
        from devkit.doctor.known_errors import find_known_errors  # it knows all checks

        if stage.status is not StageStatus.FAILED:
            return None
        for row in load_rows():
            if row.stage in ("", stage.name) and re.search(row.words, stage.reason, re.IGNORECASE):
                return StageCause(row.summary, "", (f"devkit explain {row.code}",))
        texts = (stage.reason, "\n".join(self.log))
        known = (match for text in texts for match in find_known_errors(text, is_ours=True))
        return next((StageCause(each.cause.rstrip("."), each.fix.summary, each.fix.commands) for each in known), None)

    def to_document(self) -> dict[str, Any]:
        """Return the document behind `--json`; its fields are a contract. Its last field is the hash of the others."""
        stages = (replace(each, reason=redact_tokens(each.reason), ms=round(each.ms, 1)) for each in self.stages)
        log = tuple(map(redact_tokens, self.log))
        document: dict[str, Any] = encode(build_from(VerifyDocument, self, stages=tuple(stages), log=log))
        # Of the canonical form: JSON in ASCII, keys sorted, no whitespace, without the hash itself.
        document.pop(HASH_FIELD)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return document | {HASH_FIELD: hashlib.sha256(text.encode()).hexdigest()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VerificationReport":
        """Read a report back. Raises ValueError for anything that is not a devkit.verify/1 document."""
        if not isinstance(document, Mapping) or document.get("schema") != REPORT_SCHEMA:
            raise ValueError(f"not a {REPORT_SCHEMA} document")
        try:
            return cls(
                where=ProofLocation(document["where"]),
                device=dict(document["device"]),
                environment=dict(document["environment"]),
                stages=tuple(StageResult.from_document(stage) for stage in document["stages"]),
                log=tuple(str(line) for line in document.get("log", ())),
                inputs=dict(document.get("inputs", {})),
                taken_at=str(document.get("taken_at", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a {REPORT_SCHEMA} document: {error}") from error


def format_proof_report(report: VerificationReport, *, width: int) -> str:
    """Format the report for people: a block per stage, the log of a crash, and the conclusion as the last line."""
    rows = [("stage", "status", "time")]
    for stage in report.stages:
        took_s = stage.ms / 1000
        time = format_duration(took_s) if took_s else ""
        if report.device.get("kind") == "cuda" and 0 < stage.budget_s < took_s:
            time += f", of {format_duration(stage.budget_s)}"
        rows.append((stage.name, stage.status.value, time))
    device = report.device
    parts = [f"device: {device.get('kind', 'unknown')}"]
    parts += [f"{device[name]}" for name in ("name", "reason") if device.get(name)]
    if device.get("precision"):
        parts.append(f"precision {device['precision']}: {device.get('precision_reason', '')}")
    is_known = device.get("kind") != "unknown"
    lines = [wrap_text("; ".join(parts), width=width) if is_known else "device: not reached"]
    if program := report.inputs.get(PROGRAM):
        lines.append(wrap_text(f"proof: {program}, because {report.inputs.get(BECAUSE)}", width=width))
    lines.append("")
    for heading, stage in zip(format_table(rows).splitlines()[1:], report.stages, strict=True):
        lines.append(heading)
        if stage.reason:
            lines.append(wrap_text(redact_tokens(stage.reason), width=width, indent="    "))
        if cause := report.find_cause(stage):
            said = (f"Likely: {cause.summary}", f"What to do: {cause.advice}")
            lines += (wrap_text(redact_tokens(each), width=width, indent="    ") for each in said)
            lines += (f"      {redact_tokens(command)}" for command in cause.commands)
        if stage.measured and stage.status is not StageStatus.SKIPPED:
            readings = ", ".join(_format_reading(name, stage) for name in stage.measured)
            lines.append(wrap_text(readings, width=width, indent="    "))
    if report.log:
        shown = [line.rstrip() for line in report.log if line.strip()][-SHOWN_LOG_LINES:]
        lines += ["", "The last output of the failed process:", *(f"  {redact_tokens(line)}" for line in shown)]
    return "\n".join([*lines, "", " ".join(report.conclusion.split())])


def _format_reading(name: str, stage: StageResult) -> str:
    """Format a measured value next to its expected value."""
    value, expected = stage.measured[name], stage.expected.get(name)
    shown = f"{name.replace('_', ' ')} {_format_value(value)}"
    if expected is None:
        return shown
    if str(value) != expected:
        return f"{shown} (expected {_shorten(expected)})"
    return f"{shown} (exactly as expected)" if isinstance(value, str) else f"{shown} (expected {_format_value(value)})"


def _format_value(value: ReadingValue) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value)
        case float():
            return format_number(value)
        case str():
            return _shorten(value)


def _shorten(text: str) -> str:
    text = " ".join("".join(each if each.isprintable() else "?" for each in text).split())
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[: MAX_TEXT_CHARACTERS - 1]}…"
