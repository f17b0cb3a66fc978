"""The proof's models: random Llamas made on the spot, so that nothing is downloaded, and their quantized copies."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from devkit.workload.device import Device
from devkit.workload.models import Model

TINY_VOCABULARY_SIZE = 260
BOS, EOS, PAD = 256, 257, 258
HEAD_SCALE = 10.0
"""Factor on the random output head. Without it the logits are too flat for LoRA alone to memorize a sentence."""

VOCABULARY_SIZE = 8192
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def build_tiny_base(*, seed: int, device: torch.device, dtype: torch.dtype) -> Model:
    """Build a frozen random base model: hidden 128, MLP 256, 2 layers, 4 query heads on 2 key-value heads.

    Equal for equal seeds on every device, because the weights are sampled on the CPU in fp32.
    Its attention is the eager one, whose backward pass is deterministic on every device.
    """
    config = LlamaConfig(
        vocab_size=TINY_VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        attn_implementation="eager",
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_SCALE)
    model.requires_grad_(requires_grad=False)
    return model.to(device=device, dtype=dtype).eval()


def encode_sentence(sentence: str) -> list[int]:
    """Encode a sentence as its bytes between BOS and EOS."""
    return [BOS, *sentence.encode(), EOS]


def decode_bytes(ids: list[int]) -> str:
    """Decode byte ids up to the first EOS; special ids are dropped, broken UTF-8 becomes U+FFFD."""
    if EOS in ids:
        ids = ids[: ids.index(EOS)]
    return bytes(each for each in ids if each < 256).decode(errors="replace")


def generate_text(model: Model, *, tokens: int) -> str:
    """Generate greedily from BOS alone, at most `tokens` tokens, with the KV cache."""
    prompt = torch.tensor([[BOS]], device=next(model.parameters()).device)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        ids = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False
        )
    model.train(was_training)
    return decode_bytes(ids[0, 1:].tolist())


def compute_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Compute the logits of one sequence in evaluation mode, on the CPU in fp32. Shape: [len(ids), vocabulary]."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids], device=next(model.parameters()).device)).logits[0]
    model.train(was_training)
    return logits.float().cpu()


def load_quantized(folder: Path, config: BitsAndBytesConfig, device: Device) -> Model:
    """Load the model in `folder`, as users do, and quantize it onto the device."""
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        quantization_config=config,
        device_map={"": device.torch_device},
        dtype=device.dtype,
        attn_implementation="eager",
        local_files_only=True,
    )
    model.requires_grad_(requires_grad=False)
    return model


def count_linear_layers(model: Model) -> dict[str, int]:
    """Count the linear layers by class name, without the output head and peft's wrappers."""
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        is_wrapper = hasattr(module, "base_layer")
        if kind.startswith("Linear") and not is_wrapper and "lora_" not in name and "lm_head" not in name:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def copy_packed_weights(model: Model) -> dict[str, torch.Tensor]:
    """Copy the packed 4-bit bytes, by parameter name.

    Do so before the first forward pass in evaluation mode: on CPUs with AVX512-BF16, bitsandbytes then repacks
    the weights into another layout, and equal values have different bytes.
    """
    return {
        name: parameter.data.detach().clone()
        for name, parameter in model.named_parameters()
        if type(parameter).__name__ == "Params4bit"
    }


def write_random_llama(folder: Path, *, seed: int, hidden: int = 1024, layers: int = 8) -> Path:
    """Write a Llama of a hundred million parameters in bf16 to disk, with a tokenizer of bytes. Returns `folder`.

    It is for figures that the tiny model would not show, and devkit finetune can load it.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    return save_random_llama(config, folder, seed=seed)


def save_random_llama(config: LlamaConfig, folder: Path, *, seed: int) -> Path:
    """Save random weights of this configuration in bf16, and a tokenizer of bytes. Returns `folder`."""
    bos, eos = 256, 257
    config.bos_token_id, config.eos_token_id = bos, eos
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        LlamaForCausalLM(config).save_pretrained(str(folder))
    finally:
        torch.set_default_dtype(default)
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary |= {SPECIAL_TOKENS["bos_token"]: bos, SPECIAL_TOKENS["eos_token"]: eos}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(str(folder))
    return folder
