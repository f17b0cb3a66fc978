"""What a layer keeps for its backward pass, against what autograd really saves in models that transformers builds."""

from dataclasses import replace

import pytest

from devkit.estimate.activations import compute_saved_activations
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import Attention, Method, Precision, TrainingSettings

pytestmark = [
    pytest.mark.full,
    pytest.mark.workload,
    # Of peft's making: it asks transformers for what that calls otherwise by now.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

TOKENS = 48
RANK = 4
SMALL_BYTES = 48
"""What is not counted, per token and layer: means and deviations of norms, and fp32 numbers per head."""
SIZES = {
    "num_attention_heads": 5,
    "intermediate_size": 448,
    "vocab_size": 101,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "llama": {"hidden_size": 240, "num_key_value_heads": 1},
    "qwen3": {"hidden_size": 240, "num_key_value_heads": 1, "head_dim": 64},
    "gemma3_text": {"hidden_size": 240, "num_key_value_heads": 1, "head_dim": 64},
    "olmo2": {"hidden_size": 240, "num_key_value_heads": 5},
    "starcoder2": {"hidden_size": 240, "num_key_value_heads": 1, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "opt": {
        "hidden_size": 240,
        "ffn_dim": 448,
        "dropout": 0.0,
        "activation_function": "relu",
        "word_embed_proj_dim": 240,
    },
}
WAYS = {
    "full": TrainingSettings(method=Method.FULL),
    "LoRA in bf16": TrainingSettings(rank=RANK),
    "LoRA in fp32": TrainingSettings(rank=RANK, adapter_precision=Precision.FP32),
    "LoRA on queries and values": TrainingSettings(rank=RANK, targets=("q_proj", "v_proj")),
    "LoRA without fused attention": TrainingSettings(rank=RANK, attention=Attention.EAGER),
}


def saved_bytes(config, settings):
    """Bytes that the graph of one forward pass keeps, each storage once and parameters left out."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation=str(settings.attention)).to(torch.bfloat16)
    if settings.method is Method.LORA:
        targets = "all-linear" if settings.targets == ("all-linear",) else list(settings.targets)
        lora = LoraConfig(r=settings.rank, target_modules=targets)
        is_wide = settings.adapter_precision is Precision.FP32
        model = get_peft_model(model, lora, autocast_adapter_dtype=is_wide)
        model.enable_input_require_grads()
    model.train()
    parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
    held, sizes = [], {}

    def pack(tensor):
        held.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert loss.requires_grad
    return sum(sizes.values())


CASES = [("llama", way) for way in WAYS] + [(kind, "LoRA in bf16") for kind in KINDS if kind != "llama"]
CASES += [("gemma3_text", "full"), ("opt", "full"), ("starcoder2", "LoRA without fused attention")]


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_saved_activations_are_what_autograd_saves(kind, way):
    from transformers import CONFIG_MAPPING

    settings = WAYS[way]
    two, three = (CONFIG_MAPPING[kind](**SIZES, **KINDS[kind], num_hidden_layers=depth) for depth in (2, 3))
    measured = (saved_bytes(three, settings) - saved_bytes(two, settings)) / TOKENS
    shape = build_model_shape(three.to_dict())
    kept = compute_saved_activations(shape.layers[0], shape, replace(settings, sequence=TOKENS))
    estimated = kept.per_token + TOKENS * kept.scores
    assert measured == pytest.approx(estimated, abs=SMALL_BYTES + 0.01 * estimated)
