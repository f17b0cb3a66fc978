"""The files that finetune leaves behind, as facts."""

import json

import pytest

from devkit.facts.values import Unknown
from devkit.probe.host import LocalHost
from devkit.probe.reports import read_training_run


def lines(*documents):
    return "".join(f"{json.dumps(each)}\n" for each in documents)


def step(number, seconds=0.5, waited_s=0.01, **more):
    return {"event": "step", "step": number, "seconds": seconds, "waited_s": waited_s, **more}


def sample(at_s, used=90, reasons=0, **more):
    return {
        "gpu": 0,
        "name": "NVIDIA H200",
        "at_s": at_s,
        "utilization_percent": used,
        "clock_reasons": reasons,
        **more,
    }


@pytest.fixture
def run(tmp_path):
    """Write a run's files, and read them."""

    def written(*, metrics="", record=None, samples=""):
        (tmp_path / "metrics.jsonl").write_text(metrics)
        (tmp_path / "run.json").write_text(json.dumps(record or {}))
        (tmp_path / "gpu.jsonl").write_text(samples)
        return read_training_run(LocalHost(), str(tmp_path))

    return written


DECISIONS = {"decisions": [{"name": "checkpointing", "value": "yes"}, {"name": "attention", "value": "varlen"}]}


def test_a_run_is_read_without_its_first_steps(run):
    slow = [step(number, 60.0, 30.0) for number in (1, 2, 3)]
    settled = [step(number, 0.5, 0.1, peak_allocated_bytes=2**30 + number) for number in (4, 5)]
    found = run(
        metrics=lines({"event": "start"}, *slow, *settled), record=DECISIONS, samples=lines(sample(0), sample(1, 70))
    )
    assert (found.steps, found.step_ms, found.waiting_percent) == (5, 500, 20)
    assert (found.checkpointing, found.attention, found.peak_bytes) == (True, "varlen", 2**30 + 5)
    assert found.on_cuda is True
    (gpu,) = found.gpus
    assert (gpu.name, gpu.samples, gpu.utilization_percent) == ("NVIDIA H200", 2, 80)


def test_thermal_slowdown_differs_from_the_power_brake(run):
    reasons = [0x40 | 0x08, 0x20, 0x80, 0x08, 0x04, 0x01, 0, 0, 0, 0]
    (gpu,) = run(metrics=lines(step(1)), samples=lines(*(sample(at, 90, bits) for at, bits in enumerate(reasons)))).gpus
    assert (gpu.hot_percent, gpu.braked_percent) == (20, 20)


@pytest.mark.parametrize(
    "metrics",
    [
        pytest.param("", id="an empty file"),
        pytest.param(lines({"event": "start"}), id="no step yet"),
        pytest.param('{"event": "st', id="a line cut off"),
        pytest.param("[1]\nnull\n", id="no objects"),
    ],
)
def test_no_step_is_no_run(run, metrics):
    assert isinstance(run(metrics=metrics), Unknown)


def test_what_a_run_does_not_tell_is_unknown_with_its_reason(run):
    found = run(metrics=lines({"event": "step", "step": 1}) + '{"cut', samples=lines({"unknown": "no NVML here"}))
    assert found.gpus == Unknown("no NVML here")
    assert all(isinstance(getattr(found, name), Unknown) for name in ("step_ms", "waiting_percent", "peak_bytes"))


def test_a_run_that_counts_the_whole_process_was_on_no_gpu(run):
    assert run(metrics=lines(step(1, peak_resident_bytes=2**30))).on_cuda is False


def test_no_folder_is_no_run():
    assert isinstance(read_training_run(LocalHost(), "/nowhere"), Unknown)
