"""bitsandbytes' optimizers where each process has a part of every weight: they move it as the whole would be moved."""

import signal
import sys

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")
pytest.importorskip("bitsandbytes", reason="the workload extra is not installed")
pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]

from functools import cache

from tests.workload.finetune.command_line import finetune_words, losses
from tests.workload.finetune.run_factory import TEXTS, write_base, write_texts
from tests.workload.small_models import save_model

EQUAL = 2e-5
"""Relative: sums are taken in another order, in fp32, and a number at the border of two 8-bit ones falls to either."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_texts(folder / "texts.jsonl", TEXTS)
    # Rows of whole blocks, and rows that are not.
    save_model(folder / "wide", hidden_size=256, intermediate_size=512)
    write_base(folder / "narrow")
    save_model(folder / "broad", intermediate_size=2048)
    return folder


def argv(folder, output, base, optimizer, *more, method="full"):
    places = {"model": folder / base, "data": folder / "texts.jsonl", "output": folder / output}
    how = {"method": method, "optimizer": optimizer, "precision": "fp32", "steps": 4, "batch": 4}
    return finetune_words(*more, **places, **how, learning_rate=0.001)


def ran(zygote, words, world):
    shared = ("--sharding", "zero3") if world > 1 else ()
    run = zygote.start([*words, *shared], world=world)
    assert run.ended() == [0] * world, [run.said(rank) for rank in range(world)]
    return losses(run)


@pytest.fixture(scope="module")
def straight(folder, zygote):
    """The losses of a run to which nothing happens; made when they are first asked for."""
    return cache(
        lambda base, optimizer, world: ran(
            zygote, argv(folder, f"straight {base} {optimizer} {world}", base, optimizer), world
        )
    )


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "paged-adamw-8bit", "paged-adamw"])
def test_two_ranks_update_weights_as_one_does(straight, optimizer):
    assert straight("wide", optimizer, 2) == pytest.approx(straight("wide", optimizer, 1), rel=EQUAL)


def test_rows_that_are_no_whole_blocks_have_states_in_32_bits(straight):
    assert straight("narrow", "adamw-8bit", 2) == pytest.approx(straight("narrow", "paged-adamw", 1), rel=EQUAL)


def test_a_process_without_a_part_of_a_weight_in_8_bits_is_not_waited_for(folder, zygote):
    """An adapter's first half has two rows of 2048 numbers, whose states are kept in 8 bits."""
    words = argv(folder, "two rows", "broad", "adamw-8bit", "--rank", "2", "--batch", "3", method="lora")
    alone = argv(folder, "two rows alone", "broad", "adamw-8bit", "--rank", "2", "--batch", "3", method="lora")
    # Rows of the second half are no whole blocks: its states are kept in 32 bits.
    assert ran(zygote, words, 3) == pytest.approx(ran(zygote, alone, 1), rel=1e-3)


@pytest.mark.parametrize(
    ("base", "before", "after"),
    [
        pytest.param("wide", 2, 2, id="as many processes"),
        pytest.param("wide", 2, 1, id="one process in the place of two"),
        pytest.param("narrow", 1, 2, id="two processes that unpack the states of one"),
    ],
)
def test_a_run_resumes_with_its_optimizer_states(folder, zygote, straight, base, before, after):
    words = argv(folder, f"stopped {base} {before} {after}", base, "adamw-8bit")
    run = zygote.start([*words, *(("--sharding", "zero3") if before > 1 else ())], world=before, slow_disk_s=0.02)
    run.until(lambda: len(run.events("step")) > 1)
    run.send(signal.SIGTERM, 0)
    assert run.ended() == [75] * before, run.said(0)
    done = losses(run)
    assert 1 < len(done) < 4
    whole = done + ran(zygote, words, after)
    if before == after:
        assert whole == straight(base, "adamw-8bit", before)
    else:
        # One that keeps them in 8 bits and one that does not move weights a little apart.
        within = EQUAL if base == "wide" else 1e-3
        assert whole == pytest.approx(straight(base, "adamw-8bit", before), rel=within)
