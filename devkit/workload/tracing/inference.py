"""The trace of a generation: the prompt at once, then the last token, when the KV cache is longest."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, StaticCache

from devkit.errors import DevkitError
from devkit.estimate.settings import CacheKind, InferenceSettings, Quantization
from devkit.workload.models import Model
from devkit.workload.tracing.emulation import emulate_gpu, refuse_mixed_precision_experts
from devkit.workload.tracing.model import (
    ConfigDocument,
    build_config,
    build_on_meta,
    materialize_parameters,
    record_loading,
    register_phase_hooks,
    replace_linear_layers,
)
from devkit.workload.tracing.recorder import AllocationRecorder
from devkit.workload.tracing.stream import EventStream, Section, StepPhase, TensorKind


def trace_inference(document: ConfigDocument, settings: InferenceSettings, *, depth: int | None) -> EventStream:
    """Trace loading, the prompt and the last new token, on a model cut to `depth` layers (None: all)."""
    if settings.cache is CacheKind.PAGED or settings.cache_precision is not None or settings.world > 1:
        raise DevkitError(
            "the trace follows transformers' own generation on one GPU: no pages, no cache of another precision",
            "Estimate without --exact.",
        )
    model = build_on_meta(build_config(document, depth=depth, attention=settings.attention), settings.precision)
    if settings.quantisation is not Quantization.NONE:
        is_double = settings.quantisation is Quantization.NF4_DOUBLE
        is_int8 = settings.quantisation is Quantization.INT8
        replace_linear_layers(model, is_int8=is_int8, double_quantization=is_double)
    recorder = AllocationRecorder()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        materialize_parameters(model.eval())
        record_loading(recorder, model, is_upcast=False)
        register_phase_hooks(recorder, model)
        cache: Any = DynamicCache(config=model.config)
        if settings.cache is CacheKind.STATIC:
            cache = StaticCache(config=model.config, max_cache_len=settings.prompt + settings.new)
        with recorder, emulate_gpu(), refuse_mixed_precision_experts():
            _forward(recorder, model, cache, StepPhase.PREFILL, (settings.sequences, settings.prompt))
            if settings.new > 1 and settings.cache is CacheKind.DYNAMIC:
                _lengthen(recorder, cache, settings.new - 1)
            if settings.new > 0:
                _forward(recorder, model, cache, StepPhase.DECODE, (settings.sequences, 1))
            del cache
            recorder.section = Section(StepPhase.DECODE, part="end")
    return list(recorder.stream)


def _forward(recorder: AllocationRecorder, model: Model, cache: Any, phase: StepPhase, shape: tuple[int, int]) -> None:  # noqa: ANN401 - any cache
    recorder.current_pass, recorder.section = phase, Section(phase)
    ids = torch.empty(shape, dtype=torch.int64)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    recorder.relabel((each for layer in cache.layers for each in (layer.keys, layer.values)), TensorKind.CACHE)


def _lengthen(recorder: AllocationRecorder, cache: Any, tokens: int) -> None:  # noqa: ANN401 - any cache
    """Lengthen the KV cache by `tokens`; layers with a sliding window keep no more than its length."""
    for number, layer in enumerate(cache.layers):
        recorder.section = Section(StepPhase.DECODE, number, part="cache")
        window = getattr(layer, "sliding_window", None)
        length = layer.keys.shape[-2] + tokens
        length = min(length, window - 1) if window else length
        for name in ("keys", "values"):
            kept = getattr(layer, name)
            with recorder.label_new(TensorKind.CACHE):
                setattr(layer, name, kept.new_empty((*kept.shape[:-2], length, kept.shape[-1])))
