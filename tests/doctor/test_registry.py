"""The checks, their rows in the failure catalog, and the recorded machines that show each failure."""

import importlib
import pkgutil
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import devkit.doctor.checks
from devkit.doctor.model import Check
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.signatures.catalog import (
    PREFIXES,
    decode_family,
    find_symptoms,
    load_check_rows,
    load_failures,
    split_row,
)
from tests.hosts import MACHINES, description_of

UNHEALTHY = re.compile(r"\b(?:error|fail\w*|broken|wrong|problem|invalid|too old|missing)\b", re.IGNORECASE)


WRITTEN = {
    f"{module.name.removeprefix('devkit.doctor.checks.')}.{name}": value
    for module in pkgutil.walk_packages(devkit.doctor.checks.__path__, "devkit.doctor.checks.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if isinstance(value, Check)
}
"""Every check that is written, by its function as a row of the catalog names it."""

TESTED = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))


def test_every_check_has_a_row_in_the_catalog():
    for function, check in WRITTEN.items():
        rows = load_check_rows(check.code[:3])
        assert (
            check.code in rows
        ), f"""add to devkit/doctor/signatures/failures/{check.code[:3]}.toml, with `order` after its causes:

[check.{check.code}]
order = {max(row.order for row in rows.values()) + 1}
function = "{function}"
search_terms = ["what people search for when it fails"]
"""
        assert rows[check.code].function == function


PACKAGES = {
    "CDI": "cdi",
    "CON": "container",
    "CTK": "toolkit",
    "CUD": "cuda",
    "DRV": "driver",
    "ENG": "engine",
    "GPU": "gpu",
    "HUB": "hub",
    "MEM": "memory",
    "NET": "network",
    "POD": "pods",
    "PRJ": "project",
    "PYT": "python",
    "STO": "storage",
    "WSL": "wsl",
}


def test_every_check_is_in_the_module_or_package_of_its_prefix():
    elsewhere = {name for name, check in WRITTEN.items() if name.partition(".")[0] != PACKAGES[check.code[:3]]}
    assert elsewhere == set()


def test_every_check_is_tested():
    for code in BY_CODE:
        assert f'"{code}"' in TESTED, f"add a row for {code} to CASES in tests/doctor/test_check_cases.py"


def test_codes_are_unique():
    assert len(BY_CODE) == len(CHECKS)


def test_every_check_is_well_formed():
    for check in CHECKS:
        assert re.fullmatch(r"[A-Z]{3}\d{3}", check.code)
        assert check.code[:3] in PREFIXES, check.code
        assert not check.title.endswith("."), check.code
        assert not UNHEALTHY.search(check.title), f"the title of {check.code} states the healthy condition"
        assert set(check.causes) <= set(BY_CODE) - {check.code}, check.code


def test_causes_form_no_circle():
    def reachable(code, path):
        assert code not in path, " -> ".join([*path, code])
        for consequence in BY_CODE[code].causes:
            reachable(consequence, [*path, code])

    for check in CHECKS:
        reachable(check.code, [])


def test_causes_stand_before_consequences_within_a_domain_of_the_machine():
    """DRV before everything that needs a driver: readers meet the cause first."""
    order = [check.code for check in CHECKS]
    assert all(order.index("DRV001") < order.index(code) for code in BY_CODE["DRV001"].causes)


# The failure catalog agrees with the checks, and with what recorded machines show.


FAILURES = load_failures()
SHOWN = {failure: name for name in MACHINES for failure in description_of(name).get("shows", ())}

FEWEST_RECOGNIZED = 120


def test_every_failure_is_listed_once():
    assert [name for name, times in Counter(failure.id for failure in FAILURES).items() if times > 1] == []
    assert len(FAILURES) >= 142
    assert {failure.id[0] for failure in FAILURES} == set("ABCDEFGHIJK")


def test_every_code_prefix_has_a_file():
    assert tuple(sorted({check.code[:3] for check in CHECKS})) == PREFIXES


def test_a_failure_is_recognized_and_shown_or_says_why_not():
    for failure in FAILURES:
        assert bool(failure.checks) != bool(failure.not_seen), f"{failure.id} has a check or a reason, never both"
        has_machine = not failure.checks or (failure.id in SHOWN) != bool(failure.no_recording)
        assert has_machine, f"{failure.id} has a machine or a reason, never both"


def test_a_failure_says_what_is_seen_and_where_it_was_reported():
    for failure in FAILURES:
        assert failure.name and failure.symptom and failure.sources, failure.id


def test_the_checks_of_a_failure_exist_and_are_in_the_order_of_the_report():
    for failure in FAILURES:
        assert [check.code for check in CHECKS if check.code in failure.checks] == list(failure.checks), failure.id


def test_every_check_has_symptoms_to_search_for():
    for code in BY_CODE:
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
def test_a_mistake_in_the_catalog_is_refused(line, error):
    entry = f"""
[[failure]]
id = "A01"
name = "a name"
symptom = "a symptom"
checks = ["DRV002"]
sources = ["a source"]
[[failure.cause]]
code = "DRV002"
texts = ["a text"]
cause = "a cause"
{line}
"""
    (row,) = tomllib.loads(entry)["failure"]
    with pytest.raises(error):
        list(map(decode_family, split_row(row)))
