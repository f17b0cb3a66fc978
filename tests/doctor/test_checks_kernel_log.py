"""Checks of the kernel log: which GPU an Xid accuses, how badly, and when it is history."""

import pytest

from devkit.doctor.error_codes import load_xids
from devkit.facts.gpu import FailedGpu, KernelLog, NvmlEnd, NvmlFailure, PciGpu, Xid
from devkit.facts.machine import Torch
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import changed, gpu, health, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_codes, find_only

HERE = "0000:01:00.0"
SECOND = "0000:02:00.0"
JUST_NOW = "2025-12-31T23:00:00+0000"
LONG_AGO = "2025-12-20T23:00:00+0000"
LOST = FailedGpu(1, 15, "GPU is lost")


def xid(number, address=HERE, at=JUST_NOW, count=1):
    return Xid(number, address, f"NVRM: Xid (PCI:{address[:-2]}): {number}, pid=7", count, at)


def logged(*xids, facts=None, whole=True):
    return changed(facts or healthy(), {"kernel_log": KernelLog(xids, (), "journalctl", whole, None)})


def two_gpus(*answers):
    both = (*healthy().driver.pci_gpus, PciGpu(SECOND, "0x2684", "nvidia"))
    nodes = (*healthy().driver.device_nodes, "/dev/nvidia1")
    known = {"driver.pci_gpus": both, "driver.device_nodes": nodes, "nvml.gpus": answers or (gpu(), LOST)}
    return changed(healthy(), known)


def refused(facts):
    return changed(facts, {"kernel_log": Unknown("this user cannot read the kernel log")})


OF_A_PROGRAM = (13, 31, 32, 43, 45, 68, 69, 94)
OF_THE_GPU = (46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 144, 150)
DEALT_WITH = (63, 92, 3, 9999)
NO_NEW_CARD = "note: where: project | never RMA | never vendor | never --gpu-reset | never poweroff"
ASKS_FOR_RESET = changed(healthy(), {"nvml.gpus": (gpu(health=health(recovery_action="gpu-reset")),)})
HUNG = changed(healthy(), {"nvml": NvmlFailure(NvmlEnd.TIMED_OUT, 0, "did not return", "nvmlInit_v2")})
BLOCKED = changed(windows_guest(), {"nvml": NvmlFailure(NvmlEnd.ERROR, 17, "blocked", "nvmlInit_v2")})

CASES = [
    *(("GPU006", logged(xid(number)), NO_NEW_CARD, f"Xid {number}, of a program") for number in OF_A_PROGRAM),
    *(("GPU006", logged(xid(number)), "warning", f"Xid {number} while the GPU answers") for number in OF_THE_GPU),
    *(
        ("GPU006", logged(xid(number)), "note", f"Xid {number}, dealt with or not in the table")
        for number in DEALT_WITH
    ),
    ("GPU006", logged(xid(109, at=JUST_NOW)), "warning", "an hour ago"),
    ("GPU006", logged(xid(109, at="2025-12-31T00:00:01+0000")), "warning", "just within a day"),
    ("GPU006", logged(xid(109, at="2025-12-30T23:59:59+0000")), "note", "just over a day"),
    ("GPU006", logged(xid(109, at=LONG_AGO)), "note", "days ago, and the GPU works"),
    ("GPU006", logged(xid(109, at="812.4 s after the start")), "warning", "at a time that cannot be compared"),
    ("GPU006", logged(xid(109, at=Unknown("not read"))), "warning", "at an unknown time"),
    ("GPU006", logged(xid(79, SECOND, LONG_AGO), facts=two_gpus()), "error", "days ago, of a GPU that does not work"),
    ("GPU006", logged(xid(79, SECOND), facts=two_gpus()), "error: GPU 1", "only the GPU with the report is accused"),
    ("GPU006", logged(xid(119, HERE), facts=two_gpus()), "warning", "the other GPU works"),
    ("GPU006", logged(xid(48), facts=ASKS_FOR_RESET), "error", "the driver asks for a reset"),
    ("GPU006", logged(xid(119), xid(79)), "warning: fallen off", "a GPU off the bus comes first"),
    ("GPU006", logged(xid(45)), "note: Xid 45", "clean-up alone is shown"),
    ("GPU006", logged(xid(13, count=3)), "note: 3 times, last at", "how often"),
    ("GPU006", logged(), "passed", "a whole log without a fault"),
    ("GPU006", logged(whole=False), "skipped", "the rest of a log, without a fault"),
    ("GPU006", logged(whole=Unknown("not read")), "skipped", "a log of unknown length, without a fault"),
    ("GPU006", refused(healthy()), "skipped", "a refusal is no clean log"),
    ("GPU006", inside(), "skipped", "inside a container"),
    ("GPU006", without_gpu(), "skipped", "without a GPU"),
    ("GPU007", refused(healthy()), "skipped", "nothing fails"),
    ("GPU007", refused(two_gpus()), "note: -aG adm", "a GPU is lost"),
    ("GPU007", two_gpus(), "passed", "a GPU is lost and the log is there"),
    ("GPU007", refused(without_gpu()), "skipped", "no GPU"),
    ("GPU007", refused(BLOCKED), "skipped", "Windows keeps the faults"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_log(code):
    assert list_wrong(code, CASES) == []


ROW_FAILED = changed(healthy(), {"nvml.gpus": (gpu(health=health(remap_pending=False, remap_failed=True)),)})


@pytest.mark.parametrize(
    ("facts", "root"),
    [
        pytest.param(logged(xid(79, SECOND), facts=two_gpus()), "GPU006", id="a lost GPU follows from its report"),
        pytest.param(logged(xid(119), facts=HUNG), "GPU006", id="a driver that hangs follows from it"),
        pytest.param(logged(xid(64), facts=ROW_FAILED), "GPU010", id="a row that NVML tells of is the cause"),
    ],
)
def test_the_report_is_the_root_unless_nvml_knows_better(facts, root):
    assert build_full_report(facts).root_causes == (root,)


def test_reports_on_one_gpu_are_one_finding_with_all_their_lines():
    finding = find_only("GPU006", logged(xid(62), xid(45), xid(119), xid(154)))
    assert "Xid 62" in finding.message
    assert len(finding.evidence) == 2


def test_every_remedy_has_its_advice():
    for number in load_xids():
        assert find_all("GPU006", logged(xid(number)))[0].fix.summary.endswith(".")


def test_a_lost_gpu_does_not_excuse_what_has_nothing_to_do_with_it():
    cpu_torch = changed(two_gpus(), {"python.torch": Torch("2.9.1+cpu", None, None)})
    facts = logged(xid(79, SECOND), facts=cpu_torch)
    assert "GPU002" in find_codes(facts)
    follows = {shown.check.code: shown.finding.follows_from for shown in build_full_report(facts).findings}
    assert follows == {"GPU006": None, "GPU002": "GPU006", "PYT001": None}
