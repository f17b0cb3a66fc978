"""The trace as an estimate: the worked examples, what real GPUs showed, and what cannot be traced."""

import pytest

from benchmarks.measured_runs import load_measured_runs
from benchmarks.tracing.request import TraceRequest
from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import (
    Attention,
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Precision,
    Sharding,
    Stack,
    TrainingSettings,
)
from devkit.estimate.shape import find_model
from devkit.estimate.training import estimate_training
from tests.cases import cases
from tests.workload.tracing.shapes import LLAMA, MIXTURE

GIB = 2**30
PLAIN = {
    "stack": Stack.TRAINER,
    "loss": Loss.STANDARD,
    "adapter_precision": Precision.FP32,
    "optimizer": Optimizer.ADAMW_FOREACH,
}
"""The loop of transformers and peft as they come, at the default 2,048 tokens and rank 16 on all linears."""
LORA = TrainingSettings(**PLAIN)
WITHOUT = TrainingSettings(**PLAIN, checkpointing=False)
QLORA = TrainingSettings(**PLAIN, method=Method.QLORA)
UPCAST = TrainingSettings(**PLAIN, method=Method.QLORA, upcast=True, masked=True)
FULL = TrainingSettings(**PLAIN, method=Method.FULL)
EXAMPLES = [
    ("meta-llama/Llama-2-7b-hf", LORA, 14.27),
    ("meta-llama/Llama-2-7b-hf", UPCAST, 6.36),
    ("meta-llama/Llama-2-7b-hf", FULL, 62.8),
    ("meta-llama/Llama-3.1-8B", LORA, 18.90),
    ("meta-llama/Llama-3.1-8B", WITHOUT, 37.40),
    ("meta-llama/Llama-3.1-8B", QLORA, 9.25),
    ("meta-llama/Llama-3.1-8B", UPCAST, 11.71),
    ("Qwen/Qwen2.5-7B", WITHOUT, 36.14),
    ("Qwen/Qwen2.5-7B", QLORA, 9.51),
    ("mistralai/Mistral-7B-v0.3", UPCAST, 6.78),
]
"""Peaks in GiB of an independent trace with another program, recorded before this one was written. It let transformers
repeat keys and values for every head, as it does for masked rows: 2 % more where no layer is computed again."""


def exactly(document, settings, **how):
    from benchmarks.tracing.estimate import estimate_from_trace

    return estimate_from_trace(TraceRequest(document=document, settings=settings, **how))


@pytest.mark.full
@pytest.mark.workload
@pytest.mark.parametrize(("model", "settings", "wanted"), EXAMPLES[1::4])
def test_worked_examples_by_the_trace(model, settings, wanted):
    found = exactly(find_model(model).config, settings).allocated_peak_bytes / GIB
    assert found == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(("model", "settings", "wanted"), EXAMPLES)
def test_worked_examples_by_the_closed_form(model, settings, wanted):
    found = estimate_training(build_model_shape(find_model(model).config), settings).allocated_peak_bytes / GIB
    assert found == pytest.approx(wanted, rel=0.03)


@pytest.mark.nightly
@pytest.mark.workload
@cases(
    "run, allocated, reserved",
    {
        "lora of 1.7B on a T4": ("t4-sweep-14", 0.002, 0.005),
        "eager attention on a T4, whose score gradients need scratch": ("t4-ladder-05", 0.005, 0.20),
        "qlora at 4,096 tokens on an RTX 4080": ("rtx4080-08", 0.002, 0.10),
    },
)
def test_the_trace_meets_what_was_measured(run, allocated, reserved):
    measured = next(each for each in load_measured_runs() if each.id == run)
    found = exactly(find_model(measured.model).config, measured.settings, keep_outputs=measured.group.lingering)
    assert found.allocated_peak_bytes == pytest.approx(measured.allocated_bytes, rel=allocated)
    assert found.reserved_peak_bytes.point == pytest.approx(measured.reserved_bytes, rel=reserved)


@pytest.mark.full
@pytest.mark.workload
def test_terms_add_up_and_the_peak_phase_is_named():
    found = exactly(LLAMA, TrainingSettings(sequence=64))
    assert sum(term.bytes for term in found.terms) == found.allocated_peak_bytes
    assert found.phase in dict(found.phases)
    assert found.allocated_peak_bytes <= found.reserved_peak_bytes.point <= found.reserved_peak_bytes.upper
    assert found.reserved_peak_bytes.point < found.device_peak_bytes.point <= found.device_peak_bytes.upper
    assert found.method.startswith("traced with torch ")


@pytest.mark.workload
@cases(
    "settings, names",
    {
        "lora": (TrainingSettings(sequence=64), {"weights", "adapters", "optimizer state"}),
        "full": (TrainingSettings(sequence=64, method=Method.FULL), {"gradients", "optimizer state"}),
        "generation": (InferenceSettings(prompt=64), {"weights", "cache"}),
    },
)
def test_terms_by_kind(settings, names):
    assert names <= {term.name for term in exactly(LLAMA, settings).terms}


@pytest.mark.workload
def test_a_longer_prompt_or_cache_takes_more():
    sizes = [exactly(LLAMA, InferenceSettings(prompt=prompt)).allocated_peak_bytes for prompt in (64, 4096)]
    assert sizes[0] < sizes[1]


@pytest.mark.workload
def test_rows_of_one_text_need_no_mask_and_no_repeated_keys():
    from benchmarks.tracing.estimate import trace_model
    from benchmarks.tracing.stream import Allocation

    long = 1024
    stream = trace_model(LLAMA, TrainingSettings(sequence=long, rank=4))
    assert max(event.bytes for event in stream if isinstance(event, Allocation)) < long * long


@pytest.mark.full
@pytest.mark.workload
def test_flash_attention_is_traced_as_sdpa_with_a_warning():
    found = exactly(LLAMA, TrainingSettings(sequence=64, attention=Attention.VARLEN))
    assert found.warnings == ("varlen attention is traced as sdpa, which keeps the same tensors",)


@pytest.mark.workload
@cases(
    "document, settings, message",
    {
        "an unknown architecture": (LLAMA | {"model_type": "lama"}, LORA, "no architecture 'lama'"),
        "another kind of model": ({"model_type": "t5"}, LORA, "no causal language model"),
        "shards of a model": (LLAMA, TrainingSettings(world=2, sharding=Sharding.ZERO3), "holds all of the model"),
        "experts in fp16": (
            MIXTURE,
            TrainingSettings(sequence=32, targets=("q_proj",), precision=Precision.FP16),
            "fused experts in bf16 alone",
        ),
        "a server's cache": (LLAMA, InferenceSettings(cache=CacheKind.PAGED), "no pages"),
    },
)
def test_what_cannot_be_traced_is_refused(document, settings, message):
    with pytest.raises(DevkitError, match=message):
        exactly(document, settings)
