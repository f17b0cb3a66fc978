"""Patterns of error texts: the error's own words, with marks where they vary.

`Driver version {found:version}` captures, `…` matches up to a line of anything, one space any white space, and any
quotation mark any other. Every part has a maximum length, so that no text takes more than linear time.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

MAX_GAP = 160
MAX_TRIES = 40
"""Occurrences of the fixed words that are tried at either end of a text, however long it is."""

_PARTS = re.compile(r"\{(?P<name>\w+):(?P<kind>\w+)\}|(?P<gap>…)|(?P<quote>[\"'`])|(?P<words>[^{…\"'`]+)")


@dataclass(frozen=True)
class _CaptureKind:
    regex: str
    max_length: int
    format: Callable[[str], str] = str


_CAPTURE_KINDS: Mapping[str, _CaptureKind] = {
    "version": _CaptureKind(r"\d[\w.+]{0,30}(?:-[\w.+]{1,30})?(?<!\.)", 62),
    "number": _CaptureKind(r"\d{1,12}", 12),
    # The CUDA API counts a version as a number: 12080 is 12.8.
    "cuda": _CaptureKind(r"\d{4,5}", 5, lambda digits: f"{int(digits) // 1000}.{int(digits) % 1000 // 10}"),
    "hex": _CaptureKind(r"(?:0x)?[0-9a-fA-F]{1,16}", 18),
    "size": _CaptureKind(r"\d{1,9}(?:\.\d{1,4})? ?[KMGT]i?B", 20),
    "condition": _CaptureKind(r"(?<![\w.-])\w{1,20} ?[<>=!]{1,2} ?[\w.]{1,20}(?<!\.)", 46),
    "requirement": _CaptureKind(r"(?<![\w.-])[\w.-]{1,60}(?:\[[\w,-]{1,60}\])?[<>=!~][\w.*+,<>=!~]{1,60}", 183),
    "word": _CaptureKind(r"[\w+-]{1,60}", 60),
    "symbol": _CaptureKind(r"[\w@.]{1,400}(?<!\.)", 400),
    "arch": _CaptureKind(r"sm_?\d{2,3}[af]?", 8),
    "name": _CaptureKind(r"[\w@.:/\\+=~-]{1,150}(?<![.:])", 150),
    "soname": _CaptureKind(r"lib[\w.+-]{1,60}?\.so(?:\.\d{1,9}){0,4}(?!\w)", 110),
    "path": _CaptureKind(r"~?/[\w@.:+=~/-]{1,240}(?<![.:])", 242),
    "cc": _CaptureKind(r"\d{1,2}\.\d", 4),
    "text": _CaptureKind(r"[^\"'`\n]{1,120}", 120),
}


_VARYING = re.compile(r"\{\w+:\w+\}|[…\"'`]")


_WORD = re.compile(r"[0-9a-z]+")


def list_words(lowered: str) -> frozenset[str]:
    """Return the words of a text in lower case."""
    return frozenset(_WORD.findall(lowered))


def list_whole_words(template: str) -> frozenset[str]:
    """Return words that every text with this error has: those of the template that nothing can be part of."""
    parts = _VARYING.split(template.lower())
    return frozenset(
        found[0]
        for place, part in enumerate(parts)
        for found in _WORD.finditer(part)
        if (found.start() > 0 or place == 0) and (found.end() < len(part) or place == len(parts) - 1)
    )


@dataclass(frozen=True)
class Pattern:
    """An error text ready to be searched for.

    `anchor` are its longest fixed words: where they do not occur, the pattern cannot either, and its regular expression
    is never compiled. `before` and `after` are the characters around the anchor that a match may take. One that `runs_on`
    captures any words.
    """

    anchor: str
    before: int
    after: int
    regex: str
    specificity: int
    kinds: Mapping[str, str]
    runs_on: bool

    def find(self, text: str, lowered: str) -> re.Match[str] | None:
        """Return the last occurrence of the pattern, or one of the first; `lowered` is `text` in lower case."""
        if self.anchor not in lowered:  # faster than the search from the end, and nearly always enough
            return None
        for start in dict.fromkeys(self._find_anchors(lowered)):
            end = start + len(self.anchor) + self.after
            if found := re.compile(self.regex, re.IGNORECASE).search(text, max(0, start - self.before), end):
                return found
        return None

    def _find_anchors(self, lowered: str) -> Iterator[int]:
        """Yield where the anchor occurs: the last places from the end, then the first ones."""
        place = len(lowered)
        for _ in range(MAX_TRIES):
            place = lowered.rfind(self.anchor, 0, place + len(self.anchor) - 1)
            if place == -1:
                return
            yield place
        place = -1
        for _ in range(MAX_TRIES):
            place = lowered.find(self.anchor, place + 1)
            if place == -1:
                return
            yield place

    def format_captures(self, found: re.Match[str]) -> dict[str, str]:
        """Return the captured parts as a sentence shows them."""
        return {name: _CAPTURE_KINDS[self.kinds[name]].format(value) for name, value in found.groupdict().items()}


def compile_pattern(template: str) -> Pattern:
    """Compile an error text of the catalog.

    Raises:
        ValueError: The template has an unknown mark or no fixed words to search for.
    """
    found = list(_PARTS.finditer(template))
    parts = [_compile_part(part) for part in found]
    fixed = [place for place, part in enumerate(found) if part["words"]]
    if not fixed or sum(len(part[0]) for part in found) != len(template):
        raise ValueError(f"no pattern: {template!r}")
    anchor = max(fixed, key=lambda place: parts[place][1])
    words = found[anchor]["words"]
    regex = "".join(source for source, _ in parts)
    left = r"(?<![0-9A-Za-z_])" if template[0].isalnum() else ""
    regex = left + regex + (r"(?![0-9A-Za-z_])" if template[-1].isalnum() or template.endswith("}") else "")
    return Pattern(
        anchor=words.lower(),
        before=sum(length for _, length in parts[:anchor]) + 1,
        after=sum(length for _, length in parts[anchor + 1 :]) + 1,
        regex=regex,
        specificity=sum(parts[place][1] for place in fixed),
        kinds={part["name"]: part["kind"] for part in found if part["name"]},
        runs_on=any(part["kind"] == "text" for part in found),
    )


def _compile_part(part: re.Match[str]) -> tuple[str, int]:
    """Return the regular expression of one part of a template, and the most characters that it matches."""
    if part["name"]:
        kind = _CAPTURE_KINDS.get(part["kind"])
        if kind is None:
            raise ValueError(f"no kind of capture: {part['kind']!r}")
        return f"(?P<{part['name']}>{kind.regex})", kind.max_length
    if part["gap"]:
        return f".{{0,{MAX_GAP}}}?", MAX_GAP
    if part["quote"]:
        return "[\"'`]{0,2}", 2
    return re.escape(part["words"]), len(part["words"])
