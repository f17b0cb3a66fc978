"""The benchmark of a machine's GPU: its parts on the CPU, where it goes on, and what it says without a GPU."""

import json

import pytest

from devkit.errors import DevkitError
from devkit.verify.benchmark import ModelSize, Part, Workspace, measure_training, run_benchmark

TINY = ModelSize("tiny", 64, 2, 4, 2, 96, 300)


def test_parts_that_have_a_result_are_not_run_again_and_failed_ones_are(tmp_path):
    ran = []

    def measure(name, *, fails=()):
        def run(work):
            ran.append(name)
            if len(ran) in fails:
                raise DevkitError("the disk is full", "Free some space.")
            return {"tokens_per_s": 12.5, "mfu": 0.4}

        return Part(name, f"about {name}", run)

    parts = (measure("first"), measure("second", fails=(2,)))
    once = run_benchmark(tmp_path, "NVIDIA H200", parts=parts, progress=lambda _: None)
    assert once["parts"]["second"] == {"error": "the disk is full"}
    again = run_benchmark(tmp_path, "NVIDIA H200", parts=parts, progress=lambda _: None)
    assert ran == ["first", "second", "second"]
    assert again["parts"]["second"]["mfu"] == 0.4
    assert json.loads((tmp_path / "benchmark.json").read_text())["parts"] == again["parts"]
    run_benchmark(tmp_path, "NVIDIA L4", parts=parts, progress=lambda _: None)
    assert ran[3:] == ["first", "second"], "figures of another GPU are not this one's"


@pytest.mark.full
@pytest.mark.workload
def test_the_training_of_a_random_model_is_measured_by_finetune_itself(tmp_path):
    figures = measure_training(Workspace(tmp_path, "a CPU"), TINY, sequence=64)
    assert figures["tokens_per_s"] > 0 and "mfu" not in figures
    assert (tmp_path / "models" / "tiny" / "config.json").is_file()
