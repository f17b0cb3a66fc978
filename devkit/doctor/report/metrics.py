"""A report as Prometheus metrics, in the text format that node_exporter's textfile collector reads.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterable, Iterator

from devkit.doctor.report.report import Health, Report

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_STATUSES = ("passed", "found", "skipped", "crashed")


def format_metrics(report: Report, *, taken_at_s: float | None) -> str:
    """Format the report. `taken_at_s` is when the machine was read, in seconds since 1970; None where that is unknown."""
    statuses = [outcome["status"] for outcome in report.to_document()["outcomes"]]
    findings = {
        _format_labels(
            code=shown.check.code,
            severity=shown.finding.severity.value,
            subject=shown.finding.subject,
            cause=shown.finding.follows_from or "",
        )
        for shown in report.findings
    }
    lines = [
        *_format_family(
            "devkit_doctor_verdict",
            "1 for the verdict of devkit doctor, 0 for the others.",
            ((_format_labels(verdict=each.value), int(each is report.health)) for each in Health),
        ),
        *_format_family(
            "devkit_doctor_finding",
            "Findings of devkit doctor; cause is the code of the finding that caused it.",
            ((labels, 1) for labels in sorted(findings)),
        ),
        *_format_family(
            "devkit_doctor_checks",
            "Checks by outcome.",
            ((_format_labels(status=status), statuses.count(status)) for status in _STATUSES),
        ),
        *_format_family(
            "devkit_doctor_timestamp_seconds",
            "When the machine was read.",
            [] if taken_at_s is None else [("", f"{taken_at_s:.0f}")],
        ),
        *_format_family("devkit_doctor_info", "The release.", [(_format_labels(version=report.devkit), 1)]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _format_family(name: str, text: str, samples: Iterable[tuple[str, object]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    yield from (f"{name}{labels} {value}" for labels, value in samples)


def _format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
