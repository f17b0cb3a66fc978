"""Quoting of user text in generated files: YAML, comments, shell. The reader gets back the text as it was."""

import json
import re
import shlex
from collections.abc import Iterable

_UNPRINTABLE = re.compile(r"[\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON keeps and YAML does not: not printable, or a line break to YAML 1.1.
Source: https://yaml.org/spec/1.2.2/#51-character-set, https://yaml.org/spec/1.1/#id871136"""
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
"""Words that readers of YAML 1.1, such as Kubernetes' own, may not take for strings."""
_PLAIN_LINES = re.compile(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


def quote_yaml(text: str) -> str:
    """Quote as a double-quoted YAML scalar: a JSON string, with the rest of YAML's line breaks escaped."""
    written = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def format_yaml(text: str) -> str:
    """Format a YAML scalar that is this text to every reader, those of YAML 1.1 included: quoted unless it is plain."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return text if is_plain else quote_yaml(text)


def render_yaml_block(text: str, indent: int) -> str:
    """Render text as a literal block below a key, `indent` spaces deep; quoted where a block cannot hold it."""
    if not _PLAIN_LINES.fullmatch(text) or text[:1] in ("", " ", "\n") or text.rstrip("\n") == "":
        return quote_yaml(text)
    chomping = "|" if text.endswith("\n") and not text.endswith("\n\n") else "|+" if text.endswith("\n") else "|-"
    lines = text[:-1].split("\n") if text.endswith("\n") else text.split("\n")
    shift = " " * indent
    return chomping + "".join(f"\n{shift}{line}" if line else "\n" for line in lines)


def format_comment_line(text: str) -> str:
    """Format text for a comment, which ends with its line."""
    return "".join(char if char.isprintable() else " " for char in text)


def quote_shell(words: Iterable[str]) -> str:
    """Quote words for a POSIX shell."""
    return shlex.join(words)


def fold_shell_command(words: Iterable[str], *, indent: int) -> str:
    """Quote words for a POSIX shell, each long option with its values on its own line, `indent` spaces deep."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return f" \\\n{' ' * indent}".join(quote_shell(line) for line in lines)
