"""The failure catalog agrees with the checks, and with what recorded machines show."""

from collections import Counter

import pytest

from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.signatures import catalog
from devkit.doctor.signatures.catalog import PREFIXES, find_symptoms, load_failures
from tests.hosts import MACHINES, description_of

FAILURES = load_failures()
SHOWN = {failure: name for name in MACHINES for failure in description_of(name).get("shows", ())}

FEWEST_RECOGNIZED = 120

each_failure = pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)


def test_every_failure_is_listed_once():
    assert [name for name, times in Counter(failure.id for failure in FAILURES).items() if times > 1] == []
    assert len(FAILURES) >= 142
    assert {failure.id[0] for failure in FAILURES} == set("ABCDEFGHIJK")


def test_every_code_prefix_has_a_file():
    assert tuple(sorted({check.code[:3] for check in CHECKS})) == PREFIXES


@each_failure
def test_a_failure_is_recognized_or_says_why_not(failure):
    assert bool(failure.checks) != bool(failure.not_seen), "a failure has a check or a reason, never both"


@each_failure
def test_a_recognized_failure_is_shown_or_says_why_not(failure):
    if failure.checks:
        assert (failure.id in SHOWN) != bool(failure.no_recording), "a failure has a machine or a reason, never both"


@each_failure
def test_a_failure_says_what_is_seen_and_where_it_was_reported(failure):
    assert failure.name
    assert failure.symptom
    assert failure.sources


@each_failure
def test_the_checks_of_a_failure_exist_and_are_in_the_order_of_the_report(failure):
    assert [check.code for check in CHECKS if check.code in failure.checks] == list(failure.checks)


@pytest.mark.parametrize("code", BY_CODE)
def test_every_check_has_symptoms_to_search_for(code):
    assert find_symptoms(code), (
        f"add search_terms to [check.{code}] in devkit/doctor/signatures/failures/{code[:3]}.toml"
    )


def test_what_machines_show_is_in_the_catalog():
    assert sorted(set(SHOWN) - {failure.id for failure in FAILURES}) == []


def test_most_failures_are_recognized():
    assert sum(bool(failure.checks) for failure in FAILURES) >= FEWEST_RECOGNIZED


@pytest.mark.parametrize(
    ("line", "error"),
    [
        pytest.param('fix = "pray"', KeyError, id="a fix that fixes.toml lacks"),
        pytest.param('fix = "reboot"\nseverty = "note"', KeyError, id="a misspelled field"),
        pytest.param('fix = "reboot"\nseverity = "bad"', ValueError, id="a word that is no severity"),
        pytest.param('fix = "reboot"\nalso = "DRV001"', ValueError, id="a string for a list"),
    ],
)
def test_a_mistake_in_the_catalog_is_refused(monkeypatch, line, error):
    entry = f"""
[[failure]]
id = "A01"
name = "a name"
symptom = "a symptom"
checks = ["DRV002"]
sources = ["a source"]
[[failure.signature]]
code = "DRV002"
texts = ["a text"]
cause = "a cause"
source = "a source"
{line}
"""
    texts = {"fixes": '[reboot]\nsummary = "Reboot."', "failures/DRV": entry}
    monkeypatch.setattr(catalog, "_read_text", lambda name: texts.get(name, ""))
    for cached in ("_split_failures", "load_fixes"):
        monkeypatch.setattr(catalog, cached, getattr(catalog, cached).__wrapped__)
    with pytest.raises(error):
        load_failures.__wrapped__()
