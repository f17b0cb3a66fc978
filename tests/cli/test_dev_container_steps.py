"""The steps of `devkit up`: lines that become their results on a terminal, plain lines where they are piped."""

import os
import pty
import re
import subprocess
import sys

import pytest

PROGRAM = """
from devkit.cli.dev_container import BuildSteps
steps = BuildSteps()
steps.begin("build 1/2 RUN " + "long " * 60)
steps.end("build 1/2 RUN " + "long " * 60)
steps.begin("build 2/2 RUN cached")
steps.drop("build 2/2 RUN cached")
steps.say("the build took 1 step from its cache")
steps.begin("start the container")
steps.end("start the container", is_failed=True)
"""
ENV = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}


def test_piped_every_result_is_a_plain_line():
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=ENV, stderr=subprocess.PIPE, text=True, check=True)
    lines = done.stderr.splitlines()
    assert "\x1b" not in done.stderr
    assert re.fullmatch(r"✓ build 1/2 RUN long .*…  0\.\d s", lines[0])
    assert lines[1] == "  the build took 1 step from its cache"
    assert re.fullmatch(r"✗ start the container  failed after 0\.\d s", lines[2])
    assert len(lines) == 3


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_on_a_terminal_a_step_is_one_line_that_becomes_its_result(columns):
    main, other = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**ENV, "COLUMNS": str(columns)}, stdout=other, stderr=other
    ) as running:
        os.close(other)
        said = b""
        try:
            while part := os.read(main, 4096):
                said += part
        except OSError:
            pass  # the program has ended
    os.close(main)
    assert running.returncode == 0, said
    # What a line was before it became its result is erased.
    shown = [line.split("\r\x1b[K")[-1] for line in said.decode().replace("\r\n", "\n").split("\n")]
    assert [line[:20].strip() for line in shown if line] == [
        "✓ build 1/2 RUN long",
        "the build took 1 s",
        "✗ start the containe",
    ]
    assert max(map(len, shown)) <= columns
    assert "… build 2/2 RUN cached" in said.decode()


def test_an_encoding_without_marks_gets_others():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**ENV, "PYTHONIOENCODING": "ascii"}, stderr=subprocess.PIPE, check=True
    )
    assert b"Traceback" not in done.stderr and b"start the container" in done.stderr
