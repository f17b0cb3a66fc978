"""Chats as their templates write them: where the answers stand, and what is done where a template hides them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from tests.fuzz.profile import FUZZ
from tests.workload.finetune import tokenizers_made as made
from tests.workload.finetune.tables import ANSWER, LAST, SECOND, USER, chat, notes, shown, table, turn

pytestmark = pytest.mark.workload

from devkit.workload.finetune.dataset import tokenize_records


def test_a_template_that_marks_answers_is_believed():
    """It leaves the line break behind a turn out, which the borders of turns would take in."""
    tokenizer = made.words(template=made.MARKED)
    assert table(tokenizer, chat(USER, ANSWER, SECOND, LAST)) == [
        "<|im_start|> user / Hi <|im_end|> / <|im_start|> assistant / [Hello] [<|im_end|>] / "
        "<|im_start|> user / What <|im_end|> / <|im_start|> assistant / [A] [_] [hat] [<|im_end|>] /"
    ]
    [learned_late] = table(tokenizer, chat(USER, ANSWER, SECOND, LAST, first_trained_turn=2))
    assert "[Hello]" not in learned_late
    assert learned_late.endswith("[A] [_] [hat] [<|im_end|>] /")


def test_a_template_that_forgets_reasoning_gives_an_example_for_each_answer():
    tokenizer = made.words(template=made.FORGETS)
    first, last = turn("assistant", "<think>so</think>Hello"), turn("assistant", "<think>is</think>A")
    head = "<|im_start|> user / Hi <|im_end|> / <|im_start|> assistant /"
    assert table(tokenizer, chat(USER, first, SECOND, last)) == [
        f"{head} [<think>] [so] [</think>] [Hello] [<|im_end|>] [/]",
        f"{head} Hello <|im_end|> / <|im_start|> user / What <|im_end|> / "
        "<|im_start|> assistant / [<think>] [is] [</think>] [A] [<|im_end|>] [/]",
    ]
    assert notes(tokenizer, chat(USER, first, SECOND, last)) == [
        "1 chat: each answer an example, as the chat template renders earlier answers differently later"
    ]
    assert notes(tokenizer, chat(USER, ANSWER, SECOND, LAST)) == [], "without reasoning nothing is forgotten"


def test_a_template_in_which_no_answer_is_found_is_refused_with_what_to_do():
    tokenizer = made.words(template=made.ASKS_OTHERWISE)
    with pytest.raises(
        DevkitError, match=r"data\.jsonl:3: answers are not found, because the chat template begins them differently"
    ) as caught:
        table(tokenizer, chat(USER, ANSWER))
    assert "--no-completion-only" in caught.value.hint
    assert len(table(tokenizer, chat(USER, ANSWER), completion_only=False)) == 1


def test_a_template_without_a_prompt_for_answers_learns_behind_the_turns_before():
    tokenizer = made.words(template=made.STRICT)
    assert table(tokenizer, chat(USER, ANSWER, SECOND, LAST)) == [
        "<s> INST _ Hi _ INST [_] [Hello] [</s>] <s> INST _ What _ INST [_] [A] [_] [hat] [</s>]"
    ]


def test_what_a_template_refuses_is_said_with_its_reason_and_place():
    with pytest.raises(DevkitError, match=r"data\.jsonl:3: the chat template rejects .*: roles must take turns"):
        table(made.words(template=made.STRICT), chat(USER, USER, ANSWER))


def test_a_template_that_writes_the_day_writes_the_same_one_every_day():
    """Else a run that goes on after midnight would find other data than it began with."""
    tokenizer = made.words(template="{{ strftime_now('%d %b %Y') }}\n" + made.IM_CHATML)
    [found] = tokenize_records([chat(USER, ANSWER)], tokenizer, sequence=100).examples
    assert shown(tokenizer, found).startswith("2 6 _ <unk> _ 2 <unk> 2 4 /")


def test_a_tokenizer_without_a_template_is_given_one_aloud_and_keeps_it():
    tokenizer = made.words()
    assert notes(tokenizer, chat(USER, ANSWER)) == [
        "the tokenizer has no chat template: chats use ChatML, which the model was not trained with"
    ]
    rendered = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert rendered == "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    [found] = table(tokenizer, chat(USER, ANSWER))
    assert found.startswith("<s> <")
    assert found.count("<s>") == 1
    assert found.endswith("[>] [/] [</s>]"), "no mark of its own ends the turn here, so the end of text does"


contents = st.lists(st.sampled_from(made.WORDS), min_size=1, max_size=5).map(" ".join)


@FUZZ
@given(st.lists(st.tuples(contents, contents), min_size=1, max_size=4), st.booleans())
def test_the_loss_mask_of_any_chat_covers_the_answers_and_their_end_of_turn(turns, forgets):
    tokenizer = FORGETTING if forgets else PLAIN
    messages = [turn(role, said) for pair in turns for role, said in zip(("user", "assistant"), pair, strict=True)]
    [example] = tokenize_records([chat(*messages)], tokenizer, sequence=10_000).examples
    learned = [token for token, mark in zip(example.ids, example.loss_mask, strict=True) if mark]
    tokens = "".join(tokenizer.convert_ids_to_tokens(learned))
    assert tokens == "".join(f"{answer}<|im_end|>\n" for _, answer in turns)


PLAIN, FORGETTING = made.words(template=made.IM_CHATML), made.words(template=made.FORGETS)
