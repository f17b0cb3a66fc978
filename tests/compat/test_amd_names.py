"""AMD GPUs by the names that people and tools give them."""

import pytest

from devkit.compat.gpus import find_amd_gpu, find_gpu
from devkit.compat.version_tables import load_tables


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
def test_found(text, target):
    assert find_amd_gpu(text).target == target


@pytest.mark.parametrize("text", ["RX 7900", "gfx999", "RTX 4090", "Radeon", ""])
def test_not_found(text):
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
