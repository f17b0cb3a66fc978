"""Checks, findings and fixes, and the outcomes of a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any

from devkit.release import DOCUMENTATION_URL

if TYPE_CHECKING:
    from devkit.facts.dependencies import FileLine
    from devkit.facts.model import Facts


class Severity(StrEnum):
    """The weight of a finding: an error stops GPU work, a warning will bite, a note explains."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Confidence(StrEnum):
    """The certainty of the cause that a finding names."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Side(StrEnum):
    """The place where a fix must be applied. Advice for the wrong side is this field's most common bad advice."""

    HOST = "host"
    WSL = "wsl"
    WINDOWS = "windows"
    CONTAINER = "container"
    IMAGE = "image"
    PROJECT = "project"


class Restart(StrEnum):
    """The part that must restart before a fix takes effect."""

    NONE = "none"
    ENGINE = "engine"
    LOGIN = "login"
    WSL = "wsl"
    HOST = "host"


class RepairKind(StrEnum):
    """The reversible changes of a user's files that `devkit doctor --fix` can make."""

    SET = "set"
    REMOVE = "remove"


@dataclass(frozen=True)
class Repair:
    """One change to one JSON file that the user owns, as data: `render` makes it, shows the diff, and writes the file.

    `key` is the path in the document, such as ("hostRequirements", "gpu"), where "-" is the place behind a list's last
    item, and `value` the JSON text of what belongs there.
    """

    kind: RepairKind
    path: str
    key: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True)
class Location:
    """A place in one of the project's files. `line` counts from 1."""

    path: str
    line: int = 1


def format_location(place: "FileLine") -> str:
    """Format a place as findings show it."""
    return f"{place.path}:{place.line}"


def cite(place: "FileLine", text: str) -> str:
    """Cite what a line of a file says, as evidence shows it."""
    return f"{format_location(place)}: {text}".rstrip(": ")


@dataclass(frozen=True)
class Fix:
    """One sentence on what to do, the exact commands for this machine, and the side to run them on.

    `repairs` are the same as changes of files, where `--fix` can make them. A fix that `leaves_choice` names several ways,
    of which the reader chooses one.
    """

    summary: str
    commands: tuple[str, ...] = ()
    where: Side = Side.HOST
    root: bool = False
    restart: Restart = Restart.NONE
    docs: str = ""
    repairs: tuple[Repair, ...] = ()
    leaves_choice: bool = False


@dataclass(frozen=True)
class Finding:
    """A fault. `subject` names the faulty part ("GPU 3", a path), `evidence` has the raw readings that show it.

    `follows_from` is the code of the check whose finding causes this one; the report fills it in.
    """

    severity: Severity
    message: str
    fix: Fix
    subject: str = ""
    evidence: tuple[str, ...] = ()
    confidence: Confidence = Confidence.CERTAIN
    follows_from: str | None = None
    location: Location | None = None
    seen_in: str = ""
    """"dev container" for what was seen inside of it while the host was examined."""


class NotApplicable(Exception):  # noqa: N818 - this is not an error: the check has nothing to judge here
    """Raised by a check that cannot judge anything on this machine; becomes `Skipped(reason)`."""

    def __init__(self, reason: str, *, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_lost = is_lost


@dataclass(frozen=True)
class Check:
    """A question about a machine, by a generator over facts; its words are a row of the catalog.

    `title` states the healthy condition, `explanation` has paragraphs with their headings. `worst` is the severity of the
    worst that it can find; without a fact that a check for errors needs, no machine is healthy. `causes` lists codes whose
    findings are consequences of this check's, and are kept quiet beside it.
    """

    code: str
    title: str
    run: "Callable[[Facts], Iterator[Finding]]"
    causes: tuple[str, ...] = ()
    worst: Severity = Severity.ERROR
    explanation: tuple[tuple[str, str], ...] = ()


def check(
    code: str, *preconditions: "Callable[[Facts], object]", causes: tuple[str, ...] = ()
) -> "Callable[[Callable[[Facts], Iterator[Any]]], Check]":
    """Make a `Check` of a generator over facts that yields problems, or findings.

    Each precondition raises `NotApplicable` where the check has nothing to judge. The loader finds the check by its row
    of the catalog, which has its words, and turns its problems into findings.
    """

    def wrap(run: "Callable[[Facts], Iterator[Any]]") -> Check:
        @wraps(run)
        def judge(facts: "Facts") -> Iterator[Any]:
            for require in preconditions:
                require(facts)
            yield from run(facts)

        return Check(code, "", judge, causes)

    return wrap


@dataclass(frozen=True)
class Passed:
    """The condition holds."""


@dataclass(frozen=True)
class Found:
    """The condition does not hold."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Skipped:
    """The facts are missing, or the check does not apply. Never the same as passed.

    `is_lost`: a fact that the check needs was lost, so that what it would have found is unknown.
    """

    reason: str
    is_lost: bool = False


@dataclass(frozen=True)
class Crashed:
    """The check itself failed: a bug in devkit, shown beside the others' results."""

    error: str


CheckVerdict = Passed | Found | Skipped | Crashed


@dataclass(frozen=True)
class Outcome:
    """The result of one check, and its duration in milliseconds."""

    check: Check
    verdict: CheckVerdict
    ms: float = field(default=0.0, compare=False)


def find_check_page(code: str) -> str:
    """Return the URL of a check's page."""
    return f"{DOCUMENTATION_URL}/checks/{code}/"
