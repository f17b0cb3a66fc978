"""How often `devkit explain` names the cause of a log that its catalog was not written from.

    python -m benchmarks.explain_logs FOLDER [--judgment FILE] [--unrelated FOLDER] [--show] [--record --note TEXT]

FOLDER has a JSON file for each log: `text`, `cause` as a person wrote it, `area`, `url` or nothing, and `in_catalog`:
whether a row states this cause with a fix that helps. Where nobody says so, a cause that the judgment's expression
matches counts. `devkit explain --new` writes such files. A folder `unrelated` in it has logs of other fields as plain
text: every error named there is a false accusation.

What is right a person says: the judgment is a JSON file of regular expressions by the names of cases, one for a right
cause: it is searched for in each printed cause and the summary of its fix. Cases without one are printed and not counted.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import record, versions
from devkit.doctor.known_errors import find_known_errors
from devkit.doctor.model import Severity
from devkit.doctor.signatures.catalog import load_families
from devkit.doctor.signatures.model import Match

AMONG = 3


def printed_causes(matches: Iterable[Match]) -> list[str]:
    """The causes with their fixes, in the order in which they are printed."""
    return [f"{each.cause} | {each.fix.summary}" for match in matches for each in (match, *match.alternatives)]


def every_cause() -> list[str]:
    """All causes that the catalog has."""
    return [f"{cause.cause} | {cause.fix.summary}" for family in load_families() for cause in family.causes]


def judge(case: Mapping[str, Any], right: str, catalog: list[str]) -> dict[str, Any]:
    """Judge one case by the regular expression of a right cause."""
    matches = find_known_errors(case["text"])
    pattern = re.compile(right, re.IGNORECASE)
    rights = [pattern.search(cause) is not None for cause in printed_causes(matches)]
    return {
        "answered": bool(rights),
        "first": bool(rights) and rights[0],
        "among three": any(rights[:AMONG]),
        "confidence": matches[0].confidence.value if matches else "none",
        "known": case.get("in_catalog", any(map(pattern.search, catalog))),
        "causes": printed_causes(matches)[:AMONG],
    }


def count(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of some judged cases."""
    known = [row for row in rows if row["known"]]
    sure = {
        name: {
            "named": sum(row["confidence"] == name for row in rows),
            "right": sum(row["confidence"] == name and row["first"] for row in rows),
        }
        for name in ("certain", "likely", "possible")
    }
    return {
        "cases": len(rows),
        "cause in the catalog": len(known),
        "answered": sum(row["answered"] for row in rows),
        "right first": sum(row["first"] for row in rows),
        "right among three": sum(row["among three"] for row in rows),
        "right first, of those in the catalog": sum(row["first"] for row in known),
        "right among three, of those in the catalog": sum(row["among three"] for row in known),
        "by confidence": sure,
    }


def find_accusations(folder: Path) -> tuple[int, list[str]]:
    """The number of unrelated logs, and the errors that were named in them."""
    files = sorted(path for path in folder.glob("*") if path.is_file())
    named = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".json":
            text = json.loads(text).get("text", text)
        errors = [match for match in find_known_errors(text) if match.severity is Severity.ERROR]
        named += [f"{path.name}: {match.code} {match.cause} [{match.matched}]" for match in errors[:1]]
    return len(files), named


def main() -> None:
    """Judge the cases of a folder and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judgment", type=Path, help="default: FOLDER/judgment.json")
    parser.add_argument("--unrelated", type=Path, help="default: FOLDER/unrelated")
    parser.add_argument("--show", action="store_true", help="print what is not right first")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/explain_logs.json")
    parser.add_argument("--note", default="", help="what the cases are: read while the catalog was written, or not")
    options = parser.parse_args()
    file = options.judgment or options.folder / "judgment.json"
    judgment = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    catalog = every_cause()
    rows: list[dict[str, Any]] = []
    areas: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(options.folder.glob("*.json")):
        if path == file:
            continue
        case = json.loads(path.read_text(encoding="utf-8"))
        right = judgment.get(path.stem)
        if right is None:
            print(f"not judged: {path.stem}: {case['cause']}")
            continue
        row = judge(case, right, catalog)
        rows.append(row)
        areas.setdefault(case.get("area", ""), []).append(row)
        if options.show and not row["first"]:
            print(f"{path.stem}\n  wanted: {case['cause']}", *row["causes"], sep="\n  said: ")
    figures = count(rows)
    for name, value in figures.items():
        print(f"{name}: {value}")
    for area, members in sorted(areas.items()):
        known = Counter(row["first"] for row in members)
        print(f"  {area}: {known[True]} of {len(members)} right first")
    total, accusations = find_accusations(options.unrelated or options.folder / "unrelated")
    print(f"unrelated logs: {total}, with an error named: {len(accusations)}", *accusations, sep="\n  ")
    if options.record:
        record(
            "explain_logs",
            {
                "note": options.note,
                "versions": versions("devkit-gpu"),
                **figures,
                "right first by area": {area: sum(row["first"] for row in members) for area, members in areas.items()},
                "unrelated logs": total,
                "false accusations": len(accusations),
            },
        )


if __name__ == "__main__":
    main()
