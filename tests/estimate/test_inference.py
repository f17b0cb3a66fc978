"""The closed form for inference: caches of every kind, and what a prompt takes."""

from dataclasses import replace

import pytest

from devkit.estimate.config import build_model_shape
from devkit.estimate.inference import estimate_inference
from devkit.estimate.memory import MemoryPhase
from devkit.estimate.settings import CacheKind, InferenceSettings, Precision, Quantization
from devkit.estimate.shape import find_model

KIB = 1 << 10


def shape(name):
    return build_model_shape(find_model(name).config, name=name)


def term(name, model, settings):
    return next(each.bytes for each in estimate_inference(model, settings).terms if each.name == name)


@pytest.mark.parametrize(
    ("model", "kib"),
    [
        ("llama-2-7b", 512),
        ("llama-3.1-8b", 128),
        ("mistral-7b", 128),
        ("qwen2.5-7b", 56),
        ("qwen3-30b-a3b", 96),
        ("llama-3-70b", 320),
        ("deepseek-v3", 68.625),
    ],
)
def test_the_kv_cache_of_a_token_is_as_large_as_published(model, kib):
    assert term("key-value cache", shape(model), InferenceSettings(prompt=1, new=0)) / KIB == kib


def test_sliding_layers_keep_no_more_than_their_window():
    gemma, long = shape("gemma-3-27b"), InferenceSettings(prompt=100_000, new=0, cache=CacheKind.STATIC)
    everything = gemma.depth * gemma.cache_width * long.precision.bytes * 100_000
    assert term("key-value cache", gemma, long) < everything / 5


def test_a_static_cache_is_there_in_full_from_the_start():
    llama = shape("llama-3.1-8b")
    static = InferenceSettings(prompt=100, new=10_000, cache=CacheKind.STATIC)
    assert term("key-value cache", llama, static) == 10_100 * 128 * KIB


def test_pages_round_up_and_a_narrower_cache_takes_half():
    llama, settings = shape("llama-3.1-8b"), InferenceSettings(prompt=1, new=0, cache=CacheKind.PAGED)
    assert term("key-value cache", llama, settings) == 16 * 128 * KIB
    wide = replace(settings, cache_precision=Precision.FP32)
    assert term("key-value cache", llama, wide) == 2 * 16 * 128 * KIB


def test_gpus_that_share_layers_share_weights_and_cache_but_no_group_of_heads():
    llama = shape("llama-3-70b")
    one, eight, sixteen = (estimate_inference(llama, InferenceSettings(world=world)) for world in (1, 8, 16))
    caches = [next(each.bytes for each in found.terms if "cache" in each.name) for found in (one, eight, sixteen)]
    assert caches[0] == 8 * caches[1] and caches[2] == caches[1]
    assert eight.allocated_peak_bytes < one.allocated_peak_bytes / 7


@pytest.mark.parametrize("quantization", [Quantization.NF4, Quantization.NF4_DOUBLE, Quantization.INT8])
def test_quantized_weights_take_less_than_those_in_16_bits(quantization):
    llama = shape("llama-3.1-8b")
    packed = estimate_inference(llama, InferenceSettings(quantization=quantization))
    assert packed.allocated_peak_bytes < estimate_inference(llama, InferenceSettings()).allocated_peak_bytes


def test_an_encoder_has_neither_cache_nor_logits():
    found = estimate_inference(shape("bert-base-uncased"), InferenceSettings(prompt=512))
    assert {term.name for term in found.terms} == {"weights", "activations of the prompt", "cuBLAS workspace"}


@pytest.mark.parametrize(("name", "new"), [("bert-base-uncased", 256), ("llama-3.1-8b", 0)])
def test_without_a_new_token_there_is_no_decoding(name, new):
    found = estimate_inference(shape(name), InferenceSettings(prompt=512, new=new))
    assert [phase for phase, _ in found.phases] == [MemoryPhase.LOAD, MemoryPhase.PREFILL]
