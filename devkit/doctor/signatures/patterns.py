"""The patterns of the table: the error's own words, with marks where they vary.

`Driver version {found:version}` captures, `…` stands for up to a line of anything, one blank for any white space, and
any quotation mark for any other. Every part has an upper length, so that no text, however odd, takes more than linear
time.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from devkit.facts.values import record

LONGEST_GAP = 160
_GAP = "…"
_PARTS = re.compile(r"\{(?P<name>\w+):(?P<kind>\w+)\}|(?P<gap>…)|(?P<quote>[\"'`])|(?P<words>[^{…\"'`]+)")
_QUOTE = "[\"'`]{0,2}"


@record
class _Kind:
    regex: str
    longest: int
    shown: Callable[[str], str] = str


def _cuda_of_integer(digits: str) -> str:
    """12080, as the CUDA API counts, is 12.8."""
    number = int(digits)
    return f"{number // 1000}.{number % 1000 // 10}"


_KINDS: Mapping[str, _Kind] = {
    "version": _Kind(r"\d[\w.+]{0,30}(?:-[\w.+]{1,30})?(?<!\.)", 62),
    "number": _Kind(r"\d{1,12}", 12),
    "cuda": _Kind(r"\d{4,5}", 5, _cuda_of_integer),
    "hex": _Kind(r"(?:0x)?[0-9a-fA-F]{1,16}", 18),
    "size": _Kind(r"\d{1,9}(?:\.\d{1,4})? ?[KMGT]i?B", 20),
    "condition": _Kind(r"\w{1,20} ?[<>=!]{1,2} ?[\w.]{1,20}(?<!\.)", 46),
    "word": _Kind(r"[\w+-]{1,60}", 60),
    "arch": _Kind(r"sm_?\d{2,3}[af]?", 8),
    "name": _Kind(r"[\w@.:/\\+=~-]{1,150}(?<![.:])", 150),
    "text": _Kind(r"[^\"'`\n]{1,120}", 120),
}


@record
class Pattern:
    """A compiled text. `anchor` are its longest fixed words: where they do not occur, the pattern cannot either."""

    anchor: str
    before: int
    after: int
    regex: re.Pattern[str]
    specificity: int
    kinds: Mapping[str, str]

    def find(self, text: str, lowered: str) -> re.Match[str] | None:
        """The last place where the pattern occurs, or one of the first; `lowered` is `text` in lower case.

        Only so many places are tried at either end, whatever the length of the text.
        """
        tried = set()
        for place in _places(lowered, self.anchor):
            if place not in tried:
                tried.add(place)
                found = self.regex.search(text, max(0, place - self.before), place + len(self.anchor) + self.after)
                if found:
                    return found
        return None

    def captures(self, found: re.Match[str]) -> dict[str, str]:
        """The captured parts, as a sentence shows them."""
        return {name: _KINDS[self.kinds[name]].shown(value) for name, value in found.groupdict().items()}


_TRIES = 40


def _places(lowered: str, anchor: str) -> Iterator[int]:
    """Where `anchor` stands: the last places from the end, then the first ones."""
    place = len(lowered)
    for _ in range(_TRIES):
        place = lowered.rfind(anchor, 0, place + len(anchor) - 1)
        if place == -1:
            return
        yield place
    place = -1
    for _ in range(_TRIES):
        place = lowered.find(anchor, place + 1)
        yield place


def compile_pattern(template: str, *, is_squeezed: bool = False) -> Pattern:
    """The pattern of one text of the table. `is_squeezed` is for texts from which all white space was taken.

    Raises ValueError for a mark that it does not know and for a text without fixed words to look for.
    """
    parts = [_part(found, is_squeezed=is_squeezed) for found in _PARTS.finditer(template)]
    words = [(place, part.words) for place, part in enumerate(parts) if part.words]
    if not words or sum(len(found[0]) for found in _PARTS.finditer(template)) != len(template):
        raise ValueError(f"no pattern: {template!r}")
    at, anchor = max(words, key=lambda pair: len(pair[1]))
    regex = "".join(part.regex for part in parts)
    if not is_squeezed:
        regex = _left_edge(template) + regex + _right_edge(template)
    return Pattern(
        anchor=anchor.lower(),
        before=sum(part.longest for part in parts[:at]) + 1,
        after=sum(part.longest for part in parts[at + 1 :]) + 1,
        regex=re.compile(regex, re.IGNORECASE),
        specificity=sum(len(part.words) for part in parts),
        kinds={found["name"]: found["kind"] for found in _PARTS.finditer(template) if found["name"]},
    )


@record
class _Part:
    regex: str
    longest: int
    words: str = ""


def _part(found: re.Match[str], *, is_squeezed: bool) -> _Part:
    if found["name"]:
        kind = _KINDS.get(found["kind"])
        if kind is None:
            raise ValueError(f"no kind of capture: {found['kind']!r}")
        return _Part(f"(?P<{found['name']}>{kind.regex})", kind.longest)
    if found["gap"]:
        return _Part(f".{{0,{LONGEST_GAP}}}?", LONGEST_GAP)
    if found["quote"]:
        return _Part(_QUOTE, 2)
    words = found["words"].replace(" ", "") if is_squeezed else found["words"]
    return _Part(re.escape(words), len(words), words)


def _left_edge(template: str) -> str:
    return r"(?<!\w)" if template[0].isalnum() else ""


def _right_edge(template: str) -> str:
    return r"(?!\w)" if template[-1].isalnum() or template.endswith("}") else ""
