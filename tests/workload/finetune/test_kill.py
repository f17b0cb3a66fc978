"""Runs that are killed at random moments, again and again, end as if nobody had touched them.

The real command in processes of its own. What is drawn is drawn from a seed; where exactly in a step or a save the
signal arrives is up to the machine, so that each time this is run, it tries other moments.
"""

import json
import random
import re
import signal
import sys
import time
from functools import cache

import pytest

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]

from devkit.workload.finetune.checkpoint import list_checkpoints, verify_checkpoint
from devkit.workload.finetune.run_folder import LEFTOVER
from tests.workload.finetune.command_line import finetune_words

STEPS, SAVE_EVERY = 9, 2
KILLS_OF_A_RUN = 2
LONGEST_STEP_S = 0.03
PREEMPTED = 75


@pytest.fixture(scope="module")
def untouched(run_factory, zygote):
    """What runs come to when nobody touches them, by processes and how these share the model."""
    return cache(
        lambda world, *sharing: Outcome(
            run_to_its_end(run_factory, zygote, run_factory.folder / f"untouched-{world}-{sharing}", world, *sharing)
        )
    )


class Outcome:
    """What is compared: each step's loss as it was written, and the adapter's bytes."""

    def __init__(self, output):
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        self.losses = [(each["step"], each["loss"]) for each in lines if each["event"] == "step"]
        self.adapter = (output / "latest" / "adapter_model.safetensors").read_bytes()

    def __eq__(self, other):
        return (self.losses, self.adapter) == (other.losses, other.adapter)


def argv(run_factory, output, *sharing, **changed):
    places = {"model": run_factory.base, "data": run_factory.texts, "output": output}
    how = {"batch": 4, "micro_batch": 1, "steps": STEPS, "save_every": SAVE_EVERY, "seed": 3}
    numbers = {"dropout": 0.2, "learning_rate": 0.005, "precision": "fp32"}
    return finetune_words(*sharing, **places | how | numbers | changed)


def run_to_its_end(run_factory, zygote, output, world, *sharing):
    run = zygote.start(argv(run_factory, output, *sharing), world=world)
    assert run.ended() == [0] * world, run.said(0)
    return output


def last_saved(output):
    """The step of the newest checkpoint that is whole, 0 for none."""
    for number, path in list_checkpoints(output):
        verify_checkpoint(path)
        return number
    return 0


def is_saving(output):
    return lambda: output.is_dir() and any(re.fullmatch(r"step-\d+\.tmp", path.name) for path in output.iterdir())


def hit(run, output, draw, *, number, ranks=(), in_a_save):
    """Send the signal at a random moment: of the whole run, or of a save."""
    if in_a_save:
        run.until(is_saving(output))
        time.sleep(draw.uniform(0, 0.12))
    else:
        steps = draw.randrange(5)
        run.until(lambda: len(run.events("step", "start")) > steps)
        time.sleep(draw.uniform(0, LONGEST_STEP_S))
    run.send(number, *ranks)


def check_nothing_was_lost(run, output, before):
    """What was said to be saved is there, and a run that was asked to end saved every step that it took."""
    saved = last_saved(output)
    assert saved >= max([before, *(each["step"] for each in run.events("checkpoint"))])
    if PREEMPTED in run.codes:
        assert saved == max([before, *(each["step"] for each in run.events("step"))])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1], ids=lambda number: number.name)
@pytest.mark.parametrize("in_a_save", [False, True], ids=["at any time", "in a save"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_is_killed_repeatedly_ends_as_an_uninterrupted_one(
    run_factory, zygote, untouched, number, in_a_save, seed
):
    draw = random.Random(f"{number} {in_a_save} {seed}")
    output = run_factory.folder / f"one-{number}-{in_a_save}-{seed}"
    for _ in range(KILLS_OF_A_RUN):
        before = last_saved(output)
        run = zygote.start(argv(run_factory, output), slow_disk_s=0.015 if in_a_save else 0.0)
        hit(run, output, draw, number=number, in_a_save=in_a_save)
        code = run.ended()[0]
        assert code in (0, PREEMPTED, -number), run.said(0)
        # Before the command listens to signals, and after its last step, they end it as they end anything.
        assert code != -number or number == signal.SIGKILL or not run.events("step") or run.events("end")
        check_nothing_was_lost(run, output, before)
    run_to_its_end(run_factory, zygote, output, 1)
    assert Outcome(output) == untouched(1)
    assert not [path.name for path in output.iterdir() if LEFTOVER.fullmatch(path.name)]


PARTS = ("--sharding", "zero3")


@pytest.mark.parametrize(
    ("number", "ranks", "sharing"),
    [
        pytest.param(signal.SIGTERM, (1,), (), id="SIGTERM to the second"),
        pytest.param(signal.SIGUSR1, (), (), id="SIGUSR1 to both"),
        pytest.param(signal.SIGKILL, (), (), id="SIGKILL to both"),
        pytest.param(signal.SIGKILL, (0,), (), id="SIGKILL to the first"),
        pytest.param(signal.SIGTERM, (1,), PARTS, id="SIGTERM to the second of those with a part each"),
        pytest.param(signal.SIGKILL, (), PARTS, id="SIGKILL to both of those with a part each"),
    ],
)
def test_two_ranks_stop_together_and_resume_as_if_uninterrupted(run_factory, zygote, untouched, number, ranks, sharing):
    draw = random.Random(f"{number} {ranks}")
    output = run_factory.folder / f"two-{number}-{ranks}-{sharing}"
    for in_a_save in (False, True):
        before = last_saved(output)
        run = zygote.start(argv(run_factory, output, *sharing), world=2, slow_disk_s=0.015 if in_a_save else 0.0)
        hit(run, output, draw, number=number, ranks=ranks, in_a_save=in_a_save)
        hit_at_s = time.monotonic()
        codes = run.ended()
        assert time.monotonic() - hit_at_s < 30
        check_codes(run, codes, number, ranks)
        check_nothing_was_lost(run, output, before)
    run_to_its_end(run_factory, zygote, output, 2, *sharing)
    assert Outcome(output) == untouched(2, *sharing)


def check_codes(run, codes, number, ranks):
    """Asked to end, both save and leave alike; the one that a killed one leaves behind says so in one line."""
    if number != signal.SIGKILL:
        assert codes == [PREEMPTED] * 2, [run.said(0), run.said(1)]
        return
    left = [rank for rank in (0, 1) if ranks and rank not in ranks]
    for rank in left:
        assert codes[rank] == 69, run.said(rank)
        assert f"process {rank} lost another process of this run" in run.said(rank)
        assert "Traceback" not in run.said(rank)


def test_a_run_resumes_with_another_micro_batch(run_factory, zygote):
    """Without dropout, which draws in another order then: only the rounding differs."""
    straight = run_factory.folder / "same-passes"
    assert zygote.start(argv(run_factory, straight, dropout=0.0)).ended() == [0]
    output = run_factory.folder / "other-passes"
    run = zygote.start(argv(run_factory, output, dropout=0.0))
    run.until(lambda: len(run.events("step")) > 3)
    run.send(signal.SIGTERM)
    assert run.ended() == [PREEMPTED]
    assert zygote.start(argv(run_factory, output, dropout=0.0, micro_batch=4)).ended() == [0]
    losses = dict(Outcome(output).losses)
    assert losses == pytest.approx(dict(Outcome(straight).losses), rel=1e-5)
