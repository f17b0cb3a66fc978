"""A chat remembers its turns, starts over when it must, and its answers can be stopped."""

import os
import signal

import pytest

from devkit.errors import DevkitError
from devkit.workload.finetune.files import LoadSettings
from devkit.workload.finetune.model import load_base_and_tokenizer
from devkit.workload.generation.decoding import (
    FinishReason,
    TextGenerator,
    encode_chat,
    encode_prompt,
    require_chat_template,
)
from devkit.workload.generation.program import ChatSession
from devkit.workload.generation.settings import DecodingSettings, Prompt
from tests.workload.small_models import CHATML, save_model

pytestmark = pytest.mark.workload


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A small model that was made for chats of 128 tokens."""
    loaded = load_base_and_tokenizer(
        f"{save_model(tmp_path_factory.mktemp('base'), chat_template=CHATML)}", LoadSettings()
    )
    return TextGenerator(loaded.model, loaded.tokenizer)


def chat_with(generator, **decoding):
    """A chat, and what it shows and remarks."""
    shown, remarks = [], []
    return (
        ChatSession(generator, DecodingSettings(**{"tokens": 8, **decoding}), shown.append, remarks.append),
        shown,
        remarks,
    )


def test_every_turn_is_answered_with_the_earlier_ones_as_context(generator):
    chat, shown, _ = chat_with(generator)
    typed = iter(["hello", "  ", "and now", None])
    chat.run(lambda: next(typed))
    assert [each["role"] for each in chat.turns] == ["user", "assistant", "user", "assistant"]
    # Each on lines of its own, so that answers on a pipe can be told apart.
    assert "".join(shown) == "".join(f"{each['content']}\n" for each in chat.turns if each["role"] == "assistant")
    alone, _, _ = chat_with(generator)
    alone.answer("and now")
    assert alone.turns[1]["content"] != chat.turns[3]["content"]


@pytest.mark.parametrize("system", [False, True], ids=["no system turn", "a system turn"])
def test_the_turns_so_far_are_dropped_when_the_context_is_full_and_the_user_is_informed(generator, system):
    chat, _, remarks = chat_with(generator)
    chat.turns = [{"role": "system", "content": "be kind"}] if system else []
    for number in range(8):
        chat.answer(f"turn number {number}")
    assert any("no longer fit the model's context and are dropped" in each for each in remarks)
    assert chat.turns[-2]["content"] == "turn number 7"
    roles = [each["role"] for each in chat.turns if each["role"] != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert (chat.turns[0]["role"] == "system") is system
    assert len(encode_chat(chat.turns[:-1], generator.tokenizer)) < 128


def test_a_turn_that_does_not_fit_even_alone_is_dropped_and_the_chat_continues(generator):
    chat, _, remarks = chat_with(generator)
    chat.answer("hello")
    before = list(chat.turns)
    assert chat.answer("long " * 60) is None
    assert remarks[-1].startswith("(too long: 3")
    assert "the context length is 128" in remarks[-1]
    assert not any("forgotten" in each for each in remarks)
    assert chat.turns == before
    assert chat.answer("short") is not None


def test_ctrl_c_ends_an_answer_whose_beginning_stays_in_the_chat(generator):
    chat, shown, remarks = chat_with(generator, tokens=60)

    def press(piece):
        shown.append(piece)
        os.kill(os.getpid(), signal.SIGINT)

    chat.say = press
    found = chat.answer("what is there")
    assert found.finish_reason in (FinishReason.STOPPED, FinishReason.END)
    if found.finish_reason is FinishReason.STOPPED:
        assert remarks == ["(stopped)"]
        assert len(found.ids) < 60
    assert chat.turns[-1] == {"role": "assistant", "content": found.text}


def test_a_model_without_a_chat_template_is_refused(generator, tmp_path):
    plain = load_base_and_tokenizer(f"{save_model(tmp_path)}", LoadSettings()).tokenizer
    with pytest.raises(DevkitError, match="has no chat template"):
        require_chat_template(plain)
    ids = encode_prompt(Prompt("ab"), plain, raw=False)
    assert ids == [256, *plain("ab", add_special_tokens=False)["input_ids"]]


def test_half_a_character_in_a_chat_is_refused(generator):
    with pytest.raises(DevkitError, match="the chat is not UTF-8"):
        encode_chat([{"role": "user", "content": "a\ud83d"}], generator.tokenizer)
