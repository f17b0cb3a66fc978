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
from devkit.export.task import (
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
time.sleep(0.1)
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


def code_of(launcher, folder, *command, scratch="scratch"):
    """How the launcher leaves after the command, which leaves no file where temporary ones are."""
    (folder / "scratch").mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(folder / scratch)}
    done = subprocess.run(
        [*launcher, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert list((folder / "scratch").iterdir()) == []
    return done.returncode, done.stdout


def writing(*codes, then):
    lines = "".join(f'echo {code} >> "$DEVKIT_EXIT_FILE"; ' for code in codes)
    return ("sh", "-c", f"{lines}exit {then}")


def program(folder, text):
    """A stand-in for torchrun, which the launcher knows by its name."""
    path = folder / "torchrun"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


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


def send(process, launcher, number):
    """Send a signal to the launcher itself: below `unshare` that is its only child."""
    if launcher[0] != "unshare":
        process.send_signal(number)
        return
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), number)


def test_the_exit_code_is_that_of_the_processes(launcher, tmp_path):
    """The first that failed is the cause; what is no code, and a failure before a success, do not count."""
    codes = (
        (writing(0, 0, then=0), 0),
        (writing(75, 75, then=1), 75),
        (writing(2, 75, then=1), 2),
        (writing(0, 1, then=1), 1),
        (writing(then=1), 1),
        (writing(75, then=0), 0),
        (writing("7f", "", "-1", then=3), 3),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-command",), 127),
        # Behind torchrun no code at all is a lost process.
        ((program(tmp_path, "exit 1"),), 69),
    )
    for command, code in codes:
        assert code_of(launcher, tmp_path, *command)[0] == code, command
    assert code_of(launcher, tmp_path, program(tmp_path, "echo 2 >> $DEVKIT_EXIT_FILE; exit 1"))[0] == 2
    # The file of the outer launcher is written by the inner one.
    inner = ["sh", "-c", 'export TORCHELASTIC_RUN_ID=1; "$@" || exit 1', "torchrun", *LAUNCH, "sh", "-c", "exit 75"]
    assert code_of(launcher, tmp_path, *inner)[0] == 75
    nowhere = ("sh", "-c", 'test -z "$DEVKIT_EXIT_FILE"; exit 4')
    assert code_of(launcher, tmp_path, *nowhere, scratch="none")[0] == 4


def test_words_reach_the_command_as_they_are(tmp_path):
    odd = ["a b", "it's", '"quoted"', "$HOME `id` \\", "line\nbreak", "", "*", "-n", "{{x}} ${y} #"]
    code, told = code_of(LAUNCH, tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    assert (code, told) == (0, f"{odd}\n")


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        pytest.param(["SIGHUP"], "SIGTERM", id="a hangup"),
        pytest.param(["SIGINT"], "SIGINT", id="an interrupt"),
        pytest.param(["SIGTERM", "SIGUSR1", "SIGTERM"], "SIGTERM", id="several in quick succession"),
    ],
)
def test_a_signal_is_forwarded_once_and_waited_for(launcher, tmp_path, sent, heard):
    with running(launcher, tmp_path, sys.executable, "-c", LISTENS) as process:
        for name in sent:
            send(process, launcher, getattr(signal, name))
            time.sleep(0.02)
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == heard


GOES_ON = "trap '' TERM; : > ready; while [ ! -e end ]; do sleep 0.02; done; exit 5"
FINISHES = "trap 'exit 0' TERM; : > ready; while :; do sleep 0.02; done"
SLEEPS = ": > ready; exec sleep 600"


@pytest.mark.parametrize(
    ("text", "is_torchrun", "code"),
    [
        pytest.param(GOES_ON, False, 5, id="one that goes on is waited for"),
        pytest.param(FINISHES, False, 0, id="one that succeeds is done"),
        pytest.param(SLEEPS, True, 75, id="torchrun that it ended before it began is tried again"),
        pytest.param(SLEEPS, False, 143, id="another command that it ended has saved nothing"),
    ],
)
def test_what_a_command_makes_of_the_signal_counts(launcher, tmp_path, text, is_torchrun, code):
    command = (program(tmp_path, text),) if is_torchrun else ("sh", "-c", text)
    with running(launcher, tmp_path, *command) as process:
        time.sleep(0.05)
        send(process, launcher, signal.SIGTERM)
        if text is GOES_ON:
            time.sleep(0.1)
            assert process.poll() is None
        (tmp_path / "end").touch()
        assert process.wait(PATIENCE_S) == code


def test_after_a_signal_the_command_is_not_even_started(tmp_path):
    early = "import os, signal, sys; from devkit.workload import launch; real = os.urandom\n"
    early += "os.urandom = lambda count: os.kill(os.getpid(), signal.SIGTERM) or real(count)\n"
    early += "sys.exit(launch.launch(['touch', 'begun']))"
    done = subprocess.run([sys.executable, "-c", early], cwd=tmp_path, timeout=60)
    assert done.returncode == 75
    assert not (tmp_path / "begun").exists()


def test_a_signal_that_was_ignored_stays_ignored(tmp_path):
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *LAUNCH]
    with running(nohup, tmp_path, sys.executable, "-c", LISTENS) as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 75
    assert (tmp_path / "told").read_text() == "SIGINT"


@pytest.mark.full
@pytest.mark.skipif(not CAN_UNSHARE, reason="needs root and unshare for a process 1 of its own")
def test_process_one_reaps_orphans(tmp_path):
    orphans = "for _ in 1 2 3; do (sleep 0.05 &); done; sleep 0.4; ps -eo stat= | grep -c Z"
    assert code_of([*PROCESS_ONE, *LAUNCH], tmp_path, "sh", "-c", orphans)[1] == "0\n"


def test_the_launcher_is_a_program_of_the_image_whose_python_has_no_devkit():
    template = Path(__file__).resolve().parents[2] / "templates/devcontainer/Dockerfile.j2"
    assert f"ln -s /opt/devkit/bin/{LAUNCHER[0]} /usr/local/bin/{LAUNCHER[0]}{{{{" in template.read_text()


def test_a_command_is_wrapped_in_what_the_image_has_and_one_process_needs_no_launcher():
    own = ("python", "train.py")
    wrapped = {
        (False, False): own,
        (False, True): (*LAUNCHER, *own),
        (True, False): (*TORCHRUN, *own),
        (True, True): (*LAUNCHER, *TORCHRUN, *LAUNCHER, *own),
    }
    for (by_torchrun, has_devkit), words in wrapped.items():
        assert wrap_command(own, by_torchrun=by_torchrun, has_devkit=has_devkit) == words
        assert strip_launchers(words) == wrap_command(own, by_torchrun=by_torchrun, has_devkit=False)
    settings = FinetuneSettings(model="m", data=("a.jsonl",))
    assert build_node_command(settings, is_distributed=False)[:2] == ("devkit", "finetune")
    assert build_node_command(settings, is_distributed=True)[:6] == (*LAUNCHER, *TORCHRUN, "devkit", "finetune")


def test_words_say_what_differs_from_the_defaults_and_always_the_output():
    settings = FinetuneSettings(
        model="-m", data=("a b.jsonl", "c"), method=Method.QLORA, packing=False, dora=True, learning_rate=1e-5
    )
    assert build_finetune_command(settings) == (
        *("devkit", "finetune", "--model", "-m", "--data", "a b.jsonl", "--data", "c", "--output", "finetuned"),
        *("--method", "qlora", "--dora", "--no-packing", "--learning-rate", "1e-05"),
    )
