"""What this machine lacks for the dev container, in the order in which to fix it."""

from collections.abc import Iterator
from dataclasses import dataclass

from devkit.doctor.model import Severity
from devkit.doctor.report.report import Report

_TOPICS = (
    ("container engine", ("ENG",)),
    ("GPU driver", ("DRV", "GPU", "WSL")),
    ("GPU in containers", ("CTK", "CDI")),
    ("disk", ("STO",)),
    ("model hub", ("HUB",)),
    ("project", ("PRJ",)),
)
"""Each needs the one before it. A topic has the prefixes of its checks."""


@dataclass(frozen=True)
class Need:
    """Something that this machine lacks, with the fix. `stops` is True where the dev container cannot start without it."""

    topic: str
    message: str
    summary: str
    commands: tuple[str, ...]
    where: str
    needs_root: bool
    stops: bool
    code: str


def list_needs(report: Report) -> Iterator[Need]:
    """Yield what the doctor found that is to be done, in the order in which to do it."""
    for topic, prefixes in _TOPICS:
        for shown in report.roots:
            finding, code = shown.finding, shown.check.code
            if not code.startswith(prefixes) or finding.severity is Severity.NOTE or finding.seen_in:
                continue
            fix, is_error = finding.fix, finding.severity is Severity.ERROR
            stops = code == "ENG001" or (code.startswith(("ENG", "PRJ011")) and is_error)
            commands = fix.commands or tuple(filter(None, (fix.docs,)))
            yield Need(topic, finding.message, fix.summary, commands, fix.where.value, fix.root, stops, code)
