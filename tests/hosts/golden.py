"""The facts that the probes must read on each recorded machine.

A machine without `extends` holds all of them in `facts.json`. The others stand in `variants.json` of the machine that
they extend, as differences to its facts: JSON pointer (RFC 6901) -> value. `python -m tests.hosts.golden` writes both.
"""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from devkit.facts.store import format_facts, parse_facts
from tests.hosts import FOLDER, MACHINES, Facts, description_of


@cache
def expected_document(name: str) -> dict[str, Any]:
    """The saved facts of a recorded machine, as a JSON document. Change a copy of it alone."""
    parent = description_of(name).get("extends")
    if parent is None:
        return json.loads((FOLDER / name / "facts.json").read_text(encoding="utf-8"))
    document = json.loads(json.dumps(expected_document(parent)))
    for pointer, value in _variants(parent)[name].items():
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
    """A file for `--facts` with what the probes read on a recorded machine."""
    path = Path(tempfile.mkdtemp(prefix="devkit-facts-")) / "facts.json"
    path.write_text(format_facts(expected_facts(name)), encoding="utf-8")
    return path


def write_golden(facts: dict[str, Facts]) -> None:
    """Take what the probes read on every machine for what they must read."""
    documents = {name: json.loads(format_facts(each)) for name, each in facts.items()}
    variants: dict[str, dict[str, dict[str, Any]]] = {}
    for name, document in documents.items():
        parent = description_of(name).get("extends")
        if parent is None:
            _write(FOLDER / name / "facts.json", document)
        else:
            variants.setdefault(parent, {})[name] = dict(_differences(documents[parent], document))
    for path in FOLDER.glob("*/variants.json"):
        path.unlink()
    for parent, differences in variants.items():
        _write(FOLDER / parent / "variants.json", differences)


@cache
def _variants(parent: str) -> dict[str, dict[str, Any]]:
    return json.loads((FOLDER / parent / "variants.json").read_text(encoding="utf-8"))


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
