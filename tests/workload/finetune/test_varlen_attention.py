"""Texts that share a row do not see each other: their losses and gradients are those of texts alone.

Tolerance: fp32, where the order of additions differs between kernels; 2e-6 relative is some ten roundings.
"""

from dataclasses import replace

import pytest
import torch

pytestmark = pytest.mark.workload

from devkit.estimate.settings import Attention
from devkit.workload.finetune.dataset import IGNORE_INDEX, BatchRow, Example, collate
from devkit.workload.finetune.forward import (
    ATTN_IMPLEMENTATION,
    build_model_inputs,
    read_attention_traits,
    register_varlen_attention,
)

CPU = torch.device("cpu")
VOCABULARY = 64
TOLERANCE = 2e-6
WINDOW = 4
LENGTHS = (9, 1, 5, 12, 2, 7)


MODELS = [
    pytest.param("LlamaConfig", {}, id="Llama with grouped heads"),
    pytest.param("Qwen2Config", {}, id="Qwen2"),
    pytest.param(
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        id="Qwen2 of two kinds",
    ),
    pytest.param("Qwen3Config", {"head_dim": 8}, id="Qwen3"),
    pytest.param("MistralConfig", {"sliding_window": WINDOW}, id="Mistral with a window shorter than the texts"),
    pytest.param(
        "Gemma3TextConfig", {"sliding_window": WINDOW, "head_dim": 8}, id="Gemma 3 with windows in some layers"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    register_varlen_attention()
    yield
    torch.set_num_threads(before)


def model_of(configuration, differences, attention):
    import transformers

    config = getattr(transformers, configuration)(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        max_position_embeddings=64,
        attn_implementation=ATTN_IMPLEMENTATION[attention],
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False} | differences,
    )
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert model.config._attn_implementation == ATTN_IMPLEMENTATION[attention]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.3)
    return model


def texts(lengths=LENGTHS):
    source = torch.Generator().manual_seed(5)
    ids = [torch.randint(1, VOCABULARY, (length,), generator=source).tolist() for length in lengths]
    return [Example(each, [place >= len(each) // 3 for place in range(len(each))]) for each in ids]


def losses(model, batch, attention):
    """Summed loss of each text, told apart by where positions begin again, and left out where nothing is counted."""
    logits = model(**build_model_inputs(batch, attention, CPU)).logits
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    text = (batch.positions.flatten() == 0).cumsum(0) - 1
    summed = torch.zeros(int(text.max()) + 1).index_add(0, text, each)
    return summed[summed.detach() > 0]


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def trained(configuration, differences, attention, rows, *, flat):
    model = model_of(configuration, differences, attention)
    found = losses(model, collate(rows, flat=flat), attention)
    found.sum().backward()
    return found.detach(), gradients(model)


ALONE = {}


def texts_alone(configuration, differences):
    """Losses and gradients of padded rows of one text each, computed by transformers' own attention."""
    key = (configuration, str(differences))
    if key not in ALONE:
        ALONE[key] = trained(configuration, differences, Attention.SDPA, rows_apart(texts()), flat=False)
    return ALONE[key]


def rows_apart(examples):
    return [BatchRow((each,)) for each in examples]


def rows_packed(examples):
    return [BatchRow(tuple(examples[:3])), BatchRow(tuple(examples[3:]))]


@pytest.mark.parametrize(("configuration", "differences"), MODELS)
@pytest.mark.parametrize(
    ("attention", "flat"),
    [
        pytest.param(Attention.VARLEN, True, id="varlen"),
        pytest.param(Attention.EAGER, False, id="eager on padded rows"),
        pytest.param(Attention.VARLEN, False, id="varlen on padded rows"),
    ],
)
def test_packed_texts_have_the_losses_and_gradients_of_texts_alone(configuration, differences, attention, flat):
    rows = rows_packed(texts()) if flat else rows_apart(texts())
    alone, gradients_alone = texts_alone(configuration, differences)
    together, gradients_together = trained(configuration, differences, attention, rows, flat=flat)
    assert len(alone) == sum(each.target_count > 0 for each in texts())
    torch.testing.assert_close(together, alone, rtol=TOLERANCE, atol=0)
    for name, gradient in gradients_alone.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(gradients_together[name], gradient, rtol=0, atol=scale * 1e-5, msg=name)


@pytest.mark.parametrize(("configuration", "differences"), MODELS)
def test_naive_packing_differs(configuration, differences):
    """The negative control: positions that run on let texts see each other, and losses are others."""
    alone, _ = texts_alone(configuration, differences)
    batch = collate(rows_packed(texts()), flat=True)
    running = replace(batch, positions=torch.arange(batch.ids.shape[1]).unsqueeze(0), cu_seqlens=None)
    model = model_of(configuration, differences, Attention.SDPA)
    logits = model(**build_model_inputs(running, Attention.SDPA, CPU)).logits
    each = torch.nn.functional.cross_entropy(logits[0], batch.labels[0], ignore_index=IGNORE_INDEX, reduction="none")
    text = (batch.positions[0] == 0).cumsum(0) - 1
    summed = torch.zeros(len(LENGTHS)).index_add(0, text, each)
    naive = summed[summed > 0].detach()
    assert float(naive[0]) == pytest.approx(float(alone[0]), rel=TOLERANCE)
    assert all(abs(a - b) > 100 * TOLERANCE * b for a, b in zip(naive[1:].tolist(), alone[1:].tolist(), strict=True))


def test_generation_with_varlen_attention_is_that_of_sdpa():
    prompts = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    answers = [
        model_of("MistralConfig", {"sliding_window": WINDOW}, attention)
        .eval()
        .generate(prompts, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        for attention in (Attention.SDPA, Attention.VARLEN)
    ]
    assert torch.equal(*answers)


def test_a_model_that_loses_the_borders_is_found_out():
    """Else its texts would see each other, and nobody would know."""
    model = model_of("LlamaConfig", {}, Attention.VARLEN)
    inputs = build_model_inputs(collate(rows_packed(texts()), flat=True), Attention.VARLEN, CPU)
    lost = {name: value for name, value in inputs.items() if name != "cu_seq_lens_q"}
    with pytest.raises(RuntimeError, match="LlamaAttention did not receive the boundaries"):
        model(**lost)


@pytest.mark.parametrize("asked", ["softcap", "s_aux", "position_bias"])
def test_unsupported_arguments_of_varlen_attention_raise(asked):
    from devkit.workload.finetune.forward import varlen_attention

    heads = torch.zeros(1, 1, 2, 8)
    with pytest.raises(RuntimeError, match=asked):
        varlen_attention(torch.nn.Module(), heads, heads, heads, None, **{asked: 30.0})


def traits(name, **fields):
    import transformers

    return read_attention_traits(getattr(transformers, name)(**fields))


def test_traits_are_read_from_configurations():
    plain = traits("LlamaConfig", hidden_size=64, num_attention_heads=4)
    assert (plain.name, plain.sdpa, plain.passes_borders, plain.recurrent) == ("llama", True, True, False)
    assert (plain.head, plain.value_head, plain.dropout) == (16, 16, 0.0)
    assert traits("Gemma2Config").softcap
    assert not traits("GptOssConfig").sdpa
    assert traits("MambaConfig").recurrent
    assert traits("Qwen3NextConfig").recurrent
    assert not traits("BloomConfig").passes_borders
    assert traits("Qwen3MoeConfig", output_router_logits=True).router_loss
    assert traits("LlamaConfig", attention_dropout=0.1).dropout == 0.1
    latent = traits("DeepseekV3Config")
    assert latent.head != latent.value_head
