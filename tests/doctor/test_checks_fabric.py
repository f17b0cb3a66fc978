import pytest

from devkit.doctor.checks.gpu.fabric import has_no_nvswitch
from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import CudaCall, Deep
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, health, healthy, inside, r, spec, without_gpu
from tests.doctor.running import build_full_report, find_only, run_check

UUIDS = ("MIG-aa000000-1111-2222-3333-444455556666", "MIG-bb000000-1111-2222-3333-444455556666")


def switched(**changes):
    """The healthy host with an NVSwitch, its Fabric Manager running."""
    values = {"nvswitch_present": True, "fabric_manager": "active", "fabric_manager_version": r("580.95.05")} | changes
    return changed(healthy(), {f"driver.{name}": value for name, value in values.items()})


def joined(state, status=0, facts=None):
    state = health(fabric_state=state, fabric_status=status)
    return changed(facts or healthy(), {"nvml.gpus": (gpu(health=state),)})


def judged(code, facts):
    verdict = run_check(code, facts)
    return verdict.findings[0].severity if isinstance(verdict, Found) else type(verdict)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(switched(), Passed, id="running"),
        pytest.param(switched(fabric_manager="inactive"), Severity.ERROR, id="stopped"),
        pytest.param(switched(fabric_manager=Unknown("no systemctl")), Skipped, id="not known"),
        pytest.param(healthy(), Skipped, id="no switch"),
        pytest.param(joined("completed", facts=switched()), Passed, id="joined"),
        pytest.param(joined("in-progress", facts=switched()), Severity.ERROR, id="running and not joined"),
        pytest.param(joined("completed", 999, facts=switched()), Severity.ERROR, id="joined with an error"),
        pytest.param(joined("not-supported"), Skipped, id="a GPU that has no fabric"),
        pytest.param(joined("in-progress"), Severity.ERROR, id="a virtual machine that waits for its host"),
        pytest.param(joined("in-progress", facts=inside()), Severity.ERROR, id="a container shows it too"),
        pytest.param(inside(), Skipped, id="a container shows no service"),
    ],
)
def test_fabric_manager(facts, verdict):
    assert judged("GPU004", facts) == verdict


def test_what_cuda_says_is_evidence():
    facts = changed(switched(fabric_manager="failed"), {"deep": Deep(CudaCall(802, "libcuda.so.1"))})
    assert "cuInit returned 802" in find_only("GPU004", facts).evidence


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        pytest.param(r("580.95.05"), Passed, id="the driver's"),
        pytest.param(r("580.105.08"), Severity.ERROR, id="another of the branch"),
        pytest.param(None, Skipped, id="not installed"),
        pytest.param(Unknown("it does not say"), Skipped, id="not known"),
    ],
)
def test_version_of_the_fabric_manager(version, verdict):
    assert judged("GPU022", switched(fabric_manager_version=version)) == verdict


def test_a_wrong_version_is_why_it_does_not_run():
    facts = switched(fabric_manager_version=r("580.105.08"), fabric_manager="failed")
    assert build_full_report(facts).root_causes == ("GPU022",)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        pytest.param("failed", Severity.NOTE, id="failed"),
        pytest.param("inactive", Passed, id="off"),
        pytest.param(Unknown("not asked"), Skipped, id="not installed"),
    ],
)
def test_a_fabric_manager_that_nothing_needs(state, verdict):
    assert judged("GPU023", changed(healthy(), {"driver.fabric_manager": state})) == verdict


@pytest.mark.parametrize(
    ("infiniband", "modules", "verdict"),
    [
        pytest.param(False, (), Skipped, id="no InfiniBand"),
        pytest.param(True, ("nvidia", "nvidia_peermem"), Passed, id="loaded"),
        pytest.param(True, ("nv_peer_mem", "nvidia"), Passed, id="loaded by its old name"),
        pytest.param(True, ("nvidia",), Severity.NOTE, id="not loaded"),
        pytest.param(True, Unknown("hidden"), Skipped, id="not known"),
    ],
)
def test_peer_memory(infiniband, modules, verdict):
    facts = changed(healthy(), {"driver.has_infiniband": infiniband, "driver.modules": modules})
    assert judged("GPU024", facts) == verdict


def virtual(name="NVIDIA L40S-24C", license="licensed"):
    state = health(virtualization="vgpu", license=license)
    return changed(healthy(), {"nvml.gpus": (gpu(name=name, health=state),)})


@pytest.mark.parametrize(
    ("license", "verdict"),
    [
        pytest.param("licensed", Passed, id="licensed"),
        pytest.param("unlicensed", Severity.WARNING, id="not yet"),
        pytest.param("unlicensed-unrestricted", Severity.WARNING, id="in its period of grace"),
        pytest.param("unlicensed-restricted", Severity.ERROR, id="slowed down"),
        pytest.param("unknown", Skipped, id="the driver does not know"),
        pytest.param(Unknown("not supported"), Skipped, id="the driver does not say"),
    ],
)
def test_license(license, verdict):
    assert judged("GPU025", virtual(license=license)) == verdict


def test_a_license_is_asked_of_virtual_gpus_only():
    assert judged("GPU025", healthy()) is Skipped
    assert judged("GPU025", without_gpu()) is Skipped


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        pytest.param("NVIDIA L40S-24C", Passed, id="C series"),
        pytest.param("NVIDIA A40-48Q", Passed, id="Q series"),
        pytest.param("NVIDIA A40-2B", Severity.WARNING, id="B series"),
        pytest.param("GRID T4-8A", Severity.WARNING, id="A series"),
        pytest.param("GRID T4-2B4", Severity.WARNING, id="B series with a number behind"),
        pytest.param("NVIDIA RTX Pro 6000 Blackwell DC-3Q", Passed, id="a long name of the Q series"),
        pytest.param("NVIDIA A100-SXM4-80GB", Passed, id="a name that only ends in a letter"),
    ],
)
def test_profile(name, verdict):
    assert judged("GPU026", virtual(name)) == verdict


def test_a_real_gpu_has_no_profile():
    assert judged("GPU026", changed(healthy(), {"nvml.gpus.0.name": "NVIDIA A40-2B"})) is Skipped


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        pytest.param(None, Passed, id="not set"),
        pytest.param("0,1", Passed, id="two whole GPUs"),
        pytest.param(UUIDS[0], Passed, id="one MIG device"),
        pytest.param(f"{UUIDS[0]}, {UUIDS[1]}", Severity.WARNING, id="two MIG devices"),
        pytest.param("MIG-GPU-x/1/0,MIG-GPU-x/2/0", Severity.WARNING, id="two by their old names"),
    ],
)
def test_mig_devices_for_a_process(value, verdict):
    assert judged("GPU020", changed(healthy(), {"python.cuda_visible_devices": value})) == verdict


def divided(*devices, instances=UUIDS):
    return changed(
        healthy(),
        {
            "nvml.gpus": (gpu(mig_enabled=True, mig_instances=instances),),
            "cdi": (spec(devices=devices),),
            "python.cuda_visible_devices": None,
        },
    )


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(divided(*UUIDS, "all"), Passed, id="by UUID"),
        pytest.param(divided("0:0", "0:1", "all"), Passed, id="by index"),
        pytest.param(divided("0:0", "0:1", "0:2"), Severity.WARNING, id="one index too many"),
        pytest.param(divided("MIG-cc000000-1111-2222-3333-444455556666"), Severity.WARNING, id="a UUID of before"),
        pytest.param(divided("0", "all"), Severity.WARNING, id="from before the GPU was divided"),
        pytest.param(divided("0:0", instances=()), Severity.WARNING, id="MIG devices that are gone"),
        pytest.param(divided(), Passed, id="no device at all is another's finding"),
        pytest.param(healthy(), Skipped, id="no MIG anywhere"),
        pytest.param(changed(divided("0:9"), {"cdi": Unknown("not read")}), Skipped, id="not known"),
        pytest.param(inside(), Skipped, id="inside a container"),
    ],
)
def test_mig_devices_in_specifications(facts, verdict):
    assert judged("GPU021", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(healthy(), True, id="none"),
        pytest.param(switched(), False, id="one"),
        pytest.param(switched(nvswitch_present=Unknown("no lspci")), Unknown("no lspci"), id="not known"),
        pytest.param(joined("in-progress"), False, id="a GPU that waits for the host's"),
    ],
)
def test_a_machine_without_a_switch_is_told_from_one_that_was_not_read(facts, expected):
    assert has_no_nvswitch(facts) == expected
