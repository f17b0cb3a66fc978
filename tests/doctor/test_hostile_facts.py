"""Facts of a strange machine or project: what they say reaches no shell and no terminal as more than text."""

import copy
import json
import re

import pytest

from devkit.doctor.model import Found
from devkit.doctor.registry import CHECKS
from devkit.doctor.runner import run_checks
from devkit.facts.model import parse_facts
from tests.hosts import MACHINES
from tests.hosts.golden import expected_document

MIN_CHARACTERS = 4
"""Shorter texts occur in commands by chance."""
COMMAND = "$(touch owned)"
CONTROLS = "\x1b]0;owned\x07\u202e"


def leaves(value, place=()):
    """Each text of a JSON document, with its place."""
    if isinstance(value, str):
        yield place, value
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(each, (*place, key))


def findings(document):
    outcomes = run_checks(CHECKS, parse_facts(json.dumps(document)), clock=lambda: 0.0)
    return [each for outcome in outcomes if isinstance(outcome.verdict, Found) for each in outcome.verdict.findings]


def with_text(document, place, text):
    changed = copy.deepcopy(document)
    *above, last = place
    inner = changed
    for key in above:
        inner = inner[key]
    inner[last] += text
    return changed


def find_unquoted(name):
    """Yield commands of findings in which a shell would run, or a terminal obey, what a fact of the machine says."""
    document = expected_document(name)
    commands = "\n".join(command for each in findings(document) for command in each.fix.commands)
    carried = [place for place, text in leaves(document) if len(text) >= MIN_CHARACTERS and text in commands]
    for place in carried:
        for text in (COMMAND, CONTROLS):
            try:
                found = findings(with_text(document, place, text))
            except ValueError:
                continue  # such facts are refused
            for command in (command for each in found for command in each.fix.commands):
                unquoted = re.sub(r"'[^']*'", "", command)
                if COMMAND in unquoted or set(CONTROLS) - set("]0;owned") & set(command):
                    yield place, command


@pytest.mark.parametrize("name", ["cdi-of-old-driver", "in-container-hub-cache-of-root", "runtime-is-runc"])
def test_a_text_that_a_command_carries_is_quoted_and_shown(name):
    assert list(find_unquoted(name)) == []


@pytest.mark.full
def test_no_command_on_any_recorded_machine_carries_a_text_unquoted():
    assert {name: wrong for name in MACHINES if (wrong := list(find_unquoted(name)))} == {}
