"""What is read and what is refused: a model's config.json, and settings."""

import json

import pytest

from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import InferenceSettings, Method, Precision, TrainingSettings, decode_settings
from devkit.formats.documents import encode
from tests.cases import cases

# From a config.json to a shape: what is read, and what is refused.


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@cases(
    "changed, says",
    {
        "an unknown architecture": ({"model_type": "mamba9"}, "'mamba9' is not known"),
        "no architecture": ({"model_type": None}, "model_type is missing"),
        "a size that is missing": ({"hidden_size": None}, "does not set hidden_size"),
        "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        "a negative size": ({"vocab_size": -5}, "vocab_size is -5"),
        "a word": ({"vocab_size": "many"}, "vocab_size is 'many'"),
        "a truth value": ({"vocab_size": True}, "vocab_size is True"),
        "beyond all measure": ({"hidden_size": 10**15}, "hidden_size is 1000000000000000"),
        "heads that do not divide": (
            {"num_attention_heads": 5},
            "is not divisible by the number of attention heads (5)",
        ),
    },
)
def test_a_config_that_makes_no_model_is_refused_in_a_line(changed, says):
    with pytest.raises(DevkitError) as refusal:
        build_model_shape({**LLAMA, **changed})
    assert says in refusal.value.message and refusal.value.hint


def test_of_a_vision_language_model_the_text_part_is_taken_and_that_is_said():
    shape = build_model_shape({"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 1}})
    assert shape.parameters == build_model_shape(LLAMA).parameters
    assert "text part only" in shape.note


@cases(
    "changed, windows",
    {
        "no window": ({}, {None: 6}),
        "every layer slides": ({"sliding_window": 32}, {32: 6}),
        "a window that is switched off": ({"sliding_window": 32, "use_sliding_window": False}, {None: 6}),
        "every third sees all": ({"sliding_window": 32, "sliding_window_pattern": 3}, {32: 4, None: 2}),
        "layer by layer": (
            {"sliding_window": 32, "layer_types": ["sliding_attention"] + ["full_attention"] * 5},
            {32: 1, None: 5},
        ),
    },
)
def test_layers_with_sliding_windows_are_distinguished(changed, windows):
    shape = build_model_shape({**LLAMA, **changed})
    assert {layer.window: layer.count for layer in shape.layers} == windows


def test_the_first_layers_of_a_mixture_may_be_dense():
    experts = {"n_routed_experts": 8, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "first_k_dense_replace": 2}
    latent = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": 32}
    shape = build_model_shape({**LLAMA, "model_type": "deepseek_v3", **experts, **latent})
    assert [(layer.count, layer.experts is not None) for layer in shape.layers] == [(2, False), (4, True)]
    assert shape.cache_width == 32 + 8


@pytest.mark.parametrize(
    "settings",
    [
        TrainingSettings(method=Method.QLORA, targets=("q_proj", "v_proj"), upcast=True),
        InferenceSettings(cache_precision=Precision.FP32),
        InferenceSettings(cache_precision=None),
    ],
)
def test_settings_survive_json(settings):
    assert decode_settings(type(settings), json.loads(json.dumps(encode(settings)))) == settings


def test_what_is_left_out_has_its_default():
    assert decode_settings(TrainingSettings, {"rank": 8}) == TrainingSettings(rank=8)


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        pytest.param({"squence": 8}, "unknown setting 'squence'", "Did you mean sequence?", id="a misspelled name"),
        pytest.param({"zzzzzz": 8}, "unknown setting 'zzzzzz'", "Known: method, ", id="a name like no other"),
        pytest.param(
            {"method": "lara"},
            """method must be "lora", .*, not 'lara'""",
            'Write it as "lora", "qlora"',
            id="a wrong value",
        ),
    ],
)
def test_what_no_setting_has_is_refused(values, message, hint):
    with pytest.raises(DevkitError, match=message) as refused:
        decode_settings(TrainingSettings, values)
    assert refused.value.hint.startswith(hint)
