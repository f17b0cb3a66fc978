"""What a training run left behind, judged."""

import pytest

from devkit.facts.runs import TrainingRun, WatchedGpu
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import GIB, changed, inside
from tests.doctor.running import find_codes

UNREAD = Unknown("NVML does not tell")
GPU = WatchedGpu("NVIDIA H200", 600, 93, 141 * GIB, 0, 0)


def trained(*, gpu=None, **fields):
    values = {
        "steps": 500,
        "step_ms": 400,
        "waiting_percent": 1,
        "checkpointing": False,
        "attention": "varlen",
        "on_cuda": True,
        "peak_bytes": 100 * GIB,
        "gpus": (changed(GPU, gpu or {}),),
    }
    return changed(inside(), {"training": TrainingRun(**values | fields)})


WATCHING = ("GPU028", "STO006", "MEM005", "PYT022", "GPU029")
ON_CPU = trained(on_cuda=False, gpus=UNREAD, waiting_percent=50)

CASES = [
    *((code, trained(), "passed", "a run that keeps its GPU busy") for code in WATCHING),
    *((code, ON_CPU, "skipped", "a run on the CPU") for code in WATCHING),
    *((code, inside(), "skipped", "no run at all") for code in WATCHING),
    ("GPU029", trained(gpu={"utilization_percent": 79}), "note: 79", "busy in 79 %"),
    ("GPU029", trained(gpu={"utilization_percent": 80}), "passed", "busy in 80 %"),
    ("GPU029", trained(gpu={"samples": 9, "utilization_percent": 5}), "skipped", "sampled a few times"),
    ("STO006", trained(waiting_percent=10), "warning: 10", "a tenth of the time spent waiting"),
    ("STO006", trained(waiting_percent=9), "passed", "less than a tenth"),
    ("MEM005", trained(checkpointing=True, peak_bytes=70 * GIB), "note: 70", "half of the memory unused"),
    ("MEM005", trained(checkpointing=True, peak_bytes=71 * GIB), "passed", "more than half of the memory"),
    ("MEM005", trained(checkpointing=False, peak_bytes=1 * GIB), "passed", "no checkpointing"),
    ("PYT022", trained(attention="eager"), "warning: eager", "eager attention"),
    ("GPU028", trained(gpu={"hot_percent": 10}), "warning: 10", "hot in a tenth of the run"),
    ("GPU028", trained(gpu={"hot_percent": 9}), "passed", "hot for a moment"),
    ("GPU028", trained(gpu={"hot_percent": UNREAD}), "passed", "clocks that nobody tells"),
    ("GPU028", trained(gpu={"braked_percent": 100}), "warning", "the power brake"),
    ("PYT023", trained(status="lost"), "warning", "a killed run"),
    ("PYT023", trained(status="failed", error="disk full"), "warning: disk full", "a failed run"),
    ("PYT023", trained(status="running"), "passed", "a run that goes on"),
    ("PYT023", trained(status="preempted"), "passed", "a run that was told to stop"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_run(code):
    assert list_wrong(code, CASES) == []


def test_a_gpu_that_waits_for_data_is_one_problem_and_not_two():
    found_codes = find_codes(trained(waiting_percent=40, gpu={"utilization_percent": 50}))
    assert "STO006" in found_codes and "GPU029" not in found_codes
