"""Diffs: the values that a file of the user's gives to environment variables and build arguments are never shown."""

import pytest

from devkit.render.diffs import format_unified_diff

SECRET = "zQ7hunter2Xk9"
TEXTS = {
    "Compose, a table": f"services:\n  app:\n    environment:\n      BILLING: {SECRET}\n      LEVEL: debug\n",
    "Compose, a list": f'    environment:\n      - BILLING={SECRET}\n      - "LEVEL=debug"\n',
    "Compose, build arguments": f"    build:\n      args:\n        INDEX_LOGIN: '{SECRET}'\n",
    "devcontainer.json": f'{{\n  "containerEnv": {{ "BILLING": "{SECRET}", "LEVEL": "debug" }},\n  "build": {{}}\n}}\n',
    "a Dockerfile": f"FROM python:3.12\nENV BILLING={SECRET} LEVEL=debug\nARG LOGIN={SECRET}\n",
    "a Dockerfile, in the old form": f"FROM python:3.12\nENV BILLING {SECRET} and more\n",
    "a Dockerfile, over lines": f"FROM python:3.12\nENV LEVEL=debug \\\n    BILLING={SECRET}\n",
    "Compose, small letters": f'services:\n  app:\n    environment:\n      billing: it\'s a, "{SECRET}"\n    image: x\n',
    "Compose, a list at its key": f"    environment:\n    - billing={SECRET} # note\n    image: x\n",
    "Compose, a block": f"    environment:\n      billing: |\n        first\n        {SECRET}\n    image: x\n",
    "devcontainer.json, a quote": f'{{"containerEnv": {{"billing": "a\\"{SECRET}"}}, "x": 1}}\n',
    "devcontainer.json, options": f'{{"runArgs": ["--env=k={SECRET}", "-e", "b={SECRET}", "--build-arg", "C={SECRET}"]}}\n',
    "a key that says it is secret": f"db_password: {SECRET}\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_values_that_were_there_are_hidden(text):
    after = f"{text}# added\nNVIDIA_VISIBLE_DEVICES: all\n"
    for shown in (
        format_unified_diff("x", text.encode(), after.encode()),
        format_unified_diff("x", after.encode(), b""),
    ):
        assert SECRET not in shown
    assert "+# added" in format_unified_diff("x", text.encode(), after.encode())


def test_a_value_that_begins_with_another_is_hidden_whole():
    shown = format_unified_diff("x", b"A_B: one\nb:\n  A_B: one two\n", b"")
    assert shown.splitlines()[3:] == ["-A_B: …", "-b:", "-  A_B: …"]


def test_what_devkit_adds_is_shown():
    shown = format_unified_diff("x", b"A_B: one\n", b"A_B: one\nNVIDIA_VISIBLE_DEVICES: all\nENV LEVEL debug\n")
    assert "+NVIDIA_VISIBLE_DEVICES: all\n+ENV LEVEL debug" in shown


def test_bytes_that_are_no_text_are_not_shown():
    assert format_unified_diff("x", b"\xff", b"\xfe") == "x: binary files differ"
    assert format_unified_diff("x", b"\xff", b"\xff") == ""


def test_controls_in_a_file_move_no_cursor():
    shown = format_unified_diff("x", b"a\n", "b\x1b]0;title\x07\u202e\n".encode())
    assert "\x1b" not in shown and "\u202e" not in shown
