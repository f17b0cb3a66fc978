"""What every recorded result says about where it was measured, and the environment that times are taken in."""

import compileall
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def versions(*names: str) -> dict[str, str]:
    """Installed versions of the named distributions."""
    return {name: importlib.metadata.version(name) for name in names}


def describe() -> dict[str, str]:
    """Processor, cores, system and Python of this machine."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return {
        "processor": model,
        "cores": str(os.cpu_count()),
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "python": platform.python_version(),
        "gpu": _gpu(),
    }


def compiled() -> None:
    """Compile devkit to bytecode, as pip does when it installs a wheel; an editable checkout may run without.

    Containers often set PYTHONDONTWRITEBYTECODE, and then every start would compile all the source again.
    """
    if not compileall.compile_dir(Path(__file__).parents[1] / "devkit", quiet=1):
        raise RuntimeError("devkit could not be compiled to bytecode")


def _gpu() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def format_rows(value: object, indent: str = "") -> str:
    """Format as JSON in which each row stands on one line: what fits into 240 columns is not broken."""
    line = json.dumps(value)
    if len(indent) + len(line) <= 240 or not isinstance(value, dict | list):
        return line
    inner = f"{indent}  "
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(value)
    parts = [
        f"{inner}{name}{format_rows(each, inner)}"
        for name, each in zip(names, value.values() if isinstance(value, dict) else value, strict=True)
    ]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join((opening, ",\n".join(parts), f"{indent}{closing}"))


def record(name: str, result: dict[str, object]) -> Path:
    """Write `result` with machine and date to results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"measured_at": datetime.datetime.now(datetime.UTC).date().isoformat(), "machine": describe(), **result}
    path.write_text(format_rows(document) + "\n")
    return path


def record_rows(name: str, rows: list[dict[str, object]], result: dict[str, object]) -> Path:
    """Record rows that each have a name; those of earlier runs stay where they were not measured again."""
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {str(row["name"]): row for row in rows}
    kept = [measured.pop(str(row["name"]), row) for row in known]
    return record(name, {**result, "rows": [*kept, *measured.values()]})
