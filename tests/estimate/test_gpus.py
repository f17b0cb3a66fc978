"""GPUs by name and of machines, and the verdict on them."""

from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.memory import Fit, GpuSpec, find_gpu_spec, find_smallest_gpu, group_gpus
from devkit.estimate.recommend import find_slowdowns, recommend_gpu_count, recommend_settings
from devkit.estimate.settings import Loss, Method, Optimizer, Precision, Sharding, TrainingSettings
from devkit.estimate.shape import find_model
from devkit.estimate.training import estimate_training
from devkit.facts.gpu import Gpu
from devkit.facts.values import ComputeCapability, Unknown

GIB = 1 << 30
LLAMA = build_model_shape(find_model("llama-3.1-8b").config, name="llama")
ESTIMATE = estimate_training(LLAMA, TrainingSettings())


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        pytest.param("RTX 4090", "NVIDIA GeForce RTX 4090", 23.76, id="a GeForce: all but the driver's own"),
        pytest.param("T4", "Tesla T4", 15.0, id="GDDR with error correction: a sixteenth less"),
        pytest.param("A100-40GB", "NVIDIA A100 SXM4 40GB", 39.6, id="a size beside the family"),
        pytest.param("A100 80GB", "NVIDIA A100 SXM4 80GB", 79.2, id="the other size"),
        pytest.param("V100 32GB", "Tesla V100 SXM2 32GB", 31.68, id="one of several sizes"),
        pytest.param("V100", "Tesla V100 SXM2 16GB", 15.84, id="no size: the smallest"),
        pytest.param("RTX 4070 Laptop 8GB", "NVIDIA GeForce RTX 4070", 7.92, id="a laptop's GPU with its size"),
        pytest.param("RTX A1000 6GB", "NVIDIA RTX A1000 6GB", 5.94, id="a size that is not in the tables"),
        pytest.param("H100 MIG 3g.40gb", "NVIDIA H100 SXM MIG 3g.40gb", 39.6, id="a slice"),
        pytest.param("L4/4", "NVIDIA L4/4", 5.62, id="the share of one program of four"),
    ],
)
def test_a_named_gpu_has_the_memory_that_programs_may_take(text, name, gib):
    card = find_gpu_spec(text)
    assert (card.name, round(card.memory_bytes / GIB, 2)) == (name, gib)


def test_a_gpu_whose_memory_is_in_no_table_wants_it_in_the_name():
    with pytest.raises(DevkitError, match="the memory of the NVIDIA RTX A1000 is not in the tables"):
        find_gpu_spec("RTX A1000")
    with pytest.raises(DevkitError, match="RTX 4070 for laptops is not in the tables"):
        find_gpu_spec("NVIDIA GeForce RTX 4070 Laptop GPU")


@pytest.mark.parametrize("text", ["H900", "", "L4/0", "T4 MIG 1g.5gb", "H100 MIG 7g.800gb"])
def test_a_gpu_that_does_not_exist_is_refused(text):
    with pytest.raises(DevkitError):
        find_gpu_spec(text)


def test_the_smallest_gpu_fits_and_no_smaller_one_does():
    found = find_smallest_gpu(ESTIMATE)
    assert found is not None and found.verdict(ESTIMATE) is Fit.FITS
    assert find_gpu_spec("RTX 4060").verdict(ESTIMATE) is not Fit.FITS
    assert found.memory_bytes <= find_gpu_spec("RTX 4090").memory_bytes


def test_nothing_is_large_enough_for_everything():
    huge = build_model_shape(find_model("deepseek-v3").config, name="deepseek")
    assert find_smallest_gpu(estimate_training(huge, TrainingSettings(method=Method.FULL))) is None


def gpu(index, memory):
    capability = ComputeCapability(9, 0)
    return Gpu(index, f"GPU-{index}", "NVIDIA H200", capability, memory, memory, mig_enabled=False, mig_instances=())


def test_gpus_that_are_alike_stand_together_with_the_least_memory_of_them():
    found = group_gpus((gpu(0, 140 * GIB), gpu(1, 139 * GIB), gpu(2, Unknown("NVML was late"))))
    assert [(card.count, card.memory_bytes, card.is_measured) for card in found] == [(2, 139 * GIB, True)]


@pytest.mark.parametrize(
    ("room", "verdict"),
    [
        pytest.param(lambda peak: peak.upper, Fit.FITS, id="just room for the bound"),
        pytest.param(lambda peak: peak.upper - 1, Fit.TIGHT, id="a byte less"),
        pytest.param(lambda peak: peak.point, Fit.TIGHT, id="just room for what is expected"),
        pytest.param(lambda peak: peak.point - 1, Fit.DOES_NOT_FIT, id="a byte less than that"),
    ],
)
def test_the_verdict_turns_at_the_bound_and_at_what_is_expected(room, verdict):
    card = GpuSpec(name="a card", memory_bytes=room(ESTIMATE.device_peak_bytes))
    assert card.verdict(ESTIMATE) is verdict


@pytest.mark.parametrize("name", ["T4", "RTX 4090", "L40S", "H200"])
@pytest.mark.parametrize("method", [Method.LORA, Method.FULL])
def test_every_choice_fits_and_the_fastest_comes_first(name, method):
    card = find_gpu_spec(name)
    found = recommend_settings(LLAMA, TrainingSettings(method=method), card)
    assert [choice.slowness for choice in found] == sorted(choice.slowness for choice in found)
    for choice in found:
        assert card.verdict(estimate_training(LLAMA, choice.settings)) is choice.verdict is not Fit.DOES_NOT_FIT


def test_a_lora_becomes_a_qlora_only_where_nothing_else_makes_it_fit():
    methods = {
        name: {choice.settings.method for choice in recommend_settings(LLAMA, TrainingSettings(), find_gpu_spec(name))}
        for name in ("T4", "RTX 4090")
    }
    assert methods == {"T4": {Method.QLORA}, "RTX 4090": {Method.LORA}}


def test_full_fine_tuning_is_sharded_among_as_few_gpus_as_needed():
    card = find_gpu_spec("A100 80GB")
    big = build_model_shape(find_model("llama-2-13b").config, name="llama")
    found = recommend_gpu_count(big, TrainingSettings(method=Method.FULL), card)
    assert found is not None and found.settings.world == 2
    fewer = replace(found.settings, world=1, sharding=TrainingSettings().sharding)
    assert card.verdict(estimate_training(big, fewer)) is not Fit.FITS


@pytest.mark.parametrize(
    ("changed", "factors"),
    [
        ({}, []),
        ({"method": Method.QLORA, "checkpointing": True}, [1.28, 1.3]),
        ({"method": Method.INT8_LORA, "adapter_precision": Precision.FP32}, [1.6, 1.1]),
        ({"optimizer": Optimizer.ADAMW_8BIT}, [1.02]),
        ({"optimizer": Optimizer.PAGED_ADAMW, "sharding": Sharding.ZERO2}, [1.05, 1.05]),
        ({"optimizer": Optimizer.PAGED_ADAMW_8BIT, "loss": Loss.STANDARD}, [1.02, 1.05, 1.02]),
        ({"method": Method.FULL, "adapter_precision": Precision.FP32, "sharding": Sharding.ZERO3}, [1.2]),
    ],
)
def test_settings_cost_what_they_slow_down(changed, factors):
    settings = replace(TrainingSettings(checkpointing=False), **changed)
    assert [each.factor for each in find_slowdowns(settings)] == factors
