"""Signals are noted, told to all processes and obeyed later; handlers are given back as they were."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.workload, pytest.mark.skipif(os.name != "posix", reason="Windows has other signals")]


from devkit.errors import ExitCode
from devkit.workload.finetune.process import (
    STOP_SIGNALS,
    DeferredSignals,
    RunOutcome,
    StoppedBySignal,
    raise_on_signal,
)
from devkit.workload.launch import PREEMPTED_EXIT_CODE
from tests.workload.finetune.small_run import ALONE


def press(number):
    """Send a signal to this process and wait until Python has seen it."""
    os.kill(os.getpid(), number)
    time.sleep(0)


@pytest.mark.parametrize(
    ("sent", "obeyed"),
    [
        ((signal.SIGUSR1, signal.SIGTERM), signal.SIGTERM),
        ((signal.SIGTERM, signal.SIGUSR1), signal.SIGTERM),
        ((signal.SIGINT, signal.SIGTERM), signal.SIGINT),
        ((signal.SIGHUP, signal.SIGUSR1), signal.SIGUSR1),
    ],
)
def test_the_strongest_of_several_counts(sent, obeyed):
    with DeferredSignals() as stop:
        for number in sent:
            press(number)
        assert stop.agree_on_signal(ALONE.max) is obeyed


def test_handlers_are_given_back_as_they_were():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with DeferredSignals():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=["nohup", "a job in a script's background"])
def test_what_was_ignored_from_the_start_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with DeferredSignals() as stop:
            press(number)
            assert stop.agree_on_signal(ALONE.max) is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


PRESSED_TWICE = """
import os, signal, sys, time
from devkit.workload.finetune.process import DeferredSignals
with DeferredSignals():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.full
def test_ctrl_c_pressed_again_leaves_at_once():
    child = subprocess.Popen([sys.executable, "-c", PRESSED_TWICE], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == -signal.SIGINT


def test_a_worker_that_was_forked_meanwhile_goes_on_working():
    with DeferredSignals() as stop:
        ready, ready_for_child = os.pipe()
        worker = os.fork()
        if worker == 0:
            os.write(ready_for_child, b"x")
            for _ in range(50):
                time.sleep(0.01)
            os._exit(7)
        os.read(ready, 1)
        os.kill(worker, signal.SIGTERM)
        _, status = os.waitpid(worker, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert stop.agree_on_signal(ALONE.max) is None


ORPHANED = """
import os, time
from devkit.workload.finetune.process import DeferredSignals
with DeferredSignals() as stop:
    assert stop.agree_on_signal(float) is None
    print(os.getpid(), flush=True)
    while stop.agree_on_signal(float) is None:
        time.sleep(0.01)
    print(stop.agree_on_signal(float).name, flush=True)
"""

LAUNCHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ORPHANED!r}])"


def test_a_process_whose_launcher_was_killed_ends_as_after_sigterm():
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True, env=environment) as top:
        assert int(top.stdout.readline())
        top.kill()
        assert top.stdout.readline() == "SIGTERM\n"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_only_ctrl_c_leaves_as_interrupted(number):
    assert RunOutcome.from_signal(number).exit_code == (
        ExitCode.INTERRUPTED if number is signal.SIGINT else PREEMPTED_EXIT_CODE
    )
    assert (ExitCode.INTERRUPTED, PREEMPTED_EXIT_CODE) == (130, os.EX_TEMPFAIL)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_before_the_first_step_a_signal_ends_whatever_is_done(number):
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with pytest.raises(StoppedBySignal) as caught, raise_on_signal():
        press(number)
        time.sleep(10)
    assert caught.value.signal is number
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before
