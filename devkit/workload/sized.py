"""A random model of a hundred million parameters on disk, for figures that a tiny one would not show."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BYTES = 256
VOCABULARY = 8192
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def write_model(folder: Path, *, seed: int, hidden: int = 1024, layers: int = 8) -> Path:
    """A Llama in bf16 with a tokenizer of bytes, where devkit finetune can load it; the folder."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=4096,
        bos_token_id=BYTES,
        eos_token_id=BYTES + 1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(str(folder))
    _tokenizer_of_bytes().save_pretrained(str(folder))
    return folder


def _tokenizer_of_bytes() -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {letter: number for number, letter in enumerate(letters)} | {
        TOKENS["bos_token"]: BYTES,
        TOKENS["eos_token"]: BYTES + 1,
    }
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)
