"""Records to tokens: exact tables of what is read and what is learned, for texts, prompts and chats."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from tests.cases import cases
from tests.fuzz.profile import FUZZ
from tests.workload.finetune import tokenizers_made as made
from tests.workload.finetune.tables import ANSWER, LAST, SECOND, USER, chat, notes, prompt, table, text, turn

pytestmark = pytest.mark.workload

from devkit.workload.finetune.dataset import limit_to_context_length, require_vocabulary_size, tokenize_records
from devkit.workload.finetune.settings import FinetuneSettings


@cases(
    "record, wanted",
    {
        "a text is learned, and its end": (text("Hi there"), "<s> [Hi] [_] [there] [</s>]"),
        "beginning and end that are there are not doubled": (text("<s>Hi</s>"), "[<s>] [Hi] [</s>]"),
        "a prompt is read, its answer learned": (prompt("Q ", "A hat"), "<s> Q _ [A] [_] [hat] [</s>]"),
        "an answer is learned, and the end of its turn": (
            chat(USER, ANSWER),
            "<|im_start|> user / Hi <|im_end|> / <|im_start|> assistant / [Hello] [<|im_end|>] [/]",
        ),
        "both answers of a chat": (
            chat(turn("system", "Be kind"), USER, ANSWER, SECOND, LAST),
            "<|im_start|> system / Be _ kind <|im_end|> / <|im_start|> user / Hi <|im_end|> / "
            "<|im_start|> assistant / [Hello] [<|im_end|>] [/] <|im_start|> user / What <|im_end|> / "
            "<|im_start|> assistant / [A] [_] [hat] [<|im_end|>] [/]",
        ),
        "an answer in the prompt is read": (
            chat(USER, ANSWER, SECOND, LAST, first_trained_turn=3),
            "<|im_start|> user / Hi <|im_end|> / <|im_start|> assistant / Hello <|im_end|> / "
            "<|im_start|> user / What <|im_end|> / <|im_start|> assistant / [A] [_] [hat] [<|im_end|>] [/]",
        ),
        "a chat that the assistant opens": (
            chat(ANSWER, SECOND, LAST),
            "[<|im_start|>] [assistant] [/] [Hello] [<|im_end|>] [/] <|im_start|> user / What <|im_end|> / "
            "<|im_start|> assistant / [A] [_] [hat] [<|im_end|>] [/]",
        ),
    },
)
def test_what_is_read_and_what_is_learned(record, wanted):
    assert table(made.words(template=made.IM_CHATML), record) == [wanted]


def test_a_tokenizer_that_begins_texts_with_nothing_is_taken_as_it_is():
    tokenizer = made.words(adds_beginning=False)
    assert table(tokenizer, text("Hi"), prompt("Q", " A")) == ["[Hi] [</s>]", "Q [_] [A] [</s>]"]


def test_a_tokenizer_without_an_end_of_text_is_noted():
    tokenizer = made.words(eos=None)
    assert table(tokenizer, text("Hi there")) == ["<s> [Hi] [_] [there]"]
    assert any("no end-of-text token" in note for note in notes(tokenizer, text("Hi there")))


def test_a_token_across_the_border_is_tokenized_in_parts():
    tokenizer = made.merging()
    assert table(tokenizer, prompt("ca", "bc"), prompt("ab", "c")) == ["c a [b] [c] [</s>]", "ab [c] [</s>]"]
    assert table(tokenizer, text("cabc")) == ["[c] [ab] [c] [</s>]"]
    assert notes(tokenizer, prompt("ca", "bc")) == [
        "1 record: tokenized in parts, as a token would cross the boundary between prompt and completion"
    ]


@cases(
    "sequence, wanted",
    {
        "fits exactly": (7, ["<s> [one] [_] [two] [_] [three] [</s>]"]),
        "one too long": (6, ["<s> [one] [_] [two] [_] [three]", "[three] [</s>]"]),
        "windows share one token": (4, ["<s> [one] [_] [two]", "[two] [_] [three] [</s>]"]),
    },
)
def test_long_text_is_cut_into_windows(sequence, wanted):
    found = table(made.words(), text("one two three"), sequence=sequence)
    assert len(found) == wanted if isinstance(wanted, int) else found == wanted


@FUZZ
@given(
    st.lists(st.sampled_from(made.WORDS), min_size=1, max_size=60).map(" ".join), st.integers(min_value=2, max_value=40)
)
def test_windows_train_on_each_token_of_a_text_exactly_once(words, sequence):
    tokenizer = MADE_ONCE
    whole = tokenize_records([text(words)], tokenizer, sequence=10_000).examples[0]
    windows = tokenize_records([text(words)], tokenizer, sequence=sequence).examples
    learned = [token for each in windows for token in each.ids[1:]]
    assert learned == list(whole.ids[1:])
    assert all(2 <= len(each.ids) <= sequence for each in windows)
    assert all(each.ids[-1] == after.ids[0] for each, after in pairwise(windows))


MADE_ONCE = made.words()


def test_prompts_and_chats_are_truncated_or_left_out():
    tokenizer = made.words(template=made.IM_CHATML)
    long, lost = prompt("Q ", "one two"), prompt("one two three ", "A")
    assert table(tokenizer, long, lost, chat(USER, ANSWER), sequence=4) == ["<s> Q _ [one]"]
    assert notes(tokenizer, long, lost, chat(USER, ANSWER), sequence=4) == [
        "3 records: truncated after 4 tokens",
        "2 records: left out, with nothing to train on within 4 tokens",
    ]
    assert notes(tokenizer, text("one two three"), text("Hi"), sequence=4) == [
        "1 text: more than 4 tokens, cut into windows"
    ]


def test_nothing_left_to_train_on_is_an_error_with_a_hint():
    with pytest.raises(DevkitError, match="nothing to train on within 3 tokens") as caught:
        table(made.words(), prompt("one two three ", "A"), sequence=3)
    assert "--max-length" in caught.value.hint


def test_a_very_long_text_is_tokenized_in_pieces_that_end_with_lines(monkeypatch):
    from devkit.workload.finetune import dataset

    tokenizer = made.words()
    whole = table(tokenizer, text("one\ntwo\nthree"))
    monkeypatch.setattr(dataset, "MAX_PIECE_CHARS", 5)
    assert dataset._cut_into_pieces("one\ntwo\nthreefour") == ["one\n", "two\n", "three", "four"]
    assert table(tokenizer, text("one\ntwo\nthree")) == whole


def test_a_tokenizer_in_python_is_tokenized_in_parts():
    """Those without offsets cannot tell where a token came from."""
    tokenizer = made.words(template=made.MARKED)
    expected = table(made.words(template=made.IM_CHATML), prompt("Q ", "A hat"), chat(USER, ANSWER))

    class Slow(type(tokenizer)):
        is_fast = False

    tokenizer.chat_template = made.IM_CHATML
    tokenizer.__class__ = Slow
    assert table(tokenizer, prompt("Q ", "A hat"), chat(USER, ANSWER)) == expected


def config(**fields):
    from transformers import LlamaConfig

    return LlamaConfig(**fields)


def test_rows_longer_than_the_model_are_refused_with_its_length():
    limit_to_context_length(FinetuneSettings(sequence=64), config(max_position_embeddings=64))
    with pytest.raises(
        DevkitError, match="rows of 65 tokens are longer than this model's context length of 64"
    ) as caught:
        limit_to_context_length(FinetuneSettings(sequence=65), config(max_position_embeddings=64))
    assert caught.value.hint == "Give --max-length 64 or less."


def test_a_tokenizer_of_another_model_is_refused():
    tokenizer = made.words()
    examples = tokenize_records([text("Hi there")], tokenizer, sequence=8).examples
    require_vocabulary_size(examples, config(vocab_size=len(tokenizer)))
    with pytest.raises(DevkitError, match="the model's vocabulary has 4 tokens"):
        require_vocabulary_size(examples, config(vocab_size=4))


@cases(
    "records, wanted",
    {
        "of few nothing is told": (999, []),
        "a thousand are announced": (1000, [0]),
        "and then counted": (2500, [0, 1000, 2000]),
    },
)
def test_many_records_are_counted_while_they_are_read(records, wanted):
    told = []
    found = tokenize_records([text("Hi")] * records, made.words(), sequence=8, on_progress=told.append)
    assert (told, len(found.examples)) == (wanted, records)
