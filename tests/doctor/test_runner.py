"""Running checks: in order, against a clock, with preconditions, and with anything unknown."""

import dataclasses
import importlib.resources
import tomllib
import types
import typing

import pytest

from devkit.doctor.fixes import DistroFamily, find_container_distro_family, find_distro_family, list_commands
from devkit.doctor.gpus import DAY_S
from devkit.doctor.model import Check, Crashed, Finding, Fix, Found, NotApplicable, Passed, Severity, Skipped
from devkit.doctor.preconditions import has_nvidia_gpu
from devkit.doctor.registry import BY_CODE
from devkit.doctor.runner import run_checks
from devkit.facts.engine import Endpoint, EngineEnd, EngineFailure
from devkit.facts.gpu import NvmlAnswer, NvmlEnd, NvmlFailure
from devkit.facts.machine import Distribution, Platform
from devkit.facts.model import Facts
from devkit.facts.values import Unknown
from devkit.text import compute_seconds_between
from tests.cases import cases
from tests.doctor.machines import (
    ARCH,
    ROCKY,
    UBUNTU,
    VOID,
    changed,
    healthy,
    inside,
    no_library,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report
from tests.hosts import facts_of

FINDING = Finding(Severity.ERROR, "something is wrong", Fix("Do something."))


def passes(facts):
    yield from ()


def finds(facts):
    yield FINDING


def skips(facts):
    raise NotApplicable("nothing to judge")
    yield


def breaks(facts):
    yield FINDING
    raise ZeroDivisionError("by nought")


def made(code, body):
    return Check(code, "All is well", body)


def test_each_way_a_check_may_end():
    checks = [made("AAA001", passes), made("AAA002", finds), made("AAA003", skips)]
    outcomes = run_checks(checks, healthy(), clock=lambda: 0.0)
    assert [outcome.verdict for outcome in outcomes] == [Passed(), Found((FINDING,)), Skipped("nothing to judge")]


def test_a_check_that_breaks_costs_only_itself():
    broken, fine = run_checks([made("AAA001", breaks), made("AAA002", passes)], healthy(), clock=lambda: 0.0)
    assert isinstance(broken.verdict, Crashed)
    assert broken.verdict.error.startswith("ZeroDivisionError: by nought (in breaks, line ")
    assert fine.verdict == Passed()


def test_the_clock_is_the_callers():
    ticks = iter([1.0, 1.25, 2.0, 2.5])
    outcomes = run_checks([made("AAA001", passes), made("AAA002", passes)], healthy(), clock=lambda: next(ticks))
    assert [outcome.ms for outcome in outcomes] == [250.0, 500.0]


# Whatever is not known, no check breaks, and none turns it into a finding.


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
        # Checks treat all entries of a list alike: the first stands for them.
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield from unknowable(value[0], f"{here}.0.")


@pytest.mark.parametrize("name", HEALTHY)
def test_one_unknown_breaks_nothing_and_accuses_nobody(name):
    wrong = {}
    for path in unknowable(HEALTHY[name]):
        report = build_full_report(changed(HEALTHY[name], {path: UNREAD}))
        errors = [shown.check.code for shown in report.findings if shown.finding.severity is Severity.ERROR]
        if report.crashed or errors:
            wrong[path] = (report.crashed, errors)
    assert wrong == {}


def test_nothing_known_at_all_is_not_an_accusation():
    names = [field.name for field in dataclasses.fields(Facts) if field.name not in ("taken_at", "devkit")]
    report = build_full_report(changed(healthy(), dict.fromkeys(names, UNREAD)))
    assert not report.findings
    assert not report.crashed


HIDDEN = Unknown("/sys is not visible here")
SILENT = {"nvml": no_library()}


@cases(
    "facts, answer",
    {
        "NVML lists one": (healthy(), True),
        "the bus shows one while NVML is silent": (changed(healthy(), SILENT), True),
        "the bus alone shows one": (changed(healthy(), SILENT | {"driver.loaded": None}), True),
        "the module is loaded, as on a Jetson": (changed(healthy(), SILENT | {"driver.pci_gpus": ()}), True),
        "neither bus nor module": (without_gpu(), False),
        "a hidden bus and no trace of a driver": (changed(without_gpu(), {"driver.pci_gpus": HIDDEN}), False),
        "a hidden bus inside a container proves nothing": (
            changed(without_gpu(), {"driver.pci_gpus": HIDDEN, "container": inside().container}),
            HIDDEN,
        ),
        "a library without driver and GPU": (
            changed(without_gpu(), {"nvml": NvmlFailure(NvmlEnd.ERROR, 9, "Driver Not Loaded", "nvmlInit_v2")}),
            False,
        ),
        "a driver that hangs": (
            changed(without_gpu(), {"nvml": NvmlFailure(NvmlEnd.TIMED_OUT, 0, "", "nvmlInit_v2")}),
            True,
        ),
        "NVML lists none": (changed(without_gpu(), {"nvml": NvmlAnswer(HIDDEN, HIDDEN, ())}), False),
        "Windows put its libraries into the guest": (changed(windows_guest(), SILENT), True),
        "Windows has no NVIDIA driver": (changed(windows_guest(), SILENT | {"wsl.libraries": ("libd3d12.so",)}), False),
        "an unread guest": (changed(windows_guest(), SILENT | {"wsl": HIDDEN}), HIDDEN),
        "a Mac": (changed(without_gpu(), {"system.platform": Platform.MACOS, "driver": HIDDEN}), False),
        "Windows without NVML": (
            changed(without_gpu(), {"system.platform": Platform.WINDOWS, "driver": HIDDEN}),
            False,
        ),
    },
)
def test_whether_there_is_an_nvidia_gpu(facts, answer):
    assert has_nvidia_gpu(facts) == answer


@pytest.mark.parametrize(
    ("distribution", "family"),
    [
        (UBUNTU, DistroFamily.UBUNTU),
        (Distribution("linuxmint", ("ubuntu", "debian"), "22", "Linux Mint 22"), DistroFamily.UBUNTU),
        (Distribution("raspbian", ("debian",), "12", "Raspbian"), DistroFamily.DEBIAN),
        (ROCKY, DistroFamily.RHEL),
        (Distribution("opensuse-tumbleweed", ("opensuse", "suse"), "", "Tumbleweed"), DistroFamily.SUSE),
        (Distribution("endeavouros", ("arch",), "", "EndeavourOS"), DistroFamily.ARCH),
        (ARCH, DistroFamily.ARCH),
        (VOID, DistroFamily.OTHER),
        (Unknown("no os-release"), DistroFamily.OTHER),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "reason", str(value))),
)
def test_the_family_of_a_distribution(distribution, family):
    assert find_distro_family(changed(healthy(), {"system.distribution": distribution})) is family


def test_commands_are_those_of_the_distribution():
    with importlib.resources.files("devkit.doctor").joinpath("commands.toml").open("rb") as file:
        tables = tomllib.load(file)
    assert {family for rows in tables.values() for family in rows} <= set(DistroFamily)
    arch = changed(healthy(), {"system.distribution": ARCH})
    assert list_commands(arch, "install_legacy_driver", branch=470)[0] == (
        "# from the AUR: nvidia-470xx-dkms nvidia-470xx-utils"
    )
    assert list_commands(inside(), "finish_driver", branch=580) == ("sudo dkms autoinstall", "sudo reboot")
    assert list_commands(inside(), "install_driver") == ()


def test_a_containers_distribution_says_nothing_about_its_host():
    assert find_distro_family(inside()) is DistroFamily.OTHER
    assert find_container_distro_family(inside()) is DistroFamily.DEBIAN


@cases(
    "engine, status",
    {
        "no engine in the container": ({}, Skipped),
        "an engine runs in the container itself": ({"engine": healthy().engine}, Found),
        "a socket was passed in, the engine runs outside": (
            {"engine": changed(healthy(), {"engine.hook_on_path": Unknown("its process is not visible")}).engine},
            Skipped,
        ),
    },
)
def test_a_container_judges_only_an_engine_of_its_own(engine, status):
    facts = changed(inside(), {**engine, "compose": None})
    (outcome,) = run_checks((BY_CODE["ENG005"],), facts, clock=lambda: 0.0)
    assert isinstance(outcome.verdict, status)


@pytest.mark.parametrize("end", [NvmlEnd.TIMED_OUT, NvmlEnd.CRASHED])
def test_a_library_that_hangs_or_crashes_is_not_blamed_on_a_gpu_that_was_not_given(end):
    without_node = {"driver.nvidiactl": "absent", "driver.device_nodes": ()}
    facts = changed(inside(), {"nvml": NvmlFailure(end, 11, "SIGSEGV", "nvmlInit_v2"), **without_node})
    outcomes = run_checks((BY_CODE["CON001"], BY_CODE["DRV003"]), facts, clock=lambda: 0.0)
    assert [type(outcome.verdict) for outcome in outcomes] == [Skipped, Found]


@cases(
    "end, chosen_by, status",
    {
        "nobody speaks of an engine": (EngineEnd.NOT_RUNNING, "default", Skipped),
        "a variable names one that does not exist": (EngineEnd.NOT_RUNNING, "DOCKER_HOST", Found),
        "a socket was passed in that refuses": (EngineEnd.PERMISSION_DENIED, "default", Found),
    },
)
def test_a_container_with_a_broken_way_to_an_engine_is_told(end, chosen_by, status):
    failure = EngineFailure(end, Endpoint("unix:///var/run/docker.sock", chosen_by), "no such file")
    (outcome,) = run_checks((BY_CODE["ENG001"],), changed(inside(), {"engine": failure}), clock=lambda: 0.0)
    assert isinstance(outcome.verdict, status)


@cases(
    "earlier, later, seconds",
    {
        "over the new year": ("2025-12-31T23:59:59+00:00", "2026-01-01T00:00:00+00:00", 1),
        "in two time zones": ("2025-12-31T12:00:00+0200", "2025-12-31T10:00:00Z", 0),
        "west of Greenwich": ("2025-12-31T12:00:00-03:30", "2025-12-31T15:30:00+00:00", 0),
        "over a leap day": ("2024-02-28", "2024-03-01", 2 * DAY_S),
        "a log line": ("2025-12-11 06:41:02 upgrade libnvidia-compute-580", "2025-12-11T06:41:03+00:00", 1),
        "no date": ("812.4 s after the start", "2025-12-31T10:00:00Z", None),
        "no such month": ("2025-13-31", "2025-12-31", None),
    },
)
def test_how_far_apart_two_moments_are(earlier, later, seconds):
    assert compute_seconds_between(earlier, later) == seconds
