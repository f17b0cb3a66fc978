import importlib
import pkgutil
import re

import pytest

import devkit.doctor.checks
from devkit.doctor.model import EXPLANATION_HEADINGS, Check, split_explanation
from devkit.doctor.registry import BY_CODE, CHECKS

DOMAINS = {"DRV", "GPU", "WSL", "ENG", "CTK", "CDI", "CUD", "PRJ", "CON", "PYT", "MEM", "NET", "HUB", "STO"}
UNHEALTHY = re.compile(r"\b(?:error|fail\w*|broken|wrong|problem|invalid|too old|missing)\b", re.IGNORECASE)


def written_checks():
    for module in pkgutil.iter_modules(devkit.doctor.checks.__path__, "devkit.doctor.checks."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Check):
                yield pytest.param(value, id=f"{module.name.rpartition('.')[2]}.{name}")


@pytest.mark.parametrize("check", tuple(written_checks()))
def test_every_check_that_was_written_is_run(check):
    assert CHECKS.count(check) == 1


def test_codes_are_unique():
    assert len(BY_CODE) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_is_well_formed(check):
    assert re.fullmatch(r"[A-Z]{3}\d{3}", check.code)
    assert check.code[:3] in DOMAINS
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
