"""Messages of the C library, apt, dpkg and bash in German, Chinese and Japanese, by the English ones.

`translations.txt` has a line for each message: the English one, then its translations; `{}` is a name that all of them have.
Source: the message catalogs of glibc 2.36, apt 2.6, dpkg 1.21 and bash 5.2.
"""

import re
from functools import cache
from pkgutil import get_data

_SEPARATOR = " | "


@cache
def _load_messages() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Return for each translation its longest part without a name, its pattern, and what replaces it, the longest first.

    Some translations are the beginning of others.
    """
    lines = (get_data(__package__, "translations.txt") or b"").decode().splitlines()
    rows = (line.split(_SEPARATOR) for line in lines)
    pairs = sorted(
        ((said, english) for english, *others in rows for said in others), key=lambda pair: (-len(pair[0]), pair[0])
    )
    return tuple(
        (
            max(said.split("{}"), key=len).strip("'"),
            re.compile(re.escape(said).replace(r"\{\}", r"(\S{1,300})").replace("'", "[\"']")),
            english.replace("{}", r"\1"),
        )
        for said, english in pairs
    )


def translate(text: str) -> str:
    """Put the messages in a text in English."""
    for part, pattern, english in _load_messages():
        if part in text:
            text = pattern.sub(english, text)
    return text
