"""What a signature is: an error text, the check it speaks for, and what to do when nothing is known of the machine."""

from devkit.doctor.model import Confidence, Fix, Severity
from devkit.facts.values import record


@record
class Signature:
    """One known error, in every wording that people paste.

    `texts` are patterns as `pattern.py` reads them; any of them is enough. `cause` may name their captures in braces,
    and then every text must have them. `beside` asks for one more pattern not far from the first, and `unless` forbids
    any: both are for words too short to be sure of.
    """

    code: str
    texts: tuple[str, ...]
    cause: str
    fix: Fix
    source: str
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.CERTAIN
    also: tuple[str, ...] = ()
    """Codes of other checks that look for what may stand behind the same text."""
    beside: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    entry: str = ""
    """The entry of the failure catalogue that it belongs to, such as "E05"."""


@record
class Match:
    """What one part of a text means. `matched` is that part; `follows_from` the code of another match that explains"
    " it."""

    code: str
    cause: str
    severity: Severity
    confidence: Confidence
    fix: Fix
    matched: str
    position: int = 0
    specificity: int = 0
    also: tuple[str, ...] = ()
    follows_from: str | None = None
