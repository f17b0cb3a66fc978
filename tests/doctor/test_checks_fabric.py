"""Checks of NVSwitch and its Fabric Manager, of peer memory, virtual GPUs and MIG devices."""

import pytest

from devkit.doctor.checks.gpu.fabric import has_no_nvswitch
from devkit.facts.runs import CudaCall, Deep
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, health, healthy, inside, r, spec, without_gpu
from tests.doctor.running import build_full_report

UUIDS = ("MIG-aa000000-1111-2222-3333-444455556666", "MIG-bb000000-1111-2222-3333-444455556666")
NOT_KNOWN = Unknown("not known here")


def switched(**changes):
    """The healthy host with an NVSwitch, its Fabric Manager running."""
    values = {"nvswitch_present": True, "fabric_manager": "active", "fabric_manager_version": r("580.95.05")} | changes
    return changed(healthy(), {f"driver.{name}": value for name, value in values.items()})


def joined(state, status=0, facts=None):
    state = health(fabric_state=state, fabric_status=status)
    return changed(facts or healthy(), {"nvml.gpus": (gpu(health=state),)})


def unneeded(state):
    return changed(healthy(), {"driver.fabric_manager": state})


def peers(infiniband, modules=()):
    return changed(healthy(), {"driver.has_infiniband": infiniband, "driver.modules": modules})


def virtual(name="NVIDIA L40S-24C", license="licensed"):
    state = health(virtualization="vgpu", license=license)
    return changed(healthy(), {"nvml.gpus": (gpu(name=name, health=state),)})


def selected(value):
    return changed(healthy(), {"python.cuda_visible_devices": value})


def divided(*devices, instances=UUIDS):
    divided_gpu = gpu(mig_enabled=True, mig_instances=instances)
    return changed(selected(None), {"nvml.gpus": (divided_gpu,), "cdi": (spec(devices=devices),)})


FAILED_CUDA = changed(switched(fabric_manager="failed"), {"deep": Deep(CudaCall(802, "libcuda.so.1"))})
REAL_GPU = changed(healthy(), {"nvml.gpus.0.name": "NVIDIA A40-2B"})
OTHER_UUID = "MIG-cc000000-1111-2222-3333-444455556666"

CASES = [
    ("GPU004", switched(), "passed", "running"),
    ("GPU004", switched(fabric_manager="inactive"), "error: 'nvidia-fabricmanager-580=580.95.05-*'", "stopped"),
    ("GPU004", switched(fabric_manager="failed"), "error", "failed"),
    ("GPU004", FAILED_CUDA, "error: cuInit returned 802", "what CUDA says is evidence"),
    ("GPU004", switched(fabric_manager=NOT_KNOWN), "skipped", "not known"),
    ("GPU004", healthy(), "skipped", "no switch"),
    ("GPU004", joined("completed", facts=switched()), "passed", "joined"),
    ("GPU004", joined("in-progress", facts=switched()), "error", "running and not joined"),
    ("GPU004", joined("completed", 999, facts=switched()), "error: 999", "joined with an error"),
    ("GPU004", joined("not-supported"), "skipped", "a GPU that has no fabric"),
    ("GPU004", joined("in-progress"), "error", "a virtual machine that waits for its host"),
    ("GPU004", joined("in-progress", facts=inside()), "error", "a container shows it too"),
    ("GPU004", inside(), "skipped", "a container shows no service"),
    ("GPU022", switched(), "passed", "the driver's"),
    ("GPU022", switched(fabric_manager_version=r("580.105.08")), "error: 580.105.08 | 580.95.05", "another"),
    ("GPU022", switched(fabric_manager_version=None), "skipped", "not installed"),
    ("GPU022", switched(fabric_manager_version=NOT_KNOWN), "skipped", "not known"),
    ("GPU023", unneeded("failed"), "note", "failed, and nothing needs it"),
    ("GPU023", unneeded("inactive"), "passed", "off"),
    ("GPU023", unneeded(NOT_KNOWN), "skipped", "not installed"),
    ("GPU024", peers(False), "skipped", "no InfiniBand"),
    ("GPU024", peers(True, ("nvidia", "nvidia_peermem")), "passed", "loaded"),
    ("GPU024", peers(True, ("nv_peer_mem", "nvidia")), "passed", "loaded by its old name"),
    ("GPU024", peers(True, ("nvidia",)), "note: modprobe nvidia_peermem", "not loaded"),
    ("GPU024", peers(True, NOT_KNOWN), "skipped", "not known"),
    ("GPU025", virtual(), "passed", "licensed"),
    ("GPU025", virtual(license="unlicensed"), "warning", "not yet"),
    ("GPU025", virtual(license="unlicensed-unrestricted"), "warning", "in its period of grace"),
    ("GPU025", virtual(license="unlicensed-restricted"), "error", "slowed down"),
    ("GPU025", virtual(license="unknown"), "skipped", "the driver does not know"),
    ("GPU025", virtual(license=NOT_KNOWN), "skipped", "the driver does not report it"),
    ("GPU025", healthy(), "skipped", "a real GPU needs no license"),
    ("GPU025", without_gpu(), "skipped", "no GPU"),
    ("GPU026", virtual("NVIDIA L40S-24C"), "passed", "C series"),
    ("GPU026", virtual("NVIDIA A40-48Q"), "passed", "Q series"),
    ("GPU026", virtual("NVIDIA A40-2B"), "warning: A40-2B", "B series"),
    ("GPU026", virtual("GRID T4-8A"), "warning", "A series"),
    ("GPU026", virtual("GRID T4-2B4"), "warning", "B series with a number behind"),
    ("GPU026", virtual("NVIDIA RTX Pro 6000 Blackwell DC-3Q"), "passed", "a long name of the Q series"),
    ("GPU026", virtual("NVIDIA A100-SXM4-80GB"), "passed", "a name that only ends in a letter"),
    ("GPU026", REAL_GPU, "skipped", "a real GPU has no profile"),
    ("GPU020", selected(None), "passed", "not set"),
    ("GPU020", selected("0,1"), "passed", "two whole GPUs"),
    ("GPU020", selected(UUIDS[0]), "passed", "one MIG device"),
    ("GPU020", selected(f"{UUIDS[0]}, {UUIDS[1]}"), "warning", "two MIG devices"),
    ("GPU020", selected("MIG-GPU-x/1/0,MIG-GPU-x/2/0"), "warning", "two by their old names"),
    ("GPU021", divided(*UUIDS, "all"), "passed", "by UUID"),
    ("GPU021", divided("0:0", "0:1", "all"), "passed", "by index"),
    ("GPU021", divided("0:0", "0:1", "0:2"), "warning: 0:2", "one index too many"),
    ("GPU021", divided(OTHER_UUID), "warning", "a UUID of before"),
    ("GPU021", divided("0", "all"), "warning", "from before the GPU was divided"),
    ("GPU021", divided("0:0", instances=()), "warning", "MIG devices that are gone"),
    ("GPU021", divided(), "passed", "no device at all is another's finding"),
    ("GPU021", healthy(), "skipped", "no MIG anywhere"),
    ("GPU021", changed(divided("0:9"), {"cdi": NOT_KNOWN}), "skipped", "specifications that were not read"),
    ("GPU021", inside(), "skipped", "inside a container"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_state_of_fabric_and_shares(code):
    assert list_wrong(code, CASES) == []


def test_a_wrong_version_is_why_it_does_not_run():
    facts = switched(fabric_manager_version=r("580.105.08"), fabric_manager="failed")
    assert build_full_report(facts).root_causes == ("GPU022",)


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
