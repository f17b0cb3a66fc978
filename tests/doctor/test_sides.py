"""The host and its running dev container, judged together."""

from dataclasses import replace

import pytest

from devkit.doctor.model import Check, Finding, Fix, Found, NotApplicable, Passed, Severity, Skipped
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import DEV_CONTAINER, run_on_host_and_container
from devkit.facts.model import Torch
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, no_library, r

SILENT, ERROR, WARNING = "silent", Severity.ERROR, Severity.WARNING


def judged(host, within, checks=CHECKS):
    outcomes = run_on_host_and_container(checks, replace(host, inside=within), clock=lambda: 0.0)
    return build_report(host, outcomes, devkit="0.1.0")


def roots(report):
    return [
        (shown.check.code, shown.finding.seen_in)
        for shown in report.roots
        if shown.finding.severity is not Severity.NOTE
    ]


def test_two_healthy_sides_are_healthy():
    assert roots(judged(healthy(), inside())) == []


def test_a_fault_inside_alone_is_named_and_placed():
    within = changed(inside(), {"python.torch": Torch("2.9.1+cpu", None, None)})
    report = judged(healthy(), within)
    assert roots(report) == [("PYT001", DEV_CONTAINER)]


def test_the_python_of_the_host_does_not_matter_beside_a_dev_container():
    host = changed(healthy(), {"python.torch": Torch("2.9.1+cpu", None, None)})
    assert roots(judged(host, inside())) == []


def test_the_python_of_the_host_matters_where_the_container_could_not_be_read():
    host = changed(healthy(), {"python.torch": Torch("2.9.1+cpu", None, None)})
    assert roots(judged(host, Unknown("devkit is not installed in it"))) == [("PYT001", "")]


@pytest.mark.parametrize(
    ("code", "on_host", "in_container", "verdict"),
    [
        pytest.param("ENG001", "hung", SILENT, Skipped("hung", is_lost=True), id="the host's engine, not the inside's"),
        pytest.param(
            "PYT001", SILENT, "hung", Skipped("hung", is_lost=True), id="the container's Python, not the host's"
        ),
        pytest.param("PYT001", "hung", SILENT, Passed(), id="the host's Python does not matter"),
    ],
)
def test_a_fact_that_one_side_lost_is_not_made_up_for_by_the_other(code, on_host, in_container, verdict):
    def body(facts):
        if (on_host if facts.container is None else in_container) == "hung":
            raise NotApplicable("hung", is_lost=True)
        yield from ()

    report = judged(healthy(), inside(), (Check(code, "All is well", body),))
    assert [outcome.verdict for outcome in report.outcomes] == [verdict]


def test_a_driver_mismatch_on_the_host_is_the_one_cause_of_what_fails_inside():
    host = changed(healthy(), {"driver.loaded": r("580.82.09")})
    within = changed(inside(), {"driver.loaded": r("580.82.09"), "nvml": no_library(), "driver.nvidiactl": "open"})
    report = judged(host, within)
    assert roots(report)[0] == ("DRV002", "")
    assert all(place == "" for _, place in roots(report))
    assert [shown for shown in report.findings if shown.finding.seen_in and shown.finding.follows_from == "DRV002"]


def finds(severity):
    def body(facts):
        if severity is SILENT:
            return
        if severity is None:
            raise NotApplicable("not on this side")
        yield Finding(severity, "it is so", Fix("mend it"))

    return body


def one_check(on_host, in_container, code="ENG001"):
    def body(facts):
        yield from finds(on_host if facts.container is None else in_container)(facts)

    return Check(code, "All is well", body)


@pytest.mark.parametrize(
    ("code", "on_host", "in_container", "verdict", "places"),
    [
        pytest.param("ENG001", None, None, Skipped, [], id="skipped on both sides is skipped"),
        pytest.param("ENG001", SILENT, None, Passed, [], id="passed on one side is passed"),
        pytest.param("ENG001", None, SILENT, Passed, [], id="passed inside is passed"),
        pytest.param("ENG001", ERROR, SILENT, Found, [""], id="found on the host"),
        pytest.param("ENG001", SILENT, ERROR, Found, [DEV_CONTAINER], id="found inside"),
        pytest.param("ENG001", ERROR, ERROR, Found, ["", DEV_CONTAINER], id="found on both sides"),
        pytest.param("PYT001", ERROR, SILENT, Passed, [], id="the workload's domains are judged inside"),
        pytest.param("PYT001", ERROR, None, Found, [""], id="unless the inside cannot tell"),
    ],
)
def test_two_verdicts_become_one(code, on_host, in_container, verdict, places):
    check = one_check(on_host, in_container, code)
    (outcome,) = run_on_host_and_container([check], replace(healthy(), inside=inside()), clock=lambda: 0.0)
    assert isinstance(outcome.verdict, verdict)
    found = outcome.verdict.findings if isinstance(outcome.verdict, Found) else ()
    assert [finding.seen_in for finding in found] == places


@pytest.mark.parametrize(
    ("on_host", "in_container", "follows"),
    [
        pytest.param(ERROR, ERROR, "ENG001", id="the host's finding explains the same one inside"),
        pytest.param(ERROR, WARNING, "ENG001", id="and a lighter one"),
        pytest.param(WARNING, ERROR, None, id="but a warning never hides an error"),
    ],
)
def test_the_same_code_on_both_sides_has_one_root(on_host, in_container, follows):
    report = judged(healthy(), inside(), [one_check(on_host, in_container)])
    assert [shown.finding.follows_from for shown in report.findings] == [None, follows]


@pytest.mark.parametrize(
    ("cause_on_host", "follows"),
    [
        pytest.param(True, "ENG001", id="a cause on the host explains the host"),
        pytest.param(False, None, id="a cause inside a container does not"),
    ],
)
def test_the_inside_never_explains_the_outside(cause_on_host, follows):
    cause = one_check(ERROR if cause_on_host else None, None if cause_on_host else ERROR)
    effect = one_check(ERROR, None, "CTK001")
    report = judged(healthy(), inside(), [replace(cause, causes=("CTK001",)), effect])
    assert report.findings[-1].finding.follows_from == follows
