"""Text generation, traced: the prompt at once, then the last token, when the cache is longest."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, StaticCache

from devkit.errors import DevkitError
from devkit.estimate.settings import CacheKind, InferenceSettings, Method, Quantisation, TrainingSettings
from devkit.workload.tracing.ledger import Ledger
from devkit.workload.tracing.likeness import as_on_a_gpu, experts_in_bf16
from devkit.workload.tracing.loading import load
from devkit.workload.tracing.packing import pack
from devkit.workload.tracing.program import Document, Model, config_of, materialise, on_meta, watch
from devkit.workload.tracing.stream import Kind, Phase, Section, Stream


def trace(document: Document, settings: InferenceSettings, *, depth: int | None) -> Stream:
    """What loading, the prompt and the last new token do with memory, on a model cut to `depth` layers (None: all)."""
    if settings.cache is CacheKind.PAGED or settings.cache_precision is not None or settings.world > 1:
        raise DevkitError(
            "the trace follows transformers' own generation on one GPU: no pages, no cache of another precision",
            "Estimate without --exact.",
        )
    model = on_meta(config_of(document, depth=depth, attention=settings.attention), settings.precision)
    if settings.quantisation is not Quantisation.NONE:
        pack(model, _as_training(settings.quantisation))
    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        materialise(model.eval())
        load(ledger, model, is_upcast=False)
        watch(ledger, model)
        cache = _cache(model, settings)
        with ledger, as_on_a_gpu(), experts_in_bf16():
            _generate(ledger, model, settings, cache)
            del cache
            ledger.section = Section(Phase.DECODE, part="end")
    return list(ledger.stream)


def _as_training(quantisation: Quantisation) -> TrainingSettings:
    """The base of the training run that packs its weights alike."""
    if quantisation is Quantisation.INT8:
        return TrainingSettings(method=Method.INT8_LORA)
    return TrainingSettings(method=Method.QLORA, double_quantisation=quantisation is Quantisation.NF4_DOUBLE)


def _cache(model: Model, settings: InferenceSettings) -> Any:  # noqa: ANN401 - one of transformers' caches
    if settings.cache is CacheKind.STATIC:
        return StaticCache(config=model.config, max_cache_len=settings.prompt + settings.new)
    return DynamicCache(config=model.config)


def _generate(ledger: Ledger, model: Model, settings: InferenceSettings, cache: Any) -> None:  # noqa: ANN401 - as above
    _forward(ledger, model, cache, Phase.PREFILL, (settings.sequences, settings.prompt))
    if settings.new > 1 and settings.cache is CacheKind.DYNAMIC:
        _lengthen(ledger, cache, settings.new - 1)
    if settings.new > 0:
        _forward(ledger, model, cache, Phase.DECODE, (settings.sequences, 1))


def _forward(ledger: Ledger, model: Model, cache: Any, phase: Phase, shape: tuple[int, int]) -> None:  # noqa: ANN401 - any cache
    ledger.running, ledger.section = phase, Section(phase)
    ids = torch.empty(shape, dtype=torch.int64)
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    ledger.mark((each for layer in cache.layers for each in (layer.keys, layer.values)), Kind.CACHE)


def _lengthen(ledger: Ledger, cache: Any, tokens: int) -> None:  # noqa: ANN401 - as above
    """The cache as it is `tokens` later; layers with a window keep no more than it holds."""
    for number, layer in enumerate(cache.layers):
        ledger.section = Section(Phase.DECODE, number, part="cache")
        window = getattr(layer, "sliding_window", None)
        length = layer.keys.shape[-2] + tokens
        length = min(length, window - 1) if window else length
        for name in ("keys", "values"):
            kept = getattr(layer, name)
            with ledger.holding(Kind.CACHE):
                setattr(layer, name, kept.new_empty((*kept.shape[:-2], length, kept.shape[-1])))
