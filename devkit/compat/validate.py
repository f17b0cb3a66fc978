"""Validation of refreshed tables: problems that could make a plan or a finding wrong are found before they are used.

The parts are the schema of each table, what was published once and does not change, consistency between rows, and
anchors (tables/anchors.toml) that every edition must agree with.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from devkit.compat.gpus import find_gpu
from devkit.compat.rules import CodeSupport, check_gpu_code, find_newest_cuda, find_oldest_driver, find_toolkit_driver
from devkit.compat.version_tables import (
    TABLE_TYPES,
    Array,
    DeclaredArray,
    RowConfidence,
    Table,
    TableDocument,
    TableRow,
    Tables,
    read_shipped_table,
)
from devkit.facts.decode import InvalidValue, get_field_decoders
from devkit.facts.values import ComputeCapability, Release
from devkit.text import join_words, to_one_line


@dataclass(frozen=True)
class TableProblem:
    """One reason not to use a table. `row` names the row, "" for the table as a whole.

    With `may_be_forced` it only differs from what ships with devkit, and whoever knows better may take it all the same.
    """

    table: str
    row: str
    says: str
    may_be_forced: bool = False

    def __str__(self) -> str:
        where = f"{self.table}: {self.row}" if self.row else self.table
        return f"{where}: {self.says}"


def validate_tables(documents: Mapping[str, TableDocument], *, today: str) -> tuple[TableProblem, ...]:
    """Validate documents by table name; the shipped tables stand in for those that are absent.

    Rows are compared with one another only where all of them match their schema.

    Args:
        documents: the documents by table name.
        today: the date in ISO 8601.

    Raises:
        KeyError: for a name that no table has.
    """
    shipped = {name: read_shipped_table(name) for name in documents if name in TABLE_TYPES}
    found = [
        problem
        for name, document in documents.items()
        for problem in validate_schema(name, document, shipped=shipped[name], today=today)
    ]
    if not all(problem.may_be_forced for problem in found):
        return tuple(found)
    known = Tables(lambda name: documents.get(name) or read_shipped_table(name))
    for name, document in documents.items():
        found += validate_unchanged(name, document, shipped=shipped[name])
    inconsistent = tuple(problem for rule in CONSISTENCY_RULES for problem in rule(known))
    # Looking up an anchor relies on consistent rows.
    return (*found, *(inconsistent or validate_anchors(known)))


# ---- Schema: names, types, sources, dates, no row twice.

_DATE = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
_ADDRESS = re.compile(r"https://[\w.-]+/\S*")


def validate_schema(
    name: str, document: TableDocument, *, shipped: TableDocument, today: str
) -> Iterator[TableProblem]:
    """Validate the schema of table `name`. `today` is ISO 8601; `shipped` is the table of the same name."""
    yield from (TableProblem(name, "", says, forced) for says, forced in _validate_head(document, shipped, today))
    sources = document.get("sources")
    if not isinstance(sources, Mapping):
        yield TableProblem(name, "", "the table 'sources' is missing")
        sources = {}
    for key, address in sources.items():
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            yield TableProblem(name, f"source {key!r}", f"{address!r} is no https address")
    declared = {array.name: array for array in TABLE_TYPES[name].arrays()}
    for unknown in set(document) - {*declared, "schema", "as_of", "sources"}:
        yield TableProblem(name, "", f"{unknown!r} is no array of this table{_suggest(unknown, declared)}")
    for array in declared.values():
        rows = document.get(array.name)
        if not isinstance(rows, list) or not rows:
            yield TableProblem(name, "", f"the array {array.name!r} is {'empty' if rows == [] else 'missing'}")
            continue
        numbered = [(name_row(array, row, number), row) for number, row in enumerate(rows, start=1)]
        found = [
            TableProblem(name, called, says)
            for called, row in numbered
            for says in (
                *_validate_row(array.row, row, sources, today),
                *(f"{field} is empty" for field in array.unique if isinstance(row, dict) and row.get(field) == []),
            )
        ]
        yield from found
        if not found:
            yield from (TableProblem(name, called, "it occurs twice") for called in _find_duplicates(array, numbered))


def name_row(array: DeclaredArray[Any], row: Mapping[str, Any], number: int) -> str:
    """Name a row in a message: "toolkit 12.8.1", or by its number where what names it is missing."""
    parts = [row.get(field) for field in array.unique] if isinstance(row, Mapping) else []
    words = [" ".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts if part is not None]
    return f"{array.name} {to_one_line(' '.join(words)) if words else f'number {number}'}"


def _validate_head(document: TableDocument, shipped: TableDocument, today: str) -> Iterator[tuple[str, bool]]:
    """List the problems of schema and date, and whether each may be forced."""
    schema, as_of = document.get("schema"), document.get("as_of")
    if schema != shipped["schema"]:
        yield f"its schema is {schema!r}; this devkit reads schema {shipped['schema']}", False
    if not _is_date(as_of):
        yield f"as_of is {as_of!r}, not a date such as {shipped['as_of']!r}", False
    elif str(as_of) > today:
        yield f"as_of is {as_of}, which is yet to come", False
    elif str(as_of) < shipped["as_of"]:
        yield f"it is as of {as_of}, older than the shipped one of {shipped['as_of']}", True


def _validate_row(kind: type[TableRow], row: object, sources: Mapping[str, Any], today: str) -> Iterator[str]:
    if not isinstance(row, dict):
        yield "it is no table of fields"
        return
    decoders = get_field_decoders(kind)
    required = {field.name for field in fields(kind) if field.default is MISSING}
    # Its date may be that of the whole table.
    missing = required - {"checked", *row}
    if missing:
        yield f"it lacks {join_words(sorted(missing))}"
    for field, value in row.items():
        if field not in decoders:
            yield f"it has no field {field!r}{_suggest(field, decoders)}"
            continue
        try:
            _validate_text(decoders[field](value), value)
        except InvalidValue as error:
            yield f"{field} is {value!r}, not {error.expected}"
    named = row.get("source")
    if named == []:
        yield "it names no source"
    for source in named if isinstance(named, list) else ():
        if source not in sources:
            yield f"its source {source!r} is not among the sources"
    checked = row.get("checked", "2000-01-01")
    if not _is_date(checked) or checked > today:
        yield f"checked is {checked!r}, not a date of the past"


def _validate_text(decoded: object, value: object) -> None:
    """Refuse text of several lines, and a version with more around it. Raises InvalidValue."""
    for each in decoded if isinstance(decoded, tuple) else (decoded,):
        if isinstance(each, Release) and each.text != value:
            raise InvalidValue("a version", value)
        if isinstance(each, str) and each != to_one_line(each):
            raise InvalidValue("a string on one line", value)


def _find_duplicates(array: DeclaredArray[Any], numbered: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    decoders, seen = get_field_decoders(array.row), set()
    for called, row in numbered:
        # Decoded, for 12.0 and 12.0.0 are one version.
        key = tuple(decoders[field](row[field]) for field in array.unique)
        if key in seen:
            yield called
        seen.add(key)


def _is_date(value: object) -> bool:
    return isinstance(value, str) and _DATE.fullmatch(value) is not None


def _suggest(word: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# ---- Published facts do not change: a table that says otherwise is wrong, or the shipped one was.

IMMUTABLE_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("driver", "toolkit"): ("cuda", "linux_driver", "windows_driver"),
    ("driver", "family"): ("linux_driver", "windows_driver"),
    ("driver", "branch"): ("cuda",),
    ("driver", "windows_branch"): ("cuda",),
    ("driver", "forward"): ("cuda",),
    ("driver", "capability"): ("first_cuda", "last_cuda", "first_branch", "last_branch", "generic_wheels_from_cuda"),
    ("gpus", "gpu"): ("capability", "forward"),
    ("torch", "release"): ("glibc", "default_variant"),
    ("torch", "wheel"): ("sass", "ptx"),
    ("torch", "index"): ("cuda", "url"),
    ("rocm", "index"): ("rocm", "url", "targets"),
    ("rocm", "gpu"): ("target",),
    ("stack", "bitsandbytes"): ("cudas", "cpu", "aarch64"),
    ("stack", "library"): ("sass", "ptx"),
    ("stack", "feature"): ("capability",),
    ("images", "python_image"): ("python", "machines"),
    ("images", "cuda_image"): ("python", "glibc", "machines"),
}
"""Fields of published things. An end that was still unknown (None) may be set."""


def validate_unchanged(name: str, document: TableDocument, *, shipped: TableDocument) -> Iterator[TableProblem]:
    """Compare table `name` with the one that ships. All of it may be forced: the shipped row may be wrong.

    An inferred row may change freely: it was a guess.
    """
    for array in TABLE_TYPES[name].arrays():
        lasting = IMMUTABLE_FIELDS.get((name, array.name))
        if lasting is None:
            continue
        now = {tuple(str(row[field]) for field in array.unique): row for row in document[array.name]}
        for number, before in enumerate(shipped[array.name], start=1):
            if before["confidence"] == RowConfidence.INFERRED:
                continue
            after = now.get(tuple(str(before[field]) for field in array.unique))
            differences = ["the shipped table has it, this one does not"]
            if after is not None:
                differences = list(_compare_rows(before, after, lasting))
            called = name_row(array, before, number)
            yield from (TableProblem(name, called, says, True) for says in differences)


def _compare_rows(before: dict[str, Any], after: dict[str, Any], lasting: tuple[str, ...]) -> Iterator[str]:
    for field in lasting:
        if field in before and after.get(field) != before[field]:
            yield f"{field} is {after.get(field)!r}; the shipped table says {before[field]!r}"
    if after["confidence"] == RowConfidence.INFERRED:
        yield f"it is inferred; the shipped table calls it {before['confidence']}"


# ---- Consistency: newer versions need newer drivers, and whatever a row names is there.

ConsistencyRule = Callable[[Tables], Iterator[TableProblem]]

_CUDA_LABEL = re.compile(r"cu(\d+)(\d)")
_TARGET = re.compile(r"(\d+\.\d)[af]?")
_PYTHON = re.compile(r"3\.\d+")
_VERSION = re.compile(r"\d[\w.+!]*", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_TAG = re.compile(r"[a-z0-9][\w.:/-]*", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII)
_INDEX = re.compile(r"https://[\w.-]+(?:/[\w.+-]+)*/?", re.ASCII)


def validate_toolkits(known: Tables) -> Iterator[TableProblem]:
    """Validate that a newer CUDA Toolkit never needs an older driver, and has the number of its CUDA."""
    rows = sorted(known.driver.toolkits, key=lambda row: row.version)
    for row in rows:
        if row.cuda.numbers != row.version.numbers[:2]:
            yield TableProblem("driver", f"toolkit {row.version}", f"it is no release of CUDA {row.cuda}")
    linux = [(str(row.version), row.linux_driver) for row in rows]
    windows = [(str(row.version), row.windows_driver) for row in rows if row.windows_driver is not None]
    for floors in (linux, windows):
        for (older, before), (newer, driver) in pairwise(floors):
            if _is_below(driver, before):
                says = f"it needs driver {driver}, older than the {before} of {older}"
                yield TableProblem("driver", f"toolkit {newer}", says)


def validate_driver_branches(known: Tables) -> Iterator[TableProblem]:
    """Validate that a newer driver branch never runs an older CUDA, and runs that of every toolkit it came with."""
    linux = sorted((row.branch, row.cuda) for row in known.driver.branches)
    windows = sorted((max(row.branches), row.cuda) for row in known.driver.windows_branches)
    for array, branches in (("branch", linux), ("windows_branch", windows)):
        for (older, before), (newer, cuda) in pairwise(branches):
            if cuda < before:
                yield TableProblem(
                    "driver", f"{array} {newer}", f"it runs CUDA {cuda}, older than the {before} of {older}"
                )
    newest = dict(linux)
    for row in known.driver.toolkits:
        runs = newest.get(row.linux_driver.major)
        if runs is None or runs < row.cuda:
            says = (
                f"its driver {row.linux_driver} is of a branch that runs {f'CUDA {runs}' if runs else 'no known CUDA'}"
            )
            yield TableProblem("driver", f"toolkit {row.version}", says)


def validate_cuda_families(known: Tables) -> Iterator[TableProblem]:
    """Validate that minor version compatibility begins with a major's first toolkit, and rises with the major."""
    families = [family for _, family in sorted(known.driver.families.items())]
    for older, newer in pairwise(families):
        if newer.linux_driver <= older.linux_driver or newer.windows_driver <= older.windows_driver:
            yield TableProblem(
                "driver", f"family {newer.major}", f"its floors are not above those of CUDA {older.major}"
            )
    for family in families:
        first = min((row.linux_driver for row in known.driver.toolkits if row.cuda.major == family.major), default=None)
        if first is None or first.major != family.linux_driver.major:
            says = f"its floor {family.linux_driver} is not of the branch of its first toolkit, {first or 'none'}"
            yield TableProblem("driver", f"family {family.major}", says)
    unknown = {row.cuda.major for row in known.driver.toolkits} - set(known.driver.families)
    for major in sorted(unknown):
        if major >= families[0].major:
            yield TableProblem("driver", f"family {major}", "its toolkits are known, its oldest driver is not")


def validate_capabilities(known: Tables) -> Iterator[TableProblem]:
    """Validate that support of a compute capability begins before it ends."""
    for capability, row in known.driver.capabilities.items():
        if row.last_cuda is not None and row.last_cuda < row.first_cuda:
            says = f"CUDA {row.last_cuda}, the last for it, is older than the first, {row.first_cuda}"
            yield TableProblem("driver", f"capability {capability}", says)
        if None not in (row.first_branch, row.last_branch) and (row.last_branch or 0) < (row.first_branch or 0):
            says = f"branch {row.last_branch}, the last for it, is older than the first, {row.first_branch}"
            yield TableProblem("driver", f"capability {capability}", says)


def validate_forward_packages(known: Tables) -> Iterator[TableProblem]:
    """Validate that cuda-compat is for hosts whose own driver is too old for that CUDA."""
    newest = {row.branch: row.cuda for row in known.driver.branches}
    for row in known.driver.forward:
        for branch in row.host_branches:
            if branch not in newest or newest[branch] >= row.cuda:
                says = f"branch {branch} is not known" if branch not in newest else f"branch {branch} runs it anyway"
                yield TableProblem("driver", f"forward {row.package}", says)


def validate_gpu_capabilities(known: Tables) -> Iterator[TableProblem]:
    """Validate that the driver table has the compute capability of every GPU."""
    for row in known.gpus.models:
        if row.capability not in known.driver.capabilities:
            yield TableProblem("gpus", f"gpu {row.id}", f"nothing is known of its compute capability {row.capability}")
    for series in known.gpus.series:
        if series.capability not in known.driver.capabilities:
            says = f"nothing is known of its compute capability {series.capability}"
            yield TableProblem("gpus", f"series {series.capability} {series.kind}", says)


def validate_datasheets(known: Tables) -> Iterator[TableProblem]:
    """Validate that each data sheet is that of a GPU in the table, and has no rate below zero."""
    models = {row.id for row in known.gpus.models}
    for name, row in known.gpus.rates.items():
        if name not in models:
            yield TableProblem("gpus", f"rate {name}", "no GPU of the table has this id", True)
        if min(row.fp16_tflops, row.bf16_tflops, row.bandwidth_gb_per_s, row.nvlink_gb_per_s) < 0:
            yield TableProblem("gpus", f"rate {name}", "it promises less than nothing")


def validate_torch_releases(known: Tables) -> Iterator[TableProblem]:
    """Validate that every variant of a torch release has an index and a wheel."""
    torch = known.torch
    for row in torch.releases:
        called = f"release {row.version}"
        for variant in dict.fromkeys((*row.variants, row.default_variant)):
            if variant not in torch.indexes:
                yield TableProblem("torch", called, f"there is no index {variant!r}")
            elif (row.minor, variant, "x86_64") not in torch.wheels:
                yield TableProblem("torch", called, f"there is no wheel of {row.minor} with {variant}")
    for label, index in torch.indexes.items():
        named = _CUDA_LABEL.fullmatch(label)
        if named and (index.cuda is None or index.cuda.numbers != (int(named[1]), int(named[2]))):
            yield TableProblem(
                "torch", f"index {label}", f"its CUDA is {index.cuda}, which is not what it is called after"
            )


def validate_kernels(known: Tables) -> Iterator[TableProblem]:
    """Validate that no wheel or library holds GPU code that its CUDA Toolkit cannot build."""
    for (minor, variant, machine), wheel in known.torch.wheels.items():
        index = known.torch.indexes.get(variant)
        if index is None:
            yield TableProblem("torch", f"wheel {minor} {variant} {machine}", f"there is no index {variant!r}")
        elif index.cuda is not None:
            called = f"wheel {minor} {variant} {machine}"
            yield from _code("torch", called, (*wheel.sass, *wheel.ptx), (index.cuda,), known)
    for row in known.stack.libraries:
        cudas = tuple(Release.parse(cuda) for cuda in row.cudas)
        called = f"library {row.version} {row.machine} {' '.join(row.cudas)}"
        yield from _code("stack", called, (*row.sass, *row.ptx), cudas, known)


def validate_bitsandbytes_libraries(known: Tables) -> Iterator[TableProblem]:
    """Validate that a library of bitsandbytes is for CUDA versions that its release has one for."""
    shipped = {row.version: set(row.cudas) for row in known.stack.bitsandbytes}
    for row in known.stack.libraries:
        missing = set(row.cudas) - shipped.get(row.version, set())
        if missing:
            says = f"bitsandbytes {row.version} carries no library for CUDA {', '.join(sorted(missing))}"
            yield TableProblem("stack", f"library {row.version} {row.machine}", says)


def validate_text_forms(known: Tables) -> Iterator[TableProblem]:
    """Validate that text copied into a Dockerfile or a command is of its kind, and holds nothing more."""
    torch, images = known.torch, known.images
    texts = [("torch", f"index {label}", _INDEX, row.url) for label, row in torch.indexes.items()]
    texts += [("torch", f"release {row.version}", _PYTHON, each) for row in torch.releases for each in row.pythons]
    texts += [("torch", "release", _VERSION, str(row.version)) for row in torch.releases]
    texts += [("images", "python_image", _TAG, row.tag) for row in images.python_images]
    texts += [("images", "cuda_image", _TAG, f"{row.cuda}-{row.system}") for row in images.cuda_images]
    texts += [("stack", f"package {row.name}", _VERSION, row.version) for row in known.stack.packages]
    texts += [("stack", "package", _NAME, row.name) for row in known.stack.packages]
    texts += [("stack", "bitsandbytes", _VERSION, row.version) for row in known.stack.bitsandbytes]
    texts += [("stack", "python", _PYTHON, row.version) for row in known.stack.pythons]
    texts += [("rocm", f"index {label}", _INDEX, row.url) for label, row in known.rocm.indexes.items()]
    texts += [("profiles", f"image {name}", _IMAGE, row.image) for name, row in known.profiles.images.items()]
    texts += [("profiles", f"package {row.name}", _VERSION, row.version) for row in known.profiles.packages]
    texts += [("profiles", "package", _NAME, row.name) for row in known.profiles.packages]
    for table, called, pattern, text in texts:
        if not pattern.fullmatch(text):
            yield TableProblem(table, called, f"{text!r} is not of the form {pattern.pattern}")


def validate_requirements(known: Tables) -> Iterator[TableProblem]:
    """Validate requirement lines and Python specifiers."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for row in known.stack.packages:
        try:
            SpecifierSet(row.python)
            [Requirement(line) for line in row.requires]
        except (InvalidSpecifier, InvalidRequirement) as error:
            yield TableProblem("stack", f"package {row.name} {row.version}", str(error).splitlines()[0])


CONSISTENCY_RULES: tuple[ConsistencyRule, ...] = (
    validate_toolkits,
    validate_driver_branches,
    validate_cuda_families,
    validate_capabilities,
    validate_forward_packages,
    validate_gpu_capabilities,
    validate_datasheets,
    validate_torch_releases,
    validate_kernels,
    validate_bitsandbytes_libraries,
    validate_text_forms,
    validate_requirements,
)
"""Every rule that tables keep among their rows."""


def _code(
    table: str, called: str, targets: Iterable[str], cudas: tuple[Release, ...], known: Tables
) -> Iterator[TableProblem]:
    for target in targets:
        named = _TARGET.fullmatch(target)
        row = known.driver.capabilities.get(ComputeCapability.parse(named[1])) if named else None
        if row is None:
            yield TableProblem(table, called, f"{target!r} is no known compute capability")
            continue
        for cuda in cudas:
            if cuda < row.first_cuda or (row.last_cuda is not None and row.last_cuda < cuda):
                yield TableProblem(table, called, f"CUDA {cuda} builds no code for {target}")


def _is_below(driver: Release, floor: Release) -> bool:
    """Return whether a driver is below a floor; a bare branch such as 580 means any driver of it."""
    is_bare = 1 in (len(driver.numbers), len(floor.numbers))
    return driver.major < floor.major if is_bare else driver < floor


# ---- Anchors: facts that every edition of the tables must agree with.


@dataclass(frozen=True, kw_only=True)
class FloorAnchor(TableRow):
    """The oldest drivers that run a CUDA version by minor version compatibility."""

    cuda: Release
    linux_driver: Release
    windows_driver: Release | None = None


@dataclass(frozen=True, kw_only=True)
class ToolkitAnchor(TableRow):
    """The driver that came with the first release of a CUDA version."""

    cuda: Release
    linux_driver: Release


@dataclass(frozen=True, kw_only=True)
class DriverAnchor(TableRow):
    """The newest CUDA that a Linux driver runs in full."""

    driver: Release
    cuda: Release


@dataclass(frozen=True, kw_only=True)
class GpuAnchor(TableRow):
    """The compute capability of a GPU, and whether forward compatibility is offered for it."""

    name: str
    capability: ComputeCapability
    forward: bool


@dataclass(frozen=True, kw_only=True)
class CapabilityAnchor(TableRow):
    """The CUDA Toolkits that target a compute capability, as far as they are settled."""

    capability: ComputeCapability
    first_cuda: Release | None = None
    last_cuda: Release | None = None


@dataclass(frozen=True, kw_only=True)
class WheelAnchor(TableRow):
    """The presence of machine code for a compute capability in a torch wheel for x86_64."""

    minor: str
    variant: str
    capability: ComputeCapability
    runs: bool


class AnchorTable(Table):
    """All the anchors."""

    floors = Array("floor", FloorAnchor, unique=("cuda",))
    toolkits = Array("toolkit", ToolkitAnchor, unique=("cuda",))
    drivers = Array("driver", DriverAnchor, unique=("driver",))
    gpus = Array("gpu", GpuAnchor, unique=("name",))
    targets = Array("target", CapabilityAnchor, unique=("capability",))
    wheels = Array("wheel", WheelAnchor, unique=("minor", "variant", "capability"))


def validate_anchors(known: Tables) -> Iterator[TableProblem]:
    """Compare the tables with every anchor."""
    anchors = AnchorTable(read_shipped_table("anchors"))
    for rule in (_validate_driver_anchors, _validate_gpu_anchors, _validate_wheel_anchors):
        for table, says, found, expected, row in rule(known, anchors):
            if found != expected:
                yield TableProblem(table, "", f"{says} ({row.source[0]}); this table says {found}")


Comparison = tuple[str, str, object, object, TableRow]
"""The table, the anchor in words, what the table says, what it must say, and the anchor's row."""


def _validate_driver_anchors(known: Tables, anchors: AnchorTable) -> Iterator[Comparison]:
    for floor in anchors.floors:
        says = f"CUDA {floor.cuda} runs from driver {floor.linux_driver} on"
        yield "driver", says, find_oldest_driver(floor.cuda, known=known), floor.linux_driver, floor
        if floor.windows_driver:
            says = f"CUDA {floor.cuda} runs from Windows driver {floor.windows_driver} on"
            windows = find_oldest_driver(floor.cuda, platform="windows", known=known)
            yield "driver", says, windows, floor.windows_driver, floor
    for toolkit in anchors.toolkits:
        says = f"CUDA {toolkit.cuda} came with driver {toolkit.linux_driver}"
        yield "driver", says, find_toolkit_driver(toolkit.cuda, known=known), toolkit.linux_driver, toolkit
    for row in anchors.drivers:
        says = f"driver {row.driver} runs CUDA {row.cuda} in full"
        yield "driver", says, find_newest_cuda(row.driver, known=known), row.cuda, row
    for target in anchors.targets:
        found, capability = known.driver.capabilities.get(target.capability), f"compute capability {target.capability}"
        if target.first_cuda is not None:
            says = f"CUDA {target.first_cuda} is the first that targets {capability}"
            yield "driver", says, found and found.first_cuda, target.first_cuda, target
        if target.last_cuda is not None:
            says = f"CUDA {target.last_cuda} is the last that targets {capability}"
            yield "driver", says, found and found.last_cuda, target.last_cuda, target


def _validate_gpu_anchors(known: Tables, anchors: AnchorTable) -> Iterator[Comparison]:
    for row in anchors.gpus:
        found = find_gpu(row.name, known=known)
        model = found.model if found else None
        capability = found.capability if found and model else None
        yield "gpus", f"{row.name} has compute capability {row.capability}", capability, row.capability, row
        if model is not None:
            offered = "is" if row.forward else "is not"
            says = f"forward compatibility {offered} offered for {row.name}"
            yield "gpus", says, model.forward, row.forward, row


def _validate_wheel_anchors(known: Tables, anchors: AnchorTable) -> Iterator[Comparison]:
    for row in anchors.wheels:
        wheel = known.torch.wheels.get((row.minor, row.variant, "x86_64"))
        runs = wheel is not None and check_gpu_code(row.capability, wheel.sass) is CodeSupport.NATIVE
        holds = "holds" if row.runs else "holds no"
        says = f"torch {row.minor}+{row.variant} {holds} machine code for {row.capability}"
        yield "torch", says, "no such wheel" if wheel is None else runs, row.runs, row
