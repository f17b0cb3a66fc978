"""Which attention is chosen for which model on which GPU, and what is refused with its reason."""

from dataclasses import fields

import pytest

from devkit.estimate.settings import Attention, Precision
from devkit.facts.values import ComputeCapability
from devkit.workload.finetune.decisions import (
    AttentionTraits,
    DeviceKind,
    Hardware,
    choose_attention,
    find_attention_refusal,
    find_packing_refusal,
)
from tests.cases import cases

LLAMA = AttentionTraits(name="llama")


def gpu(capability, *, precision=Precision.BF16, flash=False, **differences):
    given = {"kind": DeviceKind.CUDA, "name": "a GPU", "free_bytes": 0, "has_varlen": True} | differences
    packages = frozenset({"flash_attn"} if flash else ())
    return Hardware(
        capability=capability and ComputeCapability.parse(capability), packages=packages, **given
    ), precision


def model(**differences):
    return AttentionTraits(name="odd", **differences)


CPU = gpu(None, kind=DeviceKind.CPU, precision=Precision.FP32)
T4 = gpu("7.5", precision=Precision.FP16)
A100 = gpu("8.0")
H200 = gpu("9.0", flash=True)
NO_VARLEN = gpu("8.6", has_varlen=False)


@cases(
    "traits, kernels, attention, because",
    {
        "a CPU": (LLAMA, CPU, Attention.VARLEN, "each text is computed separately"),
        "an A100": (LLAMA, A100, Attention.VARLEN, "torch's flash kernel"),
        "an H200, flash-attn installed or not": (LLAMA, H200, Attention.VARLEN, "torch's flash kernel"),
        "a T4": (LLAMA, T4, Attention.SDPA, "need compute capability 8.0, but this GPU has 7.5"),
        "fp32 on an A100": (LLAMA, gpu("8.0", precision=Precision.FP32), Attention.SDPA, "this run is in fp32"),
        "an older torch": (LLAMA, NO_VARLEN, Attention.SDPA, "torch 2.12 has"),
        "an older torch with flash-attn": (
            LLAMA,
            gpu("8.6", has_varlen=False, flash=True),
            Attention.FLASH,
            "flash-attn is installed",
        ),
        "an MI300X": (LLAMA, gpu(None, kind=DeviceKind.ROCM), Attention.SDPA, "this is ROCm"),
        "large heads": (model(head=512, value_head=512), A100, Attention.SDPA, "its heads have 512"),
        "the largest heads": (model(head=256, value_head=256), A100, Attention.VARLEN, "torch's flash"),
        "latent attention": (model(head=192, value_head=128), A100, Attention.SDPA, "value heads (128)"),
        "dropout in attention": (model(dropout=0.1), A100, Attention.SDPA, "the model has 0.1"),
        "attention in chunks": (model(chunked=True), A100, Attention.SDPA, "within chunks"),
        "a router that wants a mask": (model(router_loss=True), A100, Attention.SDPA, "router's loss"),
        "capped scores": (model(softcap=True), A100, Attention.EAGER, "scores are capped"),
        "capped scores with flash-attn": (model(softcap=True), H200, Attention.FLASH, "scores are capped"),
        "attention sinks": (model(sdpa=False), CPU, Attention.EAGER, "custom code"),
        "a hybrid with flash-attn": (model(recurrent=True), H200, Attention.FLASH, "recurrent layers"),
        "unknown code": (
            model(passes_borders=False),
            A100,
            Attention.SDPA,
            "pass the text boundaries of a row to its attention",
        ),
        "sinks that flash-attn lacks": (model(sdpa=False, flash=False), H200, Attention.EAGER, "custom code"),
    },
)
def test_attention_is_chosen(traits, kernels, attention, because):
    chosen, reason = choose_attention(traits, *kernels)
    assert chosen is attention
    assert because in reason


@pytest.mark.parametrize("traits", [LLAMA, model(softcap=True), model(recurrent=True), model(sdpa=False)])
@pytest.mark.parametrize("kernels", [CPU, T4, A100, H200, NO_VARLEN])
def test_a_decision_is_never_refused_as_a_setting(traits, kernels):
    assert find_attention_refusal(choose_attention(traits, *kernels)[0], traits, *kernels) is None


@cases(
    "traits, reason",
    {
        "plain attention packs": (LLAMA, None),
        "a state would run from text to text": (model(recurrent=True), "recurrent"),
        "code that does not look at positions": (model(passes_borders=False), "boundaries"),
    },
)
def test_texts_share_rows_where_they_cannot_see_each_other(traits, reason):
    found = find_packing_refusal(traits)
    assert found is None if reason is None else reason in found


def test_every_trait_has_a_row_above():
    """A trait that no decision reads would be a promise nobody keeps."""
    assert {each.name for each in fields(AttentionTraits)} == {
        *("name", "sdpa", "flash", "passes_borders", "recurrent", "softcap", "chunked", "router_loss", "dropout"),
        *("head", "value_head"),
    }
