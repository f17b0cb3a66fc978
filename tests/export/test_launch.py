"""The command of a job: its words, and the launcher that keeps the exit code which torchrun loses."""

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
from devkit.export.launch import (
    LAUNCHER,
    TORCHRUN,
    build_finetune_command,
    build_node_command,
    strip_launchers,
    wrap_command,
)
from devkit.workload.finetune.settings import FinetuneSettings

PROCESS_ONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
CAN_UNSHARE = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
"""Beside tests that want both processors, a process may have to wait that long for one."""

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


LAUNCH = [sys.executable, "-m", *LAUNCHER]


@pytest.fixture(params=["a process", pytest.param("process 1", marks=pytest.mark.full)])
def launcher(request):
    """The words that start the launcher, in a process of its own."""
    if request.param == "a process":
        return LAUNCH
    if not CAN_UNSHARE:
        pytest.skip("needs root and unshare for a process 1 of its own")
    return [*PROCESS_ONE, *LAUNCH]


def code_of(launcher, folder, *command, **environment):
    """How the launcher leaves after the command, and the files that it left in its folder for such."""
    scratch = folder / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [*launcher, *command],
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
def running(launcher, folder, *command):
    """The launcher and its command, once the command is ready; ended whatever happens."""
    process = subprocess.Popen([*launcher, *command], cwd=folder, start_new_session=True)
    try:
        while not (folder / "ready").exists():
            assert process.poll() is None
            time.sleep(0.005)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def signaled(process, launcher, number):
    """Send a signal to the launcher itself: below `unshare` that is its only child."""
    if launcher[0] != "unshare":
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
def test_the_exit_code_is_that_of_the_processes(launcher, tmp_path, command, code):
    assert code_of(launcher, tmp_path, *command)[0] == code


@pytest.mark.parametrize(("lines", "code"), [("", 69), ("echo 2 >> $DEVKIT_EXIT_FILE;", 2)])
def test_behind_torchrun_no_code_at_all_is_a_lost_process(launcher, tmp_path, lines, code):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f"#!/bin/sh\n{lines} exit 1\n")
    torchrun.chmod(0o755)
    assert code_of(launcher, tmp_path, torchrun)[0] == code


def test_the_launcher_is_a_program_of_the_image_whose_python_has_no_devkit():
    assert f" /usr/local/bin/{LAUNCHER[0]};" in (ROOT / "templates/devcontainer/Dockerfile.j2").read_text()


def test_words_reach_the_command_as_they_are(launcher, tmp_path):
    odd = ["a b", "it's", '"quoted"', "$HOME `id` \\", "line\nbreak", "", "*", "-n", "{{x}} ${y} #"]
    code, told = code_of(launcher, tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    assert (code, told) == (0, f"{odd}\n")


def test_without_a_folder_for_temporary_files_the_code_is_torchruns(launcher, tmp_path):
    done = subprocess.run(
        [*launcher, "sh", "-c", 'test -z "$DEVKIT_EXIT_FILE"; exit 4'],
        env={**os.environ, "TMPDIR": str(tmp_path / "none")},
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 4


@pytest.mark.parametrize(
    ("sent", "heard"), [("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM"), ("SIGUSR1", "SIGTERM"), ("SIGINT", "SIGINT")]
)
def test_a_signal_is_forwarded_and_waited_for(launcher, tmp_path, sent, heard):
    with running(launcher, tmp_path, sys.executable, "-c", LISTENS) as process:
        signaled(process, launcher, getattr(signal, sent))
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == heard


def test_signals_in_quick_succession_are_forwarded_once(launcher, tmp_path):
    with running(launcher, tmp_path, sys.executable, "-c", LISTENS) as process:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            signaled(process, launcher, number)
            time.sleep(0.02)
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == "SIGTERM"


def test_a_command_that_goes_on_is_waited_for_and_its_code_counts(launcher, tmp_path):
    goes_on = "trap '' TERM; : > ready; while [ ! -e end ]; do sleep 0.02; done; exit 5"
    with running(launcher, tmp_path, "sh", "-c", goes_on) as process:
        signaled(process, launcher, signal.SIGTERM)
        time.sleep(0.1)
        assert process.poll() is None
        (tmp_path / "end").touch()
        assert process.wait(PATIENCE_S) == 5


def test_ended_by_the_signal_before_it_began_is_try_again(launcher, tmp_path):
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("#!/bin/sh\n: > ready; exec sleep 600\n")
    torchrun.chmod(0o755)
    with running(launcher, tmp_path, torchrun) as process:
        time.sleep(0.05)
        signaled(process, launcher, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 75


def test_another_command_that_the_signal_ended_has_saved_nothing(launcher, tmp_path):
    with running(launcher, tmp_path, "sh", "-c", ": > ready; exec sleep 600") as process:
        time.sleep(0.05)
        signaled(process, launcher, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143


def test_after_a_signal_the_command_is_not_even_started(tmp_path):
    early = "import os, signal, sys; from devkit.workload import launch; real = os.urandom\n"
    early += "os.urandom = lambda count: os.kill(os.getpid(), signal.SIGTERM) or real(count)\n"
    early += "sys.exit(launch.launch(['touch', 'begun']))"
    done = subprocess.run([sys.executable, "-c", early], cwd=tmp_path, timeout=60)
    assert done.returncode == 75
    assert not (tmp_path / "begun").exists()


def test_a_signal_that_was_ignored_stays_ignored(tmp_path):
    words = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *LAUNCH, sys.executable, "-c", LISTENS]
    process = subprocess.Popen(words, cwd=tmp_path)
    while not (tmp_path / "ready").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == "SIGINT"


@pytest.mark.full
@pytest.mark.skipif(not CAN_UNSHARE, reason="needs root and unshare for a process 1 of its own")
def test_process_one_reaps_orphans(tmp_path):
    orphans = "for _ in 1 2 3; do (sleep 0.05 &); done; sleep 0.4; ps -eo stat= | grep -c Z"
    done = subprocess.run(
        [*PROCESS_ONE, *LAUNCH, "sh", "-c", orphans], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "0"


def test_behind_torchrun_a_process_keeps_its_own_exit_code(launcher, tmp_path):
    """The file of the outer launcher is written by the inner one."""
    command = ["sh", "-c", 'export TORCHELASTIC_RUN_ID=1; "$@" || exit 1', "torchrun", *LAUNCH, "sh", "-c", "exit 75"]
    assert code_of(launcher, tmp_path, *command)[0] == 75


def test_a_command_that_succeeds_after_the_signal_is_done(launcher, tmp_path):
    finishes = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); "
    finishes += "open('ready', 'w'); time.sleep(600)"
    with running(launcher, tmp_path, sys.executable, "-c", finishes) as process:
        signaled(process, launcher, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_one_process_needs_no_launcher():
    settings = FinetuneSettings(model="m", data=("a.jsonl",))
    assert build_node_command(settings, is_distributed=False)[:2] == ("devkit", "finetune")
    assert build_node_command(settings, is_distributed=True)[:6] == (*LAUNCHER, *TORCHRUN, "devkit", "finetune")


OWN = ("python", "train.py")


@pytest.mark.parametrize(
    ("by_torchrun", "has_devkit", "words"),
    [
        (False, False, OWN),
        (False, True, (*LAUNCHER, *OWN)),
        (True, False, (*TORCHRUN, *OWN)),
        (True, True, (*LAUNCHER, *TORCHRUN, *LAUNCHER, *OWN)),
    ],
)
def test_a_command_of_ones_own_is_wrapped_in_what_the_image_has(by_torchrun, has_devkit, words):
    wrapped = wrap_command(OWN, by_torchrun=by_torchrun, has_devkit=has_devkit)
    assert wrapped == words
    assert strip_launchers(wrapped) == wrap_command(OWN, by_torchrun=by_torchrun, has_devkit=False)


def test_words_say_what_differs_from_the_defaults_and_always_the_output():
    settings = FinetuneSettings(
        model="-m", data=("a b.jsonl", "c"), method=Method.QLORA, packing=False, dora=True, learning_rate=1e-5
    )
    assert build_finetune_command(settings) == (
        *("devkit", "finetune", "--model", "-m", "--data", "a b.jsonl", "--data", "c", "--output", "finetuned"),
        *("--method", "qlora", "--dora", "--no-packing", "--learning-rate", "1e-05"),
    )
