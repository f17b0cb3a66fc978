"""Hostile values, what a run of devkit makes of them, and whether a value stayed where it belongs.

A run with a hostile value is compared with the same run with a harmless one. Each generated file is read by a parser
of its own format, and both readings must be the same but for the value itself.
"""

import io
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devkit.cli import run_command_line

HOSTILE = {
    "a single quote": "it's",
    "a double quote": 'say "hi"',
    "three quotes": '"""',
    "a line break and an instruction": "a\nRUN touch owned",
    "a carriage return": "a\rRUN touch owned",
    "a line break of Unicode": "a\u2028RUN touch owned",
    "a vertical tab and a form feed": "a\x0b\x0cRUN touch owned",
    "a next-line character": "a\x85RUN touch owned",
    "a tab": "a\tb",
    "a variable of Compose": "${HOME}",
    "a variable with a command as its default": "${X:-$(touch owned)}",
    "a variable of the dev container": "${localEnv:HOME}",
    "a bare variable": "$HOME",
    "a doubled dollar": "$$HOME",
    "a template's expression": "{{ 7 * 7 }}",
    "a template's statement": "{% include 'secret' %}",
    "a template's comment": "{# gone #}",
    "a comment": "a # b",
    "a comment from the start": "#!/bin/sh",
    "backquotes": "`touch owned`",
    "a command substitution": "$(touch owned)",
    "a command after a semicolon": "a; touch owned",
    "a pipe and an ampersand": "a | touch owned & true",
    "a redirection": "a > owned",
    "a backslash": "a\\b",
    "a backslash at the end": "a\\",
    "an escaped line break": "a\\nb",
    "a NUL": "a\0b",
    "a byte that is no text": "a\udcff",
    "a half of a surrogate pair": "a\ud83d",
    "a terminal's escape": "a\x1b[2J\x1b]0;owned\x07",
    "a text from right to left": "a\u202egnp.exe",
    "a zero-width character": "a\u200bb",
    "a byte order mark": "\ufeffa",
    "a dash in front": "-rf",
    "an option in front": "--privileged",
    "YAML's yes": "yes",
    "YAML's null": "null",
    "YAML's tilde": "~",
    "YAML's number in another base": "0o17",
    "YAML's sexagesimal": "12:30:45",
    "a key of YAML": "a: b",
    "an entry of YAML": "- a",
    "an alias of YAML": "*a",
    "an anchor of YAML": "&a b",
    "a tag of YAML": "!!python/object/apply:os.system [id]",
    "a block of YAML": "|\n  a",
    "a list of YAML": "[a, b]",
    "a map of JSON": '{"a": 1}',
    "an end of a JSON string": '", "privileged": true, "x": "',
    "a table of TOML": "a\n[project]\nsudo = true",
    "an end of a TOML string": '"\nimage = "evil',
    "a path upwards": "../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "a URL with a login": "https://me:secret@example.org/simple",
    "a requirement's option": "peft --index-url=https://evil.example",
    "spaces alone": "   ",
    "a very long one": "a" * 20_000,
    "emoji": "🦙 model",
    "accents apart from their letters": "Cafe\u0301",
}
UNSPEAKABLE = {"a NUL", "a half of a surrogate pair"}
"""What no operating system passes on to a program as an argument."""

WORDS = [kind for kind in HOSTILE if kind not in UNSPEAKABLE]
every_hostile_word = pytest.mark.parametrize("kind", WORDS)

FIXED = {"vendor": "cpu", "torch": "2.13.0", "python": "3.11", "machine": "x86_64", "glibc": "2.36"}
"""A plan that is not about this machine."""


def fixed(*, but: str = "", verb: str = "init") -> tuple[str, ...]:
    """The flags of the fixed plan, without that of one setting."""
    front = {name: "--set=" if verb == "init" and name in ("machine", "glibc") else "--" for name in FIXED}
    return tuple(f"{front[name]}{name}={value}" for name, value in FIXED.items() if name != but)


@dataclass(frozen=True)
class Ran:
    """The end of one run: its exit code, what it printed, and the files of the project afterwards."""

    code: int
    out: str
    err: str
    files: Mapping[str, bytes]


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def ran(root: Path, *words: str) -> Ran:
    """Run devkit in this process; `root` is the project."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for _ in range(2))
    argv, sys.argv = sys.argv, ["devkit", *words]
    typed, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())
    try:
        with redirect_stdout(out), redirect_stderr(err), chdir(root):
            code = run_command_line()
    finally:
        sys.argv, sys.stdin = argv, typed
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)), tree(root))


def assert_said_cleanly(done: Ran) -> None:
    """No bug, no control character on anybody's terminal, and a refusal is one line and a hint."""
    assert done.code in (0, 1, 2), done.err
    assert "Traceback" not in done.err
    assert all(char.isprintable() for char in (done.out + done.err).replace("\n", "").replace("\t", "")), ascii(
        done.out + done.err
    )
    if done.code == 2:
        first, *hint = [line for line in done.err.splitlines() if not line.startswith("Usage:")]
        assert re.match(r"Error: |Try '", first), done.err
        assert hint and len(done.err) < 5_000, done.err
        assert done.out == ""


def assert_refused_or_carried(done: Ran, before: Mapping[str, bytes], harmless: Ran, swaps: Mapping[str, str]) -> None:
    """Either nothing was written, or each file is the harmless run's with the value in the harmless one's place."""
    assert_said_cleanly(done)
    if done.code != 0:
        assert done.files == before
        return
    assert done.files.keys() == harmless.files.keys()
    for path, content in done.files.items():
        if not path.endswith(".whl"):
            assert_same_but_for_the_value(path, content.decode(), harmless.files[path].decode(), swaps)


def assert_same_but_for_the_value(path: str, text: str, harmless: str, swaps: Mapping[str, str]) -> None:
    assert _reading(path, text) == _swapped(_reading(path, harmless), swaps), path
    if path.endswith((".yml", "devcontainer.json")):
        # Compose and the dev container CLI put variables in after parsing.
        assert text.count("$") == harmless.count("$"), path
    if path.endswith(".sh"):
        done = subprocess.run(["sh", "-n", "/dev/stdin"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def _reading(path: str, text: str) -> object:
    match Path(path).suffix or Path(path).name:
        case ".json":
            return json.loads(text)
        case ".lock":
            return {name: part for name, part in json.loads(text).items() if name == "plan"}
        case ".yml":
            return yaml.safe_load(text)
        case ".toml":
            return tomllib.loads(text)
        case _:
            return [_label(line) or line for line in _code_lines(text)]


def _label(line: str) -> tuple[str, ...]:
    """The words of a LABEL, without the quotes and escapes of a Dockerfile; () for another line."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line) if re.match(r"LABEL |    \"", line) else []
    return tuple(re.sub(r'\\(["\\$])', r"\1", word) for word in words)


def _code_lines(text: str) -> Iterator[str]:
    """What is no comment, by every line break that any reader of such files knows."""
    for line in re.split(r"[\n\r\v\f\x85\u2028\u2029]", text):
        if line.strip() and not line.lstrip().startswith("#"):
            yield line


def _swapped(reading: Any, swaps: Mapping[str, str]) -> Any:
    match reading:
        case dict():
            return {_swapped(key, swaps): _swapped(value, swaps) for key, value in reading.items()}
        case list() | tuple():
            return type(reading)(_swapped(value, swaps) for value in reading)
        case str():
            for harmless, value in swaps.items():
                reading = reading.replace(harmless, value)
            return reading
        case _:
            return reading
