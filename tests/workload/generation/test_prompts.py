"""Prompts in every form that users write, and what is wrong with one named by its line. Needs no torch."""

import json

import pytest

from devkit.errors import DevkitError
from devkit.workload.generation.settings import Prompt, read_prompts

USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


def written(tmp_path, name, *entries):
    """A file of prompts; objects become JSON lines."""
    file = tmp_path / name
    file.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in entries))
    return file


def test_a_text_file_holds_a_prompt_a_line_and_blank_lines_are_none(tmp_path):
    file = written(tmp_path, "p.txt", "one", "", "  ", "two ")
    assert read_prompts(file) == (Prompt("one"), Prompt("two "))


@pytest.mark.parametrize(
    ("entry", "prompt"),
    [
        ({"prompt": "a"}, Prompt("a")),
        ({"prompt": "a", "completion": "b"}, Prompt("a")),
        ({"text": "a"}, Prompt("a")),
        ({"messages": [USER]}, Prompt(messages=(USER,))),
        ({"messages": [USER, ANSWER, USER, ANSWER]}, Prompt(messages=(USER, ANSWER, USER))),
        ({"prompt": [USER]}, Prompt(messages=(USER,))),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, Prompt(messages=(USER,))),
        ({"instruction": "a"}, Prompt(messages=(USER,))),
        ({"instruction": "a", "output": "b"}, Prompt(messages=(USER,))),
        ('"a"', Prompt("a")),
    ],
    ids=["prompt", "prompt with an answer", "text", "chat", "answered chat", "chat as prompt", "ShareGPT",
         "instruction", "answered instruction", "a bare text"],
)  # fmt: skip
def test_a_json_line_may_have_any_form_of_training_data_and_its_answer_is_left_out(tmp_path, entry, prompt):
    assert read_prompts(written(tmp_path, "p.jsonl", entry)) == (prompt,)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("p.jsonl", [{"prompt": "a"}, {"question": "b"}], "p.jsonl:2: unknown prompt format"),
        ("p.jsonl", [{"prompt": "a"}, {"prompt": " "}], "p.jsonl:2: the prompt is empty"),
        ("p.jsonl", [{"messages": [ANSWER]}], "p.jsonl:1: no turn to answer"),
        (
            "p.jsonl",
            [{"prompt": "a"}, {"prompt": "b\ud83d"}],
            r"""p.jsonl:2: "prompt" is not UTF-8: '\ud83d' at character 2""",
        ),
        ("p.jsonl", [{"prompt": 7}], 'p.jsonl:1: "prompt" is a number, but must be a text'),
        ("p.jsonl", [{"text": ["a"]}], 'p.jsonl:1: "text" is a list, but must be a text'),
        ("p.jsonl", [{"instruction": {}}], 'p.jsonl:1: "instruction" is an object, but must be a text'),
        ("p.jsonl", [{"messages": "a"}], 'p.jsonl:1: "messages" is a text, but must be a list of messages'),
        ("p.jsonl", [{"prompt": [7]}], "p.jsonl:1: prompt[0] is a number, but must be an object"),
        ("p.jsonl", [5], "p.jsonl:1: expected a record object, got a number"),
        ("p.jsonl", ['{"prompt": "a"'], "p.jsonl:1"),
        ("p.txt", [], "holds no prompt"),
        ("p.jsonl", [""], "holds no prompt"),
        ("p.csv", ["a"], "is neither .txt nor .jsonl"),
    ],
)
def test_an_invalid_prompt_is_refused_with_its_line(tmp_path, name, entries, message):
    with pytest.raises(DevkitError) as refused:
        read_prompts(written(tmp_path, name, *entries))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("name", "entries", "place"), [("p.txt", ["", "a"], "p.txt:2"), ("p.jsonl", [{"prompt": "a"}], "p.jsonl:1")]
)
def test_a_prompt_remembers_its_line(tmp_path, name, entries, place):
    (found,) = read_prompts(written(tmp_path, name, *entries))
    assert found.place == f"{tmp_path / place}"
