import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import GpuProcess
from devkit.facts.values import Unknown
from tests.doctor.machines import GIB, changed, gpu, health, healthy, inside, windows_guest
from tests.doctor.running import find_codes, find_only, run_check

NOT_SAID = Unknown("not said")
BUSY = {"utilization_percent": 99, "clock_reasons": (), "sm_clock_mhz": 2800, "pcie_generation": 4}


def with_health(**changes):
    return changed(healthy(), {"nvml.gpus": (gpu(health=health(**changes)),)})


def busy(**changes):
    return with_health(**BUSY | changes)


def case(facts, verdict, meaning):
    return pytest.param(facts, verdict, id=meaning)


def judged(code, facts):
    """The severity of a check's only finding, or the kind of its verdict."""
    verdict = run_check(code, facts)
    return verdict.findings[0].severity if isinstance(verdict, Found) else type(verdict)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(with_health(ecc_uncorrected=0), Passed, "no error"),
        case(with_health(ecc_uncorrected=1), Severity.WARNING, "one error since the driver was loaded"),
        case(healthy(), Skipped, "a GPU without ECC"),
        case(windows_guest(), Skipped, "under WSL"),
    ],
)
def test_memory_errors(facts, verdict):
    assert judged("GPU009", facts) == verdict


@pytest.mark.parametrize(
    ("pending", "failed", "verdict"),
    [
        pytest.param(False, False, Passed, id="nothing to replace"),
        pytest.param(True, False, Severity.WARNING, id="waits for a reset"),
        pytest.param(False, True, Severity.WARNING, id="no spare row left"),
        pytest.param(NOT_SAID, NOT_SAID, Skipped, id="not known"),
    ],
)
def test_row_remapping(pending, failed, verdict):
    assert judged("GPU010", with_health(remap_pending=pending, remap_failed=failed)) == verdict


def test_a_failed_replacement_is_a_case_for_the_vendor_and_a_pending_one_for_a_reset():
    failed = find_only("GPU010", with_health(remap_pending=True, remap_failed=True)).fix
    pending = find_only("GPU010", with_health(remap_pending=True, remap_failed=False)).fix
    assert "replacement" in failed.summary
    assert "--gpu-reset" in pending.commands[0]


@pytest.mark.parametrize(
    ("code", "field", "bad", "good"),
    [
        pytest.param("GPU011", "retirement_pending", True, False, id="page retirement"),
        pytest.param("GPU012", "inforom_ok", False, True, id="infoROM"),
    ],
)
def test_a_flag_is_a_warning_and_its_absence_is_not(code, field, bad, good):
    assert judged(code, with_health(**{field: bad})) == Severity.WARNING
    assert judged(code, with_health(**{field: good})) is Passed
    assert judged(code, with_health(**{field: NOT_SAID})) is Skipped


@pytest.mark.parametrize(
    ("action", "verdict"),
    [
        pytest.param("none", Passed, id="nothing"),
        pytest.param("drain-p2p", Severity.WARNING, id="no more transfers between GPUs"),
        pytest.param("gpu-reset", Severity.ERROR, id="a reset"),
        pytest.param("node-reboot", Severity.ERROR, id="a reboot"),
        pytest.param("9", Severity.ERROR, id="something newer than devkit"),
        pytest.param(NOT_SAID, Skipped, id="an old driver does not say"),
    ],
)
def test_what_the_driver_asks_for(action, verdict):
    assert judged("GPU027", with_health(recovery_action=action)) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(busy(), Passed, "busy and cool"),
        case(busy(clock_reasons=("sw-thermal-slowdown",)), Severity.WARNING, "the driver slows down under load"),
        case(with_health(clock_reasons=("sw-thermal-slowdown",)), Passed, "the same at rest"),
        case(with_health(clock_reasons=("hw-thermal-slowdown",)), Severity.WARNING, "the hardware slows down"),
        case(busy(temperature_c=96, slowdown_c=97), Passed, "a degree below the bound"),
        case(busy(temperature_c=97, slowdown_c=97), Severity.WARNING, "at the bound"),
        case(busy(temperature_c=97, slowdown_c=0), Passed, "a bound of zero is none"),
        case(busy(temperature_c=97, slowdown_c=NOT_SAID), Passed, "no bound is known"),
        case(busy(clock_reasons=NOT_SAID), Skipped, "no reasons are known"),
    ],
)
def test_heat(facts, verdict):
    assert judged("GPU013", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(busy(clock_reasons=("sw-power-cap",)), Passed, "the driver's own cap"),
        case(busy(clock_reasons=("sw-power-cap", "sync-boost")), Passed, "in company"),
        case(with_health(clock_reasons=("gpu-idle",)), Passed, "at rest"),
        case(with_health(clock_reasons=("gpu-idle", "hw-slowdown")), Passed, "a slowdown at rest"),
        case(busy(clock_reasons=("hw-slowdown",)), Severity.WARNING, "a slowdown without heat"),
        case(busy(clock_reasons=("hw-slowdown", "hw-thermal-slowdown")), Passed, "one that heat explains"),
        case(busy(clock_reasons=("hw-slowdown", "hw-power-brake")), Severity.WARNING, "the power brake"),
    ],
)
def test_power(facts, verdict):
    assert judged("GPU014", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(with_health(pcie_generation=1), Passed, "the first generation at rest"),
        case(busy(pcie_generation=1), Severity.WARNING, "the first generation under load"),
        case(with_health(pcie_width=8), Severity.NOTE, "half of the lanes at rest"),
        case(busy(pcie_width=8), Severity.WARNING, "half of the lanes under load"),
        case(with_health(pcie_width=4), Severity.WARNING, "a quarter of the lanes"),
        case(with_health(pcie_width=8, pcie_max_width=8), Passed, "all lanes of a short slot"),
        case(with_health(pcie_width=1, virtualization="passthrough"), Skipped, "in a virtual machine"),
        case(with_health(pcie_width=NOT_SAID), Skipped, "not known"),
    ],
)
def test_link(facts, verdict):
    assert judged("GPU015", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(with_health(), Passed, "low clocks at rest"),
        case(busy(sm_clock_mhz=1500), Severity.WARNING, "below half under load, without a reason"),
        case(busy(sm_clock_mhz=1600), Passed, "above half"),
        case(busy(sm_clock_mhz=900, clock_reasons=("sw-power-cap",)), Passed, "with a reason"),
        case(busy(sm_clock_mhz=900, clock_reasons=NOT_SAID), Passed, "with unknown reasons"),
        case(
            with_health(application_clock_mhz=765, default_application_clock_mhz=1410),
            Severity.WARNING,
            "application clocks far below their default",
        ),
        case(with_health(application_clock_mhz=1275, default_application_clock_mhz=1410), Passed, "a little below"),
        case(with_health(power_limit_mw=300_000), Severity.NOTE, "a power limit set by hand"),
        case(with_health(power_limit_mw=400_000), Passed, "a power limit a little lower"),
    ],
)
def test_clocks(facts, verdict):
    assert judged("GPU016", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(with_health(persistence=False), Severity.NOTE, "off without a display"),
        case(with_health(persistence=False, display_active=True), Passed, "a display keeps the driver awake"),
        case(with_health(persistence=NOT_SAID), Skipped, "not known"),
        case(changed(inside(), {"nvml.gpus.0.health.persistence": False}), Skipped, "inside a container"),
        case(changed(windows_guest(), {"nvml.gpus.0.health.persistence": False}), Skipped, "under WSL"),
    ],
)
def test_persistence(facts, verdict):
    assert judged("GPU017", facts) == verdict


@pytest.mark.parametrize(
    ("mode", "processes", "verdict"),
    [
        pytest.param("default", (), Passed, id="open to all"),
        pytest.param("prohibited", (), Severity.ERROR, id="closed"),
        pytest.param("exclusive-process", (), Severity.NOTE, id="for one, and free"),
        pytest.param("exclusive-process", (GpuProcess(7, "python", GIB),), Severity.WARNING, id="for one, and taken"),
        pytest.param(
            "exclusive-process", (GpuProcess(7, "nvidia-cuda-mps", GIB),), Passed, id="for MPS, which shares it"
        ),
        pytest.param(NOT_SAID, (), Skipped, id="not known"),
    ],
)
def test_compute_mode(mode, processes, verdict):
    assert judged("GPU018", with_health(compute_mode=mode, processes=processes)) == verdict


def used(gib, **changes):
    return changed(with_health(**changes), {"nvml.gpus.0.free_bytes": (24 - gib) * GIB})


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        case(used(1), Passed, "the driver's own share"),
        case(used(2.4), Passed, "as much as is allowed for"),
        case(used(3), Severity.WARNING, "more than that"),
        case(used(20, processes=(GpuProcess(7, "python", 19 * GIB),)), Passed, "a process explains it"),
        case(used(20, processes=(GpuProcess(7, "", NOT_SAID),)), Passed, "a process that may explain it"),
        case(used(20, processes=NOT_SAID), Skipped, "processes are not listed"),
        case(used(20, virtualization="vgpu"), Passed, "a slice of somebody else's GPU"),
        case(changed(used(20), {"nvml.gpus.0.mig_enabled": True}), Passed, "a divided GPU"),
        case(changed(used(20), {"container": inside().container}), Severity.NOTE, "inside a container"),
    ],
)
def test_memory_that_nobody_holds(facts, verdict):
    assert judged("GPU019", facts) == verdict


def test_a_gpu_at_work_is_healthy():
    load = {"clock_reasons": ("sw-power-cap",), "power_mw": 449_000, "temperature_c": 83}
    at_work = busy(**load, processes=(GpuProcess(7, "python", 20 * GIB),))
    found = find_codes(changed(at_work, {"nvml.gpus.0.free_bytes": 3 * GIB}))
    assert not [code for code in found if code.startswith("GPU")]
