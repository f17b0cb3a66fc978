"""Models and tokenizers small enough to make for a test, saved as those of the hub are."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import GPT2Config as Gpt2
from transformers import LlamaConfig as Llama
from transformers import Qwen3MoeConfig as Qwen3Moe

BOS, EOS = "<s>", "</s>"
CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 258
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS = {
    "llama": lambda **more: Llama(**{"num_key_value_heads": 2, **SHAPE, **more}),
    "gpt2": lambda **more: Gpt2(**{"n_embd": 32, "n_layer": 2, "n_head": 4, **more}),
    "qwen3_moe": lambda **more: Qwen3Moe(
        **{
            **SHAPE,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            **more,
        }
    ),
}
HEAD_SCALE = 20.0
"""Random logits this far apart have one greedy choice, whatever the order of the additions was."""


def save_model(folder, kind="llama", *, seed=0, dtype=torch.float32, chat_template=None, max_position=128, **more):
    """A random model and a tokenizer of bytes in `folder`, which is handed back."""
    torch.manual_seed(seed)
    config = KINDS[kind](
        vocab_size=VOCABULARY,
        max_position_embeddings=max_position,
        bos_token_id=256,
        eos_token_id=257,
        **{"tie_word_embeddings": False, **more},
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(HEAD_SCALE)
    model.to(dtype).save_pretrained(folder)
    save_tokenizer(folder, chat_template=chat_template)
    return folder


def save_tokenizer(folder, *, chat_template=None, begins=True):
    """Bytes as tokens 0 to 255, then BOS, which stands before every text if it `begins`, and EOS. There is no padding token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([BOS, EOS])
    if begins:
        made.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 256)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BOS, eos_token=EOS)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)


def save_trained_adapter(model, folder, base):
    """Save the adapter of `model` alone, with a reference to its base, as a run publishes it."""
    from devkit.workload.finetune.model import write_adapter_metadata

    model.save_pretrained(str(folder), save_embedding_layers=False)
    write_adapter_metadata(folder, base)
