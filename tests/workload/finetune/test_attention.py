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


@pytest.mark.parametrize(
    ("traits", "kernels", "attention", "because"),
    [
        pytest.param(LLAMA, CPU, Attention.VARLEN, "each text is computed separately", id="a CPU"),
        pytest.param(LLAMA, A100, Attention.VARLEN, "torch's flash kernel", id="an A100"),
        pytest.param(LLAMA, H200, Attention.VARLEN, "torch's flash kernel", id="an H200, flash-attn installed or not"),
        pytest.param(LLAMA, T4, Attention.SDPA, "need compute capability 8.0, but this GPU has 7.5", id="a T4"),
        pytest.param(
            LLAMA, gpu("8.0", precision=Precision.FP32), Attention.SDPA, "this run is in fp32", id="fp32 on an A100"
        ),
        pytest.param(LLAMA, NO_VARLEN, Attention.SDPA, "torch 2.12 has", id="an older torch"),
        pytest.param(
            LLAMA,
            gpu("8.6", has_varlen=False, flash=True),
            Attention.FLASH,
            "flash-attn is installed",
            id="an older torch with flash-attn",
        ),
        pytest.param(LLAMA, gpu(None, kind=DeviceKind.ROCM), Attention.SDPA, "this is ROCm", id="an MI300X"),
        pytest.param(model(head=512, value_head=512), A100, Attention.SDPA, "its heads have 512", id="large heads"),
        pytest.param(model(head=256, value_head=256), A100, Attention.VARLEN, "torch's flash", id="the largest heads"),
        pytest.param(model(head=192, value_head=128), A100, Attention.SDPA, "value heads (128)", id="latent attention"),
        pytest.param(model(dropout=0.1), A100, Attention.SDPA, "the model has 0.1", id="dropout in attention"),
        pytest.param(model(chunked=True), A100, Attention.SDPA, "within chunks", id="attention in chunks"),
        pytest.param(model(router_loss=True), A100, Attention.SDPA, "router's loss", id="a router that wants a mask"),
        pytest.param(model(softcap=True), A100, Attention.EAGER, "scores are capped", id="capped scores"),
        pytest.param(
            model(softcap=True), H200, Attention.FLASH, "scores are capped", id="capped scores with flash-attn"
        ),
        pytest.param(model(sdpa=False), CPU, Attention.EAGER, "custom code", id="attention sinks"),
        pytest.param(model(recurrent=True), H200, Attention.FLASH, "recurrent layers", id="a hybrid with flash-attn"),
        pytest.param(
            model(passes_borders=False),
            A100,
            Attention.SDPA,
            "pass the text boundaries of a row to its attention",
            id="unknown code",
        ),
        pytest.param(
            model(sdpa=False, flash=False), H200, Attention.EAGER, "custom code", id="sinks that flash-attn lacks"
        ),
    ],
)
def test_attention_is_chosen(traits, kernels, attention, because):
    chosen, reason = choose_attention(traits, *kernels)
    assert chosen is attention
    assert because in reason


@pytest.mark.parametrize("traits", [LLAMA, model(softcap=True), model(recurrent=True), model(sdpa=False)])
@pytest.mark.parametrize("kernels", [CPU, T4, A100, H200, NO_VARLEN])
def test_a_decision_is_never_refused_as_a_setting(traits, kernels):
    assert find_attention_refusal(choose_attention(traits, *kernels)[0], traits, *kernels) is None


@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        pytest.param(LLAMA, None, id="plain attention packs"),
        pytest.param(model(recurrent=True), "recurrent", id="a state would run from text to text"),
        pytest.param(model(passes_borders=False), "boundaries", id="code that does not look at positions"),
    ],
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
