"""Nine things that look like a fault and are none, each by its name: the whole doctor must stay silent about them."""

import pytest

from devkit.doctor.model import Severity
from devkit.doctor.signatures.matching import match_signatures
from devkit.facts.model import Runtime
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, health, healthy, inside
from tests.doctor.running import find_codes
from tests.hosts import facts_of

NOT_SUPPORTED = Unknown("nvmlDeviceGetTotalEccErrors: Not Supported")


def with_health(**changes):
    return changed(healthy(), {"nvml.gpus": (gpu(health=health(**changes)),)})


def test_a_software_power_cap_alone_is_no_fault():
    busy = {"utilisation_percent": 100, "pcie_generation": 4, "sm_clock_mhz": 2400, "power_mw": 449_000}
    assert find_codes(with_health(clock_reasons=("sw-power-cap",), **busy)) == []


def test_a_link_of_the_first_generation_at_idle_is_no_fault():
    idle = with_health(pcie_generation=1, pcie_max_generation=4, utilisation_percent=0, clock_reasons=("gpu-idle",))
    assert find_codes(idle) == []


@pytest.mark.parametrize("state", [Unknown("not asked"), "inactive", "failed", "unknown"], ids=str)
def test_no_fabric_manager_is_no_fault_without_an_nvswitch(state):
    assert find_codes(changed(healthy(), {"driver.fabric_manager": state, "driver.nvswitch_present": False})) == []


def test_no_memory_error_counts_on_a_geforce_are_no_fault():
    geforce = with_health(
        ecc_enabled=NOT_SUPPORTED,
        ecc_uncorrected=NOT_SUPPORTED,
        remap_pending=NOT_SUPPORTED,
        remap_failed=NOT_SUPPORTED,
        retirement_pending=NOT_SUPPORTED,
        power_limit_mw=NOT_SUPPORTED,
    )
    assert find_codes(geforce) == []


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("/sbin/ldconfig.real: /usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link", id="copies in WSL"),
        pytest.param("groups: cannot find name for group ID 993", id="a group without a name"),
    ],
)
def test_a_harmless_line_is_at_most_a_note(line):
    assert {match.severity for match in match_signatures(line)} <= {Severity.NOTE}


@pytest.mark.parametrize("machine", ["wsl2-not-a-symbolic-link", "in-container-nameless-group"])
def test_nor_is_the_machine_that_prints_it_at_fault(machine):
    assert find_codes(facts_of(machine)) == []


def test_no_nvcc_in_a_runtime_image_is_no_fault():
    assert find_codes(changed(inside(), {"python.cuda_toolkit": None})) == []


def test_a_cuda_version_other_than_torchs_within_a_major_is_no_fault():
    assert find_codes(facts_of("cuda-differs-within-major")) == []


def test_another_default_runtime_than_nvidia_is_no_fault():
    runtimes = (Runtime("nvidia", "nvidia-container-runtime"), Runtime("runc", "runc"))
    assert find_codes(changed(healthy(), {"engine.default_runtime": "runc", "engine.runtimes": runtimes})) == []


def test_a_specification_that_only_root_may_read_is_no_fault_of_an_engine_that_runs_as_root():
    facts = changed(facts_of("podman-cdi-unreadable"), {"engine.is_rootless": False})
    assert "CTK002" not in find_codes(facts)
    assert "CTK002" in find_codes(changed(facts, {"cdi": ()}))
