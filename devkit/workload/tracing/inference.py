"""Text generation, traced: the prompt at once, then the last token, when the cache is longest."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, StaticCache

from devkit.errors import DevkitError
from devkit.estimate.settings import CacheKind, InferenceSettings, Method, Quantization, TrainingSettings
from devkit.workload.tracing.emulation import emulate_gpu, refuse_mixed_precision_experts
from devkit.workload.tracing.model import (
    ConfigDocument,
    Model,
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
    """What loading, the prompt and the last new token do with memory, on a model cut to `depth` layers (None: all)."""
    if settings.cache is CacheKind.PAGED or settings.cache_precision is not None or settings.world > 1:
        raise DevkitError(
            "the trace follows transformers' own generation on one GPU: no pages, no cache of another precision",
            "Estimate without --exact.",
        )
    model = build_on_meta(build_config(document, depth=depth, attention=settings.attention), settings.precision)
    if settings.quantisation is not Quantization.NONE:
        replace_linear_layers(model, _as_training(settings.quantisation))
    ledger = AllocationRecorder()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        materialize_parameters(model.eval())
        record_loading(ledger, model, is_upcast=False)
        register_phase_hooks(ledger, model)
        cache = _cache(model, settings)
        with ledger, emulate_gpu(), refuse_mixed_precision_experts():
            _generate(ledger, model, settings, cache)
            del cache
            ledger.section = Section(StepPhase.DECODE, part="end")
    return list(ledger.stream)


def _as_training(quantisation: Quantization) -> TrainingSettings:
    """The base of the training run that packs its weights alike."""
    if quantisation is Quantization.INT8:
        return TrainingSettings(method=Method.INT8_LORA)
    return TrainingSettings(method=Method.QLORA, double_quantisation=quantisation is Quantization.NF4_DOUBLE)


def _cache(model: Model, settings: InferenceSettings) -> Any:  # noqa: ANN401 - one of transformers' caches
    if settings.cache is CacheKind.STATIC:
        return StaticCache(config=model.config, max_cache_len=settings.prompt + settings.new)
    return DynamicCache(config=model.config)


def _generate(ledger: AllocationRecorder, model: Model, settings: InferenceSettings, cache: Any) -> None:  # noqa: ANN401 - as above
    _forward(ledger, model, cache, StepPhase.PREFILL, (settings.sequences, settings.prompt))
    if settings.new > 1 and settings.cache is CacheKind.DYNAMIC:
        _lengthen(ledger, cache, settings.new - 1)
    if settings.new > 0:
        _forward(ledger, model, cache, StepPhase.DECODE, (settings.sequences, 1))


def _forward(ledger: AllocationRecorder, model: Model, cache: Any, phase: StepPhase, shape: tuple[int, int]) -> None:  # noqa: ANN401 - any cache
    ledger.current_pass, ledger.section = phase, Section(phase)
    ids = torch.empty(shape, dtype=torch.int64)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    ledger.relabel((each for layer in cache.layers for each in (layer.keys, layer.values)), TensorKind.CACHE)


def _lengthen(ledger: AllocationRecorder, cache: Any, tokens: int) -> None:  # noqa: ANN401 - as above
    """The cache as it is `tokens` later; layers with a window keep no more than it holds."""
    for number, layer in enumerate(cache.layers):
        ledger.section = Section(StepPhase.DECODE, number, part="cache")
        window = getattr(layer, "sliding_window", None)
        length = layer.keys.shape[-2] + tokens
        length = min(length, window - 1) if window else length
        for name in ("keys", "values"):
            kept = getattr(layer, name)
            with ledger.label_new(TensorKind.CACHE):
                setattr(layer, name, kept.new_empty((*kept.shape[:-2], length, kept.shape[-1])))
