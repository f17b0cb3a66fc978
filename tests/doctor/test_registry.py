import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import devkit.doctor.checks
from devkit.doctor.model import EXPLANATION_HEADINGS, Check, split_explanation
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.signatures.catalog import PREFIXES, load_check_rows

UNHEALTHY = re.compile(r"\b(?:error|fail\w*|broken|wrong|problem|invalid|too old|missing)\b", re.IGNORECASE)


WRITTEN = {
    f"{module.name.removeprefix('devkit.doctor.checks.')}.{name}": value
    for module in pkgutil.walk_packages(devkit.doctor.checks.__path__, "devkit.doctor.checks.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if isinstance(value, Check)
}
"""Every check that is written, by its function as a row of the catalog names it."""

TESTED = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.parametrize(("function", "check"), WRITTEN.items(), ids=WRITTEN)
def test_a_check_has_a_row_in_the_catalog(function, check):
    row = load_check_rows(check.code[:3]).get(check.code)
    latest = max(row.order for row in load_check_rows(check.code[:3]).values())
    assert (
        row is not None
    ), f"""add to devkit/doctor/signatures/failures/{check.code[:3]}.toml, with `order` after its causes:

[check.{check.code}]
order = {latest + 1}
function = "{function}"
search_terms = ["what people search for when it fails"]
"""
    assert row.function == function


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
    "PRJ": "project",
    "PYT": "python",
    "STO": "storage",
    "WSL": "wsl",
}


@pytest.mark.parametrize(("function", "check"), WRITTEN.items(), ids=WRITTEN)
def test_a_check_is_in_the_module_or_package_of_its_prefix(function, check):
    assert function.partition(".")[0] == PACKAGES[check.code[:3]]


@pytest.mark.parametrize("code", BY_CODE)
def test_a_check_is_tested(code):
    assert f'"{code}"' in TESTED, f"add a row for {code} to CASES in tests/doctor/test_check_cases.py"


def test_codes_are_unique():
    assert len(BY_CODE) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_is_well_formed(check):
    assert re.fullmatch(r"[A-Z]{3}\d{3}", check.code)
    assert check.code[:3] in PREFIXES
    assert not check.title.endswith(".")
    assert not UNHEALTHY.search(check.title), "a title states the healthy condition"
    assert set(check.causes) <= set(BY_CODE)
    assert check.code not in check.causes


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_docstring_explains_why_how_and_by_which_source(check):
    assert tuple(heading for heading, text in split_explanation(check) if text) == ("", *EXPLANATION_HEADINGS)


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
