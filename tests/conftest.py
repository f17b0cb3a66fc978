"""What holds for every test, and what the closing summary says of the suites.

The summary is made here: a process that only hands tests out sees no folder of them.
"""

import gc
import os
import signal
import zlib
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from tests import amount

MATRIX = "combinations of the matrix"
"""The property with which tests/render/test_matrix.py tells what it looked at."""

KILLED = "killed runs"
"""The property with which tests/workload/finetune/test_kill.py counts them."""


ALLOCATIONS = 100_000
"""So many objects more than were given back, before Python looks for circles among them. By itself it does so after
700, again and again through all that twenty thousand collected tests are made of: an eighth of their time."""


def pytest_configure() -> None:
    """What a shell starts in the background ignores SIGINT, and what nohup starts ignores SIGHUP: both would be handed
    on to the programs that tests interrupt.
    """
    # Where CI is set hypothesis would draw the same examples each time, whatever --hypothesis-seed says.
    # On a busy machine neither a slow example nor slow drawing is a fault.
    settings.register_profile(
        "seeded",
        derandomize=False,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("seeded")
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _no_package_index():
    """What uv finds in an index changes by the day; a test that resolves has an index of its own."""
    os.environ["UV_OFFLINE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _only_shipped_tables(tmp_path_factory):
    """Whoever runs the tests may have refreshed tables of their own."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data home"))


def pytest_collection_modifyitems(config, items):
    """Deselect what is marked `turns(parts, first=None)` and is the part of other commits.

    The cases of a marked function are numbered from `first`, which its name decides otherwise, so that functions of one case have
    different turns. The tests of a marked module share a fixture that takes long: they have one turn together. Tests that are named
    one by one, or searched for with -k, are all tried.
    """
    if amount.LONG or config.option.keyword or any("::" in arg for arg in config.args):
        return
    cases: Counter[str] = Counter()
    others = []
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is None:
            continue
        is_own = mark in item.own_markers
        name = item.nodeid.partition("[" if is_own else "::")[0]
        number = mark.kwargs.get("first", zlib.crc32(name.encode())) + cases[name]
        cases[name] += is_own
        others += [] if amount.is_tried(number, mark.args[0]) else [item]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_terminal_summary(terminalreporter):
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    for counted in (value for report in reports for name, value in report.user_properties if name == MATRIX):
        combinations, texts, compose = counted
        shown = f"{combinations} combinations, {texts} different files, {compose} different Compose projects"
        terminalreporter.write_line(f"matrix: {shown}")
    killed = sum(value for report in reports for name, value in report.user_properties if name == KILLED)
    if killed:
        terminalreporter.write_line(f"kill tests: {killed} runs killed")
