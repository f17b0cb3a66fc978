"""What a GPU's data sheet promises, found by the name that the driver gives it."""

import pytest

from devkit.compat.gpus import find_datasheet
from devkit.compat.version_tables import load_tables


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
