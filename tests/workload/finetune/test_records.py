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
from tests.fuzz.profile import FUZZ

HERE = RecordLocation("data.jsonl", 3)
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def chat(*messages, **differences):
    return ChatRecord(tuple(messages), HERE, **differences)


@pytest.mark.parametrize(
    ("entry", "record"),
    [
        pytest.param({"text": "a"}, TextRecord("a", HERE), id="plain text"),
        pytest.param({"prompt": "a", "completion": "b"}, PromptRecord("a", "b", HERE), id="prompt and completion"),
        pytest.param({"messages": [USER, ANSWER]}, chat(USER, ANSWER), id="a chat"),
        pytest.param(
            {"messages": [USER, ANSWER], "tools": [{"name": "f"}]},
            chat(USER, ANSWER, tools=({"name": "f"},)),
            id="a chat with tools",
        ),
        pytest.param(
            {"prompt": [USER], "completion": [ANSWER]},
            chat(USER, ANSWER, first_trained_turn=1),
            id="prompt and completion as messages",
        ),
        pytest.param(
            {"instruction": "Add", "input": "1 2", "output": "3", "text": "Below is an instruction"},
            chat({"role": "user", "content": "Add\n\n1 2"}, {"role": "assistant", "content": "3"}),
            id="an instruction goes before the same as text",
        ),
        pytest.param(
            {"instruction": "Hi", "input": "", "output": "Hello", "system": "Be kind"},
            chat({"role": "system", "content": "Be kind"}, USER, ANSWER),
            id="an instruction with a system prompt",
        ),
        pytest.param(
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            chat(USER, ANSWER),
            id="ShareGPT",
        ),
        pytest.param({"conversations": [USER, ANSWER]}, chat(USER, ANSWER), id="ShareGPT's field with messages in it"),
        pytest.param(
            {"text": None, "messages": [{**USER, "name": None}, ANSWER]}, chat(USER, ANSWER), id="empty columns"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"text": "i"}]}, ANSWER]},
            chat(USER, ANSWER),
            id="content in parts",
        ),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            chat(USER, {"role": "assistant", "tool_calls": [{"id": "1"}], "content": ""}),
            id="a call of a tool has no content",
        ),
    ],
)
def test_a_record_is_read(entry, record):
    assert parse_record(entry, HERE) == record


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param("text", "expected a record object, got a text", id="a text alone"),
        pytest.param({}, "unknown record format, with no fields at all", id="an empty object"),
        pytest.param({"content": "a", "b": 1}, "with the fields content and b", id="unknown fields are named"),
        pytest.param({"prompt": "a", "completion": [ANSWER]}, '"completion" is a list', id="text and messages mixed"),
        pytest.param(
            {"messages": "Hi"}, '"messages" is a text, but must be a list of messages', id="a text for a chat"
        ),
        pytest.param({"messages": [USER, {"content": "a"}]}, 'messages[1] has no "role"', id="no role"),
        pytest.param({"messages": [{"role": "user"}]}, 'messages[0] has no "content"', id="no content"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "has content of type image_url",
            id="an image",
        ),
        pytest.param({"messages": [USER, ANSWER], "tools": "f"}, '"tools" is a text', id="tools that are no list"),
        pytest.param(
            {"conversations": [{"from": "bing", "value": "a"}]},
            'conversations[0] is from "bing", an unknown role',
            id="a speaker nobody knows",
        ),
        pytest.param({"text": float("nan")}, '"text" is NaN, but must be a text', id="a table's hole"),
        pytest.param({"text": "a\ud800b"}, "\"text\" is not UTF-8: '\\ud800' at character 2", id="half"),
    ],
)
def test_what_is_no_record_is_named_with_its_place(entry, message):
    with pytest.raises(DevkitError) as caught:
        parse_record(entry, HERE)
    assert caught.value.message.startswith("data.jsonl:3")
    assert message in caught.value.message
    assert caught.value.hint


PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.mark.parametrize(
    ("parse", "entry", "message"),
    [
        pytest.param(parse_pair, [PAIR], "expected a record object, got a list", id="a list of pairs"),
        pytest.param(parse_pair, {"prompt": "a", "chosen": "b"}, '"rejected" is missing, with', id="half a pair"),
        pytest.param(parse_pair, PAIR | {"chosen": None}, '"chosen" is null', id="a hole"),
        pytest.param(parse_pair, PAIR | {"chosen": 7}, '"chosen" is a number', id="a number"),
        pytest.param(parse_pair, PAIR | {"chosen": [USER]}, '"rejected" is a text, but must be a list', id="unlike"),
        pytest.param(parse_pair, PAIR | {"prompt": 7}, '"prompt" is a number', id="a number for a prompt"),
        pytest.param(parse_pair, {"chosen": "b", "rejected": "c"}, '"prompt" is missing', id="no prompt"),
        pytest.param(parse_prompt, {"text": "a"}, '"prompt" is missing, with the fields text', id="no prompt at all"),
        pytest.param(parse_prompt, {"prompt": [{"role": "user"}]}, 'prompt[0] has no "content"', id="no content"),
        pytest.param(parse_record, {"chosen": "b", "rejected": "c"}, "unknown record format", id="a pair for sft"),
    ],
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


@pytest.mark.parametrize(
    ("record", "empty"),
    [
        pytest.param(TextRecord(" \n", HERE), True, id="blanks"),
        pytest.param(PromptRecord("a", "", HERE), True, id="nothing after a prompt"),
        pytest.param(chat(USER), True, id="a question without an answer"),
        pytest.param(chat(USER, ANSWER, USER, first_trained_turn=2), True, id="an answer that is not learned"),
        pytest.param(parse_pair(PAIR, HERE), False, id="a pair"),
        pytest.param(parse_pair(PAIR | {"rejected": "b"}, HERE), True, id="two equal answers"),
        pytest.param(parse_pair(PAIR | {"rejected": ""}, HERE), True, id="an empty answer"),
    ],
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
