"""When one process of several fails, all of them end, and say why."""

import json
import signal
import sys

import pytest

from tests.cases import cases

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]

from tests.workload.finetune.command_line import finetune_words, losses
from tests.workload.finetune.zygote import is_running

EQUAL = 2e-5
"""Relative: sums are taken in another order, in fp32."""


def record_in(run_factory, output):
    return json.loads((run_factory.folder / output / "run.json").read_text())


def argv(run_factory, output, *more, **changed):
    places = {"model": run_factory.base, "data": run_factory.texts, "output": run_factory.folder / output}
    how = {"batch": 4, "micro_batch": 2, "steps": 4, "learning_rate": 0.005, "precision": "fp32"}
    return finetune_words(*more, **places | how | changed)


@pytest.fixture(scope="module")
def straight(run_factory, zygote):
    """The losses of two processes to whom nothing happens."""
    run = zygote.start(argv(run_factory, "straight"), world=2)
    assert run.ended() == [0, 0], run.said(0)
    return losses(run)


def broken_texts(run_factory):
    path = run_factory.folder / "broken.jsonl"
    path.write_text('{"text": "one"}\n{"text": \n')
    return path


@cases(
    "changed, says, times",
    {
        "a setting, before they have met": (lambda _: {"steps": 0}, "--steps is 0", [1, 1, 1]),
        "a line of data": (lambda run_factory: {"data": broken_texts(run_factory)}, "broken.jsonl:2", [1, 0, 0]),
        "no such model": (lambda _: {"model": "/nowhere"}, "the model /nowhere does not exist", [1, 0, 0]),
    },
)
def test_an_error_of_ranks_that_have_met_is_reported_once(run_factory, zygote, changed, says, times):
    run = zygote.start(argv(run_factory, "refused", **changed(run_factory)), world=3)
    assert run.ended() == [2, 2, 2], run.said(1)
    assert [run.said(rank).count("Error: ") for rank in range(3)] == times
    assert says in run.said(0)


def test_an_error_of_one_node_is_reported_by_that_node(run_factory, zygote, tmp_path):
    """The second process stands for another node, whose disk has no such file."""
    words = argv(run_factory, "other node", data=run_factory.texts.name)
    places = {0: {"cwd": str(run_factory.texts.parent)}, 1: {"cwd": str(tmp_path), "environment": {"LOCAL_RANK": "0"}}}
    run = zygote.start(words, world=2, places=places)
    assert run.ended() == [2, 2]
    assert run.said(0) == ""
    assert f"Error: no file or folder {run_factory.texts.name}" in run.said(1)


@pytest.mark.parametrize("failing", [1, 0])
def test_oom_of_one_rank_is_retried_with_half_the_micro_batch_by_all(run_factory, zygote, straight, failing):
    """Each process makes one pass in a step, so that the third is of the third step."""
    places = {failing: {"faults": {"out of memory": [3]}}}
    run = zygote.start(argv(run_factory, f"halved {failing}"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(failing)
    assert [(each["step"], each["next_micro_batch"]) for each in run.events("out-of-memory")] == [(3, 1)]
    assert losses(run) == pytest.approx(straight, rel=EQUAL)
    assert run.said(1) == ""


def test_out_of_memory_again_and_again_saves_and_ends_all_with_one_message(run_factory, zygote):
    places = {1: {"faults": {"out of memory": list(range(3, 100))}}}
    run = zygote.start(argv(run_factory, "too much"), world=2, places=places)
    assert run.ended() == [1, 1]
    assert [(each["how"], each["step"], each["saved"]) for each in run.events("stopped")] == [("out-of-memory", 2, 2)]
    assert run.said(1) == ""
    assert record_in(run_factory, "too much")["status"] == "out-of-memory"


def test_oom_of_a_sharded_rank_is_reported_by_that_rank(run_factory, zygote):
    """FSDP2's processes need each other within every pass: there is no agreeing, and no hanging either."""
    places = {1: {"faults": {"out of memory": [3]}}}
    run = zygote.start(argv(run_factory, "sharded", "--sharding", "zero3"), world=2, places=places)
    assert run.ended() == [69, 1]
    told = [json.loads(line) for line in run.said(1).splitlines() if line.startswith("{")]
    assert [(each["event"], each["how"], each["process"]) for each in told] == [("stopped", "out-of-memory", 1)]
    assert "lost another process" in run.said(0)
    assert record_in(run_factory, "sharded")["status"] == "failed"


def test_a_process_that_dies_at_the_start_is_waited_for_until_the_timeout(run_factory, zygote):
    places = {1: {"faults": {"dies at start": None}}}
    run = zygote.start(argv(run_factory, "never met", timeout=4), world=3, places=places)
    assert run.ended() == [2, -signal.SIGKILL, 2]
    assert "process 0 of 3 did not find the others" in run.said(0)
    assert "Error: " not in run.said(2), "the first process of the node says it"


def test_the_loss_of_rank0_is_recorded_by_another(run_factory, zygote):
    run = zygote.start(argv(run_factory, "headless", steps=4000, **{"save_every": 4000}), world=2)
    run.until(lambda: len(run.events("step")) > 1)
    run.send(signal.SIGKILL, 0)
    assert run.ended() == [-signal.SIGKILL, 69]
    record = record_in(run_factory, "headless")
    assert (record["status"], record["error"][:16]) == ("failed", "rank 0 was lost:")


@pytest.mark.parametrize("stopped", [0, 1])
def test_the_others_of_a_stopped_rank_end_after_the_timeout(run_factory, zygote, stopped):
    words = argv(run_factory, f"stopped {stopped}", steps=4000, **{"save_every": 4000, "timeout": 6})
    run = zygote.start(words, world=3)
    run.until(lambda: len(run.events("step")) > 1)
    run.send(signal.SIGSTOP, stopped)
    others = [rank for rank in range(3) if rank != stopped]
    run.until(lambda: not any(is_running(run.pids[rank]) for rank in others))
    run.send(signal.SIGKILL, stopped)
    assert [code for rank, code in enumerate(run.ended()) if rank != stopped] == [69, 69]
    assert all("lost another process" in run.said(rank) for rank in others)


def test_two_nodes_tokenize_with_the_same_result(run_factory, zygote, straight):
    places = {1: {"environment": {"LOCAL_RANK": "0"}}}
    run = zygote.start(argv(run_factory, "on two nodes", "--set", "eval_share=0.25"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    run = zygote.start(argv(run_factory, "on two nodes too"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    assert losses(run) == straight
