import pytest

from devkit.doctor.model import Confidence, Found, Passed, Restart, Severity, Skipped
from devkit.facts.model import (
    AptSource,
    CudaCall,
    Deep,
    DriverPackage,
    KernelLog,
    NvmlAnswer,
    NvmlEnd,
    NvmlFailure,
    PciGpu,
)
from devkit.facts.values import Unknown
from tests.doctor.machines import DRIVER, FEDORA, GIB, NIXOS, changed, gpu, health, healthy, inside, r, windows_guest
from tests.doctor.running import build_full_report, find_only, run_check

MIB = 1 << 20
HERE = "0000:01:00.0"
NO_GPU = NvmlAnswer(DRIVER, r("13.0"), ())
NOT_LOADED = NvmlFailure(NvmlEnd.ERROR, 9, "Driver Not Loaded", "nvmlInit_v2")


def host(**changes):
    """The healthy host with fields of its driver changed, and `lines` in its kernel log."""
    lines, nvml = changes.pop("lines", ()), changes.pop("nvml", healthy().nvml)
    log = KernelLog((), tuple(lines), "journalctl", True, changes.pop("woke", None))
    facts = changed(healthy(), {f"driver.{name}": value for name, value in changes.items()})
    return changed(facts, {"nvml": nvml, "kernel_log": log})


def device(device_id="0x2684", driver="nvidia", bar1=32 * GIB):
    return (PciGpu(HERE, device_id, driver, 16, 16, bar1),)


def judged(code, facts):
    verdict = run_check(code, facts)
    return verdict.findings[0].severity if isinstance(verdict, Found) else type(verdict)


def roots(facts):
    return build_full_report(facts).root_causes


FAILED_START = f"NVRM: GPU {HERE}: RmInitAdapter failed! (0x22:0x56:884)"


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(host(), Passed, id="a window of 32 GiB"),
        pytest.param(host(pci_gpus=device(bar1=256 * MIB)), Passed, id="a small one that works"),
        pytest.param(
            host(pci_gpus=device(bar1=256 * MIB), nvml=NO_GPU, lines=[FAILED_START]),
            Severity.ERROR,
            id="a small one that failed",
        ),
        pytest.param(
            host(pci_gpus=device(bar1=257 * MIB), nvml=NO_GPU, lines=[FAILED_START]), Passed, id="one just larger"
        ),
        pytest.param(host(pci_gpus=device(bar1=256 * MIB), nvml=NO_GPU), Passed, id="failed for no reason in the log"),
        pytest.param(
            host(
                pci_gpus=device(bar1=256 * MIB), nvml=NO_GPU, lines=["pci 0000:05:00.0: BAR 1: can't assign; no space"]
            ),
            Passed,
            id="another device has no window",
        ),
        pytest.param(
            host(
                pci_gpus=device(bar1=256 * MIB),
                nvml=NO_GPU,
                lines=[FAILED_START, "NVRM: installed in this system requires use of the NVIDIA open kernel modules."],
            ),
            Passed,
            id="failed for another reason",
        ),
        pytest.param(host(pci_gpus=device(bar1=0), nvml=NO_GPU), Severity.ERROR, id="none"),
        pytest.param(host(pci_gpus=device(bar1=0)), Passed, id="none, of a GPU that NVML answers for"),
        pytest.param(host(pci_gpus=device(bar1=0, driver="vfio-pci")), Passed, id="none, of a GPU that is given away"),
        pytest.param(host(pci_gpus=device(bar1=Unknown("not listed"))), Passed, id="unknown"),
        pytest.param(host(pci_gpus=Unknown("no bus")), Skipped, id="no bus to see"),
    ],
)
def test_the_memory_window(facts, verdict):
    assert judged("GPU008", facts) == verdict


LEGACY = (
    "NVRM: The NVIDIA GeForce GTX 1080 Ti GPU installed in this system is supported through the NVIDIA 580.xx Legacy"
    " drivers. Please visit http://www.nvidia.com/object/unix.html for more information. The 610.43.02 NVIDIA driver"
    " will ignore this GPU."
)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(host(pci_gpus=device("0x1b06"), is_open=False), Passed, id="Pascal under 580, proprietary"),
        pytest.param(host(pci_gpus=device("0x1b06")), Severity.WARNING, id="Pascal under the open module"),
        pytest.param(
            host(pci_gpus=device("0x1b06"), loaded=r("590.44.01"), is_open=False, nvml=NOT_LOADED),
            Severity.ERROR,
            id="Pascal under 590",
        ),
        pytest.param(host(pci_gpus=device("0x1e04"), loaded=r("610.43.02")), Passed, id="Turing under 610"),
        pytest.param(
            host(pci_gpus=device("0x102d"), loaded=r("535.230.02"), is_open=False, nvml=NOT_LOADED),
            Severity.ERROR,
            id="Kepler under 535",
        ),
        pytest.param(
            host(pci_gpus=device("0x1b06"), loaded=None, on_disk=None), Passed, id="no driver is no old driver"
        ),
        pytest.param(host(lines=[LEGACY]), Skipped, id="a line about another GPU, and all that are here work"),
        pytest.param(host(lines=[LEGACY], nvml=NO_GPU), Severity.ERROR, id="the driver's own words"),
        pytest.param(host(pci_gpus=device("?")), Passed, id="an id that cannot be read"),
    ],
)
def test_old_gpus_need_an_old_branch(facts, verdict):
    assert judged("DRV008", facts) == verdict


def test_the_branch_in_the_fix_is_the_generations_last():
    kepler = host(pci_gpus=device("0x102d"), loaded=r("535.230.02"), is_open=False, nvml=NOT_LOADED)
    assert "470" in find_only("DRV008", kepler).message
    assert "580" in find_only("DRV008", host(pci_gpus=device("0x1b06"))).message


OPEN_WANTED = (
    f"NVRM: The NVIDIA GPU {HERE} (PCI ID: 10de:2684) installed in this system requires use of the NVIDIA open kernel"
    " modules."
)


def test_the_drivers_own_words_make_the_flavor_certain():
    closed = host(is_open=False, pci_gpus=device("0x2b85"), nvml=NO_GPU)
    assert find_only("DRV004", closed).confidence is Confidence.LIKELY
    said = changed(closed, {"kernel_log.driver_lines": (OPEN_WANTED,)})
    assert find_only("DRV004", said).confidence is Confidence.CERTAIN
    assert roots(said) == ("DRV004",)


def test_the_drivers_own_words_count_for_an_unknown_generation():
    assert judged("DRV004", host(is_open=False, lines=[OPEN_WANTED])) is Severity.ERROR


NOT_FOUND = f"nvidia {HERE}: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2"
STUCK = "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM"


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(host(), Passed, id="no word of it"),
        pytest.param(host(firmware_present=False), Passed, id="no firmware, and all GPUs work"),
        pytest.param(host(firmware_present=False, nvml=NO_GPU), Severity.ERROR, id="no firmware, and no GPU"),
        pytest.param(host(firmware_present=Unknown("?"), nvml=NO_GPU), Passed, id="firmware unknown"),
        pytest.param(
            host(firmware_present=False, is_open=False, nvml=NO_GPU), Passed, id="a module that may do without"
        ),
        pytest.param(host(lines=[NOT_FOUND], nvml=NO_GPU), Severity.ERROR, id="the log misses it"),
        pytest.param(host(lines=[NOT_FOUND]), Severity.WARNING, id="the log missed it, and all GPUs work"),
        pytest.param(host(lines=[STUCK], nvml=NO_GPU), Severity.ERROR, id="it is there and does not start"),
        pytest.param(host(lines=[STUCK]), Passed, id="it did not start once, and works now"),
        pytest.param(host(loaded=None), Skipped, id="no module is loaded"),
    ],
)
def test_the_system_processor(facts, verdict):
    assert judged("DRV007", facts) == verdict


def test_a_stuck_processor_wants_its_power_taken_away_and_missing_firmware_a_package():
    assert find_only("DRV007", host(lines=[STUCK], nvml=NO_GPU)).fix.commands == ("sudo poweroff",)
    assert "nvidia-firmware-580" in find_only("DRV007", host(lines=[NOT_FOUND], nvml=NO_GPU)).fix.commands[0]


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(host(), Passed, id="open to all"),
        pytest.param(host(closed_nodes=("/dev/nvidia0: mode 0660, user 0, group 44",)), Severity.ERROR, id="closed"),
        pytest.param(host(closed_nodes=Unknown("not read")), Skipped, id="not known"),
        pytest.param(windows_guest(), Skipped, id="under WSL"),
    ],
)
def test_device_nodes(facts, verdict):
    assert judged("DRV006", facts) == verdict


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(host(), Passed, id="one version"),
        pytest.param(host(on_disk=r("570.172.08")), Severity.ERROR, id="another module on disk"),
        pytest.param(host(on_disk=None), Passed, id="no module, which is another finding"),
        pytest.param(host(on_disk=Unknown("no modinfo")), Skipped, id="not known"),
        pytest.param(changed(host(on_disk=r("570.172.08")), {"system.distribution": NIXOS}), Skipped, id="on NixOS"),
        pytest.param(
            host(packages=(DriverPackage("nvidia-dkms-580-open", "580.95.05", "half-configured"),)),
            Severity.WARNING,
            id="a package half installed",
        ),
        pytest.param(
            host(packages=(DriverPackage("nvidia-utils-570", "570.172.08", "config-files"),)),
            Passed,
            id="what a removed package left",
        ),
        pytest.param(inside(), Skipped, id="inside a container"),
    ],
)
def test_module_on_disk_and_libraries(facts, verdict):
    assert judged("DRV012", facts) == verdict


def test_a_mismatch_that_a_reboot_does_not_mend_is_the_root():
    facts = host(loaded=r("570.172.08"), on_disk=r("570.172.08"))
    assert roots(facts) == ("DRV012",)


def upgraded(moment):
    line = f"{moment} upgrade libnvidia-compute-580:amd64 580.82.07 580.95.05"
    return host(loaded=r("580.82.07"), upgraded_packages=(line,), booted_at="2025-12-30T08:00:00+00:00")


@pytest.mark.parametrize(
    ("moment", "rebuilds"),
    [
        pytest.param("2025-12-31 06:41:02", False, id="not rebooted since the upgrade"),
        pytest.param("2025-12-29 08:00:00", False, id="perhaps rebooted since, for the log is in local time"),
        pytest.param("2025-12-29 07:59:59", True, id="surely rebooted since"),
    ],
)
def test_a_module_that_outlives_a_reboot_sits_in_the_initial_ram_disk(moment, rebuilds):
    fix = find_only("DRV002", upgraded(moment)).fix
    assert ("sudo update-initramfs -u" in fix.commands) is rebuilds
    assert fix.restart is Restart.HOST


META = DriverPackage("cuda-drivers", "580.95.05-0ubuntu1", "installed")
OF_UBUNTU = DriverPackage("nvidia-driver-580-open", "580.95.05-0ubuntu0.24.04.2", "installed")
OF_NVIDIA = DriverPackage("nvidia-driver-580-open", "580.95.05-0ubuntu1", "installed")


@pytest.mark.parametrize(
    ("packages", "verdict"),
    [
        pytest.param((OF_UBUNTU,), Passed, id="Ubuntu's driver alone"),
        pytest.param((META, OF_NVIDIA), Passed, id="NVIDIA's driver alone"),
        pytest.param((META, OF_UBUNTU), Severity.WARNING, id="both"),
        pytest.param((DriverPackage("cuda-drivers", "580", "config-files"), OF_UBUNTU), Passed, id="one removed"),
        pytest.param(
            (META, DriverPackage("akmod-nvidia", "580.95.05", "installed")), Severity.WARNING, id="RPM Fusion's beside"
        ),
        pytest.param(Unknown("not read"), Skipped, id="not known"),
    ],
)
def test_sources_of_the_driver(packages, verdict):
    assert judged("DRV013", host(packages=packages)) == verdict


def test_packages_in_a_container_say_nothing_of_the_hosts_driver():
    assert judged("DRV013", changed(inside(), {"driver.packages": (META, OF_UBUNTU)})) is Skipped


REPOSITORY = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
KEY = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
NEW = AptSource("/etc/apt/sources.list.d/nvidia-container-toolkit.list", REPOSITORY, KEY)


@pytest.mark.parametrize(
    ("sources", "verdict"),
    [
        pytest.param((NEW,), Passed, id="one list"),
        pytest.param(
            (AptSource("/etc/apt/sources.list.d/b.list", REPOSITORY, ""), NEW), Severity.WARNING, id="two keys"
        ),
        pytest.param(
            (AptSource("/etc/apt/sources.list.d/b.list", REPOSITORY, KEY), NEW), Passed, id="two lists, one key"
        ),
        pytest.param(
            (AptSource("/etc/apt/sources.list.d/b.list", "https://nvidia.github.io/nvidia-docker", ""), NEW),
            Passed,
            id="two repositories",
        ),
        pytest.param((), Passed, id="no list"),
        pytest.param(Unknown("not read"), Skipped, id="not known"),
    ],
)
def test_package_lists(sources, verdict):
    assert judged("DRV011", host(apt_sources=sources)) == verdict


def test_the_list_of_todays_guide_is_kept():
    old = AptSource("/etc/apt/sources.list.d/nvidia-docker.list", REPOSITORY, "")
    assert find_only("DRV011", host(apt_sources=(NEW, old))).fix.commands[0] == f"sudo rm {old.path}"


def deep(code, **changes):
    return changed(host(**changes), {"deep": Deep(CudaCall(code, "/usr/lib/libcuda.so.580.95.05"))})


WOKE = "2025-12-31T13:02:07+0000"
FORGETS = ("PreserveVideoMemoryAllocations: 0",)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(deep(999, woke=WOKE), Severity.ERROR, id="999 after sleep"),
        pytest.param(deep(999, woke=Unknown("refused")), Severity.ERROR, id="999, and the log is closed"),
        pytest.param(deep(999), Skipped, id="999 without sleep is another's"),
        pytest.param(deep(0, woke=WOKE), Passed, id="it works after sleep"),
        pytest.param(host(woke=WOKE, parameters=FORGETS), Severity.NOTE, id="not tried, and memory is not kept"),
        pytest.param(host(woke=WOKE), Skipped, id="not tried, and memory is kept"),
        pytest.param(host(parameters=FORGETS), Skipped, id="not tried, and never slept"),
        pytest.param(
            changed(deep(999, woke=WOKE), {"container": inside().container}), Skipped, id="inside a container"
        ),
    ],
)
def test_cuda_after_sleep(facts, verdict):
    assert judged("DRV009", facts) == verdict


def waiting(code):
    return changed(deep(code), {"nvml.gpus": (gpu(health=health(fabric_state="in-progress", fabric_status=0)),)})


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(deep(802), Severity.ERROR, id="802 without an NVSwitch"),
        pytest.param(deep(3), Severity.ERROR, id="3 without an NVSwitch"),
        pytest.param(deep(0), Passed, id="it works"),
        pytest.param(deep(100), Passed, id="another error"),
        pytest.param(deep(802, nvswitch_present=True, fabric_manager="active"), Skipped, id="802 with an NVSwitch"),
        pytest.param(waiting(802), Skipped, id="802 of a GPU that waits for its fabric"),
        pytest.param(host(), Skipped, id="not tried"),
    ],
)
def test_cuda_without_a_switch(facts, verdict):
    assert judged("DRV010", facts) == verdict


REJECTED = "Loading of module with unavailable key is rejected"


def unsigned(**changes):
    gone = {"loaded": None, "is_open": Unknown("not loaded"), "pci_gpus": device(driver=""), "nvml": NOT_LOADED}
    return host(**gone | {"secure_boot": True} | changes)


@pytest.mark.parametrize(
    ("facts", "says", "confidence"),
    [
        pytest.param(unsigned(), "most likely not enrolled", Confidence.LIKELY, id="nothing more is known"),
        pytest.param(unsigned(lines=[REJECTED]), "key is not enrolled", Confidence.CERTAIN, id="the log says so"),
        pytest.param(
            unsigned(module_signer="DKMS module signing key", signer_is_enrolled=False),
            "key is not enrolled",
            Confidence.CERTAIN,
            id="the key is not in the list",
        ),
        pytest.param(unsigned(module_signer=""), "it is not signed", Confidence.CERTAIN, id="no signature at all"),
        pytest.param(
            unsigned(secure_boot=False, lines=["Lockdown: modprobe: unsigned module loading is restricted"]),
            "this kernel refuses",
            Confidence.LIKELY,
            id="a locked kernel without Secure Boot",
        ),
        pytest.param(
            unsigned(module_signer="DKMS module signing key", signer_is_enrolled=True),
            "is installed for this kernel but not loaded",
            Confidence.CERTAIN,
            id="the key is enrolled, so it is not that",
        ),
        pytest.param(
            unsigned(module_signer="Canonical Ltd. Kernel Module Signing", signer_is_enrolled=False),
            "is installed for this kernel but not loaded",
            Confidence.CERTAIN,
            id="the distribution's key needs no enrolment",
        ),
    ],
)
def test_why_secure_boot_refuses(facts, says, confidence):
    finding = find_only("DRV001", facts)
    assert says in finding.message
    assert finding.confidence is confidence


def test_the_build_logs_error_is_evidence():
    facts = unsigned(on_disk=None, dkms_state="added", build_error="x.c:1: error: too many arguments")
    assert any("too many arguments" in line for line in find_only("DRV001", facts).evidence)


def test_advice_fits_the_distribution():
    facts = changed(host(pci_gpus=device("0x1b06")), {"system.distribution": FEDORA})
    assert "akmod-nvidia-580xx" in find_only("DRV008", facts).fix.commands[0]
