"""Differences of files as they are shown: without secrets, and without the values of a user's environment tables."""

import re
from collections.abc import Iterator

from devkit.facts.secrets import redact_tokens
from devkit.text import escape_text

_ASSIGNMENT = re.compile(
    r"""(?x)(?<![\w$/.-])(?P<key>[A-Z][A-Z0-9_]{2,80})
    (?:["']?[ ]*[=:][ ]*["']?|["'][ ]*:[ ]*["'])
    (?P<value>[^\s"'][^\n"']*?)(?=["'\n]|$|[ ](?=[A-Z][A-Z0-9_]+=)|[ ]\\)"""
)
"""A value beside a key in capitals, such as of ENV and ARG."""
_IN_OPTION = re.compile(
    r"""(?<![\w-])(?:-e|--env|--build-arg)(?:=|["']?[\s,]+["']?)(?P<key>[\w.-]+)=(?P<value>[^\s"'][^"'\n]*)"""
)
"""A value in an option of an engine, such as in runArgs."""
_TABLE = re.compile(
    r"""(?mx)["']?\b(?:environment|containerEnv|remoteEnv|args|env)["']?[ ]*:\s*?
    (?:(?P<flow>[ ]?[\[{](?:[^\[\]{}"']|"(?:\\.|[^"\\])*"|'[^']*')*[\]}])
    |\n(?P<block>(?P<indent>[ ]*)\S.*\n(?:(?P=indent)[ -].*\n|(?P=indent)(?=\S).*[:=].*\n)*))"""
)
"""A table of environment variables or build arguments, in YAML or JSON."""
_IN_FLOW = re.compile(r"""["']?(?P<key>[\w.-]+)["']?\s*[:=]\s*["']?(?P<value>(?<=")(?:\\.|[^"\\])+|[^"',}\]]+)""")
_IN_BLOCK = re.compile(r"""(?m)^[ -]*["']?(?:(?P<key>[\w.-]+)["']?\s*[:=]\s*["']?)?(?P<value>.*?)["']?$""")
_OLDER_ENV = re.compile(r"(?m)^([-+ ]?\s*ENV\s+\w+) +([^=\s][^\n]*)$")
"""ENV without an equals sign: the rest of the line is its value."""


def format_unified_diff(path: str, before: bytes, after: bytes) -> str:
    """Return a unified diff, or one line for files that are not text."""
    if before == after:
        return ""
    import difflib

    try:
        old, new = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return f"{path}: binary files differ"
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
    return escape_text(redact_tokens(_hide_values("\n".join(lines), before.decode())))


def _hide_values(diff: str, before: str) -> str:
    """Hide the values of environment variables and build arguments that a file had before: they are the user's."""
    diff = _OLDER_ENV.sub(lambda found: f"{found[1]} …" if found[2] in before else found[0], diff)
    for key, value in sorted(set(_find_values(before)), key=lambda pair: (-len(pair[1]), pair)):
        beside = rf"""((?:^-|(?<![\w$/.-])){re.escape(key)}["']?[ ]*[=:][ ]*["']?)""" if key else r"(^[-+ ]\s*)"
        diff = re.sub(rf"(?m){beside}{re.escape(value)}", r"\1…", diff)
    return diff


def _find_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values; the further lines of a value have no key."""
    for pattern in (_ASSIGNMENT, _IN_OPTION):
        yield from ((found["key"], found["value"]) for found in pattern.finditer(text))
    for table in _TABLE.finditer(f"{text}\n"):
        entry = _IN_FLOW if table["flow"] else _IN_BLOCK
        found = entry.finditer(table["flow"] or table["block"])
        yield from ((each["key"] or "", each["value"].strip()) for each in found if each["value"].strip())
