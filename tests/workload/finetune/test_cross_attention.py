"""The trial that a model keeps the texts of a row apart: it passes those that do and stops the others."""

import pytest
import torch

from devkit.errors import DevkitError

pytestmark = pytest.mark.workload

from devkit.estimate.settings import Attention
from devkit.workload.finetune.forward import ATTN_IMPLEMENTATION, register_varlen_attention, require_no_cross_attention

CPU = torch.device("cpu")
SHAPE = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    register_varlen_attention()
    yield
    torch.set_num_threads(before)


def made(configuration="LlamaConfig", attention=Attention.VARLEN, **differences):
    import transformers

    config = getattr(transformers, configuration)(
        **SHAPE | differences, attn_implementation=ATTN_IMPLEMENTATION[attention], max_position_embeddings=64
    )
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_model_that_keeps_texts_apart_passes(precision):
    model = made().to(precision).eval()
    require_no_cross_attention(model, Attention.VARLEN, CPU)
    assert not model.training


def test_a_model_that_does_not_look_at_borders_is_stopped(monkeypatch):
    """As code does that came with a model and builds its own masks."""
    model = made()
    decoder = model.get_decoder()
    forward = decoder.forward

    def deaf(*, input_ids, **_):
        return forward(input_ids=input_ids, use_cache=False)

    monkeypatch.setattr(decoder, "forward", deaf)
    with pytest.raises(DevkitError, match="attend to each other in this model with varlen attention") as caught:
        require_no_cross_attention(model, Attention.VARLEN, CPU)
    assert "--no-packing" in caught.value.hint


def test_a_model_with_recurrent_layers_is_stopped():
    shape = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "num_experts": 0}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
    widths = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    model = made("Qwen3NextConfig", attention=Attention.SDPA, **shape, **linear, **widths)
    # Releases of transformers that take such a row refuse it themselves without flash-linear-attention.
    with pytest.raises((DevkitError, ValueError), match=r"attend to each other|keep packed sequences apart"):
        require_no_cross_attention(model, Attention.SDPA, CPU)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_dropout_is_no_cross_attention_and_generators_are_restored():
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(made(), LoraConfig(target_modules="all-linear", lora_dropout=0.5, init_lora_weights=False))
    adapted.train()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    require_no_cross_attention(adapted, Attention.VARLEN, CPU)
    assert torch.equal(torch.rand(3), expected)
    assert adapted.training
