"""What a proof found, as the document devkit.verify/1."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from devkit.text import format_count, format_duration, format_number, format_table, join_words, wrap_text
from devkit.workload.proof.stages import STAGES, ReadingValue, StageResult, StageStatus

REPORT_SCHEMA = "devkit.verify/1"


class ProofLocation(StrEnum):
    """Where the proof ran."""

    CONTAINER = "container"
    HERE = "here"


class ProofVerdict(StrEnum):
    """The answer: proved, or not."""

    PASSED = "passed"
    FAILED = "failed"


HASH_FIELD = "report_sha256"


def add_hash(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the hash of its canonical form: a change made later shows."""
    return {**document, HASH_FIELD: hash_document(document)}


def hash_document(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form: JSON in ASCII, keys sorted, no blanks, without the hash itself."""
    plain = {name: value for name, value in document.items() if name != HASH_FIELD}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


_SECRETS = re.compile(r"(?<=://)[^/@\s]+(?=@)|\bhf_\w{8,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}")


def redact_secrets(text: str) -> str:
    """`text` with tokens, and passwords in addresses, struck out: build logs print the proxies and indexes they use."""
    return _SECRETS.sub("***", text)


@dataclass(frozen=True)
class VerificationReport:
    """The stages of one proof, where and with what it ran. `log` holds the last output of a process that crashed.

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
        return [stage.claim for stage in STAGES if stage.claim and stage.name in passed]

    @property
    def conclusion(self) -> str:
        """One plain sentence: what was proved and on what, or what was not."""
        device = f"{self.device.get('kind', 'unknown device')}"
        failed = [stage.name for stage in self.stages if stage.status is StageStatus.FAILED]
        claims = self._claims()
        if self.verdict is ProofVerdict.FAILED:
            proved = f"; still proved on {device}: {join_words(claims)}" if claims else ""
            total = format_count(len(self.stages), "stage")
            return f"not proved: {len(failed)} of {total} failed ({', '.join(failed) or 'none ran'}){proved}"
        place = "in the dev container, on" if self.where is ProofLocation.CONTAINER else "on"
        return f"proved {place} {device}: {join_words(claims)}{self._left_out()}"

    def _left_out(self) -> str:
        """What a passed proof does not show, because the stage had to be skipped."""
        claims = {stage.name: stage.claim for stage in STAGES if stage.is_reported_when_skipped}
        skipped = [stage for stage in self.stages if stage.status is StageStatus.SKIPPED and claims.get(stage.name)]
        reasons = dict.fromkeys(stage.reason for stage in skipped)
        return f" (not proved: {', '.join(stage.name for stage in skipped)}; {'; '.join(reasons)})" if skipped else ""

    def to_document(self) -> dict[str, Any]:
        """The document behind `--json`; its fields are a contract. It ends with the hash of all before it."""
        return add_hash(self._document())

    def _document(self) -> dict[str, Any]:
        return {
            "schema": REPORT_SCHEMA,
            "taken_at": self.taken_at,
            "verdict": self.verdict.value,
            "where": self.where.value,
            "conclusion": self.conclusion,
            "inputs": self.inputs,
            "device": self.device,
            "environment": self.environment,
            "stages": [replace(stage, reason=redact_secrets(stage.reason)).to_document() for stage in self.stages],
            "log": [redact_secrets(line) for line in self.log],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VerificationReport":
        """Read a report back. Raises ValueError for anything that is no devkit.verify/1 document."""
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

    def with_host_environment(
        self, environment: Mapping[str, Any], before: tuple[StageResult, ...]
    ) -> "VerificationReport":
        """The report that came out of a container, with what its host knows added."""
        return replace(
            self,
            where=ProofLocation.CONTAINER,
            environment={**self.environment, **environment},
            stages=(*before, *self.stages),
        )


# The report as people read it.

MAX_TEXT_CHARACTERS = 40
SHOWN_LOG_LINES = 20


def format_proof_report(report: VerificationReport, *, width: int) -> str:
    """A block per stage in `width` columns, the log of a crash if there is one, and the conclusion as the last line."""
    heads = [
        (stage.name, stage.status.value, _time(stage, is_on_gpu=report.device.get("kind") == "cuda"))
        for stage in report.stages
    ]
    lines = [_heading(report, width=width), ""]
    for head, stage in zip(
        format_table([("stage", "status", "time"), *heads]).splitlines()[1:], report.stages, strict=True
    ):
        lines += _stage_lines(head, stage, width=width)
    if report.log:
        lines += ["", "The last output of the process that failed:", *_log(report)]
    return "\n".join([*lines, "", _one_line(report.conclusion)])


def _time(stage: StageResult, *, is_on_gpu: bool) -> str:
    """The time it took, and the budget where a GPU went over it."""
    if not stage.ms:
        return ""
    is_over = is_on_gpu and 0 < stage.budget_s < stage.ms / 1000
    return format_duration(stage.ms / 1000) + (f", of {format_duration(stage.budget_s)}" if is_over else "")


def _log(report: VerificationReport) -> list[str]:
    lines = [line.rstrip() for line in report.log if line.strip()]
    return [f"  {redact_secrets(line)}" for line in lines[-SHOWN_LOG_LINES:]]


def _heading(report: VerificationReport, *, width: int) -> str:
    device = report.device
    if device.get("kind") == "unknown":
        return "device: not reached"
    words = [f"device: {device.get('kind', 'unknown')}"]
    words += [f"{device[name]}" for name in ("name", "reason") if device.get(name)]
    if device.get("precision"):
        words.append(f"precision {device['precision']}: {device.get('precision_reason', '')}")
    return wrap_text("; ".join(words), width=width)


def _stage_lines(head: str, stage: StageResult, *, width: int) -> list[str]:
    details = ", ".join(_reading(name, stage) for name in stage.measured)
    lines = [head]
    if stage.reason:
        lines.append(wrap_text(redact_secrets(stage.reason), width=width, indent="    "))
    if details and stage.status is not StageStatus.SKIPPED:
        lines.append(wrap_text(details, width=width, indent="    "))
    return lines


def _reading(name: str, stage: StageResult) -> str:
    """One measured value beside what was expected of it."""
    label, value, expected = name.replace("_", " "), stage.measured[name], stage.expected.get(name)
    if expected is None:
        return f"{label} {_shown(value)}"
    if str(value) == expected:
        same = "exactly as expected" if isinstance(value, str) else f"expected {_shown(value)}"
        return f"{label} {_shown(value)} ({same})"
    return f"{label} {_shown(value)} (expected {_shortened(expected)})"


def _shown(value: ReadingValue) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value)
        case float():
            return format_number(value)
        case str():
            return _shortened(value)


def _shortened(text: str) -> str:
    text = " ".join("".join(each if each.isprintable() else "?" for each in text).split())
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[: MAX_TEXT_CHARACTERS - 1]}…"


def _one_line(text: str) -> str:
    return " ".join(text.split())
