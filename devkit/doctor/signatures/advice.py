"""What a Python exception itself says to do: the answer where no known error is in a text."""

import re

from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.log_text import NEAR, Words, is_about_gpus
from devkit.doctor.signatures.matching import MAX_SHOWN
from devkit.doctor.signatures.model import Match

_EXCEPTION = re.compile(r"(?:(?<=\s)|^)(?:[\w.]{1,80}\.)?[A-Z]\w{1,40}Error: (?=\S)")
_END = re.compile(r"\s(?:File \"|Traceback \(|During handling|The above exception|[\w.]{1,80}(?:Error|Exception): )")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"])|;\s+")
_ADVICE = re.compile(
    r"\b(?:please|try (?:to|setting|using|installing|running)|make sure|you (?:can|need|should|must|may)|consider|instead of"
    r"|(?:set|use|pass|install|upgrade|downgrade|update|reinstall|run|specify|increase|reduce|decrease|enable|disable) [`'\"-]?\w)",
    re.IGNORECASE,
)
_MAX_MESSAGE = 600
_MIN_WORDS = 4


def read_advice(text: Words) -> Match | None:
    """Return the last exception whose message says what is wrong and then what to do."""
    for found in reversed(list(_EXCEPTION.finditer(text.shown[-64 * 1024 :]))):
        start = max(0, len(text.shown) - 64 * 1024) + found.end()
        message = text.shown[start : start + _MAX_MESSAGE]
        end = _END.search(message)
        said, *others = _SENTENCE.split(message[: end.start()] if end else message)
        advice = next((each for each in others if _ADVICE.search(each)), "")
        is_near = is_about_gpus(text.lowered[max(0, start - NEAR) : start + NEAR])
        if advice and is_near and len(said.split()) >= _MIN_WORDS:
            name = found[0].rstrip(": ")
            return Match(
                code="",
                cause=f"{name.rpartition('.')[2]} says: {said[:MAX_SHOWN].rstrip('. ')}",
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                fix=Fix(f"Do as the message says: {advice[:MAX_SHOWN].rstrip('. ')}.", (), Side.PROJECT),
                matched=f"{found[0]}{said}"[:MAX_SHOWN],
                position=start - len(found[0]),
                line=text.find_line(start),
                source=text.find_source(start),
                family="the message names its fix",
                is_common=True,
            )
    return None
