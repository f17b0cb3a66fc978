"""What is drawn on a terminal: at 60 and 120 columns as in `screens`, and the same content plain elsewhere."""

import io
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from devkit.cli import terminal
from devkit.estimate.memory import Fit
from devkit.facts.model import format_facts
from devkit.solver.output import format_choices
from docs.screens import FOLDER, SCREENS, render_svg, render_text
from tests.cli.test_doctor_process import on_terminal
from tests.forked_commands import run_devkit
from tests.golden import assert_golden
from tests.hosts import facts_of
from tests.render.plans import GPU_PLAN

SNAPSHOTS = Path(__file__).parent / "screens"
WIDTHS = (60, 120)


def without_counts(text):
    """A screen without the number of checks, which every new check changes."""
    return re.sub(r"\d+(?=(?: |&#160;)checks?(?: |&#160;)passed)", "N", text)


@pytest.mark.golden
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_recorded(name):
    screens = [f"===== {width} columns\n{render_text(name, width=width)}" for width in WIDTHS]
    assert_golden(SNAPSHOTS / f"{name}.txt", without_counts("".join(screens)))


@pytest.mark.parametrize("name", SCREENS)
def test_the_pictures_of_the_documentation_are_fresh(name):
    recorded = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert without_counts(recorded) == without_counts(render_svg(name)), "run python -m docs.screens"


@pytest.mark.parametrize("width", [40, 57, 120])
@pytest.mark.parametrize("name", [name for name in SCREENS if name != "up"])  # whose steps are one line each, shortened
def test_no_word_is_broken_and_no_line_but_a_command_is_too_long(name, width):
    words = {word for line in render_text(name, width=200).splitlines() for word in line.split()}
    text = render_text(name, width=width)
    assert {word for word in text.split() if word.strip("╭╮╰╯─│━╸╺")} <= words
    long = [line for line in text.splitlines() if len(line) > width]
    assert all(line.startswith(("      ", "  more: ", "  devkit ", "Next: ", "torch_index ")) for line in long), long


@pytest.mark.parametrize(
    ("environment", "is_colored"),
    [
        pytest.param({"TERM": "xterm"}, True, id="a terminal"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, id="a dumb terminal"),
        pytest.param({"TERM": "xterm", "COLUMNS": "40"}, False, id="40 columns"),
        pytest.param(
            {"TERM": "xterm", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, False, id="ASCII"
        ),
    ],
)
def test_what_a_terminal_gets(environment, is_colored):
    shown = on_terminal(**environment)
    assert ("\x1b[" in shown) is is_colored
    assert "problem: the loaded NVIDIA" in " ".join(shown.split())


def test_a_line_of_a_diff_is_not_folded():
    line = "+" + "of one line " * 10
    terminal.draw_diff(terminal.make_console(drawn := io.StringIO(), width=40), line)
    assert line in drawn.getvalue()


def test_what_is_drawn_without_colors_reads_as_a_text(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = f"{format_choices(GPU_PLAN, width=60)}\n\n✓ more\n"
    terminal.draw_plan(terminal.make_console(drawn := io.StringIO(), width=60), text.removesuffix("\n"))
    assert drawn.getvalue() == text
    gpus = [
        SimpleNamespace(name=name, memory_bytes=memory, count=1, lacks_bf16=False, verdict=Fit.FITS)
        for name, memory in (("large", 100), ("small", 25))
    ]
    peak = SimpleNamespace(device_peak_bytes=SimpleNamespace(point=20, upper=50))
    report = SimpleNamespace(gpus=gpus, estimate=peak)
    terminal.draw_estimate(terminal.make_console(drawn := io.StringIO()), report, "the same as text\n\n! text")
    assert drawn.getvalue().replace(" ", "") == (
        f"✓large{'━' * 4}fits:20Bof100B,atmost50B\n✓small{'━' * 8}fits:20Bof25B,atmost50B\n\n!text\n"
    )
    terminal.draw_estimate(terminal.make_console(drawn := io.StringIO()), SimpleNamespace(gpus=[]), "alone")
    assert drawn.getvalue() == "alone\n"
    assert terminal.draw_bar(0.5, 8).strip() == "━━━━"
    terminal.make_console(drawn := io.StringIO(), width=10).print("x " * 30)
    assert max(map(len, drawn.getvalue().splitlines())) == 40


@pytest.mark.parametrize("style", ["text", "json", "sarif", "markdown", "html", "prometheus", "line"])
def test_a_file_gets_what_a_pipe_gets(tmp_path, style):
    (tmp_path / "facts.json").write_text(format_facts(facts_of("cdi-of-old-driver")))
    words = ("doctor", "--facts", "facts.json", "--format", style)
    printed = run_devkit(*words, cwd=tmp_path).stdout
    assert run_devkit(*words, "--output", "report", cwd=tmp_path).stdout == ""
    times = re.compile(r'"ms": [\d.]+')
    assert times.sub("", (tmp_path / "report").read_text()) == times.sub("", printed)
    assert printed.endswith("\n") and not printed.endswith("\n\n")


@pytest.mark.full
def test_short_work_needs_no_spinner_and_long_work_gets_one(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with terminal.show_status("reading"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("devkit.cli.terminal.SPINNER_DELAY_S", 0.0)
    with terminal.show_status("reading"):
        for _ in range(100):
            threading.Event().wait(0.05)
            if "reading" in (said := capsys.readouterr().err):
                break
    assert "reading" in said


def test_a_step_becomes_its_result(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    steps = terminal.StepPrinter()
    steps("torch …")
    steps("torch passed in 0.1 s")
    steps.close()
    assert capsys.readouterr().err == "\x1b[32mtorch passed in 0.1 s\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    steps = terminal.StepPrinter()
    steps("torch …")
    steps("torch passed in 0.1 s")
    assert capsys.readouterr().err == "torch …\ntorch passed in 0.1 s\n"
