"""What a person sees of a run, on wide and narrow terminals and in logs. Without torch."""

import io
import shlex

import pytest

from devkit.workload.finetune.events import ProgressPrinter, format_step
from tests.cases import cases

STEP = {
    "event": "step",
    "step": 12,
    "loss": 1.23456,
    "learning_rate": 1e-4,
    "gradient_norm": 0.5,
    "tokens": 1000,
    "tokens_per_s": 5432.1,
    "seconds": 0.5,
    "eta_s": 185.0,
    "peak_allocated_bytes": 20 * 1024**3,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_wide_terminal_shows_everything_with_a_bar():
    line = format_step(STEP, steps=48, width=100, draw=lambda share, width: f"[{share:.0%} {width}]")
    assert line == "[25% 32]  step 12/48  loss 1.23  5432 tokens/s  3 min 05 s left  peak 20 GiB"


@pytest.mark.parametrize("width", [20, 30, 48, 60, 79, 100, 120])
def test_a_line_never_is_wider_than_the_terminal(width):
    assert len(format_step(STEP, steps=48, width=width)) <= width


def test_in_a_log_the_first_and_last_step_stand_and_few_between():
    out = io.StringIO()
    progress = ProgressPrinter(out, io.StringIO(), width=lambda: 80)
    progress({"event": "start", "step": 0, "steps": 50, "rows": 9, "trainable_parameters": 100, "page": "run.html"})
    for step in range(1, 51):
        progress({**STEP, "step": step})
    steps = [line for line in out.getvalue().splitlines() if "step " in line and "/50" in line]
    assert len(steps) == 4
    assert "step 1/50" in steps[0] and "step 50/50" in steps[-1]


@cases(
    "event, said",
    {
        "a decision": (
            {"event": "decision", "name": "micro_batch", "value": "4", "because": "set by the user"},
            "micro batch: 4 - set by the user\n",
        ),
        "a step passed over": (
            {"event": "skipped", "step": 7, "loss": "nan", "gradient_norm": "nan"},
            "step 7: skipped, loss nan, gradient norm nan\n",
        ),
        "too little memory": (
            {"event": "out-of-memory", "step": 7, "micro_batch": 8, "next_micro_batch": 4},
            "step 7: out of memory with a micro-batch of 8 rows\nretrying with 4\n",
        ),
        "no end in sight": (
            {"event": "stopped", "step": 7, "how": "not-finite", "saved": -1},
            "stopped at step 7 (not-finite), nothing was saved\n",
        ),
        "an event that is not known": ({"event": "of a later release"}, ""),
    },
)
def test_events_are_formatted_for_people(event, said):
    out = io.StringIO()
    ProgressPrinter(out, io.StringIO(), width=lambda: 200)(event)
    assert out.getvalue().startswith(said)


def test_without_reasons_the_decisions_are_one_line_before_what_follows():
    out = io.StringIO()
    progress = ProgressPrinter(out, io.StringIO(), width=lambda: 200, has_reasons=False)
    for name, value in (("precision", "bf16"), ("micro_batch", "4")):
        progress({"event": "decision", "name": name, "value": value, "because": "it fits"})
    assert out.getvalue() == ""
    progress({"event": "note", "text": "something"})
    decided, note = out.getvalue().splitlines()
    assert decided.startswith("decided: precision bf16, micro batch 4 ") and "it fits" not in decided
    assert note == "note: something"


@pytest.mark.parametrize(("folder", "flag"), [("tuned/adapter", "--adapter"), ("my runs/model", "--model")])
def test_the_end_says_what_to_run_next(folder, flag):
    out = io.StringIO()
    end = {"event": "end", "how": "done", "first_loss": 2.0, "last_loss": 1.0, "step": 2, "tokens": 9, "result": folder}
    ProgressPrinter(out, io.StringIO(), width=lambda: 200)(end | {"tokens_per_s": 1.0})
    command = shlex.split(out.getvalue().splitlines()[-1].removeprefix("Try it: "))
    assert command == ["devkit", "generate", flag, folder, "--prompt", "..."]


def test_of_a_run_that_skipped_every_step_no_loss_is_made_up():
    out = io.StringIO()
    end = {"event": "end", "how": "done", "first_loss": None, "last_loss": None, "step": 2, "tokens": 9}
    ProgressPrinter(out, io.StringIO())(end | {"tokens_per_s": 1.0, "result": "out/adapter"})
    assert out.getvalue().startswith("done: every step was skipped, so the model learned nothing in 2 steps")


def test_while_texts_are_read_a_line_counts_and_is_gone_before_anything_else(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out, err = io.StringIO(), Terminal()
    progress = ProgressPrinter(out, err, width=lambda: 60)
    progress({"event": "reading", "records": 1000, "seconds": 0.5})
    progress({"event": "reading", "records": 23000, "seconds": 11.0})
    assert err.getvalue() == "\r\x1b[Kreading: 1000 records in 0.5 s\r\x1b[Kreading: 23000 records in 11 s"
    progress.clear()
    assert err.getvalue().endswith("11 s\r\x1b[K")
    assert out.getvalue() == ""


def test_in_a_log_reading_is_printed_only_when_it_takes_long():
    out = io.StringIO()
    progress = ProgressPrinter(out, io.StringIO(), width=lambda: 80)
    for half_seconds in range(50):
        progress({"event": "reading", "records": 1000 * half_seconds, "seconds": half_seconds / 2})
    assert out.getvalue() == "reading: 20000 records in 10 s\nreading: 40000 records in 20 s\n"
