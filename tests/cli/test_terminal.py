"""What is drawn on a terminal: at 60, 80 and 120 columns as recorded, and the same content plain elsewhere.

`python -m tests.cli.test_terminal` records the screens anew.
"""

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from devkit.cli.terminal import StepPrinter, draw_diff, draw_text, is_drawn, make_console, show_status
from docs.screens import FOLDER, SCREENS, render_svg, render_text
from tests.cli.test_doctor_terminal import on_terminal

SNAPSHOTS = Path(__file__).parent / "screens"
WIDTHS = (60, 80, 120)


def without_counts(text):
    """A screen without the number of checks, which every new check changes."""
    return re.sub(r"\d+(?= |&#160;)(?=.{1,6}(passed|skipped))", "N", text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_recorded(name, width):
    recorded = (SNAPSHOTS / f"{name}-{width}.txt").read_text(encoding="utf-8")
    assert without_counts(render_text(name, width=width)) == without_counts(recorded)


@pytest.mark.parametrize("name", SCREENS)
def test_the_pictures_of_the_documentation_are_fresh(name):
    recorded = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert without_counts(recorded) == without_counts(render_svg(name)), "run python -m docs.screens"


@pytest.mark.parametrize("width", [40, 57, 60, 80, 120, 200])
@pytest.mark.parametrize("name", SCREENS)
def test_no_word_is_broken_and_no_line_but_a_command_is_too_long(name, width):
    words = {word for line in render_text(name, width=200).splitlines() for word in line.split()}
    text = render_text(name, width=width)
    assert {word for word in text.split() if word.strip("╭╮╰╯─│")} <= words
    long = [line for line in text.splitlines() if len(line) > width]
    assert all(line.startswith(("      ", "  more: ")) for line in long), long


@pytest.mark.parametrize(
    ("environment", "is_picture", "is_colored"),
    [
        pytest.param({"TERM": "xterm"}, True, True, id="a terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, True, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, False, id="a dumb terminal"),
    ],
)
def test_what_a_terminal_gets(environment, is_picture, is_colored):
    shown = on_terminal(**environment)
    assert ("╭──" in shown) is is_picture
    assert ("\x1b[" in shown) is is_colored
    assert "problem: the loaded NVIDIA" in " ".join(shown.split())


def test_a_screen_reader_gets_plain_text():
    argv = [sys.executable, "-m", "devkit", "--plain", "plan", "--vendor", "cpu", "--no-resolve"]
    environ = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=True)
    assert "\x1b" not in done.stdout


def test_a_pipe_is_drawn_on_only_by_force(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not is_drawn(stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert is_drawn(stream)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_drawn(stream)


def test_a_diff_and_signs_are_colored_and_their_text_stays():
    stream = io.StringIO()
    console = make_console(stream, width=80)
    draw_diff(console, "@@ -1 +1 @@\n-old [bold]x[/bold]\n+new")
    draw_text(console, "✗ conflict: a/path:3\nplain")
    shown = stream.getvalue()
    assert "\x1b[31m-old [bold]x[/bold]" in shown
    assert "\x1b[1;31m✗ conflict: a/path:3" in shown


def test_short_work_needs_no_spinner_and_long_work_gets_one(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with show_status("reading"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("devkit.cli.terminal.SPINNER_DELAY_S", 0.0)
    with show_status("reading"):
        for _ in range(100):
            threading.Event().wait(0.05)
            if "reading" in (said := capsys.readouterr().err):
                break
    assert "reading" in said


def test_a_step_becomes_its_result(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    steps = StepPrinter()
    steps("torch …")
    steps("torch passed in 0.1 s")
    steps.close()
    assert capsys.readouterr().err == "\x1b[32mtorch passed in 0.1 s\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    steps = StepPrinter()
    steps("torch …")
    steps("torch passed in 0.1 s")
    assert capsys.readouterr().err == "torch …\ntorch passed in 0.1 s\n"


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for name in SCREENS:
        for width in WIDTHS:
            (SNAPSHOTS / f"{name}-{width}.txt").write_text(render_text(name, width=width), encoding="utf-8")
