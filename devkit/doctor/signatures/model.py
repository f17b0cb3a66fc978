"""The rows of the failure catalog, and a match of an error text with one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from devkit.doctor.model import Confidence, Fix, Severity
from devkit.doctor.problems import FixRow


@dataclass(frozen=True)
class FamilyCause:
    """One cause of a family's errors.

    `where` are regular expressions of captures and facts of the text, without which the cause does not apply, and `given` such
    of facts that the text must state. `proof` are words of the text that exclude every other cause (a cause with
    nothing else applies only with them), `speaks_for` and `speaks_against` such that make it more or less probable. Without
    one of `needs` the cause does not apply. `is_only` says that the error's own words leave no other row, once `where` holds.
    `confidence` is CERTAIN if, in addition, the row names one cause and one way to fix it; a row with `proof` is certain only
    with it. `code` is the check that looks for it on a machine, "" where none does.
    `computed` names the function that makes the fix of the values in the text; `fix` is for texts without them.
    `cause` may name captures and facts in braces, and then the text must have them.
    """

    cause: str
    fix: Fix
    where: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[FixRow, ...] = ()
    """The variants of a shared fix, of which `fix` is the template of the one for a machine that nothing is known of."""
    needs: tuple[str, ...] = ()
    code: str = ""
    proof: tuple[str, ...] = ()
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    computed: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    confidence: Confidence = Confidence.LIKELY
    also: tuple[str, ...] = ()
    is_only: bool = False
    is_plain: bool = False
    """True if the error's own words name the cause in a text of any field."""
    refers: bool = False
    """True if the cause or its fix sends the reader to other lines for the reason."""
    is_report: bool = False
    """True if the error only reports that something failed, as those of an `is_consequence` family do."""


@dataclass(frozen=True)
class Family:
    """A row of the catalog: a class of errors, its texts, what decides between its causes, and the causes.

    `texts` are patterns as `patterns.py` reads them; any of them is enough. `symptoms` are those of them that the pages of
    checks show. `beside` requires one more pattern close to the first, and `unless` forbids any;
    `silenced_by` forbids any in the whole text. `also` are codes of other
    checks that look for what may have caused the same text. `overrides` are codes whose errors only follow from the family's.

    A `is_consequence` error names no cause: it counts only where the text has no other. The errors of a `is_general` family
    occur in every field: they count in a text about GPUs alone; those of a `is_common` one unless a program of another field
    reports them. Those with their own causes in a `is_plain` one name the cause in a text of any field.
    The texts of a `is_whole_line` one count where a line has nothing else.
    The lines of a `is_harmless` one look like errors, and say that all is well.
    The captures of a `has_changes` one are completed by the releases that added or removed the name.
    """

    id: str
    name: str
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    causes: tuple[FamilyCause, ...]
    question: str = ""
    beside: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    silenced_by: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    severity: Severity = Severity.ERROR
    is_consequence: bool = False
    is_general: bool = False
    is_common: bool = False
    is_plain: bool = False
    has_changes: bool = False
    is_harmless: bool = False
    is_whole_line: bool = False


@dataclass(frozen=True)
class Failure:
    """One row of the failure catalog: what goes wrong, as people report it in public.

    `checks` are the codes of the checks that recognize it, in the order of the report. Where there is none, `not_seen`
    says why; where no recorded machine shows it, `no_recording` does.
    """

    id: str
    name: str
    symptom: str
    checks: tuple[str, ...]
    sources: tuple[str, ...]
    not_seen: str = ""
    no_recording: str = ""


@dataclass(frozen=True)
class CheckRow:
    """The row of a check: its words, its place in the report, and where its function is.

    `title` states the healthy condition in a line, `about` in a sentence, `symptom` what people meet where it is not (the
    message of the first problem if empty); `why` it matters, how it is `seen`, and by which
    `source`.

    `order` is counted from the hardware up, so that causes come before consequences. `function` is a name below
    `devkit.doctor.checks`, such as "driver.kernel_module.driver_loaded". `search_terms` are what people search for and
    no signature contains. `worst` is the severity of the worst that the check can find.
    """

    code: str
    title: str
    about: str
    why: str
    seen: str
    source: str
    order: int
    function: str
    search_terms: tuple[str, ...] = ()
    symptom: str = ""
    worst: Severity = Severity.ERROR


@dataclass(frozen=True)
class Cause:
    """One of the causes that an error in a text may have: its fix, and the words of the text for and against it.

    `code` is the check that looks for it on a machine, "" where none does.
    """

    code: str
    cause: str
    fix: Fix
    confidence: Confidence
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Consequence:
    """A line that only reports that something else failed: its words, its number, and the name of its family."""

    matched: str
    line: int | None
    family: str


@dataclass(frozen=True)
class Match:
    """A known error in a text, with its most probable cause.

    `matched` is the part of the text, `line` the number of the line where it occurs first (0: unknown), `source` the
    service, rank or worker that wrote the line, `follows_from` the code of another match that causes it. `alternatives` are
    further causes, best first, and `question` is what decides between them. `consequences` are lines after it that only
    report that something failed. `code` is "" where no check looks for it,
    and `family` the name of the class of errors, where the text is not a known wording. Programs of any field report what
    `is_common`.
    """

    code: str
    cause: str
    severity: Severity
    confidence: Confidence
    fix: Fix
    matched: str
    position: int = 0
    line: int = 0
    source: str = ""
    specificity: int = 0
    also: tuple[str, ...] = ()
    follows_from: str | None = None
    family: str = ""
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    alternatives: tuple[Cause, ...] = ()
    question: str = ""
    consequences: tuple[Consequence, ...] = ()
    is_common: bool = False
    is_decided: bool = True
    """True if the match names one cause and one way to fix it, without which it is not certain."""
    refers: bool = False
    """True if the match sends the reader to other lines for the reason."""
    is_harmless: bool = False
    """True for a line that looks like an error and says that all is well."""
