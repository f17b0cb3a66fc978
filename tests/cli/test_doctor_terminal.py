"""What a person sees: a real terminal, made of a pseudo-terminal pair."""

import os
import pty
import subprocess
import sys

import pytest

from tests.hosts.golden import facts_file

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


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
    ids=["colour on a terminal", "none when the user says no"],
)
def test_colour(environment, is_coloured):
    assert ("\x1b[" in on_terminal(**environment)) is is_coloured


def test_the_words_are_there_without_the_colour():
    assert "problem: the loaded NVIDIA module" in on_terminal(TERM="xterm", NO_COLOR="1")
