"""When one process of several fails, all of them end, and one of them says why."""

import json
import signal
import sys

import pytest

torch = pytest.importorskip("torch", reason="the workload extra is not installed")
pytestmark = [
    pytest.mark.workload,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks at processes in /proc"),
]

from tests.amount import every
from tests.workload.finetune.kitchen import Kitchen

EQUAL = 2e-5
"""Relative: sums are taken in another order, in fp32."""


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    return Kitchen(tmp_path_factory.mktemp("kitchen"))


def argv(kitchen, output, *more, **changed):
    fixed = {"model": kitchen.base, "data": kitchen.texts, "output": kitchen.folder / output, "batch": 4, "steps": 4}
    fixed |= {"micro-batch": 2, "learning-rate": 0.005, **changed}
    return ["finetune", "--json", *(word for name, value in fixed.items() for word in (f"--{name}", str(value))), *more]


def losses(run):
    return [each["loss"] for each in run.events("step")]


def record_in(kitchen, output):
    return json.loads((kitchen.folder / output / "run.json").read_text())


@pytest.fixture(scope="module")
def straight(kitchen, zygote):
    """The losses of two processes to whom nothing happens."""
    run = zygote.start(argv(kitchen, "straight"), world=2)
    assert run.ended() == [0, 0], run.said(0)
    return losses(run)


def broken_texts(kitchen):
    path = kitchen.folder / "broken.jsonl"
    path.write_text('{"text": "one"}\n{"text": \n')
    return path


@pytest.mark.parametrize(
    ("changed", "says"),
    every(
        2,
        [
            pytest.param(lambda _: {"steps": 0}, "--steps is 0", id="a setting"),
            pytest.param(lambda kitchen: {"data": broken_texts(kitchen)}, "broken.jsonl:2", id="a line of the data"),
            pytest.param(lambda _: {"targets": "q_prj"}, "q_prj", id="a layer that is not there"),
            pytest.param(lambda _: {"sequence": 4096}, "longer than this model reads", id="rows that are too long"),
            pytest.param(lambda _: {"model": "/nowhere"}, "there is no model /nowhere", id="a model that is not there"),
        ],
    ),
)
def test_an_error_of_all_ranks_is_reported_once(kitchen, zygote, changed, says):
    run = zygote.start(argv(kitchen, "refused", **changed(kitchen)), world=3)
    assert run.ended() == [2, 2, 2], run.said(1)
    assert run.said(0).count("Error: ") == 1
    assert says in run.said(0)
    assert (run.said(1), run.said(2)) == ("", "")


def test_an_error_of_one_node_is_reported_by_that_node(kitchen, zygote, tmp_path):
    """The second process stands for another node, whose disk has no such file."""
    words = argv(kitchen, "other node", data=kitchen.texts.name)
    places = {
        0: {"cwd": str(kitchen.texts.parent)},
        1: {"cwd": str(tmp_path), "environment": {"LOCAL_RANK": "0"}},
    }
    run = zygote.start(words, world=2, places=places)
    assert run.ended() == [2, 2]
    assert run.said(0) == ""
    assert f"Error: there is no file or folder {kitchen.texts.name}" in run.said(1)


@pytest.mark.parametrize("failing", every(2, [1, 0]))
def test_oom_of_one_rank_is_retried_with_half_the_micro_batch_by_all(kitchen, zygote, straight, failing):
    """Each process makes one pass in a step, so that the third is of the third step."""
    places = {failing: {"faults": {"out of memory": [3]}}}
    run = zygote.start(argv(kitchen, f"halved {failing}"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(failing)
    assert [(each["step"], each["next_micro_batch"]) for each in run.events("out-of-memory")] == [(3, 1)]
    assert losses(run) == pytest.approx(straight, rel=EQUAL)
    assert run.said(1) == ""


def test_out_of_memory_again_and_again_saves_and_ends_all_with_one_message(kitchen, zygote):
    places = {1: {"faults": {"out of memory": list(range(3, 100))}}}
    run = zygote.start(argv(kitchen, "too much"), world=2, places=places)
    assert run.ended() == [1, 1]
    assert [(each["how"], each["step"], each["saved"]) for each in run.events("stopped")] == [("out-of-memory", 2, 2)]
    assert run.said(1) == ""
    assert record_in(kitchen, "too much")["status"] == "out-of-memory"


def test_oom_of_a_sharded_rank_is_reported_by_that_rank(kitchen, zygote):
    """FSDP2's processes need each other within every pass: there is no agreeing, and no hanging either."""
    places = {1: {"faults": {"out of memory": [3]}}}
    run = zygote.start(argv(kitchen, "sharded", "--sharding", "zero3"), world=2, places=places)
    assert run.ended() == [2, 1]
    told = [json.loads(line) for line in run.said(1).splitlines() if line.startswith("{")]
    assert [(each["event"], each["how"], each["process"]) for each in told] == [("stopped", "out-of-memory", 1)]
    assert "Error: " not in run.said(0)
    assert record_in(kitchen, "sharded")["status"] == "failed"


def test_a_process_that_dies_at_the_start_is_not_waited_for_as_long_as_for_a_checkpoint(kitchen, zygote):
    places = {rank: {"faults": {"patience": 2.0}} for rank in (0, 2)} | {1: {"faults": {"dies at start": None}}}
    run = zygote.start(argv(kitchen, "never met"), world=3, places=places)
    assert run.ended() == [2, -signal.SIGKILL, 2]
    assert "process 0 of 3 did not find the others" in run.said(0)
    assert "Error: " not in run.said(2), "the first process of the node says it"


def test_a_rank_that_dies_later_is_reported_by_one_and_ends_all(kitchen, zygote):
    run = zygote.start(argv(kitchen, "missed", steps=4000, **{"save-every": 4000}), world=3)
    run.until(lambda: len(run.events("step")) > 1)
    run.send(signal.SIGKILL, 1)
    assert run.ended() == [2, -signal.SIGKILL, 2]
    assert sum(run.said(rank).count("lost another process") for rank in (0, 2)) == 1
    assert record_in(kitchen, "missed")["status"] == "failed"


def test_an_earlier_runs_end_is_never_taken_for_this_ones(kitchen, zygote):
    words = argv(kitchen, "twice", steps=4000, **{"save-every": 4000})
    run = zygote.start(words)
    run.until(lambda: len(run.events("step")) > 1)
    run.send(signal.SIGTERM)
    assert run.ended() == [75]
    assert record_in(kitchen, "twice")["status"] == "preempted"
    run = zygote.start(words, places={0: {"faults": {"dies while it reads": None}}})
    assert run.ended() == [-signal.SIGKILL]
    assert record_in(kitchen, "twice")["status"] == "running"
    run = zygote.start(argv(kitchen, "twice", data=broken_texts(kitchen)))
    assert run.ended() == [2]
    found = record_in(kitchen, "twice")
    assert found["status"] == "failed"
    assert "broken.jsonl:2" in found["error"]


def test_one_process_of_a_node_tokenises_for_all(kitchen, zygote, straight, tmp_path):
    scratch = {"scratch": str(tmp_path)}
    places = {0: {"faults": scratch}, 1: {"faults": {**scratch, "tokenises nothing": None}}}
    run = zygote.start(argv(kitchen, "tokenised once", "--eval-share", "0.25"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    run = zygote.start(argv(kitchen, "tokenised once too"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    assert losses(run) == straight


@pytest.mark.parametrize(
    "places",
    every(
        2,
        [
            pytest.param({0: {"faults": {"scratch": "/proc/nowhere"}}}, id="a disk that takes nothing"),
            pytest.param({1: {"environment": {"LOCAL_RANK": "0"}}}, id="two nodes"),
        ],
    ),
)
def test_without_a_shared_file_each_rank_tokenizes_with_the_same_result(kitchen, zygote, straight, places, request):
    run = zygote.start(argv(kitchen, f"for itself {request.node.callspec.id}"), world=2, places=places)
    assert run.ended() == [0, 0], run.said(1)
    assert losses(run) == straight
