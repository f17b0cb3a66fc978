"""Whatever is not known, no check breaks, and none turns it into a finding."""

import dataclasses
import types
import typing

import pytest

from devkit.doctor.model import Crashed, Severity
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report
from tests.hosts import MACHINES, facts_of
from tests.hosts.golden import expected_facts

HAND_MADE = {"host": healthy(), "container": inside(), "wsl": windows_guest(), "no gpu": without_gpu()}
RECORDED = (
    "podman-behind-docker-socket",
    "cdi-only-h100x8",
    "dgx-h100-ok",
    "mig-a100",
    "in-container-deep-ok",
    "jetson-ok",
)
HEALTHY = HAND_MADE | {name: facts_of(name) for name in RECORDED}
UNREAD = Unknown("not read for this test")


def may_be_unknown(hint):
    return isinstance(hint, types.UnionType) and Unknown in typing.get_args(hint)


def unknowable(record, path=""):
    """Paths of every field that may be unknown, records within records included."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        value, here = getattr(record, field.name), f"{path}{field.name}"
        if may_be_unknown(hints[field.name]):
            yield here
        if dataclasses.is_dataclass(value) and not isinstance(value, Unknown):
            yield from unknowable(value, f"{here}.")
        for place, item in enumerate(value if isinstance(value, tuple) else ()):
            if dataclasses.is_dataclass(item):
                yield from unknowable(item, f"{here}.{place}.")


CASES = [
    pytest.param(facts, path, id=f"{name}: {path}") for name, facts in HEALTHY.items() for path in unknowable(facts)
]


@pytest.mark.parametrize(("facts", "path"), CASES)
@pytest.mark.turns(4)
def test_one_unknown_breaks_nothing_and_accuses_nobody(facts, path):
    report = build_full_report(changed(facts, {path: UNREAD}))
    assert not [outcome for outcome in report.outcomes if isinstance(outcome.verdict, Crashed)]
    errors = [shown for shown in report.findings if shown.finding.severity is Severity.ERROR]
    assert not errors


def test_nothing_known_at_all_is_not_an_accusation():
    names = [field.name for field in dataclasses.fields(Facts) if field.name not in ("taken_at", "devkit")]
    report = build_full_report(changed(healthy(), dict.fromkeys(names, UNREAD)))
    assert not report.findings
    assert not report.crashed


@pytest.mark.parametrize("name", MACHINES)
def test_no_check_breaks_on_a_recorded_machine(name):
    report = build_full_report(expected_facts(name))
    assert not report.crashed
    for shown in report.findings:
        assert not shown.finding.message.endswith(".")
        assert shown.finding.fix.summary.endswith((".", ":"))
        assert shown.finding.evidence or shown.finding.severity is Severity.NOTE
