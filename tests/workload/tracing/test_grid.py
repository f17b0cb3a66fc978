"""The closed form against the trace: a dozen points of the grid that benchmarks/estimate_grid.py holds."""

from statistics import mean

import pytest

from devkit.estimate.config import build_model_shape
from devkit.estimate.inference import estimate_inference
from devkit.estimate.settings import (
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Precision,
    Quantization,
    Stack,
    TrainingSettings,
)
from devkit.estimate.shape import find_model
from devkit.estimate.training import estimate_training

GOAL = 0.05
PLAIN = {"stack": Stack.TRAINER, "loss": Loss.STANDARD, "adapter_precision": Precision.FP32}
POINTS = [
    ("HuggingFaceTB/SmolLM2-360M", TrainingSettings()),
    ("HuggingFaceTB/SmolLM2-360M", TrainingSettings(checkpointing=False)),
    ("HuggingFaceTB/SmolLM2-360M", TrainingSettings(checkpointing=False, lean=True)),
    ("Qwen/Qwen2.5-1.5B", TrainingSettings(method=Method.QLORA, checkpointing=False, sequence=1024)),
    ("Qwen/Qwen2.5-1.5B", TrainingSettings(**PLAIN, method=Method.QLORA, upcast=True)),
    ("meta-llama/Llama-3.2-3B", TrainingSettings(method=Method.INT8_LORA)),
    ("meta-llama/Llama-3.2-3B", TrainingSettings(method=Method.FULL, optimizer=Optimizer.ADAMW_8BIT)),
    ("meta-llama/Llama-3.1-8B", TrainingSettings(dora=True)),
    ("meta-llama/Llama-3.1-8B", TrainingSettings(**PLAIN, method=Method.FULL, optimizer=Optimizer.ADAMW_FOREACH)),
    ("Qwen/Qwen3-8B", TrainingSettings(loss=Loss.FUSED, sequence=8192)),
    ("Qwen/Qwen3-8B", InferenceSettings(prompt=8192)),
    ("meta-llama/Llama-2-7b-hf", InferenceSettings(quantization=Quantization.NF4_DOUBLE, sequences=4)),
    ("microsoft/phi-1_5", TrainingSettings(targets=("q_proj", "v_proj"))),
]


@pytest.mark.nightly
@pytest.mark.workload
def test_the_closed_form_follows_the_trace():
    from benchmarks.tracing.estimate import estimate_from_trace
    from benchmarks.tracing.request import TraceRequest

    errors = []
    for model, settings in POINTS:
        # Three layers, since each takes the trace as long as any other.
        config = {**find_model(model).config, "num_hidden_layers": 3}
        shape = build_model_shape(config)
        is_training = isinstance(settings, TrainingSettings)
        closed = estimate_training(shape, settings) if is_training else estimate_inference(shape, settings)
        traced = estimate_from_trace(TraceRequest(document=config, settings=settings))
        errors.append(closed.allocated_peak_bytes / traced.allocated_peak_bytes - 1)
    assert mean(map(abs, errors)) <= GOAL
    assert max(map(abs, errors)) <= 2 * GOAL, errors
