"""A workspace ends when it is idle: as process 1 of namespaces of its own, where no other process is seen."""

import os
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
        reason="needs root and unshare for namespaces of its own",
    ),
]
BESIDE = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child", "bash", "-c"]


def kept(beside, *words, idle="1"):
    """How a workspace ends beside a line of shell, and after how many seconds."""
    line = f'mount -t tmpfs none /dev/pts; {beside}\nexec "$@"'
    launch = [sys.executable, "-m", "devkit", "launch", "--idle", idle, *words]
    began = time.monotonic()
    done = subprocess.run([*BESIDE, line, "bash", *launch], capture_output=True, text=True, timeout=60)
    return done.returncode, time.monotonic() - began, done.stderr


def test_it_ends_when_nothing_works_though_something_waits():
    code, _, said = kept("sleep 50 &")
    assert (code, said) == (0, "devkit: idle for 1 s: the workspace ends\n")


@pytest.mark.parametrize(
    "work", ["timeout 3 bash -c 'while :; do :; done' &", "(for _ in {1..30}; do sleep 0.1; : >/dev/pts/0; done) &"]
)
def test_processes_that_compute_and_terminals_in_use_keep_it(work):
    code, seconds, _ = kept(work)
    assert code == 0
    assert seconds > 3


def test_a_request_to_stop_starts_it_elsewhere():
    assert kept("(sleep 1; kill -TERM 1) &", idle="50")[0] == 75


def test_a_command_ends_it_with_its_own_code_and_is_hung_up_on_by_idleness():
    assert kept("", "sh", "-c", "exit 7", idle="50")[0] == 7
    assert kept("", "sh", "-c", "trap '' TERM; sleep 50")[0] == 0
