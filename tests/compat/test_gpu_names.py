"""GPUs by the names that people and drivers give them."""

import pytest

from devkit.compat.gpus import find_closest_gpus, find_gpu, has_forward_compatibility
from devkit.compat.version_tables import load_tables


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
    assert find_closest_gpus("zzzz") == ()


@pytest.mark.parametrize(
    ("name", "offered"),
    [("NVIDIA H100 80GB HBM3", True), ("RTX 4090", False), ("NVIDIA RTX A6000", False), ("sm_90", False)],
    ids=["data centre", "GeForce", "workstation", "a capability says nothing of the card"],
)
def test_forward_compatibility_is_a_matter_of_the_card(name, offered):
    assert has_forward_compatibility(name) is offered
