"""Every recorded machine, judged: its root findings, their fixes, and both sides of a container."""

from collections import defaultdict
from dataclasses import replace

import pytest

from devkit.doctor.model import Check, Finding, Fix, Found, NotApplicable, Passed, Restart, Severity, Skipped
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import Health, build_report
from devkit.doctor.runner import DEV_CONTAINER, SEVERITY_RANKS, run_on_host_and_container
from devkit.facts.gpu import NvmlAnswer
from devkit.facts.machine import Torch
from devkit.facts.values import Unknown
from devkit.probe.gather import gather_facts
from devkit.probe.host import TIMED_OUT, ProgramResult
from tests.cases import cases
from tests.doctor.machines import changed, healthy, inside, no_library, r
from tests.doctor.running import build_full_report, report_of
from tests.golden import assert_golden
from tests.hosts import FOLDER, MACHINES, description_of, facts_of, machine
from tests.hosts.recorded_host import RecordedHost

# Every recorded machine, judged: what its root findings are, and that a healthy one stays silent.


def judge(name):
    """Yield what a report says that it shouldn't, of a recorded machine that stands for certain root findings."""
    report = report_of(name)
    roots = [shown.check.code for shown in report.roots if shown.finding.severity is not Severity.NOTE]
    finds = description_of(name)["finds"]
    if list(dict.fromkeys(roots)) != finds:
        yield f"finds {roots}, not {finds}"
    yield from (f"{outcome.check.code} crashed: {outcome.verdict}" for outcome in report.crashed)
    if not roots:
        has_gpu = isinstance(facts_of(name).nvml, NvmlAnswer)
        if report.health is not (Health.HEALTHY if has_gpu else Health.NO_GPU):
            yield f"is {report.health}, though nothing is found"


def test_the_root_findings_of_a_recorded_machine_are_those_it_stands_for():
    assert {name: wrong for name in MACHINES if (wrong := list(judge(name)))} == {}


def misses_of_form(check, finding):
    if SEVERITY_RANKS[finding.severity] > SEVERITY_RANKS[check.worst]:
        yield "worse than its row says"
    if finding.message.endswith("."):
        yield "a message is no sentence"
    if not finding.fix.summary.endswith((".", ":")):
        yield "a fix is a sentence"
    if not finding.evidence and finding.severity is not Severity.NOTE:
        yield "nothing shows that it is so"


def test_the_findings_of_recorded_machines_keep_to_the_form():
    wrong = {
        (name, shown.check.code): missed
        for name in MACHINES
        for shown in report_of(name).findings
        if (missed := list(misses_of_form(shown.check, shown.finding)))
    }
    assert wrong == {}


def show_finding(code, finding):
    """Show a finding as users read it, a line for each thing that they are told."""
    place = finding.location
    yield f"{code} {finding.severity}, {finding.confidence}: {finding.message}"
    yield f"  of {finding.subject}" if finding.subject not in finding.message else ""
    yield f"  at {place.path}:{place.line}" if place else ""
    yield from (f"  seen: {reading}" for reading in finding.evidence)
    yield f"  fix: {finding.fix.summary}"
    yield from (f"  $ {line}" for command in finding.fix.commands for line in command.splitlines())
    restarts = "" if finding.fix.restart is Restart.NONE else f", restarts {finding.fix.restart}"
    yield f"  on {finding.fix.where}{', as root' if finding.fix.root else ''}{restarts}"
    yield from (
        f"  repair: {each.kind} {' '.join(each.key)} of {each.path} {each.value}" for each in finding.fix.repairs
    )


def show_quiet_checks(name):
    """Show which checks pass on a machine, and which don't judge it and why."""
    said = defaultdict(list)
    for outcome in report_of(name).outcomes:
        verdict = outcome.verdict
        said[verdict.reason if isinstance(verdict, Skipped) else type(verdict).__name__].append(outcome.check.code)
    yield f"{name}:"
    yield from (f"  {reason}: {' '.join(codes)}" for reason, codes in sorted(said.items()))


@pytest.mark.golden
def test_what_users_read_of_the_recorded_machines():
    first = {}
    for name in MACHINES:
        for shown in report_of(name).findings:
            first.setdefault(shown.check.code, shown.finding)
    lines = [line for code in sorted(first) for line in show_finding(code, first[code])]
    lines += ["On no recorded machine:", "  " + " ".join(check.code for check in CHECKS if check.code not in first)]
    for name in ("ubuntu-4090-ok", "in-container-ok", "windows"):
        lines += show_quiet_checks(name)
    assert_golden(FOLDER.with_name("doctor") / "findings.txt", "\n".join(filter(None, lines)) + "\n")


class Hanging:
    """A recorded machine on which one program hangs."""

    def __init__(self, name, argv):
        self._machine, self._argv = machine(name), argv

    def __getattr__(self, name):
        return getattr(self._machine, name)

    def run(self, argv, **settings):
        hangs = " ".join(argv).startswith(self._argv)
        return ProgramResult(TIMED_OUT, "", "") if hangs else self._machine.run(argv, **settings)


@pytest.mark.parametrize(
    ("name", "argv", "health"),
    [
        ("ubuntu-4090-ok", "modinfo", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "nvidia-ctk", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "journalctl", Health.INCOMPLETE),
        ("ubuntu-4090-ok", "docker compose", Health.INCOMPLETE),
        ("dgx-h100-ok", "systemctl", Health.INCOMPLETE),
        ("dgx-h100-ok", "/usr/bin/nv-fabricmanager", Health.INCOMPLETE),
        # The module is loaded, and the libraries are in folders that the loader knows without its cache.
        ("ubuntu-4090-ok", "dkms", Health.HEALTHY),
        ("ubuntu-4090-ok", "ldconfig", Health.HEALTHY),
        # The version of a virtual environment is read, and its Python is not started.
        ("ubuntu-4090-ok", "/home/dev/project/.venv/bin/python", Health.HEALTHY),
    ],
)
def test_what_a_hung_program_leaves_of_the_verdict(name, argv, health):
    host = Hanging(name, argv)
    report = build_full_report(gather_facts(host, project=host.project, deadline_s=60.0))
    assert report.health is health
    assert [each.reason for each in report.lost if "did not answer in time" not in each.reason] == []


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("ubuntu-4090-ok", "/sys"),
        ("dgx-h100-ok", "/sys"),
        ("dgx-h100-ok", "/proc"),
        ("dgx-h100-ok", "/etc"),
        ("cdi-only-h100x8", "/etc"),
    ],
)
def test_a_machine_that_hides_a_folder_is_not_a_healthy_one(name, folder, tmp_path):
    for parent in ("ubuntu-4090-ok", "cdi-only-h100x8", "dgx-h100-ok"):
        (tmp_path / parent).symlink_to(FOLDER / parent)
    (tmp_path / "hidden").mkdir()
    description = f'extends = "{name}"\nremove = ["{folder}"]\n'
    (tmp_path / "hidden" / "machine.toml").write_text(description, encoding="utf-8")
    host = RecordedHost(tmp_path / "hidden")
    report = build_full_report(gather_facts(host, project=host.project, deadline_s=60.0))
    reasons = [each.reason for each in report.lost]
    assert report.health in (Health.INCOMPLETE, Health.PROBLEMS)
    assert f"{folder} is empty or not readable" in reasons
    assert ("/sys/bus/pci/devices is not visible here" in reasons) is (folder == "/sys")


# The golden file has the first finding of each check. These are later ones whose fix is another.


@cases(
    "machine, code, fix",
    {
        "a project that works without": (
            "project-asks-for-no-gpu",
            "PRJ005",
            'hostRequirements: { "gpu": "optional" }',
        ),
        "Grace Hopper": ("cpu-torch-on-grace-hopper", "PYT001", "https://download.pytorch.org/whl/cu"),
        "Blackwell": ("torch-too-old-for-blackwell", "PYT002", "https://download.pytorch.org/whl/cu"),
        "a volume": ("hub-volume-of-root", "PRJ019", "RUN install --directory --owner="),
        "a compiler": ("triton-without-compiler", "CON004", "build-essential"),
        "a runtime": ("runtime-not-registered", "CTK003", "sudo systemctl restart docker"),
        "rootless": ("rootless-docker", "CTK005", "no-cgroups=true"),
        "an image with libcuda": ("libcuda-baked-into-image", "CUD003", "Recreate the container"),
        "PTX": ("ptx-of-a-newer-cuda", "PYT017", "Update the driver"),
        "DKMS": ("dkms-build-failed", "DRV001", "sudo dkms autoinstall"),
        "a group": ("docker-group-missing", "ENG001", "sudo usermod -aG docker $USER"),
    },
)
def test_the_fix_is_for_the_machine(machine, code, fix):
    (shown,) = (shown for shown in report_of(machine).roots if shown.finding.severity is not Severity.NOTE)
    assert (shown.check.code, fix in "\n".join((shown.finding.fix.summary, *shown.finding.fix.commands))) == (
        code,
        True,
    )


# The host and its running dev container, judged together.


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


@cases(
    "code, on_host, in_container, verdict",
    {
        "the host's engine, not the inside's": ("ENG001", "hung", SILENT, Skipped("hung", is_lost=True)),
        "the container's Python, not the host's": ("PYT001", SILENT, "hung", Skipped("hung", is_lost=True)),
        "the host's Python does not matter": ("PYT001", "hung", SILENT, Passed()),
    },
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


@cases(
    "code, on_host, in_container, verdict, places",
    {
        "skipped on both sides is skipped": ("ENG001", None, None, Skipped, []),
        "passed on one side is passed": ("ENG001", SILENT, None, Passed, []),
        "passed inside is passed": ("ENG001", None, SILENT, Passed, []),
        "found on the host": ("ENG001", ERROR, SILENT, Found, [""]),
        "found inside": ("ENG001", SILENT, ERROR, Found, [DEV_CONTAINER]),
        "found on both sides": ("ENG001", ERROR, ERROR, Found, ["", DEV_CONTAINER]),
        "the workload's domains are judged inside": ("PYT001", ERROR, SILENT, Passed, []),
        "unless the inside cannot tell": ("PYT001", ERROR, None, Found, [""]),
    },
)
def test_two_verdicts_become_one(code, on_host, in_container, verdict, places):
    check = one_check(on_host, in_container, code)
    (outcome,) = run_on_host_and_container([check], replace(healthy(), inside=inside()), clock=lambda: 0.0)
    assert isinstance(outcome.verdict, verdict)
    found = outcome.verdict.findings if isinstance(outcome.verdict, Found) else ()
    assert [finding.seen_in for finding in found] == places


@cases(
    "on_host, in_container, follows",
    {
        "the host's finding explains the same one inside": (ERROR, ERROR, "ENG001"),
        "and a lighter one": (ERROR, WARNING, "ENG001"),
        "but a warning never hides an error": (WARNING, ERROR, None),
    },
)
def test_the_same_code_on_both_sides_has_one_root(on_host, in_container, follows):
    report = judged(healthy(), inside(), [one_check(on_host, in_container)])
    assert [shown.finding.follows_from for shown in report.findings] == [None, follows]


@cases(
    "cause_on_host, follows",
    {
        "a cause on the host explains the host": (True, "ENG001"),
        "a cause inside a container does not": (False, None),
    },
)
def test_the_inside_never_explains_the_outside(cause_on_host, follows):
    cause = one_check(ERROR if cause_on_host else None, None if cause_on_host else ERROR)
    effect = one_check(ERROR, None, "CTK001")
    report = judged(healthy(), inside(), [replace(cause, causes=("CTK001",)), effect])
    assert report.findings[-1].finding.follows_from == follows
