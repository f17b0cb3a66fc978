"""The tables are whole, sourced, and agree with what was typed by hand from the vendor's own pages."""

import re
import tomllib
from itertools import pairwise
from pkgutil import get_data

import pytest

from devkit.compat.rules import find_oldest_driver, find_toolkit_driver
from devkit.compat.version_tables import (
    TABLE_NAMES,
    TABLE_TYPES,
    LazyDocument,
    RowConfidence,
    Tables,
    load_tables,
    read_shipped_table,
)
from devkit.export.launcher_gpus import load_launcher_gpus
from devkit.facts.values import ComputeCapability, Release

ARRAYS = [
    pytest.param(name, array, id=f"{name}.{array}")
    for name in TABLE_NAMES
    for array, rows in read_shipped_table(name).items()
    if isinstance(rows, list)
]

PACKAGES_THEMSELVES = {
    "cuda-wheels",
    "torch-wheel",
    "torchcodec-wheel",
    "bnb-wheel",
    "transformers-wheel",
    "auditwheel",
    "pypi",
}
UNIQUE = {(name, each.name): each.unique for name, kind in TABLE_TYPES.items() for each in kind.arrays()}


def test_every_array_of_a_file_is_declared_and_every_declared_one_is_there():
    assert {array.values for array in ARRAYS} == set(UNIQUE)


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_arrays_that_are_parsed_one_by_one_are_those_of_the_whole_file(name):
    text = (get_data("devkit.compat", f"tables/{name}.toml") or b"").decode()
    assert dict(read_shipped_table(name)) == tomllib.loads(text)


def test_a_file_that_is_laid_out_in_another_way_reads_alike():
    text = "as_of = '2026-01-01'\nbranch = [{ branch = 1 }, { branch = 2 }]\n[[family]]\nmajor = 3\n[sources]\n"
    assert dict(LazyDocument(text)) == tomllib.loads(text)


@pytest.mark.parametrize(("name", "array"), ARRAYS)
def test_every_row_has_a_key_of_its_own_and_says_where_it_was_read_and_how_sure_that_is(name, array):
    document = read_shipped_table(name)
    keys = [tuple(str(row[part]) for part in UNIQUE[name, array]) for row in document[array]]
    assert len(keys) == len(set(keys))
    for row in document[array]:
        assert row["confidence"] in set(RowConfidence), row
        assert row["source"], row
        assert all(re.fullmatch(r"https://[\w.-]+/\S*", document["sources"][source]) for source in row["source"]), row
        if row["confidence"] == "confirmed":
            assert len(row["source"]) > 1 or set(row["source"]) & PACKAGES_THEMSELVES, row


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_every_source_is_used(name):
    whole = read_shipped_table(name)
    used = {source for rows in whole.values() if isinstance(rows, list) for row in rows for source in row["source"]}
    assert set(whole["sources"]) == used


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_rows_become_types_with_their_date(name):
    table = getattr(Tables(), name)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", table.as_of)
    for array in TABLE_TYPES[name].arrays():
        for row in table.rows(array.name, array.row):
            assert row.checked == table.as_of
            assert isinstance(row.confidence, RowConfidence)


# Typed by hand from NVIDIA's release notes, tables 2 and 3: CUDA, oldest driver, toolkit driver on Linux and Windows.
ANCHORS = [
    ("11.8", "450.80.02", "520.61.05", "520.06"),
    ("12.0", "525.60.13", "525.60.13", "527.41"),
    ("12.4", "525.60.13", "550.54.14", "551.61"),
    ("12.6", "525.60.13", "560.28.03", "560.76"),
    ("12.8", "525.60.13", "570.26", "570.65"),
    ("12.9", "525.60.13", "575.51.03", "576.02"),
    ("13.0", "580.65.06", "580.65.06", None),
]


@pytest.mark.parametrize(("cuda", "oldest", "full", "windows"), ANCHORS, ids=[f"CUDA {row[0]}" for row in ANCHORS])
def test_drivers_are_those_of_the_release_notes(cuda, oldest, full, windows):
    assert str(find_oldest_driver(Release.parse(cuda))) == oldest
    assert str(find_toolkit_driver(Release.parse(cuda))) == full
    found = find_toolkit_driver(Release.parse(cuda), platform="wsl2")
    assert (str(found) if found else None) == windows


def test_a_newer_cuda_never_needs_an_older_driver():
    rows = sorted(load_tables().driver.toolkits, key=lambda row: row.version)
    for older, newer in pairwise(rows):
        assert newer.linux_driver >= older.linux_driver, newer
        assert newer.windows_driver is None or newer.windows_driver >= older.windows_driver, newer


def test_a_newer_branch_never_runs_an_older_cuda():
    linux = sorted((row.branch, row.cuda) for row in load_tables().driver.branches)
    windows = sorted((max(row.branches), row.cuda) for row in load_tables().driver.windows_branches)
    for rows in (linux, windows):
        assert [cuda for _, cuda in rows] == sorted(cuda for _, cuda in rows)


def test_each_branch_runs_the_cuda_that_its_drivers_were_shipped_with():
    newest = {row.branch: row.cuda for row in load_tables().driver.branches}
    for row in load_tables().driver.toolkits:
        assert newest[row.linux_driver.major] == row.cuda, row


def test_families_rise_with_their_major():
    floors = [row.linux_driver for _, row in sorted(load_tables().driver.families.items())]
    assert floors == sorted(floors)


def test_every_gpu_has_a_known_capability():
    for row in load_tables().gpus.models:
        assert row.capability in load_tables().driver.capabilities, row.id


def test_every_variant_of_every_release_has_an_index_and_a_wheel():
    table = load_tables().torch
    for row in table.releases:
        for variant in (*row.variants, row.default_variant):
            assert variant in table.indexes
            assert (row.minor, variant, "x86_64") in table.wheels, (row.minor, variant)


def test_no_wheel_holds_code_that_its_cuda_cannot_build():
    for (_, variant, _), wheel in load_tables().torch.wheels.items():
        cuda = load_tables().torch.indexes[variant].cuda
        for target in wheel.sass:
            row = load_tables().driver.capabilities[ComputeCapability.parse(target)]
            assert row.first_cuda <= cuda, (wheel.minor, variant, target)
            assert row.last_cuda is None or cuda <= row.last_cuda, (wheel.minor, variant, target)


def test_bitsandbytes_libraries_belong_to_releases_that_ship_them():
    shipped = {row.version: row.cudas for row in load_tables().stack.bitsandbytes}
    for row in load_tables().stack.libraries:
        assert set(row.cudas) <= set(shipped[row.version]), row


def test_a_file_is_read_only_when_it_is_used():
    requested = []

    def read(name):
        requested.append(name)
        return read_shipped_table(name)

    fresh = Tables(read)
    assert fresh.as_of == ""
    assert fresh.driver is fresh.driver
    assert requested == ["driver"]
    assert fresh.as_of == fresh.driver.as_of


def test_an_array_is_decoded_once_and_only_when_it_is_used():
    table = Tables().driver
    assert "toolkits" not in vars(table)
    assert table.toolkits is table.toolkits
    assert table.families is table.families


NOT_RENTED = {"b100", "rubin-vr200", "h800-sxm", "h800-pcie", "h20", "l20", "a2", "gb10"}
"""GPUs of data centers since Volta of which no launcher has a name."""


def test_launchers_know_the_gpus_of_the_table_by_its_ids():
    rented, models = load_launcher_gpus(), {row.id: row for row in load_tables().gpus.models}
    amd = {row.name for row in load_tables().rocm.gpus}
    assert {key.partition("@")[0] for key in rented} <= models.keys() | amd
    of_data_centers = {each.id for each in models.values() if each.kind == "datacenter" and each.capability.major >= 7}
    assert of_data_centers - rented.keys() == NOT_RENTED
