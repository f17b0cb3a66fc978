"""What devkit was attacked with, in ten parts: tried, and of these hung, crashed, lost, leaked, ran, and mutants noticed.

`--run` runs the tests of each part that has some, and records how many held. Hostile inputs, kills, races, mutants and
odd environments come from the results of their own scripts; what was not run is said.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import RESULTS, record

NAME = "under_attack"
COLUMNS = ("tried", "hangs", "crashes", "lost files", "leaks", "executions", "mutants", "noticed")
PARTS = {
    "1 bounds": ("hangs", "tests/test_reading.py"),
    "2 one writer": ("lost files", "tests/test_folder_lock.py", "tests/test_whole_files.py"),
    "3 hostile trees": ("lost files", "tests/render/test_write.py", "tests/cli/test_hostile_folder.py"),
    "4 hostile text": (
        "executions",
        "tests/render/test_injection.py",
        "tests/render/test_hostile_reports.py",
        "tests/export/test_hostile_settings.py",
        "tests/doctor/test_hostile_facts.py",
        "tests/cli/test_hostile_text.py",
    ),
    "5 models and data": ("crashes", "tests/workload/finetune/test_hostile_models.py"),
    "6 secrets": (
        *("leaks", "tests/cli/test_planted_secrets.py", "tests/facts/test_redact.py", "tests/cli/test_canary.py"),
        "tests/cli/test_private_indexes.py",
    ),
    "7 scanners": ("executions",),
    "8 supply chain": ("executions", "tests/architecture/test_wheel.py"),
    "9 the suite": ("lost files", "tests/test_left_behind.py"),
    "10 environments": ("crashes",),
}
"""Part -> what a test that fails counts as, and how the names of its tests begin."""
OF_ENVIRONMENTS = {
    "exit": "crashes",
    "traceback": "crashes",
    "wrote": "lost files",
    "secret": "leaks",
    "ran": "executions",
}
"""First word of a problem in an odd environment -> what it counts as; too slow, too large and left running as a hang."""
OF_MODELS = ("data:", "template:", "token", "special_", "generation_", "weights:", "adapter:", "run.toml:", "prompts:")


class Count:
    """A plugin of pytest that counts the tests of each part by how they ended."""

    def __init__(self) -> None:
        self.ended = {part: Counter[str]() for part, (_, *tests) in PARTS.items() if tests}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for part, ended in self.ended.items():
                if report.nodeid.startswith(PARTS[part][1:]):
                    ended[report.outcome] += 1


def read_result(name: str) -> dict[str, Any]:
    """Read a recorded result, an empty one where there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def collect(tests: dict[str, dict[str, int]]) -> dict[str, Counter[str]]:
    """Return the figures of each part."""
    figures = {part: Counter(dict.fromkeys(COLUMNS, 0)) for part in PARTS}
    for part, (counts_as, *_) in PARTS.items():
        ended = tests.get(part, {})
        figures[part].update({"tried": ended.get("passed", 0) + ended.get("failed", 0)})
        figures[part][counts_as] += ended.get("failed", 0)
    for name, row in read_result("hostile_inputs").get("rows", {}).items():
        found = figures["5 models and data" if name.startswith(OF_MODELS) or "config.json: " in name else "1 bounds"]
        found["tried"] += 1
        for problem in row["problems"]:
            found["crashes" if "traceback" in problem else "hangs"] += 1
    races = read_result("kills_and_races")
    figures["2 one writer"].update(
        {"tried": races.get("kills", 0) + races.get("races", 0), "lost files": races.get("wrong", 0)}
    )
    for group in read_result("odd_environments").get("groups", {}).values():
        found = figures["10 environments"]
        found["tried"] += group["runs"]
        found.update(
            OF_ENVIRONMENTS.get(each.split()[0].rstrip(":"), "hangs")
            for row in group["problems"]
            for each in row["problems"]
        )
    for area in read_result("mutants").get("areas", {}).values():
        noticed = area["sampled"] - len(area["survivors"])
        figures["9 the suite"].update({"mutants": area["sampled"], "noticed": noticed})
    return figures


def main() -> int:
    """Print the table; 1 where a test failed or an input was beyond the bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the tests of the parts, and record how they ended")
    options = parser.parse_args()
    if options.run:
        count = Count()
        root = Path(__file__).parents[1]
        paths = [str(root / path) for _, *tests in PARTS.values() for path in tests]
        pytest.main(["-q", "--rootdir", str(root), *paths], plugins=[count])
        if silent := [part for part, ended in count.ended.items() if not ended]:
            parser.error(f"no test of these parts ran: {', '.join(silent)}")
        record(NAME, {"tests": {part: dict(ended) for part, ended in count.ended.items()}})
    tests = read_result(NAME).get("tests", {})
    figures = collect(tests)
    print("| part |", " | ".join(COLUMNS), "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for part, found in figures.items():
        shown = [str(found[column]) if found["tried"] or found[column] else "not run" for column in COLUMNS]
        print(f"| {part} | " + " | ".join(shown) + " |")
    for part, ended in tests.items():
        if ended.get("skipped"):
            print(f"{part}: {ended['skipped']} tests were skipped on this machine")
    print("7 scanners: `make audit`, `make lint`, and decision 0028, which answers every finding")
    return int(any(found[column] for found in figures.values() for column in COLUMNS[1:6]))


if __name__ == "__main__":
    raise SystemExit(main())
