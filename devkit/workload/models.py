"""The type of models, the names of their LoRA parameters, and their quantization by bitsandbytes."""

from typing import Any, TypeAlias

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers import AutoHfQuantizer

Model: TypeAlias = Any
"""A model of transformers or peft, whose own types declare less than they have."""

LORA_PARAMETER_MARK = ".lora_"
"""The part of the name of every parameter that peft adds for LoRA or DoRA."""


def build_nf4_config(
    dtype: torch.dtype, *, double: bool = True, storage: torch.dtype = torch.uint8
) -> BitsAndBytesConfig:
    """Build the configuration of QLoRA's base: 4-bit NormalFloat, by default with double quantization.

    `storage` is the nominal dtype of the packed bytes: FSDP2 shards only tensors of the same dtype as the rest of the
    layer. Sources: Dettmers et al., QLoRA, 2023; https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora
    """
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=storage,
    )


def build_int8_config() -> BitsAndBytesConfig:
    """Build the configuration of LLM.int8(): 8-bit weights with 16-bit outliers."""
    return BitsAndBytesConfig(load_in_8bit=True)


def prepare_4bit_layers(model: Model, config: BitsAndBytesConfig) -> None:
    """Replace the layers of `model` that `config` quantizes by 4-bit layers, whose weights are packed when moved.

    That is a move to any device but "meta": see bitsandbytes 0.50, nn/modules.py, Params4bit.to.
    """
    quantizer: Any = AutoHfQuantizer.from_config(config, pre_quantized=False)
    before = dict(model.named_modules())
    quantizer.preprocess_model(
        model=model, device_map={"": "cpu"}, keep_in_fp32_modules=getattr(model, "_keep_in_fp32_modules", None)
    )
    for name, module in model.named_modules():
        dense: Any = before.get(name)
        if dense is None or dense is module:
            continue
        # GPT-2's linear layers have their weight transposed.
        weight = dense.weight if isinstance(dense, torch.nn.Linear) else dense.weight.T
        packed: Any = module.weight
        module.weight = type(packed)(weight.detach(), requires_grad=False, **vars(packed))
        module.bias = dense.bias
    quantizer.postprocess_model(model)
