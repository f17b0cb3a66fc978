import pytest

from devkit.doctor.error_codes import XidRemedy, load_xids
from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import FailedGpu, KernelLog, NvmlEnd, NvmlFailure, PciGpu, Torch, Xid
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, health, healthy, inside, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_all, find_codes, find_only, run_check

HERE = "0000:01:00.0"
SECOND = "0000:02:00.0"
JUST_NOW = "2025-12-31T23:00:00+0000"
LONG_AGO = "2025-12-20T23:00:00+0000"
LOST = FailedGpu(1, 15, "GPU is lost")


def xid(number, address=HERE, at=JUST_NOW, count=1):
    return Xid(number, address, f"NVRM: Xid (PCI:{address[:-2]}): {number}, pid=7", count, at)


def logged(*xids, facts=None, whole=True, lines=()):
    return changed(facts or healthy(), {"kernel_log": KernelLog(xids, lines, "journalctl", whole, None)})


def two_gpus(*answers):
    both = (*healthy().driver.pci_gpus, PciGpu(SECOND, "0x2684", "nvidia"))
    nodes = (*healthy().driver.device_nodes, "/dev/nvidia1")
    known = {"driver.pci_gpus": both, "driver.device_nodes": nodes, "nvml.gpus": answers or (gpu(), LOST)}
    return changed(healthy(), known)


def severities(facts):
    verdict = run_check("GPU006", facts)
    return [finding.severity for finding in verdict.findings] if isinstance(verdict, Found) else type(verdict)


@pytest.mark.parametrize("number", [13, 31, 32, 43, 45, 68, 69, 94])
def test_a_fault_of_a_program_is_a_note_and_never_a_new_card(number):
    finding = find_only("GPU006", logged(xid(number)))
    assert finding.severity is Severity.NOTE
    assert finding.fix.where.value == "project"
    for word in ("RMA", "vendor", "--gpu-reset", "poweroff"):
        assert word not in f"{finding.fix.summary} {finding.fix.commands}"


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 144, 150])
def test_a_fault_of_the_gpu_is_a_warning_while_it_answers(number):
    assert severities(logged(xid(number))) == [Severity.WARNING]


@pytest.mark.parametrize("number", [63, 92, 3, 9999])
def test_what_is_dealt_with_or_not_in_the_table_is_a_note(number):
    assert severities(logged(xid(number))) == [Severity.NOTE]


@pytest.mark.parametrize(
    ("at", "severity"),
    [
        pytest.param(JUST_NOW, Severity.WARNING, id="an hour ago"),
        pytest.param("2025-12-31T00:00:01+0000", Severity.WARNING, id="just within a day"),
        pytest.param("2025-12-30T23:59:59+0000", Severity.NOTE, id="just over a day"),
        pytest.param(LONG_AGO, Severity.NOTE, id="days ago"),
        pytest.param("812.4 s after the start", Severity.WARNING, id="at a time that cannot be compared"),
        pytest.param(Unknown("not read"), Severity.WARNING, id="at an unknown time"),
    ],
)
def test_an_old_fault_of_a_gpu_that_works_is_history(at, severity):
    assert severities(logged(xid(109, at=at))) == [severity]


def test_an_old_fault_of_a_gpu_that_does_not_work_is_an_error():
    assert severities(logged(xid(79, SECOND, LONG_AGO), facts=two_gpus())) == [Severity.ERROR]


def test_only_the_gpu_with_the_report_is_accused():
    finding = find_only("GPU006", logged(xid(79, SECOND), facts=two_gpus()))
    assert (finding.subject, finding.severity) == ("GPU 1", Severity.ERROR)
    assert severities(logged(xid(119, HERE), facts=two_gpus())) == [Severity.WARNING]


def test_a_lost_gpu_follows_from_its_report():
    report = build_full_report(logged(xid(79, SECOND), facts=two_gpus()))
    assert report.root_causes == ("GPU006",)
    assert "GPU002" in find_codes(logged(xid(79, SECOND), facts=two_gpus()))


def test_a_driver_that_hangs_follows_from_the_report():
    hung = changed(healthy(), {"nvml": NvmlFailure(NvmlEnd.TIMED_OUT, 0, "nvmlInit_v2 did not return", "nvmlInit_v2")})
    assert build_full_report(logged(xid(119), facts=hung)).root_causes == ("GPU006",)


def test_a_driver_that_asks_for_a_reset_makes_it_an_error():
    asks = changed(healthy(), {"nvml.gpus": (gpu(health=health(recovery_action="gpu-reset")),)})
    assert severities(logged(xid(48), facts=asks)) == [Severity.ERROR]


def test_reports_on_one_gpu_are_one_finding_with_all_their_lines():
    finding = find_only("GPU006", logged(xid(62), xid(45), xid(119), xid(154)))
    assert "Xid 62" in finding.message
    assert len(finding.evidence) == 2


def test_a_gpu_off_the_bus_comes_first():
    assert "fallen off" in find_only("GPU006", logged(xid(119), xid(79))).message


def test_clean_up_alone_is_shown():
    assert "Xid 45" in find_only("GPU006", logged(xid(45))).message


def test_a_row_that_could_not_be_replaced_is_told_by_nvml():
    facts = changed(healthy(), {"nvml.gpus": (gpu(health=health(remap_pending=False, remap_failed=True)),)})
    assert build_full_report(logged(xid(64), facts=facts)).root_causes == ("GPU010",)


def test_the_message_says_how_often():
    assert "3 times, last at" in find_all("GPU006", logged(xid(13, count=3)))[0].message


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(logged(), Passed, id="a whole log without a fault"),
        pytest.param(logged(whole=False), Skipped, id="the rest of a log, without a fault"),
        pytest.param(logged(whole=Unknown("not read")), Skipped, id="a log of unknown length, without a fault"),
        pytest.param(changed(healthy(), {"kernel_log": Unknown("refused")}), Skipped, id="a refusal is no clean log"),
        pytest.param(inside(), Skipped, id="inside a container"),
        pytest.param(without_gpu(), Skipped, id="without a GPU"),
    ],
)
def test_no_report_is_no_finding(facts, verdict):
    assert isinstance(run_check("GPU006", facts), verdict)


REFUSED = {"kernel_log": Unknown("this user may not read the kernel log")}


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(changed(healthy(), REFUSED), Skipped, id="nothing fails"),
        pytest.param(changed(two_gpus(), REFUSED), Found, id="a GPU is lost"),
        pytest.param(two_gpus(), Passed, id="a GPU is lost and the log is there"),
        pytest.param(changed(without_gpu(), REFUSED), Skipped, id="no GPU"),
        pytest.param(
            changed(windows_guest(), {**REFUSED, "nvml": NvmlFailure(NvmlEnd.ERROR, 17, "blocked", "nvmlInit_v2")}),
            Skipped,
            id="Windows keeps the faults",
        ),
    ],
)
def test_a_log_that_cannot_be_read_is_missed_only_where_something_fails(facts, verdict):
    assert isinstance(run_check("GPU007", facts), verdict)


def test_the_group_that_may_read_the_log_is_the_distributions():
    commands = find_only("GPU007", changed(two_gpus(), REFUSED)).fix.commands
    assert any("-aG adm" in command for command in commands)


def test_every_remedy_has_its_advice():
    for number, meaning in load_xids().items():
        finding = find_all("GPU006", logged(xid(number)))[0]
        assert finding.fix.summary.endswith(".")
        assert meaning.remedy in XidRemedy


def test_a_lost_gpu_does_not_excuse_what_has_nothing_to_do_with_it():
    cpu_torch = changed(two_gpus(), {"python.torch": Torch("2.9.1+cpu", None, None)})
    shown = build_full_report(logged(xid(79, SECOND), facts=cpu_torch)).findings
    follows = {finding.check.code: finding.finding.follows_from for finding in shown}
    assert follows == {"GPU006": None, "GPU002": "GPU006", "PYT001": None}
