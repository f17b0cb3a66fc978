"""The report as people read it."""

from devkit.text import human_number, human_seconds, table, wrapped
from devkit.verify.report import VerificationReport, without_secrets
from devkit.workload.stage import StageResult, StageStatus, Value

LONGEST_TEXT = 40
LOG_LINES = 20


def report_text(report: VerificationReport, *, width: int) -> str:
    """A block per stage in `width` columns, the log of a crash if there is one, and the conclusion as the last line."""
    heads = [
        (stage.name, stage.status.value, _time(stage, is_on_gpu=report.device.get("kind") == "cuda"))
        for stage in report.stages
    ]
    lines = [_heading(report, width=width), ""]
    for head, stage in zip(table([("stage", "status", "time"), *heads]).splitlines()[1:], report.stages, strict=True):
        lines += _stage_lines(head, stage, width=width)
    if report.log:
        lines += ["", "The last output of the process that failed:", *_log(report)]
    return "\n".join([*lines, "", _one_line(report.conclusion)])


def _time(stage: StageResult, *, is_on_gpu: bool) -> str:
    """The time it took, and the budget where a GPU went over it."""
    if not stage.ms:
        return ""
    is_over = is_on_gpu and 0 < stage.budget_s < stage.ms / 1000
    return human_seconds(stage.ms / 1000) + (f", of {human_seconds(stage.budget_s)}" if is_over else "")


def _log(report: VerificationReport) -> list[str]:
    lines = [line.rstrip() for line in report.log if line.strip()]
    return [f"  {without_secrets(line)}" for line in lines[-LOG_LINES:]]


def _heading(report: VerificationReport, *, width: int) -> str:
    device = report.device
    if device.get("kind") == "unknown":
        return "device: not reached"
    words = [f"device: {device.get('kind', 'unknown')}"]
    words += [f"{device[name]}" for name in ("name", "reason") if device.get(name)]
    if device.get("precision"):
        words.append(f"precision {device['precision']}: {device.get('precision_reason', '')}")
    return wrapped("; ".join(words), width=width)


def _stage_lines(head: str, stage: StageResult, *, width: int) -> list[str]:
    details = ", ".join(_reading(name, stage) for name in stage.measured)
    lines = [head]
    if stage.reason:
        lines.append(wrapped(without_secrets(stage.reason), width=width, indent="    "))
    if details and stage.status is not StageStatus.SKIPPED:
        lines.append(wrapped(details, width=width, indent="    "))
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


def _shown(value: Value) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value)
        case float():
            return human_number(value)
        case str():
            return _shortened(value)


def _shortened(text: str) -> str:
    text = " ".join("".join(each if each.isprintable() else "?" for each in text).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _one_line(text: str) -> str:
    return " ".join(text.split())
