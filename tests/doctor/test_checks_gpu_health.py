"""Checks of GPUs at rest and at work: memory, heat, power, links, clocks, modes."""

import pytest

from devkit.facts.gpu import GpuProcess
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import GIB, changed, gpu, health, healthy, inside, windows_guest
from tests.doctor.running import find_codes

NOT_SAID = Unknown("not said")
BUSY = {"utilization_percent": 99, "clock_reasons": (), "sm_clock_mhz": 2800, "pcie_generation": 4}
PERSISTENCE_OFF = {"nvml.gpus.0.health.persistence": False}


def with_health(**changes):
    return changed(healthy(), {"nvml.gpus": (gpu(health=health(**changes)),)})


def busy(**changes):
    return with_health(**BUSY | changes)


def used(gib, **changes):
    return changed(with_health(**changes), {"nvml.gpus.0.free_bytes": (24 - gib) * GIB})


def exclusive(*processes):
    return with_health(compute_mode="exclusive-process", processes=tuple(GpuProcess(7, one, GIB) for one in processes))


def application_clock(mhz):
    return with_health(application_clock_mhz=mhz, default_application_clock_mhz=1410)


CASES = [
    ("GPU009", with_health(ecc_uncorrected=0), "passed", "no error"),
    ("GPU009", with_health(ecc_uncorrected=1), "warning", "one error since the driver was loaded"),
    ("GPU009", healthy(), "skipped", "a GPU without ECC"),
    ("GPU009", windows_guest(), "skipped", "under WSL"),
    ("GPU010", with_health(remap_pending=False, remap_failed=False), "passed", "nothing to replace"),
    ("GPU010", with_health(remap_pending=True, remap_failed=False), "warning: --gpu-reset", "waits for a reset"),
    ("GPU010", with_health(remap_pending=False, remap_failed=True), "warning", "no spare row left"),
    ("GPU010", with_health(remap_pending=True, remap_failed=True), "warning: replacement", "a case for the vendor"),
    ("GPU010", with_health(remap_pending=NOT_SAID, remap_failed=NOT_SAID), "skipped", "not known"),
    ("GPU011", with_health(retirement_pending=True), "warning", "a page waits to be retired"),
    ("GPU011", with_health(retirement_pending=False), "passed", "no page waits"),
    ("GPU011", with_health(retirement_pending=NOT_SAID), "skipped", "pages are not known"),
    ("GPU012", with_health(inforom_ok=False), "warning", "a broken infoROM"),
    ("GPU012", with_health(inforom_ok=True), "passed", "a whole infoROM"),
    ("GPU012", with_health(inforom_ok=NOT_SAID), "skipped", "an infoROM that is not known"),
    ("GPU013", busy(clock_reasons=("sw-thermal-slowdown",)), "warning", "the driver slows down under load"),
    ("GPU013", with_health(clock_reasons=("sw-thermal-slowdown",)), "passed", "the same at rest"),
    ("GPU013", with_health(clock_reasons=("hw-thermal-slowdown",)), "warning", "the hardware slows down"),
    ("GPU013", busy(temperature_c=96, slowdown_c=97), "passed", "a degree below the bound"),
    ("GPU013", busy(temperature_c=97, slowdown_c=97), "warning: 97", "at the bound"),
    ("GPU013", busy(temperature_c=97, slowdown_c=0), "passed", "a bound of zero is none"),
    ("GPU013", busy(temperature_c=97, slowdown_c=NOT_SAID), "passed", "no bound is known"),
    ("GPU013", busy(clock_reasons=NOT_SAID), "skipped", "no reasons are known"),
    ("GPU014", with_health(clock_reasons=("gpu-idle", "hw-slowdown")), "passed", "a slowdown at rest"),
    ("GPU014", busy(clock_reasons=("hw-slowdown",)), "warning", "a slowdown without heat"),
    ("GPU014", busy(clock_reasons=("hw-slowdown", "hw-thermal-slowdown")), "passed", "one that heat explains"),
    ("GPU014", busy(clock_reasons=("hw-slowdown", "hw-power-brake")), "warning", "the power brake"),
    ("GPU015", with_health(pcie_generation=1), "passed", "the first generation at rest"),
    ("GPU015", busy(pcie_generation=1), "warning", "the first generation under load"),
    ("GPU015", with_health(pcie_width=8), "note", "half of the lanes at rest"),
    ("GPU015", busy(pcie_width=8), "warning", "half of the lanes under load"),
    ("GPU015", with_health(pcie_width=4), "warning", "a quarter of the lanes"),
    ("GPU015", with_health(pcie_width=8, pcie_max_width=8), "passed", "all lanes of a short slot"),
    ("GPU015", with_health(pcie_width=1, virtualization="passthrough"), "skipped", "in a virtual machine"),
    ("GPU015", with_health(pcie_width=NOT_SAID), "skipped", "not known"),
    ("GPU016", busy(sm_clock_mhz=1500), "warning: 1500", "below half under load, without a reason"),
    ("GPU016", busy(sm_clock_mhz=1600), "passed", "above half"),
    ("GPU016", busy(sm_clock_mhz=900, clock_reasons=("sw-power-cap",)), "passed", "with a reason"),
    ("GPU016", busy(sm_clock_mhz=900, clock_reasons=NOT_SAID), "passed", "with unknown reasons"),
    ("GPU016", application_clock(765), "warning: 765", "application clocks far below their default"),
    ("GPU016", application_clock(1275), "passed", "a little below"),
    ("GPU016", with_health(power_limit_mw=300_000), "note: 300", "a power limit set by hand"),
    ("GPU016", with_health(power_limit_mw=400_000), "passed", "a power limit a little lower"),
    ("GPU017", with_health(persistence=False), "note", "off without a display"),
    ("GPU017", with_health(persistence=False, display_active=True), "passed", "a display keeps the driver awake"),
    ("GPU017", with_health(persistence=NOT_SAID), "skipped", "not known"),
    ("GPU017", changed(inside(), PERSISTENCE_OFF), "skipped", "inside a container"),
    ("GPU017", changed(windows_guest(), PERSISTENCE_OFF), "skipped", "under WSL"),
    ("GPU018", with_health(compute_mode="prohibited"), "error", "closed"),
    ("GPU018", exclusive(), "note", "for one, and free"),
    ("GPU018", exclusive("python"), "warning: python", "for one, and taken"),
    ("GPU018", exclusive("nvidia-cuda-mps"), "passed", "for MPS, which shares it"),
    ("GPU018", with_health(compute_mode=NOT_SAID), "skipped", "not known"),
    ("GPU019", used(2.4), "passed", "as much as is allowed for"),
    ("GPU019", used(3), "warning", "more than that"),
    ("GPU019", used(20, processes=(GpuProcess(7, "python", 19 * GIB),)), "passed", "a process explains it"),
    ("GPU019", used(20, processes=(GpuProcess(7, "", NOT_SAID),)), "passed", "a process that may explain it"),
    ("GPU019", used(20, processes=NOT_SAID), "skipped", "processes are not listed"),
    ("GPU019", used(20, virtualization="vgpu"), "passed", "a slice of somebody else's GPU"),
    ("GPU019", changed(used(20), {"nvml.gpus.0.mig_enabled": True}), "passed", "a divided GPU"),
    ("GPU019", changed(used(20), {"container": inside().container}), "note", "inside a container"),
    ("GPU027", with_health(recovery_action="none"), "passed", "nothing to recover"),
    ("GPU027", with_health(recovery_action="drain-p2p"), "warning", "no more transfers between GPUs"),
    ("GPU027", with_health(recovery_action="gpu-reset"), "error: reset", "a reset"),
    ("GPU027", with_health(recovery_action="node-reboot"), "error: reboot", "a reboot"),
    ("GPU027", with_health(recovery_action="9"), "error", "something newer than devkit"),
    ("GPU027", with_health(recovery_action=NOT_SAID), "skipped", "an old driver does not say"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_state_of_a_gpu(code):
    assert list_wrong(code, CASES) == []


def test_a_gpu_at_work_is_healthy():
    load = {"clock_reasons": ("sw-power-cap",), "power_mw": 449_000, "temperature_c": 83}
    at_work = busy(**load, processes=(GpuProcess(7, "python", 20 * GIB),))
    found = find_codes(changed(at_work, {"nvml.gpus.0.free_bytes": 3 * GIB}))
    assert not [code for code in found if code.startswith("GPU")]
