"""What a Python exception itself says to do: the answer where no known error is in a text."""

import re

from devkit.compat.specifiers import canonicalize_name, satisfies
from devkit.doctor.model import Confidence, Fix, Severity, Side
from devkit.doctor.signatures.library_changes import load_distributions
from devkit.doctor.signatures.log_text import NEAR, Words, is_about_gpus
from devkit.doctor.signatures.matching import MAX_SHOWN
from devkit.doctor.signatures.model import Match
from devkit.doctor.signatures.text_facts import TextFacts
from devkit.doctor.signatures.unknown import ADVICE, SENTENCE

_EXCEPTION = re.compile(r"(?:(?<=\s)|^)(?:[\w.]{1,80}\.)?[A-Z]\w{1,40}Error: (?=\S)")
_END = re.compile(r"\s(?:File \"|Traceback \(|During handling|The above exception|[\w.]{1,80}(?:Error|Exception): )")
_REQUIREMENT = re.compile(
    r"\b(?:requires?|needs?|install|upgrade to) (?:at least )?[`'\"]?(?P<package>[A-Za-z][\w.-]{1,40}?)[`'\"]? ?(?:version )?"
    r"(?P<bound>[<>=~]=|[<>]) ?v?(?P<version>\d[\w.]{0,20}\b)"
)
_MAX_MESSAGE = 600
_MIN_WORDS = 4


def read_advice(text: Words, facts: TextFacts) -> Match | None:
    """Return the last exception whose message names a requirement that the text does not meet, or says what to do."""
    for found in reversed(list(_EXCEPTION.finditer(text.shown[-64 * 1024 :]))):
        start = max(0, len(text.shown) - 64 * 1024) + found.end()
        message = text.shown[start : start + _MAX_MESSAGE]
        end = _END.search(message)
        message = message[: end.start()] if end else message
        needed = _REQUIREMENT.search(message)
        if needed:
            message = message[: text.find_line_end(start + needed.end()) - start]
        said, *others = SENTENCE.split(message)
        name = found[0].rstrip(": ").rpartition(".")[2]
        cause = f"{name} says: {said[:MAX_SHOWN].rstrip('. ')}"
        advice = next((each for each in others if ADVICE.search(each)), "")
        fix = None
        if advice and len(said.split()) >= _MIN_WORDS:
            fix = Fix(f"Follow the advice in the message: {advice[:MAX_SHOWN].rstrip('. ')}.", (), Side.PROJECT)
        package = canonicalize_name(needed["package"]) if needed else ""
        package = "torch" if package == "pytorch" else package
        if needed and package in load_distributions().values():
            bound, version = f"{needed['bound']}{needed['version']}", facts.find_version(package)
            if version and satisfies(version, bound):
                continue
            cause += f"; the text has {package} {version}" if version else ""
            fix = Fix(f"Install {package}{bound}.", (f"pip install '{package}{bound}'",), Side.CONTAINER)
        if fix and is_about_gpus(text.lowered[max(0, start - NEAR) : start + NEAR]):
            return Match(
                code="",
                cause=cause,
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                fix=fix,
                matched=f"{found[0]}{said}"[:MAX_SHOWN],
                position=start - len(found[0]),
                line=text.find_line(start),
                source=text.find_source(start),
                family="the message contains its fix",
                is_common=True,
            )
    return None
