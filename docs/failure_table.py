"""The page of failures: the catalog, with the checks that recognize each failure and the machines that show it."""

import tomllib
from pathlib import Path

from devkit.doctor.signatures.catalog import Failure, load_failures

MACHINES = Path(__file__).parents[1] / "tests" / "hosts"

GROUPS = {
    "A": "Driver and kernel",
    "B": "Health of the GPU",
    "C": "MIG, vGPU and Fabric Manager",
    "D": "WSL and Windows",
    "E": "Docker engine, permissions and contexts",
    "F": "Container Toolkit, CDI and rootless engines",
    "G": "CUDA, driver, image and architecture",
    "H": "Python packages in the container",
    "I": "Memory, limits and several GPUs",
    "J": "Dev containers and Compose",
    "K": "Storage, network and the model hub",
}
"""The heading of each group, by the first letter of its failures' IDs."""

_HEAD = (
    "| | Failure | Seen as | Recognized by | Recorded machines | Sources |",
    "|---|---|---|---|---|---|",
)


def render_failures() -> str:
    """Return the page as Markdown."""
    failures, machines = load_failures(), _read_machines()
    recognized = [failure for failure in failures if failure.checks]
    lines = [
        "# What devkit doctor recognizes",
        "",
        f"{len(recognized)} of the {len(failures)} failures below are recognized by a check. A recorded machine is a",
        "folder of `tests/hosts` on which the tests prove it; sources are public threads and manuals.",
    ]
    for letter, title in GROUPS.items():
        rows = [_render_row(failure, machines) for failure in failures if failure.id.startswith(letter)]
        lines += ["", f"## {letter}. {title}", "", *_HEAD, *rows]
    foot = "Generated from the failure catalog and the recorded machines; `python docs/generate.py` writes it."
    return "\n".join([*lines, "", foot]) + "\n"


def _render_row(failure: Failure, machines: dict[str, list[str]]) -> str:
    recognized = ", ".join(f"[{code}](checks/{code}.md)" for code in failure.checks)
    shown = ", ".join(f"`{name}`" for name in machines.get(failure.id, ())) or failure.no_recording
    cells = (
        failure.id,
        failure.name,
        failure.symptom,
        recognized or f"not seen: {failure.not_seen}",
        shown,
        ", ".join(failure.sources),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in cells)} |"


def _read_machines() -> dict[str, list[str]]:
    """Return the recorded machines that show each failure."""
    found: dict[str, list[str]] = {}
    for path in sorted(MACHINES.glob("*/machine.toml")):
        for failure in tomllib.loads(path.read_text(encoding="utf-8")).get("shows", ()):
            found.setdefault(failure, []).append(path.parent.name)
    return found
