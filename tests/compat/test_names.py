"""GPUs, their data sheets and images, found by the names that people and drivers give them."""

import pytest

from devkit.compat.gpus import find_amd_gpu, find_closest_gpus, find_datasheet, find_gpu, has_forward_compatibility
from devkit.compat.images import find_image_system, is_musl
from devkit.compat.version_tables import load_tables

# GPUs by the names that people and drivers give them.


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        pytest.param("NVIDIA GeForce RTX 4090", "8.9", id="as NVML prints it"),
        pytest.param("rtx4090", "8.9", id="as people type it"),
        pytest.param("4090", "8.9", id="the number alone"),
        pytest.param("1080 Ti", "6.1", id="a number with its suffix"),
        pytest.param("h100", "9.0", id="a family of one capability"),
        pytest.param("V100", "7.0", id="a family with no card of that very name"),
        pytest.param("NVIDIA A100-SXM4-80GB", "8.0", id="with form factor and memory"),
        pytest.param("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6", id="a laptop card known by its desktop twin"),
        pytest.param("Tesla T4", "7.5", id="an old brand"),
        pytest.param("sm_120", "12.0", id="the name of its machine code"),
        pytest.param("9.0", "9.0", id="the capability itself"),
        pytest.param("GTX 1650 Ti", "7.5", id="a GPU known by its series"),
        pytest.param("gtx1650ti", "7.5", id="without a space before Ti"),
        pytest.param("NVIDIA GeForce GTX 1650 SUPER", "7.5", id="SUPER"),
        pytest.param("GTX 1060 with Max-Q Design", "6.1", id="a laptop GPU of the Max-Q design"),
        pytest.param("NVIDIA GeForce RTX 4050 Laptop GPU", "8.9", id="a laptop GPU without a desktop twin"),
        pytest.param("GTX 960M", "5.0", id="a laptop GPU that is not its desktop twin"),
        pytest.param("GTX 960", "5.2", id="the desktop twin"),
        pytest.param("NVIDIA GeForce RTX 3050 A Laptop GPU", "8.9", id="an Ada chip under an Ampere number"),
        pytest.param("MX450", "7.5", id="a Turing MX"),
        pytest.param("GeForce MX350", "6.1", id="a Pascal MX"),
        pytest.param("RTX 2050", "8.6", id="an Ampere chip under a Turing number"),
        pytest.param("NVIDIA RTX A1000 6GB Laptop GPU", "8.6", id="an RTX A of a laptop, with its memory"),
        pytest.param("NVIDIA RTX PRO 1000 Blackwell Generation Laptop GPU", "12.0", id="an RTX PRO of a laptop"),
        pytest.param("T600", "7.5", id="a T series"),
        pytest.param("P2000", "6.1", id="a Quadro without its brand"),
        pytest.param("NVIDIA TITAN X (Pascal)", "6.1", id="the TITAN X of Pascal"),
        pytest.param("GeForce GTX TITAN X", "5.2", id="the TITAN X of Maxwell"),
        pytest.param("Tesla K40m", "3.5", id="a form factor in the name"),
        pytest.param("V100 32GB", "7.0", id="a family with its memory"),
        pytest.param("Jetson Thor", "11.0", id="Thor as people call it"),
    ],
)
def test_found(text, capability):
    assert str(find_gpu(text).capability) == capability


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("RTX 6000", id="Turing or Ada"),
        pytest.param("RTX 9090", id="not built yet"),
        pytest.param("Radeon 7900", id="another maker"),
        pytest.param("5.5", id="a capability that never was"),
        pytest.param("RTX", id="a series"),
        pytest.param("A", id="one letter"),
        pytest.param("", id="nothing"),
    ],
)
def test_not_found(text):
    assert find_gpu(text) is None


def test_every_name_in_the_table_finds_its_own_capability():
    for row in load_tables().gpus.models:
        for name in (row.name, row.id):
            assert find_gpu(name).capability == row.capability, name
    for series in load_tables().gpus.series:
        for name in series.names:
            assert find_gpu(name).capability == series.capability, name
            assert find_gpu(name).model.kind == series.kind, name


def test_a_mistyped_name_gets_the_close_ones():
    assert "NVIDIA GeForce RTX 5090" in find_closest_gpus("RTX 5990")
    assert all(name[:1] != "Q" for name in find_closest_gpus("H1000")[:2])
    assert [find_closest_gpus(name)[0] for name in ("H1000", "H10")] == ["H100", "H100"]
    assert find_closest_gpus("zzzz") == ()


@pytest.mark.parametrize(
    ("name", "offered"),
    [("NVIDIA H100 80GB HBM3", True), ("RTX 4090", False), ("NVIDIA RTX A6000", False), ("sm_90", False)],
    ids=["data center", "GeForce", "workstation", "a capability says nothing of the card"],
)
def test_forward_compatibility_is_a_matter_of_the_card(name, offered):
    assert has_forward_compatibility(name) is offered


# AMD GPUs by the names that people and tools give them.


@pytest.mark.parametrize(
    ("text", "target"),
    [
        pytest.param("AMD Instinct MI300X", "gfx942", id="the full name"),
        pytest.param("mi300x", "gfx942", id="as people type it"),
        pytest.param("RX 7900 XTX", "gfx1100", id="without the maker"),
        pytest.param("rx7900xtx", "gfx1100", id="without spaces"),
        pytest.param("7900 XTX", "gfx1100", id="without the series"),
        pytest.param("Radeon PRO W7900", "gfx1100", id="a workstation card"),
        pytest.param("Ryzen AI Max+ 395", "gfx1151", id="a processor with graphics"),
        pytest.param("gfx90a", "gfx90a", id="the target itself"),
        pytest.param("Radeon VII", "gfx906", id="a Roman number"),
    ],
)
def test_an_amd_gpu_is_found(text, target):
    assert find_amd_gpu(text).target == target


@pytest.mark.parametrize("text", ["RX 7900", "gfx999", "RTX 4090", "Radeon", ""])
def test_an_amd_gpu_is_not_found(text):
    assert find_amd_gpu(text) is None


def test_no_name_means_a_gpu_of_both_makers():
    for row in load_tables().rocm.gpus:
        assert find_gpu(row.name) is None, row.name
    for model in load_tables().gpus.models:
        assert find_amd_gpu(model.name) is None, model.name


def test_every_build_has_an_index_and_every_release_is_one_of_torch():
    known = {row.version for row in load_tables().torch.releases}
    for row in load_tables().rocm.releases.values():
        assert row.version in known
        assert set(row.variants) <= set(load_tables().rocm.indexes)


# What a GPU's data sheet promises, found by the name that the driver gives it.


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth"),
    [
        pytest.param("NVIDIA H200", 989.4, 4800, id="H200"),
        pytest.param("NVIDIA H100 80GB HBM3", 989.4, 3350, id="H100 SXM as the driver calls it"),
        pytest.param("NVIDIA H100 PCIe", 756, 2000, id="H100 PCIe"),
        pytest.param("NVIDIA A100-SXM4-40GB", 312, 1555, id="A100 with the smaller memory"),
        pytest.param("NVIDIA A100-SXM4-80GB", 312, 2039, id="A100 with the larger memory"),
        pytest.param("Tesla T4", 0, 320, id="a T4 has no bf16"),
        pytest.param("NVIDIA GeForce RTX 4090", 165.2, 1008, id="RTX 4090"),
        pytest.param("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 989.4 / 7, 3350 / 8, id="the smallest slice of an H100"),
        pytest.param("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 989.4 * 3 / 7, 3350 / 2, id="a slice with half the memory"),
        pytest.param("NVIDIA H200 MIG 7g.141gb", 989.4, 4800, id="a slice that is all of it"),
        pytest.param("NVIDIA A30 MIG 1g.6gb", 165 / 4, 933 / 4, id="an A30 has four slices"),
    ],
)
def test_promised(name, bf16, bandwidth):
    found = find_datasheet(name)
    assert (found.bf16_tflops, found.bandwidth_gb_per_s) == (pytest.approx(bf16), pytest.approx(bandwidth))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("NVIDIA GeForce RTX 3060 Laptop GPU", id="a laptop's GPU is not its desktop twin"),
        pytest.param("V100", id="one of three products"),
        pytest.param("NVIDIA H100 80GB HBM2e", id="the slower memory under a faster board's name"),
        pytest.param("NVIDIA A100-40C", id="a virtual GPU with an unknown share"),
        pytest.param("NVIDIA RTX 9090", id="not built yet"),
        pytest.param("AMD Instinct MI300X", id="another maker"),
        pytest.param("AMD EPYC 9654", id="a processor"),
        pytest.param("", id="no name"),
    ],
)
def test_nothing_is_promised_where_the_product_is_not_certain(name):
    assert find_datasheet(name) is None


def test_every_gpu_has_its_rates_and_bf16_where_its_generation_computes_in_it():
    rates = load_tables().gpus.rates
    for model in load_tables().gpus.models:
        row = rates[model.id]
        assert row.bandwidth_gb_per_s > 0 and row.power_w > 0, model.id
        if row.bf16_tflops:
            assert model.capability.major >= 8, model.id


# Which system an image is built on, by its name alone.


@pytest.mark.parametrize(
    ("image", "glibc"),
    [
        pytest.param("ubuntu:22.04", "2.35", id="a number"),
        pytest.param("docker.io/library/ubuntu:noble-20250910", "2.39", id="a code name with a date"),
        pytest.param("debian:12.7-slim", "2.36", id="a point release"),
        pytest.param(
            "mirror.example:5000/debian:trixie-slim@sha256:0", "2.41", id="a mirror with a port, and a digest"
        ),
        pytest.param("mcr.microsoft.com/devcontainers/base:ubuntu-22.04", "2.35", id="the editors' own images"),
        pytest.param("mcr.microsoft.com/devcontainers/python:1-3.12-bookworm", "2.36", id="the editors' Python"),
        pytest.param("registry.example/team/base:7-ubuntu24.04", "2.39", id="a company's image that says so"),
        pytest.param("python:3.12", "2.31", id="a Python of the Debian of its day"),
        pytest.param("python:3.12-slim", "2.31", id="the slim one"),
        pytest.param("registry.example/team/base:7", "", id="an image that does not say"),
        pytest.param("postgres:12", "", id="a number of something else"),
        pytest.param("registry.example/python-tools:22.04", "", id="a number without the system"),
        pytest.param("python:3.12-alpine3.20", "", id="Alpine, whose C library is another"),
        pytest.param("ubuntu", "", id="no tag"),
    ],
)
def test_the_name_tells_the_system(image, glibc):
    found = find_image_system(image, load_tables().images.systems)
    assert (str(found.glibc) if found else "") == glibc


@pytest.mark.parametrize(("image", "musl"), [("alpine:3.20", True), ("python:3.12-alpine", True), ("x:1", False)])
def test_alpine_is_recognized_by_its_name(image, musl):
    assert is_musl(image) is musl
