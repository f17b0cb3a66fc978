"""What the doctor says first of 60 broken engine, toolkit and CDI set-ups: right, partly right, missed or false.

The table is `broken_setups.toml`. A set-up is right where its cause stands first, partly right where it is found and another
stands first, missed where the machine is called healthy or the cause is not found, and false where something else alone is
blamed. Needs root on Linux, and gcc.

    python -m benchmarks.broken_setups [--record]
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

from benchmarks.machine import record
from devkit.probe.gather import gather_facts
from tests.doctor.running import build_full_report
from tests.gpu_machine import VARIABLES, gpu_machine, on_machine
from tests.hosts import FOLDER
from tests.hosts.recorded_host import RecordedHost

TABLE = Path(__file__).with_suffix(".toml")


def read_recorded(name: str, unreadable: list[str]) -> dict[str, object]:
    """Return verdict, root causes and findings of a recorded machine, on which some files may not be read."""
    host = RecordedHost(FOLDER / name, unreadable=unreadable)
    document = build_full_report(gather_facts(host, project=host.project, deadline_s=60.0)).to_document()
    return summarize(document)


def summarize(document: dict[str, object]) -> dict[str, object]:
    """Return verdict, root causes and the codes of all findings but notes."""
    found = [
        outcome["code"]
        for outcome in document["outcomes"]
        if any(finding["severity"] != "note" for finding in outcome["findings"])
    ]
    return {"verdict": document["verdict"], "roots": document["root_causes"], "found": found}


def read_broken(state: Path, damage: str) -> dict[str, object]:
    """Return the same of the machine in namespaces, broken by shell commands."""
    argument = json.dumps({"damage": [damage], "codes": []})
    words = (sys.executable, "-m", "tests.doctor.fix_trial", argument)
    done = subprocess.run(
        on_machine(state, *words, noise="mount -t tmpfs tmpfs $root/run"),
        env={**VARIABLES, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return summarize(json.loads(done.stdout))


def judge(said: dict[str, object], cause: str) -> str:
    """Compare what the doctor said with the cause."""
    if cause in ("", "incomplete"):
        return "right" if said["verdict"] == (cause or "healthy") else "false"
    if said["roots"][:1] == [cause]:
        return "right"
    if cause in said["found"]:
        return "partly"
    return "false" if said["roots"] else "missed"


def main() -> int:
    """Read every set-up; print those that are not right, and record."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="devkit-setups-") as scratch, gpu_machine(Path(scratch, "m")) as state:
        for setup in tomllib.loads(TABLE.read_text(encoding="utf-8"))["setup"]:
            if "host" in setup:
                said = read_recorded(setup["host"], setup.get("unreadable", []))
            else:
                said = read_broken(state, setup["damage"])
            after = judge(said, setup["cause"])
            first = ", ".join(said["roots"]) or said["verdict"]
            rows.append({"name": setup["name"], "before": setup["before"], "after": after, "says": first})
            if after != "right":
                print(f"{after}: {setup['name']}: {first}, not {setup['cause'] or 'healthy'}; found {said['found']}")
    counts = {time: Counter(row[time] for row in rows) for time in ("before", "after")}
    for time, count in counts.items():
        print(f"{time}: " + ", ".join(f"{count[kind]} {kind}" for kind in ("right", "partly", "missed", "false")))
    if "--record" in sys.argv:
        print(record("broken_setups", {**counts, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
