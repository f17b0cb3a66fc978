"""Samples of GPUs while something else works. The library that answers is a stand-in for NVIDIA's, built from C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devkit.workload.finetune.events import sample_gpus
from tests.nvml_stub import build_stub, stub_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a Linux library")

SECOND_GPU = "GPU-00000001-aaaa-bbbb-cccc-dddddddddddd"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def stub(library, monkeypatch):
    def answering(**how):
        for name, value in stub_environment(library, **how).items():
            monkeypatch.setenv(name, value)

    return answering


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def wait_for(condition, seconds=20.0):
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not come in time"
        time.sleep(0.02)


def has_lines(file, count):
    return lambda: file.exists() and file.read_text().count("\n") >= count


def test_the_gpus_of_the_run_are_sampled_and_no_others(stub, tmp_path):
    stub(gpus=4)
    file = tmp_path / "gpu.jsonl"
    with sample_gpus(file, (SECOND_GPU,), interval_s=0.05):
        wait_for(has_lines(file, 3))
    found = read(file)
    assert {each["gpu"] for each in found} == {1}
    assert {"utilization_percent", "memory_bytes", "clock_reasons", "power_mw", "temperature_c"} <= set(found[0])
    assert [each["at_s"] for each in found] == sorted(each["at_s"] for each in found)


@pytest.mark.parametrize(
    ("how", "uuids", "said"),
    [
        pytest.param({"fail": "nvmlInit_v2=9"}, (), "NVML does not answer", id="no driver"),
        pytest.param({"gpus": 1}, ("GPU-of-somebody-else",), "none of the GPUs that the run uses", id="another GPU"),
    ],
)
def test_without_nvml_the_file_says_why(stub, tmp_path, how, uuids, said):
    stub(**how)
    file = tmp_path / "gpu.jsonl"
    with sample_gpus(file, uuids, interval_s=0.05):
        wait_for(has_lines(file, 1))
    (line,) = read(file)
    assert said in line["unknown"]


def test_an_unsupported_sample_is_left_out_alone(stub, tmp_path):
    stub(gpus=1, fail="nvmlDeviceGetPowerUsage=3")
    file = tmp_path / "gpu.jsonl"
    with sample_gpus(file, (), interval_s=0.05):
        wait_for(has_lines(file, 2))
    assert "power_mw" not in read(file)[0] and "temperature_c" in read(file)[0]


RUN = """
import pathlib, sys, time
from devkit.workload.finetune.events import sample_gpus
with sample_gpus(pathlib.Path(sys.argv[1]), (), interval_s=0.05):
    time.sleep(60)
"""


@pytest.mark.full
def test_the_sampler_ends_with_a_run_that_is_killed(stub, tmp_path):
    stub(gpus=1)
    file = tmp_path / "gpu.jsonl"
    run = subprocess.Popen([sys.executable, "-c", RUN, str(file)])
    try:
        wait_for(has_lines(file, 2))
        children = sampler_pids(file)
        assert children
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait(10)
    wait_for(lambda: not sampler_pids(file))


@pytest.mark.full
def test_a_sampler_in_a_hung_driver_does_not_block_the_end(stub, tmp_path):
    stub(gpus=1, fail="nvmlDeviceGetUtilizationRates=hang")
    file = tmp_path / "gpu.jsonl"
    started = time.monotonic()
    with sample_gpus(file, (), interval_s=0.05):
        wait_for(lambda: sampler_pids(file))
    assert time.monotonic() - started < 20
    wait_for(lambda: not sampler_pids(file))


def sampler_pids(file):
    """The samplers that write this file, by their own command lines."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"sample_gpu.py") for word in words) and os.fsencode(str(file)) in words:
            found.append(int(process.name))
    return found
