"""What a proof found, as the document devkit.verify/1."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from devkit.text import count_of, listed
from devkit.workload.stage import STAGES, StageResult, StageStatus

SCHEMA = "devkit.verify/1"


class Where(StrEnum):
    """Where the proof ran."""

    CONTAINER = "container"
    HERE = "here"


class Verdict(StrEnum):
    """The answer: proved, or not."""

    PASSED = "passed"
    FAILED = "failed"


HASH = "report_sha256"


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the hash of its canonical form: a change made later shows."""
    return {**document, HASH: digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical form: JSON in ASCII, keys sorted, no blanks, without the hash itself."""
    plain = {name: value for name, value in document.items() if name != HASH}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


_SECRETS = re.compile(r"(?<=://)[^/@\s]+(?=@)|\bhf_\w{8,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}")


def without_secrets(text: str) -> str:
    """`text` with tokens, and passwords in addresses, struck out: build logs print the proxies and indexes they use."""
    return _SECRETS.sub("***", text)


@dataclass(frozen=True)
class VerificationReport:
    """The stages of one proof, where and with what it ran. `log` holds the last output of a process that crashed.

    `inputs` are the settings and the depth of the proof, `taken_at` its start (ISO 8601, UTC); both may be empty in
    reports of older releases and where the proof did not start.
    """

    where: Where
    device: dict[str, Any]
    environment: dict[str, Any]
    stages: tuple[StageResult, ...]
    log: tuple[str, ...] = field(default=())
    inputs: dict[str, Any] = field(default_factory=dict)
    taken_at: str = ""

    @property
    def verdict(self) -> Verdict:
        """Passed when a claim was proved and no stage failed: a proof that skipped everything shows nothing."""
        statuses = [stage.status for stage in self.stages]
        return Verdict.PASSED if StageStatus.FAILED not in statuses and self._claims() else Verdict.FAILED

    def _claims(self) -> list[str]:
        passed = {stage.name for stage in self.stages if stage.status is StageStatus.PASSED}
        return [stage.claim for stage in STAGES if stage.claim and stage.name in passed]

    @property
    def conclusion(self) -> str:
        """One plain sentence: what was proved and on what, or what was not."""
        device = f"{self.device.get('kind', 'unknown device')}"
        failed = [stage.name for stage in self.stages if stage.status is StageStatus.FAILED]
        claims = self._claims()
        if self.verdict is Verdict.FAILED:
            proved = f"; still proved on {device}: {listed(claims)}" if claims else ""
            total = count_of(len(self.stages), "stage")
            return f"not proved: {len(failed)} of {total} failed ({', '.join(failed) or 'none ran'}){proved}"
        place = "in the dev container, on" if self.where is Where.CONTAINER else "on"
        return f"proved {place} {device}: {listed(claims)}{self._left_out()}"

    def _left_out(self) -> str:
        """What a passed proof does not show, because the stage had to be skipped."""
        claims = {stage.name: stage.claim for stage in STAGES if stage.is_missed}
        skipped = [stage for stage in self.stages if stage.status is StageStatus.SKIPPED and claims.get(stage.name)]
        reasons = dict.fromkeys(stage.reason for stage in skipped)
        return f" (not proved: {', '.join(stage.name for stage in skipped)}; {'; '.join(reasons)})" if skipped else ""

    def to_document(self) -> dict[str, Any]:
        """The document behind `--json`; its fields are a contract. It ends with the hash of all before it."""
        return sealed(self._document())

    def _document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "taken_at": self.taken_at,
            "verdict": self.verdict.value,
            "where": self.where.value,
            "conclusion": self.conclusion,
            "inputs": self.inputs,
            "device": self.device,
            "environment": self.environment,
            "stages": [replace(stage, reason=without_secrets(stage.reason)).to_document() for stage in self.stages],
            "log": [without_secrets(line) for line in self.log],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "VerificationReport":
        """Read a report back. Raises ValueError for anything that is no devkit.verify/1 document."""
        if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} document")
        try:
            return cls(
                where=Where(document["where"]),
                device=dict(document["device"]),
                environment=dict(document["environment"]),
                stages=tuple(StageResult.from_document(stage) for stage in document["stages"]),
                log=tuple(str(line) for line in document.get("log", ())),
                inputs=dict(document.get("inputs", {})),
                taken_at=str(document.get("taken_at", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a {SCHEMA} document: {error}") from error

    def moved_into_container(
        self, environment: Mapping[str, Any], before: tuple[StageResult, ...]
    ) -> "VerificationReport":
        """The report that came out of a container, with what its host knows added."""
        return replace(
            self,
            where=Where.CONTAINER,
            environment={**self.environment, **environment},
            stages=(*before, *self.stages),
        )
