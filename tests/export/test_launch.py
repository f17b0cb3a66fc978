"""The command of a job: its words, and the shell that keeps the exit code which torchrun loses."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from devkit.estimate.settings import Method
from devkit.export.launch import EXIT_CODE_WRAPPER, build_finetune_command, build_node_command
from devkit.workload.finetune.settings import FinetuneSettings

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
PROCESS_ONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
CAN_UNSHARE = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None

PATIENCE_S = 120
"""Beside tests that want both processors, a shell may have to wait that long for one."""

LISTENS = """
import os, signal, sys, time
told = []
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: told.append(signal.Signals(number).name))
open("ready", "w").close()
while not told:
    time.sleep(0.005)
time.sleep(0.2)
open("told", "w").write(" ".join(told))
with open(os.environ["DEVKIT_EXIT_FILE"], "a") as file:
    file.write("75\\n")
sys.exit(1)
"""
"""Like torchrun: signals are handled, every process writes its code, and 1 is what the launcher leaves with."""


@pytest.fixture(params=[*SHELLS, *(f"{name} as process 1" for name in SHELLS)])
def shell(request):
    """The words that start a shell, in a process of its own."""
    name = request.param.split()[0]
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"{name} is not here")
    if request.param == name:
        return SHELLS[name]
    if not CAN_UNSHARE:
        pytest.skip("needs root and unshare for a process 1 of its own")
    return [*PROCESS_ONE, *SHELLS[name]]


def words(shell, *command):
    return [*shell, "-c", EXIT_CODE_WRAPPER, "devkit", *command]


def code_of(shell, folder, *command, **environment):
    """How the shell leaves after the command, and the files that it left in its folder for such."""
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        words(shell, *command),
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert list(scratch.iterdir()) == []
    return done.returncode, done.stdout


def writing(*codes, then):
    lines = "".join(f'echo {code} >> "$DEVKIT_EXIT_FILE"; ' for code in codes)
    return ("sh", "-c", f"{lines}exit {then}")


@contextmanager
def running(shell, folder, *command):
    """The shell and its command, once the command is ready; ended whatever happens."""
    process = subprocess.Popen(words(shell, *command), cwd=folder, start_new_session=True)
    try:
        while not (folder / "ready").exists():
            assert process.poll() is None
            time.sleep(0.005)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def signalled(process, shell, number):
    """Send a signal to the shell itself: below `unshare` that is its only child."""
    if shell[0] != "unshare":
        process.send_signal(number)
        return
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), number)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(writing(0, 0, then=0), 0, id="all done"),
        pytest.param(writing(75, 75, then=1), 75, id="preempted, which torchrun turns into 1"),
        pytest.param(writing(2, 75, then=1), 2, id="the first that failed is the cause"),
        pytest.param(writing(0, 1, then=1), 1, id="done on one, failed on the other"),
        pytest.param(writing(then=1), 1, id="failed before any process wrote"),
        pytest.param(writing(75, then=0), 0, id="torchrun says done"),
        pytest.param(writing("7f", "", "-1", then=3), 3, id="what is no code does not count"),
        pytest.param(("sh", "-c", "kill -KILL $$"), 137, id="killed"),
        pytest.param(("sh", "-c", "kill -TERM $$"), 143, id="ended by a signal that nobody handed on"),
        pytest.param(("no-such-command",), 127, id="not there"),
    ],
)
def test_the_exit_code_is_that_of_the_processes(shell, tmp_path, command, code):
    assert code_of(shell, tmp_path, *command)[0] == code


def test_what_an_earlier_run_left_does_not_make_a_failure_a_preemption(shell, tmp_path):
    (tmp_path / "run.json").write_text('{"status": "preempted"}')
    assert code_of(shell, tmp_path, *writing(then=1), DEVKIT_EXIT_FILE=str(tmp_path / "run.json"))[0] == 1


def test_words_reach_the_command_as_they_are(shell, tmp_path):
    odd = ["a b", "it's", '"quoted"', "$HOME `id` \\", "line\nbreak", "", "*", "-n", "{{x}} ${y} #"]
    code, told = code_of(shell, tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    assert (code, told) == (0, f"{odd}\n")


def test_without_a_folder_for_temporary_files_the_code_is_torchruns(shell, tmp_path):
    done = subprocess.run(
        words(shell, "sh", "-c", 'test -z "$DEVKIT_EXIT_FILE"; exit 4'),
        env={**os.environ, "TMPDIR": str(tmp_path / "none")},
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 4


@pytest.mark.parametrize(
    ("sent", "heard"), [("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM"), ("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")]
)
def test_a_signal_is_forwarded_and_waited_for(shell, tmp_path, sent, heard):
    with running(shell, tmp_path, sys.executable, "-c", LISTENS) as process:
        signalled(process, shell, getattr(signal, sent))
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == heard


def test_signals_in_quick_succession_are_forwarded_once(shell, tmp_path):
    with running(shell, tmp_path, sys.executable, "-c", LISTENS) as process:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            signalled(process, shell, number)
            time.sleep(0.02)
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == "SIGTERM"


def test_a_command_that_goes_on_is_waited_for_and_its_code_counts(shell, tmp_path):
    goes_on = "trap '' TERM; : > ready; while [ ! -e end ]; do sleep 0.02; done; exit 5"
    with running(shell, tmp_path, "sh", "-c", goes_on) as process:
        signalled(process, shell, signal.SIGTERM)
        time.sleep(0.1)
        assert process.poll() is None
        (tmp_path / "end").touch()
        assert process.wait(PATIENCE_S) == 5


def test_ended_by_the_signal_before_it_began_is_try_again(shell, tmp_path):
    with running(shell, tmp_path, "sh", "-c", ": > ready; exec sleep 600") as process:
        time.sleep(0.05)
        signalled(process, shell, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 75


@pytest.mark.parametrize("name", SHELLS)
def test_after_a_signal_the_command_is_not_even_started(tmp_path, name):
    """The signal comes while mktemp runs."""
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"{name} is not here")
    (tmp_path / "mktemp").write_text('#!/bin/sh\ntrap "" TERM\nkill -s TERM 0\nsleep 0.1\n')
    (tmp_path / "mktemp").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        words(SHELLS[name], "sh", "-c", ": > begun"),
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        start_new_session=True,
        timeout=60,
    )
    assert done.returncode == 75
    assert not (tmp_path / "begun").exists()


def test_a_command_that_succeeds_after_the_signal_is_done(shell, tmp_path):
    finishes = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); "
    finishes += "open('ready', 'w'); time.sleep(600)"
    with running(shell, tmp_path, sys.executable, "-c", finishes) as process:
        signalled(process, shell, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_one_process_needs_no_launcher():
    settings = FinetuneSettings(model="m", data=("a.jsonl",))
    assert build_node_command(settings, is_distributed=False)[:2] == ("devkit", "finetune")
    assert build_node_command(settings, is_distributed=True)[3:8] == (
        "devkit",
        "torchrun",
        "--no-python",
        "devkit",
        "finetune",
    )


def test_words_say_what_differs_from_the_defaults_and_always_the_output():
    settings = FinetuneSettings(
        model="-m", data=("a b.jsonl", "c"), method=Method.QLORA, packing=False, dora=True, learning_rate=1e-5
    )
    assert build_finetune_command(settings) == (
        *("devkit", "finetune", "--model", "-m", "--data", "a b.jsonl", "--data", "c", "--output", "finetuned"),
        *("--method", "qlora", "--dora", "--no-packing", "--learning-rate", "1e-05"),
    )
