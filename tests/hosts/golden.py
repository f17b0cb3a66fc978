"""The facts that the probes must read on each recorded machine.

A machine without `extends` holds all of them in `facts.json`. The others are in `variants.json` beside their `variants.toml`,
as differences to the facts of the machine that they extend: JSON pointer (RFC 6901) -> value. `python -m tests.hosts.golden`
writes both.
"""

import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from devkit.facts.store import format_facts, parse_facts
from tests.hosts import FOLDER, MACHINES, Facts, description_of

FILES = FOLDER.parents[1] / ".cache" / "facts"


@cache
def expected_document(name: str) -> dict[str, Any]:
    """The saved facts of a recorded machine, as a JSON document. Change a copy of it alone."""
    parent = description_of(name).get("extends")
    if parent is None:
        return json.loads((FOLDER / name / "facts.json").read_text(encoding="utf-8"))
    document = json.loads(json.dumps(expected_document(parent)))
    for pointer, value in _variants()[name].items():
        *above, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        place = document
        for step in above:
            place = place[int(step) if isinstance(place, list) else step]
        place[int(last) if isinstance(place, list) else last] = value
    return document


def expected_facts(name: str) -> Facts:
    return parse_facts(json.dumps(expected_document(name)))


@cache
def facts_file(name: str) -> Path:
    """A file for `--facts` with what the probes read on a recorded machine; a killed test leaves no other one behind."""
    path = FILES / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(f".{os.getpid()}")
    staged.write_text(format_facts(expected_facts(name)), encoding="utf-8")
    staged.replace(path)
    return path


def write_golden(facts: dict[str, Facts]) -> None:
    """Take what the probes read on every machine for what they must read."""
    documents = {name: json.loads(format_facts(each)) for name, each in facts.items()}
    for path in FOLDER.glob("*/machine.toml"):
        _write(path.with_name("facts.json"), documents[path.parent.name])
    for path in FOLDER.glob("*/variants.toml"):
        names = sorted(tomllib.loads(path.read_text(encoding="utf-8")))
        parents = {name: documents[description_of(name)["extends"]] for name in names}
        _write(path.with_suffix(".json"), {name: dict(_differences(parents[name], documents[name])) for name in names})


@cache
def _variants() -> dict[str, dict[str, Any]]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*/variants.json")]
    return {name: differences for each in files for name, differences in each.items()}


def _differences(before: Any, after: Any, pointer: str = ""):
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        for key, value in after.items():
            yield from _differences(before[key], value, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, value in enumerate(after):
            yield from _differences(before[index], value, f"{pointer}/{index}")
    elif before != after or type(before) is not type(after):
        yield pointer, after


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    from tests.hosts import facts_of

    write_golden({name: facts_of(name) for name in MACHINES})


if __name__ == "__main__":
    main()
