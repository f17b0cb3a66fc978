"""No program that devkit starts outlives it, however devkit ends: the driver may hold that program forever."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cuda_stub import build_stub as build_cuda_stub
from tests.nvml_stub import stub_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]

ENDED_AND_HANGING = """
import sys, threading, time
from devkit.probe import host
from devkit.probe.host import run_program

for _ in range(3):
    run_program(["true"], deadline_s=5)
run_program(["sleep", "60"], deadline_s=0.01)
hangs = ["sh", "-c", "sleep 600 & wait"]
other = threading.Thread(target=run_program, args=[hangs], kwargs={"deadline_s": 600}, daemon=True)
other.start()

def report_start():
    while len(host._LIVE) < 2:
        time.sleep(0.01)
    with host._STARTING:
        print("both are noted", flush=True)

threading.Thread(target=report_start, daemon=True).start()
run_program(hangs, deadline_s=600)
"""


@pytest.fixture
def marked():
    """The environment of the processes of one test, which are killed at its end."""
    marked = {**os.environ, "DEVKIT_TEST_MARK": f"{os.getpid()} {time.monotonic_ns()}"}
    yield marked
    for pid in list_processes(marked):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def list_processes(marked):
    """The process ids and command lines of what inherited this test's mark, zombies left out."""
    mark = f"DEVKIT_TEST_MARK={marked['DEVKIT_TEST_MARK']}\0".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def wait_until(is_so, within_s=20):
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def assert_that_all_end(marked):
    ends_at = time.monotonic() + 5
    while left := list_processes(marked):
        assert time.monotonic() < ends_at, f"left behind: {left}"
        time.sleep(0.02)


@pytest.mark.parametrize("number", SIGNALS)
def test_programs_and_their_children_end_with_a_devkit_that_is_signaled(marked, number):
    argv, quiet = [sys.executable, "-c", ENDED_AND_HANGING], subprocess.DEVNULL
    with subprocess.Popen(argv, env=marked, stdout=subprocess.PIPE, stderr=quiet) as devkit:
        assert devkit.stdout.readline() == b"both are noted\n"
        wait_until(lambda: list(list_processes(marked).values()).count("sleep 600") == 2)
        devkit.send_signal(number)
        devkit.wait(10)
    assert_that_all_end(marked)


def test_a_program_that_ended_is_not_killed_later(tmp_path, marked):
    """Another process may have its number, and its group, by then."""
    names_group = 'import os, sys, time; open(sys.argv[1], "w").write("x"); time.sleep(600)'
    program = """
import subprocess, sys
from devkit.probe import host
host.run_program(["true"], deadline_s=5)
# The group of another program, under the number that has become free.
watched = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True)
host._GUARD.watch(watched.pid)
host._GUARD.forget(watched.pid)
while not open(sys.argv[2]).read():
    pass
"""
    alive = tmp_path / "alive"
    alive.touch()
    subprocess.run([sys.executable, "-c", program, names_group, str(alive)], env=marked, check=True, timeout=20)
    time.sleep(0.3)
    assert len(list_processes(marked)) == 1


def start_doctor(tmp_path, marked, hanging, settings):
    """`devkit doctor`, once its child `hanging` hangs in the library."""
    doctor = subprocess.Popen(
        [sys.executable, "-m", "devkit", "doctor", "--deep"],
        cwd=tmp_path,
        env={**marked, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def has_loaded_library():
        children = [pid for pid, words in list_processes(marked).items() if hanging in words]
        return any(settings["LD_LIBRARY_PATH"] in Path(f"/proc/{pid}/maps").read_text() for pid in children)

    wait_until(has_loaded_library)
    time.sleep(0.2)
    return doctor


@pytest.mark.full
@pytest.mark.parametrize("number", SIGNALS)
def test_a_hanging_nvml_ends_with_doctor(stub, tmp_path, marked, number):
    settings = stub_environment(stub, fail="nvmlInit_v2=hang")
    doctor = start_doctor(tmp_path, marked, "ask_nvml.py", settings)
    doctor.send_signal(number)
    doctor.wait(10)
    assert_that_all_end(marked)


@pytest.mark.full
def test_a_hanging_cuda_ends_with_doctor(tmp_path, marked):
    library = build_cuda_stub(tmp_path / "cuda")
    settings = {"LD_LIBRARY_PATH": str(library.parent), "CUDA_STUB_INIT": "hang"}
    doctor = start_doctor(tmp_path, marked, "ask_cuda.py", settings)
    doctor.kill()
    doctor.wait(10)
    assert_that_all_end(marked)
