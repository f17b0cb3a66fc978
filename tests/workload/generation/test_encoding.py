"""Prompts and chats as tokens, by the model's own chat template."""

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.model import load_tokenizer
from devkit.workload.generation.decoding import encode_prompt
from devkit.workload.generation.settings import Prompt
from tests.workload.small_models import CHATML, save_model

pytestmark = pytest.mark.workload


def chat(text):
    return Prompt(messages=({"role": "user", "content": text},))


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    plain = load_tokenizer(save_model(tmp_path))
    with pytest.raises(DevkitError, match="has no chat template"):
        encode_prompt(chat("ab"), plain, raw=True)
    ids = encode_prompt(Prompt("ab"), plain, raw=False)
    assert ids == [256, *plain("ab", add_special_tokens=False)["input_ids"]]


def test_half_a_character_in_a_chat_is_refused(tmp_path):
    tokenizer = load_tokenizer(save_model(tmp_path, chat_template=CHATML))
    with pytest.raises(DevkitError, match="the chat is not UTF-8"):
        encode_prompt(chat("a\ud83d"), tokenizer, raw=False)
