"""Every architecture and every row of the catalog against the models that transformers builds, on the meta device."""

from dataclasses import replace

import pytest

from devkit.estimate.config import build_model_shape, load_families
from devkit.estimate.shape import list_models

pytestmark = [pytest.mark.full, pytest.mark.workload]

SIZES = {
    "hidden_size": 160,
    "num_hidden_layers": 7,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "intermediate_size": 224,
    "vocab_size": 509,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SWITCHED_ON = {"attention_bias": True, "tie_word_embeddings": True, "mlp_bias": True, "use_qkv_bias": True}
WITHOUT_GROUPS = {
    "gpt_bigcode",
    "opt",
    "gpt2",
    "gpt_neox",
    "bert",
    "roberta",
    "distilbert",
    "deepseek_v2",
    "deepseek_v3",
}
PARTS = {"qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text"}
"""Built by transformers only together with what sees the images; their text part is that of a sibling."""
ENCODERS = {"bert", "roberta", "distilbert"}


def built(config):
    """The model on the meta device: parameters without memory."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM

    auto = AutoModel if config.model_type in ENCODERS else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


def counted(model):
    """All parameters, and those in the weights that a quantized base packs."""
    packed = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if type(module).__name__ in {"Linear", "Conv1D"} and name not in {"lm_head", "pooler.dense"}
    )
    return sum(parameter.numel() for parameter in model.parameters()), packed


def config_of(model_type, sizes):
    from transformers import CONFIG_MAPPING

    needs_head = {"head_dim": 16} if model_type in {"hunyuan_v1_dense", "ministral"} else {}
    named = {**sizes, **needs_head, **({"num_experts_per_tok": 2} if load_families()[model_type].experts else {})}
    return CONFIG_MAPPING[model_type](**named)


@pytest.mark.parametrize(
    "extra", [pytest.param({}, id="as it is"), pytest.param(SWITCHED_ON, id="with its switches on")]
)
@pytest.mark.parametrize("model_type", sorted(load_families().keys() - PARTS))
def test_an_architecture_has_the_parameters_that_transformers_gives_it(model_type, extra):
    sizes = {
        name: size for name, size in SIZES.items() if name != "num_key_value_heads" or model_type not in WITHOUT_GROUPS
    }
    config = config_of(model_type, {**sizes, **extra})
    shape = build_model_shape(config.to_dict())
    assert (shape.parameters, shape.packed_weights) == counted(built(config))


@pytest.mark.parametrize("model_type", sorted(load_families().keys() - PARTS - {"deepseek_v2"}))
def test_an_architecture_knows_what_its_config_may_leave_out(model_type):
    sizes = {
        name: size for name, size in SIZES.items() if name != "num_key_value_heads" or model_type not in WITHOUT_GROUPS
    }
    config = config_of(model_type, sizes)
    short = build_model_shape({**config.to_diff_dict(), **sizes, "model_type": model_type})
    assert short.parameters == build_model_shape(config.to_dict()).parameters


@pytest.mark.parametrize("model", list_models(), ids=lambda model: model.id)
def test_a_model_of_the_catalog_has_the_parameters_that_transformers_gives_it(model):
    """Cut to as many layers as show every kind of them: layers of a kind are alike, and there are only more of them."""
    from transformers import AutoConfig

    full = build_model_shape(model.config)
    config = {name: value for name, value in model.config.items() if name != "text_config"} | {
        **model.config.get("text_config", {})
    }
    depth_key = next(name for name in ("num_hidden_layers", "n_layer", "n_layers") if name in config)
    few = {**config, depth_key: min(config[depth_key], 7)}
    model_type = few.pop("model_type")
    kind = {"qwen2_5_vl": "qwen2"}.get(model_type, model_type)
    cut = build_model_shape({**few, "model_type": kind})
    assert cut.parameters == counted(built(AutoConfig.for_model(kind, **few)))[0]
    alike = {replace(layer, count=1) for layer in full.layers}
    assert {replace(layer, count=1) for layer in cut.layers} == alike
