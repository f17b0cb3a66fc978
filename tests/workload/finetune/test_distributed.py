"""Several processes learn what one learns from the same batch, save together, and go on in another number."""

import signal
import sys
from functools import cache

import pytest

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]

from tests.workload.finetune.command_line import finetune_words, losses, norms, unless_given

STEPS = 4
EQUAL = 2e-5
"""Relative: sums are taken in another order, in fp32, and each step's rounding moves the next."""


def argv(run_factory, output, *more):
    fixed = {"model": run_factory.base, "data": run_factory.texts, "output": output, "steps": STEPS}
    return finetune_words(*more, **fixed, **unless_given(more, precision="fp32", learning_rate=0.005))


def ran(run_factory, zygote, name, *more, world=1):
    run = zygote.start(argv(run_factory, run_factory.folder / name, *more), world=world)
    assert run.ended() == [0] * world, [run.said(rank) for rank in range(world)]
    return run


ALONE = {
    "lora": ("--batch", "4"),
    "full": ("--batch", "4", "--method", "full", "--learning-rate", "0.001"),
    "qlora": ("--batch", "4", "--method", "qlora"),
    "qlora in bf16": ("--batch", "4", "--method", "qlora", "--dtype", "bf16"),
    "uneven": ("--batch", "5", "--micro-batch", "2"),
    "packed": ("--batch", "2", "--packing", "--max-length", "64"),
    "adapter in bf16": ("--batch", "4", "--dtype", "bf16", "--adapter-dtype", "fp32"),
}


@pytest.fixture(scope="module")
def alone(run_factory, zygote):
    """The run of one process, by case; made when it is first asked for."""
    return cache(lambda case: ran(run_factory, zygote, f"alone {case}", *ALONE[case]))


@pytest.mark.parametrize(
    ("case", "sharding", "within"),
    [
        ("lora", "ddp", EQUAL),
        ("lora", "zero2", EQUAL),
        ("lora", "zero3", EQUAL),
        ("full", "ddp", EQUAL),
        ("full", "zero3", EQUAL),
        ("qlora", "ddp", EQUAL),
        ("qlora", "zero3", EQUAL),
        ("qlora in bf16", "zero3", 5e-3),
        ("uneven", "ddp", EQUAL),
        ("uneven", "zero3", EQUAL),
        ("packed", "ddp", EQUAL),
        ("adapter in bf16", "zero3", 5e-3),
    ],
)
def test_two_processes_have_the_losses_of_one(run_factory, zygote, alone, case, sharding, within):
    both = ran(run_factory, zygote, f"{case} {sharding}", *ALONE[case], "--sharding", sharding, world=2)
    one = alone(case)
    assert losses(both) == pytest.approx(losses(one), rel=within)
    # AdamW would hide gradients that are all twice as long.
    assert norms(both) == pytest.approx(norms(one), rel=10 * within)
    assert both.events("start")[0]["world"] == 2
    assert both.said(1) == "", "the second process has nothing to say"


def test_another_batch_has_other_losses(run_factory, zygote, alone):
    """Were it not so, the comparison above would show nothing."""
    other = ran(run_factory, zygote, "other batch", "--batch", "3")
    assert losses(other)[1:] != pytest.approx(losses(alone("lora"))[1:], rel=100 * EQUAL)


@pytest.mark.parametrize("case", ["lora", "full", "qlora"])
def test_a_sharded_run_resumes_bitwise_identically_and_in_one_process_too(run_factory, zygote, alone, case):
    straight = ran(run_factory, zygote, f"straight {case}", *ALONE[case], "--sharding", "zero3", world=2)
    for world in (2, 1):
        name = f"stopped {case} {world}"
        words = argv(run_factory, run_factory.folder / name, *ALONE[case], "--sharding", "zero3")
        run = zygote.start(words, world=2)
        run.until(lambda run=run: len(run.events("step")) > 1)
        run.send(signal.SIGTERM, 1)
        assert run.ended() == [75, 75], run.said(0)
        before = losses(run)
        same = ("--sharding", "zero3") if world == 2 else ()
        after = ran(run_factory, zygote, name, *ALONE[case], *same, world=world)
        if world == 2:
            assert before + losses(after) == losses(straight)
        else:
            assert before + losses(after) == pytest.approx(losses(alone(case)), rel=EQUAL)
            assert any("saved by 2 processes, resumed by 1 process" in note["text"] for note in after.events("note"))


def test_what_cannot_be_sharded_is_refused_by_all(run_factory, zygote):
    words = argv(run_factory, run_factory.folder / "refused", "--method", "int8-lora", "--sharding", "zero3")
    run = zygote.start(words, world=2)
    assert run.ended() == [2, 2]
    assert "int8-lora does not work with zero3" in run.said(0)
