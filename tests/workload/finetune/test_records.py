"""One entry of training data, in each of the usual forms, and what is said of one that is none of them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.workload.finetune.records import (
    ChatRecord,
    PromptRecord,
    RecordKind,
    RecordLocation,
    TextRecord,
    parse_pair,
    parse_prompt,
    parse_record,
)
from tests.cases import cases
from tests.fuzz.profile import FUZZ

HERE = RecordLocation("data.jsonl", 3)
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def chat(*messages, **differences):
    return ChatRecord(tuple(messages), HERE, **differences)


@cases(
    "entry, record",
    {
        "plain text": ({"text": "a"}, TextRecord("a", HERE)),
        "prompt and completion": ({"prompt": "a", "completion": "b"}, PromptRecord("a", "b", HERE)),
        "a chat": ({"messages": [USER, ANSWER]}, chat(USER, ANSWER)),
        "a chat with tools": (
            {"messages": [USER, ANSWER], "tools": [{"name": "f"}]},
            chat(USER, ANSWER, tools=({"name": "f"},)),
        ),
        "prompt and completion as messages": (
            {"prompt": [USER], "completion": [ANSWER]},
            chat(USER, ANSWER, first_trained_turn=1),
        ),
        "an instruction goes before the same as text": (
            {"instruction": "Add", "input": "1 2", "output": "3", "text": "Below is an instruction"},
            chat({"role": "user", "content": "Add\n\n1 2"}, {"role": "assistant", "content": "3"}),
        ),
        "an instruction with a system prompt": (
            {"instruction": "Hi", "input": "", "output": "Hello", "system": "Be kind"},
            chat({"role": "system", "content": "Be kind"}, USER, ANSWER),
        ),
        "ShareGPT": (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            chat(USER, ANSWER),
        ),
        "ShareGPT's field with messages in it": ({"conversations": [USER, ANSWER]}, chat(USER, ANSWER)),
        "empty columns": ({"text": None, "messages": [{**USER, "name": None}, ANSWER]}, chat(USER, ANSWER)),
        "content in parts": (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"text": "i"}]}, ANSWER]},
            chat(USER, ANSWER),
        ),
        "a call of a tool has no content": (
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            chat(USER, {"role": "assistant", "tool_calls": [{"id": "1"}], "content": ""}),
        ),
    },
)
def test_a_record_is_read(entry, record):
    assert parse_record(entry, HERE) == record


@cases(
    "entry, message",
    {
        "a text alone": ("text", "expected a record object, got a text"),
        "an empty object": ({}, "unknown record format, with no fields at all"),
        "unknown fields are named": ({"content": "a", "b": 1}, "with the fields content and b"),
        "text and messages mixed": ({"prompt": "a", "completion": [ANSWER]}, '"completion" is a list'),
        "a text for a chat": ({"messages": "Hi"}, '"messages" is a text, but must be a list of messages'),
        "no role": ({"messages": [USER, {"content": "a"}]}, 'messages[1] has no "role"'),
        "no content": ({"messages": [{"role": "user"}]}, 'messages[0] has no "content"'),
        "an image": (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "has content of type image_url",
        ),
        "tools that are no list": ({"messages": [USER, ANSWER], "tools": "f"}, '"tools" is a text'),
        "a speaker nobody knows": (
            {"conversations": [{"from": "bing", "value": "a"}]},
            'conversations[0] is from "bing", an unknown role',
        ),
        "a table's hole": ({"text": float("nan")}, '"text" is NaN, but must be a text'),
        "half": ({"text": "a\ud800b"}, "\"text\" is not UTF-8: '\\ud800' at character 2"),
    },
)
def test_what_is_no_record_is_named_with_its_place(entry, message):
    with pytest.raises(DevkitError) as caught:
        parse_record(entry, HERE)
    assert caught.value.message.startswith("data.jsonl:3")
    assert message in caught.value.message
    assert caught.value.hint


PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


@cases(
    "parse, entry, message",
    {
        "a list of pairs": (parse_pair, [PAIR], "expected a record object, got a list"),
        "half a pair": (parse_pair, {"prompt": "a", "chosen": "b"}, '"rejected" is missing, with'),
        "a hole": (parse_pair, PAIR | {"chosen": None}, '"chosen" is null'),
        "a number": (parse_pair, PAIR | {"chosen": 7}, '"chosen" is a number'),
        "unlike": (parse_pair, PAIR | {"chosen": [USER]}, '"rejected" is a text, but must be a list'),
        "a number for a prompt": (parse_pair, PAIR | {"prompt": 7}, '"prompt" is a number'),
        "no prompt": (parse_pair, {"chosen": "b", "rejected": "c"}, '"prompt" is missing'),
        "no prompt at all": (parse_prompt, {"text": "a"}, '"prompt" is missing, with the fields text'),
        "no content": (parse_prompt, {"prompt": [{"role": "user"}]}, 'prompt[0] has no "content"'),
        "a pair for sft": (parse_record, {"chosen": "b", "rejected": "c"}, "unknown record format"),
    },
)
def test_what_is_no_pair_or_prompt_is_named_with_its_place(parse, entry, message):
    with pytest.raises(DevkitError) as caught:
        parse(entry, HERE)
    assert caught.value.message.startswith("data.jsonl:3: ")
    assert message in caught.value.message
    assert caught.value.hint
    assert ("--objective dpo" in caught.value.hint) is (parse is parse_record)


def test_every_form_that_the_guide_shows_is_read_by_its_first_fields():
    guide = Path(__file__).parents[3] / "docs" / "guides" / "training-data.md"
    block = guide.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    records = [parse_record(json.loads(line), HERE) for line in block.splitlines()]
    assert [record.kind for record in records] == [
        *(RecordKind.CHAT, RecordKind.CHAT, RecordKind.PROMPT, RecordKind.CHAT, RecordKind.CHAT, RecordKind.TEXT)
    ]
    assert not any(record.lack for record in records)


@cases(
    "record, empty",
    {
        "blanks": (TextRecord(" \n", HERE), True),
        "nothing after a prompt": (PromptRecord("a", "", HERE), True),
        "a question without an answer": (chat(USER), True),
        "an answer that is not learned": (chat(USER, ANSWER, USER, first_trained_turn=2), True),
        "a pair": (parse_pair(PAIR, HERE), False),
        "two equal answers": (parse_pair(PAIR | {"rejected": "b"}, HERE), True),
        "an empty answer": (parse_pair(PAIR | {"rejected": ""}, HERE), True),
    },
)
def test_a_record_with_nothing_to_learn_is_empty(record, empty):
    assert bool(record.lack) is empty


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "messages", "role", "content", "prompt", "completion", "from", "value", "type"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@FUZZ
@given(json_values)
def test_whatever_json_holds_it_is_a_record_or_an_error_for_people(entry):
    try:
        record = parse_record(entry, HERE)
    except DevkitError as error:
        assert "\n" not in error.message
    else:
        assert record.place == HERE
