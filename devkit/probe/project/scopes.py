"""The instructions of a Dockerfile with the values of their variables, and those that have none where they stand."""

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devkit.probe.documents import parse_words
from devkit.probe.project.dockerfile import (
    HEREDOC,
    ExpandsTooFar,
    Instruction,
    VariableExpansion,
    parse_instructions,
    read_pairs,
)

_VARIABLE = re.compile(r"(?<!\\)\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
"""Without a default."""
_RUN_LATER = ("RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK")
"""A shell fills in their variables, and none does if they are lists. Source: Dockerfile reference, "Shell and exec form"."""
_SHELL = re.compile(r"(?:ba|da|a|z)?sh")
_OPERATORS = ("&&", "||", ";", "|", ">", ">>", "<")
_OWN_OPERATORS = ("find", "expr", "test", "[")
"""Programs that have operators as arguments themselves."""


@dataclass(frozen=True)
class ScopedInstruction:
    """An instruction, its text with variables filled in, what is wrong with one of them, and what mends that."""

    instruction: Instruction
    filled: str
    note: str = ""
    remedy: str = ""


def list_scoped(text: str) -> Iterator[ScopedInstruction]:
    """Yield each instruction. A variable counts as absent only if the file alone sets it, out of reach of its use.

    Source: Dockerfile reference, "Understand how ARG and FROM interact" and "Scope".
    """
    every = list(parse_instructions(text))
    setting = [each for each in every[::-1] if each.keyword in ("ARG", "ENV")]
    set_in = {name: each.line for each in setting for name, _ in read_pairs(each.text)}
    for each in setting:
        for name, value in read_pairs(each.text):
            if any(name in found for found in _VARIABLE.findall(value or "")):
                set_in.pop(name, None)  # As in PATH=/opt/bin:$PATH, the base image has a value.
    before: dict[str, str] = {}
    scope, kept = before, dict[str, str]()
    stages: dict[str, dict[str, str]] = {}
    expansion = VariableExpansion()
    for each in every:
        reach = before if each.keyword == "FROM" else scope
        used = dict.fromkeys(name or other for name, other in _VARIABLE.findall(each.text))
        absent = [name for name in used if name in set_in and name not in reach]
        if each.keyword in _RUN_LATER:  # a command may give a variable its value itself
            absent = [name for name in absent if not re.search(rf"\b{name}=|\b(?:for|read) {name}\b", each.text)]
        pairs = read_pairs(each.text) if each.keyword in ("ARG", "ENV") else []
        try:
            filled = expansion.expand(each.text, reach)
            values = {
                name: before.get(name, "") if value is None else expansion.expand(value, reach) for name, value in pairs
            }
        except ExpandsTooFar:
            return
        for name in absent:
            filled = re.sub(rf"\$(?:\{{{name}\}}|{name}\b)", "", filled)
        yield ScopedInstruction(each, filled, *_judge(each, used, absent, set_in, before))
        if each.keyword == "FROM":
            words = filled.split()
            kept = dict(stages.get(words[0] if words else "", {}))
            scope = dict(kept)
            stages[words[-1] if words else ""] = kept
        elif scope is not before and each.keyword == "ENV":
            kept |= values
        scope |= values


def _judge(
    instruction: Instruction, used: Iterable[str], absent: list[str], set_in: Mapping[str, int], before: Collection[str]
) -> tuple[str, str]:
    ends = {word for _, _, word in HEREDOC.findall(instruction.text)} if instruction.heredoc else set()
    for number, text in enumerate(instruction.heredoc.splitlines(), instruction.line + 1):
        if text.strip() in ends:
            note = f"line {number} is indented, so that it does not end the here-document"
            return note, f"write {text.strip()} at the beginning of line {number}"
    for name in absent:
        line = f"line {set_in[name]}"
        again = f"write `ARG {name}`" if name in before else f"repeat {line}"
        remedy = f"{again} between FROM and line {instruction.line}"
        remedy = f"move {line} above the first FROM" if instruction.keyword == "FROM" else remedy
        return f"{name} has no value here, because {line} sets it out of reach", remedy
    words = parse_words(instruction.text) if instruction.keyword in _RUN_LATER else None
    has_shell = any(_SHELL.fullmatch(posixpath.basename(each)) for each in words or ())
    for name in used if words and not has_shell else ():
        return (
            f"no shell reads a list, so that ${name} stays as it is written",
            "write the command as text, without brackets",
        )
    return judge_list(words or (), f"the list of {instruction.keyword}")


def judge_list(words: Sequence[str], name: str) -> tuple[str, str]:
    """Return what is wrong with a command that is a list, and what mends that; empty for nothing. `name` is the list's."""
    at = int([*words[:1]] == ["CMD"])  # of a health check in Compose
    first = words[at].split() if words[at:] else [""]
    operators = () if posixpath.basename(first[0]) in _OWN_OPERATORS else _OPERATORS
    if operator := next((each for each in words if each in operators), ""):
        note = f"no shell reads {name}, so that {operator} is an argument"
        return note, f"write {name.rpartition(' ')[2]} as one text, without brackets"
    if len(first) > 1 and "\\" not in words[at]:  # not as in C:\Program Files
        note = f"no shell splits the first entry of {name}, so that '{words[at]}' is taken for the name of a program"
        return note, f"write {json.dumps([*words[:at], *first, *words[at + 1 :]])}"
    return "", ""
