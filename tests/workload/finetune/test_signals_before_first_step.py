"""A signal while texts are read or the model is loaded ends the run there: nobody waits for a step to save."""

import json
import signal
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]


ROWS = 400_000
"""Texts that take many seconds to read."""


@pytest.fixture
def reading(run_factory, zygote, tmp_path):
    """Starts a run that is still reading its texts, and will be for a while: there are many."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "one two three four five six seven eight"}\n' * ROWS)

    def start(*more, world=1, places=None):
        words = ["finetune", "--model", str(run_factory.base), "--data", str(texts), "--output", str(tmp_path / "out")]
        run = zygote.start([*words, *more], world=world, places=places)
        run.until(lambda: (tmp_path / "out" / "run.json").exists())
        return run

    return start


def has_open(pid, path):
    """Return whether a process has the file open."""
    try:
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it closed one meanwhile, or ended
        return False


def status(folder):
    return json.loads((folder / "out" / "run.json").read_text())["status"]


@pytest.mark.parametrize(
    ("number", "code", "how"),
    [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 130, "interrupted"), (signal.SIGHUP, 75, "preempted")],
)
def test_a_signal_while_texts_are_read_ends_the_run_at_once(reading, tmp_path, number, code, how):
    run = reading("--json")
    run.send(number)
    assert run.ended() == [code]
    assert run.events() == [{"event": "stopped", "step": None, "how": how, "saved": None}]
    assert status(tmp_path) == how
    assert run.said(0).count("\n") == 1


@pytest.mark.parametrize(("ranks", "codes"), [((), [75, 75]), ((0,), [75, 69])], ids=["both hear it", "one hears it"])
def test_processes_that_wait_for_the_one_that_reads_leave_with_it(reading, tmp_path, ranks, codes):
    run = reading("--json", world=2)
    run.send(signal.SIGTERM, *ranks)
    assert run.ended() == codes, run.said(1)
    assert [each["how"] for each in run.events()] == ["preempted"]
    assert status(tmp_path) == "preempted"


def test_a_dry_run_exits_silently(reading, run_factory, zygote, tmp_path):
    texts = tmp_path / "texts.jsonl"
    words = ["finetune", "--model", str(run_factory.base), "--data", str(texts), "--output", str(tmp_path / "out")]
    run = zygote.start([*words, "--dry-run"])
    run.until(lambda: has_open(run.pids[0], texts))
    run.send(signal.SIGTERM)
    assert run.ended() == [75]
    assert run.said(0) == ""
    assert not (tmp_path / "out").exists()
