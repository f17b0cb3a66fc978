"""A base model in 4 or 8 bits by bitsandbytes, loaded as users load one: from a folder, by transformers."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.quantizers import AutoHfQuantizer

from devkit.workload.device import Device
from devkit.workload.models import Model


def build_nf4_config(
    dtype: torch.dtype, *, double: bool = True, storage: torch.dtype = torch.uint8
) -> BitsAndBytesConfig:
    """QLoRA's base: 4-bit NormalFloat, by default with double quantisation. Source: Dettmers et al., QLoRA, 2023.

    `storage` is what the packed bits are called: FSDP2 shares out only what is called as the rest of the layer is.
    Source: https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora
    """
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=storage,
    )


def build_int8_config() -> BitsAndBytesConfig:
    """LLM.int8(): 8-bit weights with 16-bit outliers."""
    return BitsAndBytesConfig(load_in_8bit=True)


def prepare_4bit_layers(model: Model, how: BitsAndBytesConfig) -> None:
    """Have the layers of `model` that `how` quantises be 4-bit layers, whose weights are packed once they are moved.

    Moved to any device but "meta": see bitsandbytes 0.50, nn/modules.py, Params4bit.to.
    """
    quantizer: Any = AutoHfQuantizer.from_config(how, pre_quantized=False)
    before = dict(model.named_modules())
    quantizer.preprocess_model(
        model=model, device_map={"": "cpu"}, keep_in_fp32_modules=getattr(model, "_keep_in_fp32_modules", None)
    )
    for name, module in model.named_modules():
        dense: Any = before.get(name)
        if dense is None or dense is module:
            continue
        # GPT-2's linear layers keep their weight the other way round.
        weight = dense.weight if isinstance(dense, torch.nn.Linear) else dense.weight.T
        made: Any = module.weight
        module.weight = type(made)(weight.detach(), requires_grad=False, **vars(made))
        module.bias = dense.bias
    quantizer.postprocess_model(model)


def load_quantized(folder: Path, how: BitsAndBytesConfig, device: Device) -> Model:
    """The model saved in `folder`, quantised onto the device while it loads."""
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        quantization_config=how,
        device_map={"": device.torch_device},
        dtype=device.dtype,
        attn_implementation="eager",
        local_files_only=True,
    )
    model.requires_grad_(requires_grad=False)
    return model


def count_linear_layers(model: Model) -> dict[str, int]:
    """How many linear layers of each class there are, by class name, without the output head and peft's wrappers."""
    kinds: dict[str, int] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        is_wrapper = hasattr(module, "base_layer")
        if kind.startswith("Linear") and not is_wrapper and "lora_" not in name and "lm_head" not in name:
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def copy_packed_weights(model: Model) -> dict[str, torch.Tensor]:
    """A copy of the packed 4-bit bytes, by parameter name.

    Take it before the first forward pass in evaluation mode: on CPUs with AVX512-BF16, bitsandbytes then repacks
    the weights into another layout, and equal values have different bytes.
    """
    return {
        name: parameter.data.detach().clone()
        for name, parameter in model.named_parameters()
        if type(parameter).__name__ == "Params4bit"
    }
