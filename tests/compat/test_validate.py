"""Refreshed tables are used only when they are valid: planted problems, and random ones."""

from copy import deepcopy
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devkit.compat.validate import AnchorTable, validate_tables
from devkit.compat.version_tables import TABLE_NAMES, TABLE_TYPES, Tables, read_shipped_table
from devkit.facts.values import Release
from devkit.solver.plan import Plan, Request, Vendor
from devkit.solver.request import build_machine_from_flags
from devkit.solver.solve import solve

TODAY = "2030-01-01"
SHIPPED = {name: dict(read_shipped_table(name)) for name in TABLE_NAMES}


def find_problems(name, change):
    """Validate the table `name` after `change` was made to it."""
    document = deepcopy(SHIPPED[name])
    change(document)
    return validate_tables({name: document}, today=TODAY)


def row(document, array, **named):
    return next(each for each in document[array] if named.items() <= each.items())


def changes(array, named, **fields):
    return lambda document: row(document, array, **named).update(fields)


def drops(array, **named):
    return lambda document: document[array].remove(row(document, array, **named))


def adds(array, named, **fields):
    return lambda document: document[array].append({**row(document, array, **named), **fields})


def test_the_shipped_tables_are_valid():
    assert validate_tables(SHIPPED, today=max(each["as_of"] for each in SHIPPED.values())) == ()


def test_every_anchor_says_where_it_was_read():
    anchors = AnchorTable(read_shipped_table("anchors"))
    assert {each.name for each in AnchorTable.arrays()} | {"schema", "as_of", "sources"} == set(
        read_shipped_table("anchors")
    )
    for array in AnchorTable.arrays():
        assert anchors.rows(array.name, array.row)


NEWER = {"version": "13.6.0", "cuda": "13.6", "linux_driver": "625.10"}


def with_cuda_13_6(document):
    document["as_of"] = "2029-12-31"
    adds("toolkit", {"version": "13.5.0"}, **NEWER)(document)
    adds("branch", {"branch": 620}, branch=625, cuda="13.6")(document)


def test_what_is_new_is_welcome():
    assert find_problems("driver", with_cuda_13_6) == ()


PLANTED = [
    ("driver", lambda table: table.update(schema=2), "schema is 2", "another schema"),
    ("driver", lambda table: table.update(as_of="2030-01-02"), "yet to come", "a date of tomorrow"),
    ("driver", lambda table: table.update(as_of="soon"), "not a date", "a date that is none"),
    ("driver", lambda table: table.pop("branch"), "'branch' is missing", "an array that is not there"),
    ("driver", lambda table: table.update(branch=[]), "'branch' is empty", "an array without rows"),
    ("driver", lambda table: table.update(branchs=[]), "did you mean 'branch'", "an unknown array"),
    ("driver", lambda table: table.pop("sources"), "'sources' is missing", "no sources"),
    ("driver", lambda table: table["sources"].update(uv="uv"), "no https address", "a source that is no address"),
    ("driver", changes("branch", {"branch": 580}, source=["hearsay"]), "'hearsay' is not among", "an unknown source"),
    ("driver", changes("branch", {"branch": 580}, source=[]), "names no source", "a row without source"),
    ("driver", changes("branch", {"branch": 580}, confidence="sure"), "confidence is 'sure'", "an unknown confidence"),
    ("driver", changes("branch", {"branch": 580}, branch="580"), "not a whole number", "a number as a text"),
    ("driver", changes("branch", {"branch": 580}, branch=True), "not a whole number", "true for a number"),
    ("driver", changes("branch", {"branch": 580}, cuda=13.0), "not a version", "a version as a number"),
    ("driver", changes("branch", {"branch": 580}, cuda="thirteen"), "not a version", "a version without digits"),
    ("driver", changes("branch", {"branch": 580}, checked="2031-01-01"), "of the past", "a row checked tomorrow"),
    ("driver", changes("branch", {"branch": 580}, cudas="13.0"), "did you mean 'cuda'", "a misspelled field"),
    ("driver", lambda table: table["branch"][0].pop("cuda"), "lacks cuda", "a row without its value"),
    ("driver", lambda table: table["branch"].append(3), "no table of fields", "a row that is none"),
    ("driver", adds("branch", {"branch": 580}), "occurs twice", "a row that occurs twice"),
    ("driver", adds("toolkit", {"version": "13.0.0"}, version="13.0"), "occurs twice", "a row as another text"),
    ("driver", changes("branch", {"branch": 615}, cuda="12.9"), "older than the", "a newer branch with an older CUDA"),
    ("driver", changes("toolkit", {"version": "13.4.2"}, linux_driver="570.26"), "older than", "a toolkit turned back"),
    ("driver", changes("toolkit", {"version": "13.4.2"}, cuda="13.3"), "no release of", "a toolkit of another CUDA"),
    ("driver", changes("family", {"major": 12}, linux_driver="450.10"), "not above", "floors that do not rise"),
    ("driver", drops("family", major=13), "oldest driver is not", "a CUDA major without floor"),
    ("driver", changes("capability", {"capability": "9.0"}, last_cuda="11.0"), "older than the first", "no CUDA left"),
    ("driver", changes("capability", {"capability": "9.0"}, last_branch=410), "older than the first", "no branch left"),
    (
        "driver",
        changes("forward", {"cuda": "13.0"}, host_branches=[610]),
        "runs it anyway",
        "a package that no driver needs",
    ),
    ("driver", changes("family", {"major": 11}, linux_driver="450.36.06"), "450.80.02", "another floor of CUDA 11"),
    ("driver", changes("family", {"major": 13}, linux_driver="580.10"), "580.65.06", "another floor of CUDA 13"),
    ("driver", changes("capability", {"capability": "7.0"}, last_cuda="13.0"), "12.9 is the last", "CUDA 13 on Volta"),
    ("gpus", changes("gpu", {"id": "rtx-4090"}, capability="12.0"), "compute capability 8.9", "another Ada"),
    ("gpus", changes("gpu", {"id": "rtx-4090"}, forward=True), "is not offered for RTX 4090", "forward on GeForce"),
    ("gpus", changes("gpu", {"id": "l4"}, capability="8.8"), "nothing is known of", "a capability that is none"),
    ("gpus", changes("gpu", {"id": "l4"}, name="L4\nRUN evil"), "not a string on one line", "a line break in a name"),
    ("torch", changes("index", {"label": "cu130"}, cuda="12.8"), "called after", "an index of another CUDA"),
    ("torch", changes("index", {"label": "cu130"}, url="https://a.example/;id"), "not of the form", "a shell in a URL"),
    ("torch", drops("index", label="cu130"), "no index 'cu130'", "a variant without index"),
    ("torch", drops("wheel", minor="2.15", variant="cu132"), "no wheel of 2.15", "a variant without wheel"),
    (
        "torch",
        changes("wheel", {"minor": "2.7", "variant": "cu128"}, sass=["12.1"]),
        "builds no code",
        "too new a code",
    ),
    (
        "torch",
        changes("wheel", {"minor": "2.7", "variant": "cu128"}, sass=["x"]),
        "no known compute",
        "a code of nothing",
    ),
    ("torch", changes("wheel", {"minor": "2.7", "variant": "cu128"}, sass=["9.0"]), "code for 12.0", "no Blackwell"),
    ("torch", changes("release", {"version": "2.15.0"}, pythons=["4"]), "not of the form", "a Python that is none"),
    ("stack", changes("package", {"name": "peft"}, requires=["torch ~~ 2"]), "stack: package peft", "no requirement"),
    ("stack", changes("library", {"version": "0.50.2"}, cudas=["9.9"]), "carries no library", "a library of nothing"),
    (
        "rocm",
        lambda table: table["index"][0].update(url="https://a.example/ b"),
        "not of the form",
        "a URL of two words",
    ),
    (
        "profiles",
        lambda table: table["profile_image"][0].update(image="a b"),
        "not of the form",
        "an image of two words",
    ),
    ("images", changes("python_image", {"python": "3.12"}, tag="x\ty"), "not a string on one line", "a tab in a tag"),
    ("images", changes("python_image", {"python": "3.12"}, tag="x AS y"), "not of the form", "two words for a tag"),
]


@pytest.mark.parametrize(
    ("name", "change", "says"), [case[:3] for case in PLANTED], ids=[f"{name}, {what}" for name, _, _, what in PLANTED]
)
def test_a_planted_problem_is_named(name, change, says):
    faults = find_problems(name, change)
    assert says in "\n".join(map(str, faults))
    assert not all(fault.may_be_forced for fault in faults)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        pytest.param(
            "gpus", lambda table: table.update(as_of="2020-01-01"), "older than the shipped", id="an old table"
        ),
        pytest.param("gpus", drops("gpu", id="l4"), "gpu l4: the shipped table has it", id="a GPU left out"),
        pytest.param("gpus", changes("gpu", {"id": "l4"}, capability="9.0"), "says '8.9'", id="a GPU changed"),
        pytest.param("gpus", changes("gpu", {"id": "l4"}, confidence="inferred"), "it is inferred", id="less sure"),
    ],
)
def test_what_only_differs_from_the_shipped_table_may_be_forced(name, change, says):
    faults = find_problems(name, change)
    assert says in "\n".join(map(str, faults))
    assert all(fault.may_be_forced for fault in faults)


def test_tables_are_judged_together():
    document = deepcopy(SHIPPED["gpus"])
    document["gpu"].append(
        {**row(document, "gpu", id="l4"), "id": "new", "name": "New", "aliases": [], "capability": "13.0"}
    )
    driver = deepcopy(SHIPPED["driver"])
    adds("capability", {"capability": "12.0"}, capability="13.0", first_cuda="13.5")(driver)
    assert validate_tables({"gpus": document}, today=TODAY)
    assert validate_tables({"gpus": document, "driver": driver}, today=TODAY) == ()


# Settled long ago, whatever the tables' edition: GPU, driver, and the CUDA majors or versions that its plan may have.
SOLVER_ANCHORS = [
    ("GTX 1080 Ti", "580.95.05", "12.6", "12.6"),
    ("V100", "580.95.05", "12.6", "12.9"),
    ("RTX 3090", "470.256.02", "11.8", "11.8"),
    ("RTX 4090", "525.60.13", "12.0", "12.9"),
    ("RTX 4090", "570.124.06", "12.0", "12.9"),
    ("H100", "580.95.05", "12.0", "13.99"),
    ("RTX 5090", "570.124.06", "12.8", "12.9"),
    ("B200", "580.95.05", "12.8", "13.99"),
]


def broken_anchors(known):
    for gpu, driver, oldest, newest in SOLVER_ANCHORS:
        machine = build_machine_from_flags(driver=driver, gpus=(gpu,))
        answer = solve(Request((machine,), vendor=Vendor.NVIDIA), known)
        if not isinstance(answer, Plan) or not Release.parse(oldest) <= Release.parse(answer.cuda) <= Release.parse(
            newest
        ):
            yield gpu, driver, answer


def test_the_solver_keeps_its_anchors_with_the_shipped_tables():
    assert not list(broken_anchors(Tables()))


class Mutation(NamedTuple):
    table: str
    array: str
    number: int
    field: str
    kind: str
    value: object

    def applied(self):
        document = deepcopy(SHIPPED[self.table])
        rows = document[self.array]
        if self.kind == "drop row":
            del rows[self.number]
        elif self.kind == "drop field":
            del rows[self.number][self.field]
        elif self.kind == "add":
            rows.append({**rows[self.number], self.field: self.value})
        else:
            rows[self.number][self.field] = self.value
        return document


@st.composite
def mutations(draw):
    """One value becomes another row's or a strange one, one row or field goes, or a row comes again with a change."""
    name = draw(st.sampled_from(["driver", "gpus", "torch", "stack", "images"]))
    array = draw(st.sampled_from([each.name for each in TABLE_TYPES[name].arrays()]))
    rows = SHIPPED[name][array]
    number = draw(st.integers(0, len(rows) - 1))
    field = draw(st.sampled_from(sorted(rows[number])))
    others = [each[field] for each in rows if field in each]
    value = draw(st.sampled_from([*others, "0", "13.9", "99.9", "620.99", 7, [], None]))
    kind = draw(st.sampled_from(["set", "set", "set", "drop row", "drop field", "add"]))
    return Mutation(name, array, number, field, kind, value)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(mutations())
@example(Mutation("driver", "windows_branch", 0, "branches", "set", []))
def test_a_mutated_table_is_refused_or_harmless(mutation):
    document = mutation.applied()
    if not validate_tables({mutation.table: document}, today=TODAY):
        known = Tables(lambda requested: document if requested == mutation.table else SHIPPED[requested])
        assert not list(broken_anchors(known))
