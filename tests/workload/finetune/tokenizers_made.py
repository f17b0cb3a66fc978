"""Tokenizers small enough to read: made on the spot, nothing is downloaded."""

WORDS = [
    *("Hi", "Hello", "there", "user", "assistant", "system", "Be", "kind", "What", "is", "it", "A", "hat"),
    *("one", "two", "three", "think", "so", "You", "INST", "Q"),
]
MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]

IM_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Says itself where the assistant speaks: without the line break behind a turn."""

FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] if loop.last or m['role'] != 'assistant' else m['content'].split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Drops the reasoning of earlier turns, as Qwen3's does."""

ASKS_OTHERWISE = (
    "{% if add_generation_prompt %}Q{% endif %}"
    "{% for m in messages %}{{ loop.length }} {{ m['content'] }}</s>{% endfor %}"
)
"""Writes everything otherwise with each turn: no answer can be found in it."""

STRICT = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns') }}{% endif %}"
    "{% if m['role'] == 'user' %}<s>INST {{ m['content'] }} INST{% else %} {{ m['content'] }}</s>{% endif %}"
    "{% endfor %}"
)
"""Begins each question with the beginning of text, and has no separate prompt for an answer, as Llama 2's does."""


def words(*, template=None, adds_beginning=True, eos="</s>"):
    """A tokenizer whose tokens are words, blanks and signs; <s> before each text, unless `adds_beginning` is false."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = ["<unk>", *MARKS, *WORDS, " ", "\n", ".", "?", "<", ">", "|", "_", "im", "start", "end", "/", "1", "2"]
    vocabulary += [str(number) for number in range(3, 10)]
    numbered = {token: number for number, token in enumerate(dict.fromkeys(vocabulary))}
    made = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[A-Za-z]+|\s|[^\sA-Za-z]"), "isolated")
    if adds_beginning:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", numbered["<s>"])])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token=eos)
    if template is not None:
        tokenizer.add_special_tokens({"additional_special_tokens": MARKS[2:]})
        tokenizer.chat_template = template
    return tokenizer


def merging():
    """A tokenizer of letters with one pair, "ab", that is a token of its own."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "ab", "</s>"])}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [("a", "b")])), eos_token="</s>")
