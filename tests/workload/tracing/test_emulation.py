"""Stand-ins for bitsandbytes' layers, against the real ones: what they keep, and what a checkpoint cannot drop."""

import pytest

pytestmark = [pytest.mark.workload, pytest.mark.filterwarnings("ignore:MatMul8bitLt. inputs will be cast")]
INPUTS, OUTPUTS, TOKENS = 128, 256, 64


def dense():
    import torch

    return torch.nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16)


def real(kind):
    import bitsandbytes
    import torch

    if kind == "int8":
        layer = bitsandbytes.nn.Linear8bitLt(INPUTS, OUTPUTS, bias=False, has_fp16_weights=False, threshold=0.0)
        return layer.to("cpu")
    layer = bitsandbytes.nn.Linear4bit(
        INPUTS, OUTPUTS, bias=False, compute_dtype=torch.bfloat16, compress_statistics=kind == "nf4 twice"
    )
    return layer.to("cpu")


def stand_in(kind):
    from benchmarks.tracing.emulation import Linear4bit, Linear8bit

    return Linear8bit(dense()) if kind == "int8" else Linear4bit(dense(), double_quantization=kind == "nf4 twice")


@pytest.mark.parametrize("kind", ["nf4", "nf4 twice"])
def test_a_4bit_layer_is_as_large_as_the_real_one(kind):
    import torch

    layer = real(kind)
    parts = layer.weight.quant_state.as_dict(packed=False).values()
    wanted = layer.weight.nbytes + sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
    found = sum(buffer.nbytes for buffer in stand_in(kind).buffers())
    assert found == pytest.approx(wanted, abs=128)  # a code book and an offset


def test_an_8bit_layer_is_as_large_as_the_real_one():
    import torch

    layer = real("int8")
    layer(torch.zeros(1, INPUTS, dtype=torch.bfloat16))
    wanted = layer.state.CB.nbytes + layer.state.SCB.nbytes
    assert sum(buffer.nbytes for buffer in stand_in("int8").buffers()) == wanted


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        pytest.param("nf4 twice", False, id="4 bits drop it"),
        pytest.param("int8", True, id="8 bits keep it where no hook of autograd sees it"),
    ],
)
@pytest.mark.parametrize("layer", [real, stand_in])
def test_checkpoints_drop_or_keep_the_layers_input(layer, kind, keeps):
    import weakref

    import torch
    from torch.utils.checkpoint import checkpoint

    packed, given = layer(kind), []

    def block(states):
        inside = states * 2
        given.append(weakref.ref(inside.untyped_storage()))
        return packed(inside)

    states = torch.zeros(TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    made = checkpoint(block, states, use_reentrant=False)
    assert (given[0]() is not None) == keeps
    made.sum().backward()
