"""AMD GPUs as the kernel's compute driver and rocminfo show them."""

from pathlib import Path

import pytest

from devkit.facts.gpu import Amd
from devkit.facts.values import Unknown
from devkit.probe.gpu.amd import TOPOLOGY, format_gfx_target, read_amd
from devkit.probe.host import LocalHost
from tests.hosts import FOLDER
from tests.hosts.recorded_host import RecordedHost


def amd_of(name: str) -> Amd:
    found = read_amd(RecordedHost(FOLDER / name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("version", "target"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90500, "gfx950"),
        (100306, "gfx1036"),
        (110000, "gfx1100"),
        (120001, "gfx1201"),
    ],
)
def test_the_kernels_number_is_the_compilers_target(version, target):
    assert format_gfx_target(version) == target


def test_a_server_shows_each_gpu_with_its_memory_and_its_name():
    amd = amd_of("amd-mi300x")
    assert [(gpu.node, gpu.target, gpu.name) for gpu in amd.gpus] == [
        (1, "gfx942", "AMD Instinct MI300X"),
        (2, "gfx942", "AMD Instinct MI300X"),
    ]
    assert {gpu.memory_bytes for gpu in amd.gpus} == {206141652992}
    assert (amd.kfd, str(amd.rocm)) == ("open", "6.4.1")


def test_without_rocminfo_a_gpu_has_its_target_for_a_name():
    amd = amd_of("amd-radeon-closed")
    assert [(gpu.target, gpu.name, gpu.device_id) for gpu in amd.gpus] == [("gfx1100", "", "0x744c")]
    assert (amd.kfd, amd.rocm) == ("EACCES", None)


def test_graphics_without_memory_of_their_own_say_so():
    (gpu,) = amd_of("amd-graphics-beside-4090").gpus
    assert isinstance(gpu.memory_bytes, Unknown)


def test_a_machine_without_the_driver_has_none():
    assert read_amd(RecordedHost(FOLDER / "no-gpu-laptop")) is None


class Broken(LocalHost):
    """A machine whose topology holds these texts."""

    def __init__(self, properties: str, name: str = "1") -> None:
        self._properties = properties
        self._name = name

    def list(self, path: str) -> tuple[str, ...]:
        return (self._name,) if path == TOPOLOGY else ()

    def read(self, path: str) -> str | None:
        return self._properties if path.endswith(f"/{self._name}/properties") else None


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param("", id="an empty file"),
        pytest.param("gfx_target_version 0\nvendor_id 4098\n", id="a processor"),
        pytest.param("gfx_target_version " + "9" * 5000, id="a number without end"),
    ],
)
def test_what_is_no_gpu_of_amds_is_none(properties):
    assert read_amd(Broken(properties)) is None


def test_a_node_whose_name_is_no_number_is_passed_over(tmp_path: Path):
    assert read_amd(Broken("gfx_target_version 90402\n", "../etc")) is None
