"""Differences between machines: what the majority has, who deviates, and which check it matters to."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any, Literal

from devkit.doctor.model import Crashed, Found, Severity
from devkit.doctor.registry import BY_CODE, CHECKS
from devkit.doctor.runner import mark_root_causes, run_on_host_and_container
from devkit.facts.machine import Container
from devkit.facts.model import FACTS_SCHEMA, InvalidFacts, parse_facts_document
from devkit.text import format_bytes, join_words

MAX_VALUE_LENGTH = 60
MAX_NODES = 5
MAX_DEPTH = 30
MAX_NUMBER = 1e300

Path = tuple[str, ...]
"""The steps to a field: the names of fields, and the keys of entries in brackets."""


class InvalidReport(ValueError):  # noqa: N818 - named for the document, as a user would say it
    """A document that cannot be compared; the text says why."""


_VOLATILE = re.compile(
    r"schema|taken_at|system\.host_name|driver\.(booted_at|upgraded_packages)|kernel_log"
    r"|training|deep\.hub|engine\.(containers|stopped|images)|.*\.(uuid|address|pci_address|bridges|processes)"
    r"|.*\.(mig_instances|clock_reasons|display_active|temperature_c|utilization_percent|power_mw|sm_clock_mhz)"
    r"|.*\.(pcie_generation|link_width|free_bytes|free_files|available_bytes|ecc_uncorrected|nvlink_errors)"
    r"|.*\.(out_of_memory_kills|type)|data_age_days|root_causes|layers|lost|outcomes|log|changes"
    r"|conclusion|environment\.executable|.*sha256|stages\[\]\.(ms|reason|expected)"
)
"""Fields that differ between equal machines: times, serial numbers, the load of the moment. Findings speak for them."""

_TOLERANCES = (
    (re.compile(r".*\.memory_bytes|.*\.swap_bytes|limits\.cpu_count"), 0.02),
    (re.compile(r"stages\[\]\.measured\.(.*_per_s|.*tflops|.*_bytes)"), 0.1),
)
"""Measured numbers, and the part of the median by which equal machines differ.

Firmware, ECC and the driver reserve a little more or less memory on the same board; rates scatter by a few percent.
"""

_FAILURES = ("NvmlFailure", "EngineFailure", "FailedGpu")
_KEYS = ("index", "name", "code", "purpose", "path", "variable", "number")
"""Fields that identify the entries of a list in any order; entries without one are known by their place."""


class _Unread(str):
    """Why a fact was lost. All of these are equal, because reasons contain numbers and paths."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unread)

    def __hash__(self) -> int:
        return 0


def _list_children(value: object) -> list[tuple[str, Any]]:
    """Return the fields or entries of a JSON value with their steps, none for one that is compared as a whole."""
    if isinstance(value, dict):
        return list(value.items())
    steps: list[tuple[str, Any]] = []
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        seen: Counter[str] = Counter()
        for place, entry in enumerate(value):
            key = str(next((entry[name] for name in _KEYS if entry.get(name) is not None), place))
            seen[key] += 1
            steps.append((f"[{key}]" if seen[key] == 1 else f"[{key}#{seen[key]}]", entry))
    return steps


@cache
def _find_place(outer: Path, step: str) -> tuple[Path, float | None]:
    """Return the path of a field and its tolerance: 0 where it must be equal, None where it is not compared."""
    path = (*outer, step)
    pattern = format_path(tuple("[]" if each.startswith("[") else each for each in path if each != "inside"))
    if _VOLATILE.fullmatch(pattern):
        return path, None
    return path, next((tolerance for words, tolerance in _TOLERANCES if words.fullmatch(pattern)), 0.0)


def _list_leaves(value: Any, path: Path = (), tolerance: float = 0.0) -> Iterator[tuple[Path, Hashable]]:  # noqa: ANN401
    """Yield the fields below a path that are compared, each with a value to count and to print."""
    children = _list_children(value) if len(path) < MAX_DEPTH else []
    if isinstance(value, list):
        entries = [step[1:-1] for step, _ in children] or map(str, value)
        yield path, tuple(each for each in entries if not each.startswith("MASTER_ADDR="))  # one node is the master
    elif not isinstance(value, dict):
        if tolerance or not isinstance(value, float):  # other numbers with a fraction were measured, and differ
            is_number = isinstance(value, int | float) and abs(value) < MAX_NUMBER
            yield path, value if is_number or value is None else str(value)
    elif "unknown" in value:
        if value.get("is_lost"):  # a fact that does not apply is skipped: the fact that rules it out is compared
            yield path, _Unread(f"not read ({value['unknown']})")
        return
    elif "type" in value:
        yield path, f"failing ({value.get('message')})" if value["type"] in _FAILURES else "present"
    for step, inner in children:
        place, own = _find_place(path, step)
        if own is not None:
            yield from _list_leaves(inner, place, own)


@dataclass(frozen=True)
class Node:
    """A machine to compare. `findings` are the messages of its root causes by code."""

    name: str
    kind: str
    hardware: str
    """What it is compared with: the models of its GPUs and the side that it was examined from, "" without GPUs."""
    document: dict[str, Any]
    findings: dict[str, str]


def read_node(name: str, document: Any) -> Node:  # noqa: ANN401 - any JSON
    """Read saved facts, or a report of `devkit doctor` or `devkit verify`. Raises InvalidReport."""
    kind = str(document.get("schema", "missing")) if isinstance(document, dict) else "missing"
    try:
        if kind == FACTS_SCHEMA:
            facts = parse_facts_document(document)
            models = sorted({gpu.name for gpu in facts.gpus})
            side = [f"in {facts.container.kind}"] if models and isinstance(facts.container, Container) else []
            found: dict[str, str] = {}
            for outcome in mark_root_causes(run_on_host_and_container(CHECKS, facts, clock=float)):
                for finding in outcome.verdict.findings if isinstance(outcome.verdict, Found) else ():
                    if finding.follows_from is None and finding.severity is not Severity.NOTE:
                        found.setdefault(outcome.check.code, finding.message)
            return Node(name, kind, ", ".join([*models, *side]), document, found)
        if kind == "devkit.doctor/1":
            return Node(name, kind, "", document, {code: text for code, text, _ in find_report_roots(document)})
        if kind == "devkit.verify/1":
            device = document["device"]
            failed = {each["name"]: str(each["reason"]) for each in document["stages"] if each["status"] == "failed"}
            return Node(name, kind, f"{device.get('name', device['kind'])}, {document['where']}", document, failed)
    except (InvalidFacts, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidReport(f"not in the format of {kind}: {error}") from error
    raise InvalidReport(f"neither saved facts nor a report of doctor or verify: its schema is {kind[:80]}")


def find_report_roots(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield code, message and fix of the root causes in a report of `devkit doctor`, notes aside.

    Raises KeyError or TypeError for a document of another form.
    """
    for outcome in document["outcomes"]:
        for finding in outcome["findings"]:
            if finding["follows_from"] is None and finding["severity"] != "note":
                yield str(outcome["code"]), str(finding["message"]), finding["fix"]


@dataclass(frozen=True)
class Difference:
    """A field of one or more nodes that has a different value than `agreeing` of `of` nodes of their group.

    `settles` are the codes of the checks whose finding disappears with the usual value.
    """

    field: str
    value: Hashable
    usual: Hashable
    agreeing: int
    of: int
    settles: tuple[str, ...] = ()


@dataclass(frozen=True)
class RootCause:
    """A finding of the doctor that usual nodes do not have."""

    code: str
    message: str


@dataclass(frozen=True)
class Outlier:
    """Nodes that deviate from their group in the same fields, or by the same findings."""

    nodes: tuple[str, ...]
    matters: Literal["decides", "no"]
    """Whether a check finds something that it does not find on the others."""
    findings: tuple[RootCause, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class NodesOfValue:
    """A value, the number of nodes that have it, and some of their names."""

    value: Hashable
    nodes: int
    such_as: tuple[str, ...]


@dataclass(frozen=True)
class NoMajority:
    """A field without a value that most nodes have: its values, the most frequent first."""

    field: str
    values: tuple[NodesOfValue, ...]


@dataclass(frozen=True)
class Group:
    """Nodes with the same models of GPUs, as in the document devkit.compare/1. `kind` is the schema of what was read."""

    kind: str
    of: str
    nodes: int
    odd: tuple[Outlier, ...]
    without_majority: tuple[NoMajority, ...]


def compare_nodes(nodes: Iterable[Node]) -> list[Group]:
    """Compare nodes with those of the same hardware and kind of document. Their names are unique."""
    by_hardware: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        by_hardware.setdefault((node.kind, node.hardware), []).append(node)
    # Machines that lost all their GPUs, and single ones, are compared with the largest group of their kind.
    groups: dict[str, list[list[Node]]] = {}
    for (kind, hardware), own in sorted(by_hardware.items(), key=lambda each: (not each[0][1], -len(each[1]))):
        found = groups.setdefault(kind, [])
        if found and (len(own) == 1 or not hardware):
            found[0].extend(own)
        else:
            found.append(own)
    every = [own for found in groups.values() for own in found]
    return [
        _compare_group(own, min(own, key=lambda node: len(node.findings)) if len(own) == 2 else None) for own in every
    ]


def _compare_group(nodes: Sequence[Node], reference: Node | None) -> Group:
    """Compare nodes with the majority, or with the reference where there is none."""
    columns: dict[Path, dict[Hashable, list[Node]]] = {}
    for node in nodes:
        for path, value in _list_leaves(node.document):
            columns.setdefault(path, {}).setdefault(value, []).append(node)
    findings: dict[tuple[str, ...], list[RootCause]] = {}
    differences: dict[tuple[str, ...], list[Difference]] = {}
    undecided = []
    for code in dict.fromkeys(code for node in nodes for code in node.findings):
        having = [node for node in nodes if code in node.findings]
        if not (code in reference.findings if reference else 2 * len(having) > len(nodes)):
            findings.setdefault(_get_names(having), []).append(RootCause(code, having[0].findings[code]))
    for path, column in columns.items():
        of = sum(map(len, column.values()))
        if len(column) == 1 or 2 * of <= len(nodes):
            continue  # the same everywhere, or part of what most nodes do not have
        usual, alike = _find_usual(path, column, reference)
        names, field = set(_get_names(alike)), format_path(path)
        if not names:
            by_count = sorted(column.items(), key=lambda each: -len(each[1]))
            values = (NodesOfValue(value, len(own), _get_names(own)[:MAX_NODES]) for value, own in by_count)
            undecided.append(NoMajority(field, tuple(values)))
            continue
        for value, odd in column.items():
            if odd[0].name not in names:
                found = Difference(field, value, usual, len(names), of, _find_settled(path, odd[0], alike[0]))
                differences.setdefault(_get_names(odd), []).append(found)
    outliers = []
    for nodes_alike in dict.fromkeys((*findings, *differences)):
        own = sorted(differences.get(nodes_alike, ()), key=lambda each: not each.settles)
        causes = tuple(findings.get(nodes_alike, ()))
        matters: Literal["decides", "no"] = "decides" if causes or any(each.settles for each in own) else "no"
        outliers.append(Outlier(nodes_alike, matters, causes, _merge_entries(own)))
    outliers.sort(key=lambda each: (each.matters, len(each.nodes)))
    return Group(nodes[0].kind, nodes[0].hardware, len(nodes), tuple(outliers), tuple(undecided))


def _get_names(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _find_usual(
    path: Path, column: Mapping[Hashable, list[Node]], reference: Node | None
) -> tuple[Hashable, list[Node]]:
    """Return the value that most nodes have, or the reference's, with the nodes that have it; none without a majority."""
    _, tolerance = _find_place(path[:-1], path[-1])
    usual, alike = max(column.items(), key=lambda each: len(each[1]))
    numbers = {value: nodes for value, nodes in column.items() if isinstance(value, int | float)}
    if tolerance and numbers:
        usual = middle = median(value for value, nodes in numbers.items() for _ in nodes)
        alike = [
            node for value, own in numbers.items() if abs(value - middle) <= tolerance * abs(middle) for node in own
        ]
    if 2 * len(alike) > sum(map(len, column.values())):
        return usual, alike
    return next(((value, own) for value, own in column.items() if reference in own), (None, []))


def _find_settled(path: Path, node: Node, usual: Node) -> tuple[str, ...]:
    """Return the codes of a node's own findings that disappear when one field is as on a usual node."""
    own = [code for code in node.findings if code not in usual.findings]
    if not own or node.kind != FACTS_SCHEMA:
        return ()
    try:
        facts = parse_facts_document(_replace_field(node.document, path, usual.document))
    except InvalidFacts:
        return ()  # the usual value does not fit the rest of this node
    left = run_on_host_and_container([BY_CODE[code] for code in own], facts, clock=float)
    return tuple(each.check.code for each in left if not isinstance(each.verdict, Found | Crashed))


def _replace_field(value: Any, path: Path, usual: Any) -> Any:  # noqa: ANN401 - any part of a document
    """Return a copy of a document with one field as in another, where it exists, too."""
    if not path:
        return usual
    step, *rest = path
    inner = _replace_field(dict(_list_children(value))[step], tuple(rest), dict(_list_children(usual))[step])
    if isinstance(value, dict):
        return {**value, step: inner}
    return [inner if own == step else entry for own, entry in _list_children(value)]


def format_path(path: Path) -> str:
    """Format the steps as in nvml.gpus[0].health.pcie_width."""
    return "".join(step if step.startswith("[") else f".{step}" for step in path).removeprefix(".")


def _merge_entries(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Merge the same difference of several entries: nvml.gpus[0,1,5].health.persistence."""
    alike: dict[Difference, list[str]] = {}
    for each in differences:
        head, _, tail = each.field.partition("[")
        key, _, rest = tail.partition("]")
        alike.setdefault(replace(each, field=f"{head}[]{rest}" if tail else head), []).append(key)
    return tuple(
        replace(each, field=each.field.replace("[]", f"[{','.join(keys)}]", 1)) for each, keys in alike.items()
    )


def list_missing(value: Hashable, other: Hashable) -> str:
    """List what a list lacks that another one has; "" where either is none, or in another order."""
    if not isinstance(value, tuple) or not isinstance(other, tuple):
        return ""
    return _shorten(join_words(entry for entry in other if entry not in value))


def format_value(value: Hashable, field: str) -> str:
    """Format a value in at most sixty characters."""
    match value:
        case None | bool():
            return {None: "none", True: "yes", False: "no"}[value]
        case tuple():
            return _shorten(join_words(map(str, value)) or "empty")
        case int() | float() if field.endswith("_bytes"):
            return format_bytes(round(value))
        case _:
            return _shorten(str(value) or "empty")


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"
