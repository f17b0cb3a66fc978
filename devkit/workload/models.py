"""A Llama-shaped model small enough for a laptop, made on the spot: nothing is downloaded."""

from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# A random model of a hundred million parameters on disk, for figures that a tiny one would not show.

BYTE_TOKENS = 256
VOCABULARY_SIZE = 8192
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def write_random_llama(folder: Path, *, seed: int, hidden: int = 1024, layers: int = 8) -> Path:
    """A Llama in bf16 with a tokenizer of bytes, where devkit finetune can load it; the folder."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=4096,
        bos_token_id=BYTE_TOKENS,
        eos_token_id=BYTE_TOKENS + 1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))
    _tokenizer_of_bytes().save_pretrained(str(folder))
    return folder


def _tokenizer_of_bytes() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate(letters)} | {
        SPECIAL_TOKENS["bos_token"]: BYTE_TOKENS,
        SPECIAL_TOKENS["eos_token"]: BYTE_TOKENS + 1,
    }
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS)


Model: TypeAlias = Any
"""A model of transformers or peft, whose own types promise less than they hold."""

TINY_VOCABULARY_SIZE = 260
BOS, EOS, PAD = 256, 257, 258
HEAD_SCALE = 10.0
"""Factor on the random output head. Without it the logits are too flat for a sentence to be memorised by LoRA alone."""


def encode_sentence(sentence: str) -> list[int]:
    """Bytes as token ids, between BOS and EOS."""
    return [BOS, *sentence.encode(), EOS]


def decode_bytes(ids: list[int]) -> str:
    """The text of byte ids up to the first EOS; special ids are dropped, broken UTF-8 shows as U+FFFD."""
    if EOS in ids:
        ids = ids[: ids.index(EOS)]
    return bytes(each for each in ids if each < 256).decode(errors="replace")


def build_tiny_base(*, seed: int, device: torch.device, dtype: torch.dtype) -> Model:
    """A frozen random base model: hidden 128, MLP 256, 2 layers, 4 query heads on 2 key-value heads.

    Equal for equal seeds on every device, because the weights are drawn on the CPU in fp32.
    Attention is the eager one: its backward pass is repeatable on every device.
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


def generate_text(model: Model, *, tokens: int) -> str:
    """Greedy text from BOS alone, at most `tokens` tokens, with the key-value cache."""
    device = next(model.parameters()).device
    prompt = torch.tensor([[BOS]], device=device)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        ids = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False
        )
    model.train(was_training)
    return decode_bytes(ids[0, 1:].tolist())


def compute_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Logits of one sequence in evaluation mode, on the CPU in fp32. Shape: [len(ids), vocabulary]."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids], device=device)).logits[0]
    model.train(was_training)
    found: torch.Tensor = output.float().cpu()
    return found
