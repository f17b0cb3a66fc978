"""The tables are whole, sourced, consistent, and agree with what was typed by hand from the vendors' own pages."""

import re
from dataclasses import fields
from itertools import pairwise

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from devkit.compat.gpus import find_gpu
from devkit.compat.rules import CodeSupport, check_gpu_code, find_newest_cuda, find_oldest_driver, find_toolkit_driver
from devkit.compat.version_tables import TABLE_NAMES, RowConfidence, Tables, load_tables
from devkit.export.task import load_launcher_gpus
from devkit.facts.values import ComputeCapability, Release
from devkit.formats.documents import load
from devkit.solver.plan import Plan, Vendor
from devkit.solver.request import build_machine_from_flags, build_request
from devkit.solver.solve import solve

KNOWN = load_tables()
DOCUMENTS = {name: load("devkit.compat", f"tables/{name}") for name in TABLE_NAMES}
ARRAYS = [
    pytest.param(name, array, id=f"{name}.{array.name}")
    for name in TABLE_NAMES
    for array in type(getattr(KNOWN, name)).arrays()
]
PACKAGES_THEMSELVES = {
    "cuda-wheels",
    "torch-wheel",
    "torchcodec-wheel",
    "bnb-wheel",
    "openmmlab-wheels",
    "transformers-wheel",
    "auditwheel",
    "pypi",
}


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_a_file_holds_the_declared_arrays_and_the_sources_that_they_name(name):
    document = DOCUMENTS[name]
    arrays = {each.name for each in type(getattr(KNOWN, name)).arrays()}
    assert document.keys() == {*arrays, "schema", "as_of", "sources"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["as_of"])
    assert set(document["sources"]) == {source for each in arrays for row in document[each] for source in row["source"]}


@pytest.mark.parametrize(("name", "array"), ARRAYS)
def test_every_row_has_its_type_a_key_of_its_own_and_says_where_it_was_read_and_how_sure_that_is(name, array):
    document = DOCUMENTS[name]
    rows = getattr(KNOWN, name).rows(array.name, array.row)
    keys = [tuple(getattr(row, part) for part in array.unique) for row in rows]
    assert rows and len(keys) == len(set(keys)) and () not in {part for key in keys for part in key}
    for raw, row in zip(document[array.name], rows, strict=True):
        assert row.checked == document["as_of"]
        assert raw["source"] and all(re.fullmatch(r"https://[\w.-]+/\S*", address) for address in row.source), row
        if row.confidence is RowConfidence.CONFIRMED:
            assert len(row.source) > 1 or set(raw["source"]) & PACKAGES_THEMSELVES, row
        for field in fields(row):
            value = getattr(row, field.name)
            for each in value if isinstance(value, tuple) else (value,):
                assert not isinstance(each, str) or each.isprintable(), row
                assert not isinstance(each, Release) or str(each) in (raw[field.name], *raw[field.name]), row


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


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("450.80.02", "11.0"),
        ("470.256.02", "11.4"),
        ("525.60.13", "12.0"),
        ("535.183.01", "12.2"),
        ("550.54.15", "12.4"),
        ("570.124.06", "12.8"),
        ("580.95.05", "13.0"),
    ],
)
def test_a_driver_runs_the_cuda_of_nvidias_driver_matrix(driver, cuda):
    assert find_newest_cuda(Release.parse(driver)) == Release.parse(cuda)


@pytest.mark.parametrize(
    ("name", "capability", "has_forward"),
    [
        ("Tesla P100", "6.0", True),
        ("GTX 1080 Ti", "6.1", False),
        ("V100", "7.0", True),
        ("T4", "7.5", True),
        ("A100", "8.0", True),
        ("RTX 3090", "8.6", False),
        ("RTX 4090", "8.9", False),
        ("L40S", "8.9", True),
        ("H100", "9.0", True),
        ("B200", "10.0", True),
        ("RTX 5090", "12.0", False),
    ],
)
def test_a_gpu_is_what_nvidias_list_says(name, capability, has_forward):
    found = find_gpu(name)
    assert found and found.model and (str(found.capability), found.model.forward) == (capability, has_forward)


@pytest.mark.parametrize(
    ("capability", "first", "last"),
    [
        ("6.1", None, "12.9"),
        ("7.0", None, "12.9"),
        ("8.9", "11.8", None),
        ("9.0", "11.8", None),
        ("10.0", "12.8", None),
        ("12.0", "12.8", None),
    ],
)
def test_cuda_targets_a_capability_as_nvidias_matrix_says(capability, first, last):
    row = KNOWN.driver.capabilities[ComputeCapability.parse(capability)]
    assert first is None or row.first_cuda == Release.parse(first)
    assert row.last_cuda == (last and Release.parse(last))


@pytest.mark.parametrize(
    ("minor", "variant", "capability", "runs"),
    [("2.6", "cu126", "12.0", False), ("2.7", "cu128", "12.0", True), ("2.7", "cu126", "6.0", True)],
)
def test_a_torch_wheel_holds_the_code_that_its_release_notes_name(minor, variant, capability, runs):
    sass = KNOWN.torch.wheels[minor, variant, "x86_64"].sass
    assert (check_gpu_code(ComputeCapability.parse(capability), sass) is CodeSupport.NATIVE) is runs


# Settled long ago, whatever the tables' edition: GPU, driver, and the oldest and newest CUDA that its plan may have.
@pytest.mark.parametrize(
    ("gpu", "driver", "oldest", "newest"),
    [
        ("GTX 1080 Ti", "580.95.05", "12.6", "12.6"),
        ("V100", "580.95.05", "12.6", "12.9"),
        ("RTX 3090", "470.256.02", "11.8", "11.8"),
        ("RTX 4090", "525.60.13", "12.0", "12.9"),
        ("RTX 4090", "570.124.06", "12.0", "12.9"),
        ("H100", "580.95.05", "12.0", "13.99"),
        ("RTX 5090", "570.124.06", "12.8", "12.9"),
        ("B200", "580.95.05", "12.8", "13.99"),
    ],
)
def test_the_solver_keeps_its_anchors(gpu, driver, oldest, newest):
    machine = build_machine_from_flags(driver=driver, gpus=(gpu,))
    plan = solve(build_request(machines=(machine,), vendor=Vendor.NVIDIA), KNOWN)
    assert isinstance(plan, Plan) and plan.cuda
    assert Release.parse(oldest) <= Release.parse(plan.cuda) <= Release.parse(newest)


# Consistency between rows.


def test_a_newer_cuda_never_needs_an_older_driver_and_has_its_own_number():
    rows = sorted(KNOWN.driver.toolkits, key=lambda row: row.version)
    assert all(row.cuda.numbers == row.version.numbers[:2] for row in rows)
    for older, newer in pairwise(rows):
        assert newer.linux_driver >= older.linux_driver, newer
        assert newer.windows_driver is None or newer.windows_driver >= older.windows_driver, newer


def test_a_newer_branch_never_runs_an_older_cuda_and_runs_that_of_its_toolkits():
    linux = sorted((row.branch, row.cuda) for row in KNOWN.driver.branches)
    windows = sorted((max(row.branches), row.cuda) for row in KNOWN.driver.windows_branches)
    for rows in (linux, windows):
        assert [cuda for _, cuda in rows] == sorted(cuda for _, cuda in rows)
    for row in KNOWN.driver.toolkits:
        assert dict(linux)[row.linux_driver.major] == row.cuda, row


def test_floors_of_cuda_families_rise_and_begin_in_the_branch_of_their_first_toolkit():
    families = [family for _, family in sorted(KNOWN.driver.families.items())]
    for older, newer in pairwise(families):
        assert newer.linux_driver > older.linux_driver and newer.windows_driver > older.windows_driver
    for family in families:
        first = min(row.linux_driver for row in KNOWN.driver.toolkits if row.cuda.major == family.major)
        assert first.major == family.linux_driver.major, family


def test_forward_packages_are_for_branches_that_do_not_run_their_cuda():
    newest = {row.branch: row.cuda for row in KNOWN.driver.branches}
    for row in KNOWN.driver.forward:
        assert all(newest[branch] < row.cuda for branch in row.host_branches), row


def test_every_gpu_has_a_known_capability_and_every_data_sheet_a_gpu():
    capabilities = KNOWN.driver.capabilities
    assert all(row.capability in capabilities for row in (*KNOWN.gpus.models, *KNOWN.gpus.series))
    assert all(row.last_cuda is None or row.first_cuda <= row.last_cuda for row in capabilities.values())
    assert all(not row.first_branch or row.first_branch <= (row.last_branch or 9999) for row in capabilities.values())
    assert KNOWN.gpus.rates.keys() <= {row.id for row in KNOWN.gpus.models}
    for row in KNOWN.gpus.rates.values():
        assert min(row.fp16_tflops, row.bf16_tflops, row.bandwidth_gb_per_s, row.nvlink_gb_per_s) >= 0, row


def test_every_variant_of_every_release_has_an_index_of_its_cuda_and_a_wheel():
    table = KNOWN.torch
    for row in table.releases:
        for variant in (*row.variants, row.default_variant):
            assert variant in table.indexes
            assert (row.minor, variant, "x86_64") in table.wheels, (row.minor, variant)
    for label, index in table.indexes.items():
        assert label == (f"cu{index.cuda}".replace(".", "") if index.cuda else "cpu")


def test_no_wheel_or_library_holds_code_that_its_cuda_cannot_build():
    torch = KNOWN.torch
    built = [((*row.sass, *row.ptx), (torch.indexes[key[1]].cuda,), row) for key, row in torch.wheels.items()]
    built += [((*row.sass, *row.ptx), map(Release.parse, row.cudas), row) for row in KNOWN.stack.libraries]
    for targets, cudas, row in built:
        rows = [KNOWN.driver.capabilities[ComputeCapability.parse(target.rstrip("af"))] for target in targets]
        for cuda in cudas:
            assert all(each.first_cuda <= cuda <= (each.last_cuda or cuda) for each in rows), row


def test_bitsandbytes_libraries_belong_to_releases_that_ship_them():
    shipped = {row.version: row.cudas for row in KNOWN.stack.bitsandbytes}
    for row in KNOWN.stack.libraries:
        assert set(row.cudas) <= set(shipped[row.version]), row


def test_what_is_copied_into_a_dockerfile_or_a_command_is_of_its_form():
    torch, stack = KNOWN.torch, KNOWN.stack
    forms = {
        r"https://[\w.-]+(?:/[\w.+-]+)*/?": [row.url for each in (torch, KNOWN.rocm) for row in each.indexes.values()],
        r"3\.\d+": [python for row in torch.releases for python in row.pythons]
        + [row.version for row in stack.pythons],
        r"\d[\w.+!]*": [
            *(str(row.version) for row in torch.releases),
            *(row.version for row in (*stack.packages, *stack.bitsandbytes)),
        ],
        r"[a-z0-9][a-z0-9-]*": [row.name for row in stack.packages],
        r"[a-z0-9][\w.:/@-]*": [row.tag for row in KNOWN.images.python_images],
    }
    for form, texts in forms.items():
        assert [text for text in texts if not re.fullmatch(form, text, re.ASCII)] == []
    for row in stack.packages:
        assert all(Requirement(line).name for line in row.requires) and SpecifierSet(row.python) is not None, row


def test_a_file_is_read_and_an_array_decoded_once_and_only_when_it_is_used():
    fresh = Tables()
    assert (fresh.as_of, vars(fresh)) == ("", {})
    assert fresh.driver is fresh.driver and list(vars(fresh)) == ["driver"]
    assert fresh.as_of == fresh.driver.as_of
    assert "toolkits" not in vars(fresh.driver)
    assert fresh.driver.toolkits is fresh.driver.toolkits and fresh.driver.families is fresh.driver.families


NOT_RENTED = {"b100", "rubin-vr200", "h800-sxm", "h800-pcie", "h20", "l20", "a2", "gb10"}
"""GPUs of data centers since Volta of which no launcher has a name."""


def test_launchers_know_the_gpus_of_the_table_by_its_ids():
    rented, models = load_launcher_gpus(), {row.id: row for row in KNOWN.gpus.models}
    amd = {row.name for row in KNOWN.rocm.gpus}
    assert {key.partition("@")[0] for key in rented} <= models.keys() | amd
    of_data_centers = {each.id for each in models.values() if each.kind == "datacenter" and each.capability.major >= 7}
    assert of_data_centers - rented.keys() == NOT_RENTED
