"""Checks, findings and fixes, and the outcomes of a run."""

from collections.abc import Callable, Iterator
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from devkit.facts.values import record
from devkit.release import DOCUMENTATION_URL

if TYPE_CHECKING:
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


@record
class Repair:
    """One change to one JSON file that the user owns, as data: `render` makes it, shows the diff, and writes the file.

    `key` is the path in the document, such as ("hostRequirements", "gpu"), where "-" is the place behind a list's last
    item, and `value` the JSON text of what belongs there.
    """

    kind: RepairKind
    path: str
    key: tuple[str, ...] = ()
    value: str = ""


@record
class Location:
    """A place in one of the project's files. `line` counts from 1."""

    path: str
    line: int = 1


@record
class Fix:
    """One sentence on what to do, the exact commands for this machine, and the side to run them on.

    `repairs` are the same as changes of files, where `--fix` can make them.
    """

    summary: str
    commands: tuple[str, ...] = ()
    where: Side = Side.HOST
    root: bool = False
    restart: Restart = Restart.NONE
    docs: str = ""
    repairs: tuple[Repair, ...] = ()


@record
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


class NotApplicable(Exception):  # noqa: N818 - it is no error: the check has nothing to judge here
    """Raised by a check that cannot judge anything on this machine; becomes `Skipped(reason)`."""

    def __init__(self, reason: str, *, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_lost = is_lost


@record
class Check:
    """A question about a machine. `title` states the healthy condition; the docstring of `run` explains it.

    `worst` is the severity of the worst that it can find; without a fact that a check for errors needs, no machine is healthy.
    `causes` lists codes whose findings are consequences of this check's, and are kept quiet beside it. The failures that
    it recognizes, and the error texts that lead to it, are data: see `signatures/catalog.py`.
    """

    code: str
    title: str
    run: "Callable[[Facts], Iterator[Finding]]"
    causes: tuple[str, ...] = ()
    worst: Severity = Severity.ERROR

    @property
    def explanation(self) -> str:
        """The reasons for the check, from its docstring."""
        return (self.run.__doc__ or "").strip()


def check(
    code: str,
    title: str,
    *,
    causes: tuple[str, ...] = (),
) -> "Callable[[Callable[[Facts], Iterator[Finding]]], Check]":
    """Make a `Check` of a generator over facts. `registry.CHECKS` registers it, by hand."""

    def wrap(run: "Callable[[Facts], Iterator[Finding]]") -> Check:
        return Check(code, title, run, causes)

    return wrap


@record
class Passed:
    """The condition holds."""


@record
class Found:
    """The condition does not hold."""

    findings: tuple[Finding, ...]


@record
class Skipped:
    """The facts are missing, or the check does not apply. Never the same as passed.

    `is_lost`: a fact that the check needs was lost, so that what it would have found is unknown.
    """

    reason: str
    is_lost: bool = False


@record
class Crashed:
    """The check itself failed: a bug in devkit, shown beside the others' results."""

    error: str


CheckVerdict = Passed | Found | Skipped | Crashed


@record
class Outcome:
    """The result of one check, and its duration in milliseconds."""

    check: Check
    verdict: CheckVerdict
    ms: float = field(default=0.0, compare=False)


EXPLANATION_HEADINGS = ("Why it matters", "How it is seen", "Source")


def find_check_page(code: str) -> str:
    """Return the URL of a check's page."""
    return f"{DOCUMENTATION_URL}/checks/{code}/"


def split_explanation(check: Check) -> tuple[tuple[str, str], ...]:
    """Split a check's docstring into paragraphs with their headings; the first, the healthy condition, has none.

    Raises:
        ValueError: The docstring lacks a heading, or has them in another order.
    """
    if split_explanation.__doc__ is None:  # PYTHONOPTIMIZE=2
        return (("", f"{check.title}: Python runs without docstrings; read {find_check_page(check.code)}"),)
    summary, _, text = check.explanation.partition("\n\n")
    starts = [text.find(f"{heading}:") for heading in EXPLANATION_HEADINGS]
    if -1 in starts or starts != sorted(starts):
        raise ValueError(f"the docstring must have, in this order: {', '.join(EXPLANATION_HEADINGS)}")
    paragraphs = [
        (heading, text[start + len(heading) + 1 : end])
        for heading, start, end in zip(EXPLANATION_HEADINGS, starts, [*starts[1:], len(text)], strict=True)
    ]
    return tuple((heading, " ".join(body.split())) for heading, body in (("", summary), *paragraphs))
