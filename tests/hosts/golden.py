"""What the probes read on recorded machines, in the forms that facts are saved in."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from devkit.facts.model import format_facts, parse_facts
from tests.hosts import FOLDER, Facts, facts_of

FILES = FOLDER.parents[1] / ".cache" / "facts"


@cache
def expected_document(name: str) -> dict[str, Any]:
    """The saved facts of a recorded machine, as a JSON document. Change a copy of it alone."""
    return json.loads(format_facts(facts_of(name)))


def expected_facts(name: str) -> Facts:
    """The facts of a recorded machine as they are read back from a file."""
    return parse_facts(format_facts(facts_of(name)))


@cache
def facts_file(name: str) -> Path:
    """A file for `--facts` with what the probes read on a recorded machine; a killed test leaves no other one behind."""
    path = FILES / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(f".{os.getpid()}")
    staged.write_text(format_facts(facts_of(name)), encoding="utf-8")
    staged.replace(path)
    return path
