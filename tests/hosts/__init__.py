"""The recorded machines, and what devkit reads on them."""

import dataclasses
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from devkit.facts.model import Facts
from devkit.probe.deep import read_deep
from devkit.probe.gather import gather_facts
from tests.hosts.recorded_host import RecordedHost, read_description, read_variants

FOLDER = Path(__file__).parent
MACHINES = tuple(sorted([*(path.parent.name for path in FOLDER.glob("*/machine.toml")), *read_variants(FOLDER)]))


@cache
def machine(name: str) -> RecordedHost:
    """A recorded machine by its name."""
    return RecordedHost(FOLDER / name)


@cache
def facts_of(name: str) -> Facts:
    """What the probes read on a recorded machine, with a fixed date."""
    host = machine(name)
    # A busy machine takes longer than the five seconds that a user is made to wait.
    facts = gather_facts(host, project=host.project, deadline_s=60.0)
    deep = read_deep(host, deadline_s=20.0) if description_of(name).get("deep") else facts.deep
    return dataclasses.replace(facts, deep=deep, taken_at="2026-01-01T00:00:00+00:00", devkit="recorded")


def written(directory: Path, text: str) -> RecordedHost:
    """A machine that exists for one test alone, from the text of its `machine.toml`."""
    (directory / "machine.toml").write_text(textwrap.dedent(text), encoding="utf-8")
    return RecordedHost(directory)


def description_of(name: str) -> dict[str, Any]:
    """What a machine says of itself: `about`, `finds` (codes of root findings, notes aside), `shows`, `deep`."""
    return read_description(FOLDER / name)
