"""Problems: what a check found, told by the row of the catalog that has its words and its fix.

A check yields `problem("not-loaded", path=…)`. The row `[check.CTK003.problem.not-loaded]` has message and severity, and
its fixes by variant; the first whose `when` holds for the machine counts. Message, summary and docs are templates over the
values; a command quotes them for the shell, and a command that is one name in braces becomes all of this machine's
commands for that purpose: those of commands.toml, and `configure_runtime`, `restart_engine` and `refresh_cdi`. Where uv
made the environment, a command that begins with `pip` is uv's.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from shlex import quote
from typing import Any, TypeVar, get_type_hints

from devkit.doctor import fixes
from devkit.doctor.danger import put_restarts_last, withhold
from devkit.doctor.model import (
    Check,
    Confidence,
    Finding,
    Fix,
    Location,
    Repair,
    Restart,
    Severity,
    Side,
    cite,
    format_location,
)
from devkit.doctor.preconditions import find_platform, is_in_container
from devkit.facts.decode import decode_fields, get_options
from devkit.facts.dependencies import FileLine
from devkit.facts.machine import Container
from devkit.facts.model import Facts
from devkit.facts.project import Setting
from devkit.facts.values import Unknown
from devkit.formats.documents import load

_CATALOG = "devkit.doctor.signatures"
_MACRO = re.compile(r"\{([a-z_]+)\}")
_T = TypeVar("_T")

SIDES: Mapping[str, Callable[[Facts], Side]] = {
    "machine": fixes.find_host_side,
    "driver": fixes.find_driver_side,
    "workload": fixes.find_workload_side,
}
"""`where` of a fix that depends on the machine: around the GPU, of its driver, or where the workload runs."""


_BY_ENGINE: Mapping[str, Callable[..., tuple[str, ...]]] = {
    "configure_runtime": fixes.list_configure_commands,
    "restart_engine": fixes.list_restart_commands,
}
"""Purposes whose commands depend on the engine."""

_SUBJECTS = ("path", "container", "address", "image")
"""Values that name what a problem is about, the nearest first; a number as `index` is that of a GPU."""


@dataclass(frozen=True)
class FixRow:
    """A fix as the catalog has it. `when` maps a word of `describe_variant`, or a value, to those for which it counts.

    `where` is a `Side`, or a key of SIDES. `restart` "engine" is none for Podman, which has no daemon, unless a
    command restarts another one. `docs` is an address, or a name in docs.toml.
    """

    summary: str
    commands: tuple[str, ...] = ()
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    where: str = "host"
    root: bool = False
    restart: Restart = Restart.NONE
    docs: str = ""


@dataclass(frozen=True)
class ProblemRow:
    """The row of a problem: a message with named values, and its fixes by variant."""

    message: str
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.CERTAIN
    fixes: tuple[FixRow, ...] = ()

    @property
    def known_fixes(self) -> tuple[FixRow, ...]:
        """The fixes for machines that were read."""
        return tuple(each for each in self.fixes if "machine" not in each.when)


@dataclass(frozen=True)
class Problem:
    """A problem that a check found: the name of its row, the values in it, and what only the facts have."""

    name: str
    values: Mapping[str, object]
    subject: str = ""
    evidence: tuple[str, ...] = ()
    location: Location | None = None
    severity: Severity | None = None
    confidence: Confidence | None = None
    repairs: tuple[Repair, ...] = ()
    fix: Fix | None = None


def problem(
    name: str,
    /,
    *,
    subject: str = "",
    evidence: Iterable[str] = (),
    found_at: FileLine | None = None,
    severity: Severity | None = None,
    confidence: Confidence | None = None,
    repairs: tuple[Repair, ...] = (),
    fix: Fix | None = None,
    **values: object,
) -> Problem:
    """Make a problem of a check, by the name of its row. `severity`, `confidence` and `fix` are those of the row if None.

    `found_at` is the line of the project's files that the problem is in: its subject, and where it is a setting its evidence.
    Without one the first value that names a thing is the subject, unless another is given.
    """
    location = None
    if found_at is not None:
        location, subject = Location(found_at.path, found_at.line), subject or format_location(found_at)
        if isinstance(found_at, Setting):
            evidence = evidence or (cite(found_at, f"{found_at.name} {found_at.value}"),)
    named = (str(values[name]) for name in _SUBJECTS if name in values)
    subject = subject or next(named, f"GPU {values['index']}" if isinstance(values.get("index"), int) else "")
    return Problem(name, values, subject, tuple(evidence), location, severity, confidence, repairs, fix)


def render_problems(check: Check) -> Check:
    """Return the check with its problems rendered as findings."""

    @wraps(check.run)
    def judge(facts: Facts) -> Iterator[Finding]:
        each: Finding | Problem
        for each in check.run(facts):
            found = to_finding(check.code, each, facts) if isinstance(each, Problem) else each
            yield withhold(found, facts)

    return replace(check, run=judge)


def to_finding(code: str, found: Problem, facts: Facts) -> Finding:
    """Render a problem of a check with the words and the fix of its row.

    Raises:
        KeyError: no row has the name, or a template names a value that was not given.
        LookupError: no fix of the row is for this machine.
    """
    row = find_problem_row(code, found.name)
    return Finding(
        found.severity or row.severity,
        row.message.format_map(found.values),
        found.fix or render_fix(row.fixes, found.values, facts, repairs=found.repairs),
        subject=found.subject,
        evidence=found.evidence,
        confidence=found.confidence or row.confidence,
        location=found.location,
    )


def render_fix(
    rows: Iterable[FixRow], values: Mapping[str, object], facts: Facts, *, repairs: tuple[Repair, ...] = ()
) -> Fix:
    """Render the first fix that is for this machine. Raises LookupError where none is."""
    variant = {**describe_variant(facts), **{name: str(value) for name, value in values.items()}}
    row = next((row for row in rows if all(variant.get(name) in wanted for name, wanted in row.when.items())), None)
    if row is None:
        raise LookupError(f"no fix is for {variant}")
    expanded = (each for command in row.commands for each in _expand(command, values, facts))
    commands = put_restarts_last(fixes.adapt_to_settings_files(each, facts) for each in expanded)
    commands, note = fixes.adapt_to_image(commands, facts)
    is_podmans = variant["engine"] == "podman" and row.restart is Restart.ENGINE
    has_no_daemon = is_podmans and not any(" restart " in command for command in commands)
    return Fix(
        " ".join(filter(None, (row.summary.format_map(values), note))),
        commands,
        where=SIDES[row.where](facts) if row.where in SIDES else Side(row.where),
        root=row.root,
        restart=Restart.NONE if has_no_daemon else row.restart,
        docs=load(_CATALOG, "docs").get(row.docs, row.docs).format_map(values),
        repairs=repairs,
    )


def describe_variant(facts: Facts) -> dict[str, str]:
    """Describe what decides between the variants of a fix: machine, engine, side, platform, family, inside, sandbox, init."""
    return {
        "machine": "unknown" if facts is build_unknown_facts() else "known",
        "engine": fixes.name_engine(facts.engine),
        "side": str(fixes.find_host_side(facts)),
        "platform": str(find_platform(facts)),
        "family": str(fixes.find_distro_family(facts)),
        "inside": "container" if is_in_container(facts) else "host",
        "sandbox": facts.container.kind if isinstance(facts.container, Container) else "none",
        "init": "systemd" if fixes.has_systemd(facts) else "other",
    }


def _expand(command: str, values: Mapping[str, object], facts: Facts) -> Iterator[str]:
    """Yield the commands of one template."""
    found, quoted = _MACRO.fullmatch(command), {name: _quote(value) for name, value in values.items()}
    if found is None:
        yield fixes.adapt_to_installer(command.format_map(quoted), facts)
        return
    name = found[1]
    if isinstance(given := values.get(name), tuple):
        yield from given
    elif given is not None:
        yield str(given)
    elif name in _BY_ENGINE:
        yield from _BY_ENGINE[name](fixes.name_engine(facts.engine), with_systemd=fixes.has_systemd(facts))
    elif name == "refresh_cdi":
        yield from fixes.refresh_cdi(facts)
    else:
        yield from fixes.list_commands(facts, name, **quoted)  # type: ignore[arg-type]


def _quote(value: object) -> str:
    return " ".join(map(quote, value)) if isinstance(value, tuple) else quote(str(value))


@cache
def find_problem_row(code: str, name: str) -> ProblemRow:
    """Find the row of a problem. Raises KeyError for an unknown one."""
    rows = _load_problem_rows(code)
    if name not in rows:
        raise KeyError(f"no row [check.{code}.problem.{name}]")
    own = {key: value for key, value in rows[name].items() if key != "fix"}
    return ProblemRow(**decode_fields(own, ProblemRow), fixes=decode_fix_rows(rows[name].get("fix", ())))


def list_problem_rows(code: str) -> dict[str, ProblemRow]:
    """List the rows of a check's problems, by name."""
    return {name: find_problem_row(code, name) for name in _load_problem_rows(code)}


def _load_problem_rows(code: str) -> Mapping[str, Any]:
    """Load the rows of a check's problems: its own, and with `program_failures` those of every program that fails."""
    row = load(_CATALOG, f"failures/{code[:3]}")["check"][code]
    return {**(load(_CATALOG, "program_failures") if row.get("program_failures") else {}), **row.get("problem", {})}


def show_template(text: str) -> str:
    """Show a template to people: a value that only a machine has is <its name>."""
    return text.format_map(_Names())


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return f"<{name.replace('_', ' ')}>"


def show_commands(
    row: FixRow, *, family: fixes.DistroFamily = fixes.DistroFamily.OTHER, engine: str = ""
) -> tuple[str, ...]:
    """Show the commands of a fix for a machine of that distribution family and engine, of which nothing else is known."""
    engine = engine or row.when.get("engine", ("docker",))[0]
    return put_restarts_last(each for command in row.commands for each in _show_command(command, family, engine))


def _show_command(command: str, family: fixes.DistroFamily, engine: str) -> Iterator[str]:
    found, facts = _MACRO.fullmatch(command), build_unknown_facts()
    if found is None:
        yield show_template(command)
    elif found[1] in _BY_ENGINE:
        yield from _BY_ENGINE[found[1]](engine)
    elif found[1] == "refresh_cdi":
        yield from fixes.refresh_cdi(facts)
    elif found[1] in fixes.load_commands():
        # Other braces in commands.toml are the shell's.
        for each in fixes.list_commands(facts, found[1], family=family):
            yield re.sub(r"\{[a-z_]+\}", lambda name: show_template(name[0]), each)
    else:
        yield f"<{found[1].replace('_', ' ')}>"


def show_condition(row: FixRow) -> str:
    """Show for which machines a fix is; "" where it is for all others."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {' or '.join(word or 'none' for word in words)}" for name, words in row.when.items()
    )


@dataclass(frozen=True)
class Remedy:
    """A fix as people read it: the machines that it is for, "" where that is every other one, and what to do."""

    condition: str
    row: FixRow

    @property
    def summary(self) -> str:
        """The action to take, with the names of values that only a machine has."""
        return show_template(self.row.summary)


@dataclass(frozen=True)
class ProblemGroup:
    """Problems of a check that share their fixes."""

    messages: tuple[str, ...]
    remedies: tuple[Remedy, ...]


def group_problems(code: str) -> tuple[ProblemGroup, ...]:
    """Group the problems of a check by their fixes, each variant once, as people read them."""
    found: list[tuple[list[str], tuple[FixRow, ...]]] = []
    for row in list_problem_rows(code).values():
        same = next((messages for messages, fixes in found if fixes == row.known_fixes), None)
        if same is None:
            same = []
            found.append((same, row.known_fixes))
        same.append(show_template(row.message))
    return tuple(ProblemGroup(tuple(dict.fromkeys(each)), tuple(_list_remedies(rows))) for each, rows in found)


def _list_remedies(rows: tuple[FixRow, ...]) -> Iterator[Remedy]:
    for row in rows:
        same = [each for each in rows if replace(each, when={}) == replace(row, when={})]
        if same[0] is row:
            shown = [show_condition(each) for each in same]
            yield Remedy("" if "" in shown else "; or ".join(shown), row)


def decode_fix_rows(given: Any) -> tuple[FixRow, ...]:  # noqa: ANN401 - as TOML has it
    """Decode a table, an array of tables, or the name of one of them in fixes.toml.

    A table of nothing but `when` and `use` stands for the fix that `use` names there, under that condition too.
    """
    if isinstance(given, str):
        given = load(_CATALOG, "fixes")[given]
    rows: list[FixRow] = []
    for each in given if isinstance(given, list) else [given]:
        when = {
            name: (value,) if isinstance(value, str) else tuple(value) for name, value in each.get("when", {}).items()
        }
        if "use" in each:
            # Of a word that both rows name, what both allow counts.
            for used in decode_fix_rows(each["use"]):
                both = {
                    name: tuple(word for word in used.when[name] if word in when[name])
                    for name in when.keys() & used.when.keys()
                }
                if all(both.values()):
                    rows.append(replace(used, when={**when, **used.when, **both}))
        else:
            rows.append(FixRow(**decode_fields({key: each[key] for key in each if key != "when"}, FixRow), when=when))
    return tuple(rows)


@cache
def build_unknown_facts() -> Facts:
    """Build the facts of a machine that nobody has read."""
    return build_unread(Facts, "no machine was read")


def build_unread(kind: type[_T], reason: str, /, **known: object) -> _T:
    """Build facts of which only `known` was read; the others are Unknown where they may be, else empty."""
    others = {name: each for name, each in get_type_hints(kind).items() if name not in known}
    return kind(
        **known, **{name: Unknown(reason) if Unknown in get_options(each) else each() for name, each in others.items()}
    )
