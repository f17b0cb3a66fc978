"""The type of models, their quantization by bitsandbytes, and peft, which only this module imports: without bitsandbytes.

By default, peft imports bitsandbytes wherever it is installed: every start would take longer, and where bitsandbytes
finds no native library that fits, peft could not be imported either.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers import AutoHfQuantizer

from devkit.workload.environment import hide_module

Model: TypeAlias = Any
"""A model of transformers or peft, whose own types declare less than they have."""


def build_nf4_config(dtype: torch.dtype, *, storage: torch.dtype = torch.uint8) -> BitsAndBytesConfig:
    """Build the configuration of QLoRA's base: 4-bit NormalFloat with double quantization.

    `storage` is the nominal dtype of the packed bytes: FSDP2 shards only tensors of the same dtype as the rest of the
    layer. Sources: Dettmers et al., QLoRA, 2023; https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora
    """
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
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
    # Trainer asks it if such layers can be trained.
    model.hf_quantizer = quantizer
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


with hide_module("bitsandbytes"):
    from peft import (
        LoraConfig,
        PeftConfig,
        PeftModel,
        PeftModelForCausalLM,
        get_peft_model,
        get_peft_model_state_dict,
        prepare_model_for_kbit_training,
    )
    from peft.import_utils import is_bnb_4bit_available, is_bnb_available
    from peft.tuners.lora import Linear, LoraLayer

__all__ = [
    "Linear",
    "LoraConfig",
    "LoraLayer",
    "PeftConfig",
    "PeftModel",
    "PeftModelForCausalLM",
    "adapter_injection",
    "get_peft_model",
    "get_peft_model_state_dict",
    "prepare_model_for_kbit_training",
]


@contextmanager
def adapter_injection(base: Model) -> Iterator[None]:
    """Let peft inject adapters into `base` within the block, with bitsandbytes only where that packed layers of `base`.

    A deprecation warning about peft's own use of transformers is hidden: a user can do nothing about it.
    """
    is_packed = any(type(each).__module__.startswith("bitsandbytes") for each in base.modules())
    with warnings.catch_warnings(), nullcontext() if is_packed else hide_module("bitsandbytes"):
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        _forget_bitsandbytes()
        try:
            yield
        finally:
            _forget_bitsandbytes()


def _forget_bitsandbytes() -> None:
    """Clear what peft has cached about bitsandbytes."""
    for cached in (is_bnb_available, is_bnb_4bit_available):
        cached.cache_clear()
