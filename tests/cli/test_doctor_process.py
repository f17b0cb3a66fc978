"""`devkit doctor` as a process and on a terminal: how long it takes, what it says on the way, and how it is stopped."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts.golden import facts_file

# The command as a process: how long it takes whatever is broken, what it says on the way, and how it is stopped.


HANGING = """#!/bin/sh
echo $$ >> "{pids}"
exec sleep 300
"""


@pytest.fixture
def wedged(tmp_path):
    """A PATH on which every program that probes may start hangs, and the file in which they leave their numbers."""
    folder, pids = tmp_path / "bin", tmp_path / "pids"
    folder.mkdir()
    for name in (
        "docker",
        "podman",
        "nvidia-smi",
        "nvidia-ctk",
        "uname",
        "id",
        "getconf",
        "ldconfig",
        "systemctl",
        "journalctl",
    ):
        (folder / name).write_text(HANGING.format(pids=pids))
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, pids


def argv_of(*arguments):
    return [sys.executable, "-m", "devkit", "doctor", *arguments]


def still_running(pids):
    """Of the programs that were started, those that are there and no zombies."""
    running = []
    for pid in pids.read_text().split():
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            continue
        running += [] if state == "Z" else [pid]
    return running


def are_gone(pids):
    """Whether they end soon: whoever is killed is there until the system comes to it."""
    ends_at = time.monotonic() + 10
    while still_running(pids) and time.monotonic() < ends_at:
        time.sleep(0.05)
    return not still_running(pids)


def seconds_of(*arguments, environment=None):
    started = time.monotonic()
    done = subprocess.run(
        argv_of(*arguments), env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode in (0, 1), done.stderr
    return time.monotonic() - started, done


@pytest.mark.full
@pytest.mark.parametrize(("arguments", "limit_s"), [((), 5.0), (("--timeout", "1"), 1.0)], ids=["5 s", "as asked"])
def test_the_time_is_kept_whatever_hangs(wedged, tmp_path, arguments, limit_s):
    environment, pids = wedged
    # What starting Python takes on this machine at this moment is not what is tested.
    start_s, _ = seconds_of("--list")
    taken_s, done = seconds_of("--project", str(tmp_path), *arguments, environment=environment)
    assert taken_s < limit_s + 0.5 + 3 * start_s
    assert "passed" in done.stdout
    assert are_gone(pids)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupt_ends_it_at_once_and_leaves_nothing_running(wedged, number):
    environment, pids = wedged
    with subprocess.Popen(
        argv_of("--timeout", "60"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        ends_at = time.monotonic() + 20
        while not pids.exists() and time.monotonic() < ends_at:
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(number)
        started = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 10  # it would have taken a minute
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in err
    assert are_gone(pids)


def stderr_of(*arguments, on_terminal):
    if not on_terminal:
        return subprocess.run(argv_of(*arguments), capture_output=True, text=True, check=False, timeout=60).stderr
    master, slave = pty.openpty()
    with subprocess.Popen(argv_of(*arguments), stdout=subprocess.DEVNULL, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:
                break
            shown += chunk
        process.wait(timeout=60)
    os.close(master)
    return shown.decode()


@pytest.mark.parametrize(
    ("arguments", "on_terminal", "says"),
    [
        pytest.param(["--verbose"], True, True, id="a terminal, and it was asked for"),
        pytest.param([], False, False, id="nobody watches"),
        pytest.param(["--verbose"], False, True, id="nobody watches, but it was asked for"),
    ],
)
def test_steps_are_said_where_somebody_reads_them(arguments, on_terminal, says):
    said = stderr_of(*arguments, on_terminal=on_terminal)
    assert ("devkit: reading this machine (at most 5.0 s)" in said) is says


@pytest.mark.full
def test_the_slow_tiers_are_steps_of_their_own_and_admit_what_they_could_not_try(tmp_path):
    done = subprocess.run(
        argv_of("--deep", "--trial", "--verbose", "--json", "--project", str(tmp_path)),
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    steps = [line for line in done.stderr.splitlines() if line.startswith("devkit: ")]
    assert [step.split()[1] for step in steps] == ["reading", "starting", "trying"], done.stderr
    assert json.loads(done.stdout)["trial"] == "none, because no container engine responds"
    assert done.returncode in (0, 1)


# What a person sees: a real terminal, made of a pseudo-terminal pair.


MISMATCH = facts_file("driver-lib-mismatch")


def on_terminal(*arguments, **environment):
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "devkit", "doctor", "--facts", str(MISMATCH), *arguments]
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen(argv, stdout=slave, stderr=subprocess.DEVNULL, env=clean | environment) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        os.close(master)
        process.wait(timeout=30)
    return shown.decode()
