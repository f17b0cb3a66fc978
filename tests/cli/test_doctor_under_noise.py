"""A few of the conditions of benchmarks/noisy_doctor.py: none crashes devkit, or makes a machine healthy that was not read."""

import os
import shutil
import sys

import pytest

from benchmarks.noisy_doctor import LISTS, broken_sockets, examine, find_quiet
from tests.gpu_machine import gpu_machine

CONDITIONS = {condition.name: condition for make in LISTS for condition in make()}
TRIED = (
    "standard output is closed",
    "standard output is read-only",
    "/proc is empty",
    "/etc is empty",
    "ulimit -n 8",
    "nvidia-ctk hangs",
    "nvidia-ctk prints garbage",
    "the project's Python prints nothing",
    "uname hangs",
    "PATH = ''",
    "HOME = '/nowhere'",
    "/etc/nvidia-container-runtime/config.toml is a FIFO",
    "libcuda.so.1 is text",
    "the engine's socket never answers",
    "SIGINT after 0.25 s",
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("gcc") is None, reason="needs root on Linux, and gcc"
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine(tmp_path_factory.mktemp("noise") / "machine") as state, broken_sockets(state / "run"):
        yield state


@pytest.fixture(scope="module")
def quiet(machine):
    return find_quiet(machine)


@pytest.mark.full
@pytest.mark.parametrize("name", TRIED)
def test_a_condition_ends_well(machine, quiet, name):
    result = examine(machine, CONDITIONS[name], quiet)
    # Seconds are for the benchmark: other tests run beside this one.
    assert [fault for fault in result.faults if not fault.endswith(" s")] == []
