import pytest

from devkit.doctor.model import Confidence, Found, Passed, Restart, Severity, Side, Skipped
from devkit.facts.model import NvmlEnd, NvmlFailure, PciGpu
from devkit.facts.values import Unknown
from tests.doctor.machines import (
    ARCH,
    DEBIAN,
    FEDORA,
    LEAP,
    NIXOS,
    ROCKY,
    UBUNTU,
    VOID,
    changed,
    gpu,
    healthy,
    inside,
    no_library,
    r,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report, find_all, find_only, run_check


def failure(code, message="", *, end=NvmlEnd.ERROR, call="nvmlInit_v2"):
    return NvmlFailure(end, code, message, call)


OWNER = "driver.pci_gpus.0.kernel_driver"
NOT_LOADED = {
    "driver.loaded": None,
    "driver.nvidiactl": "absent",
    "driver.device_nodes": (),
    OWNER: "",
    "nvml": failure(9, "Driver Not Loaded"),
}
NOTHING_INSTALLED = NOT_LOADED | {
    "driver.on_disk": None,
    "driver.dkms_state": "",
    "driver.libnvidia_ml": None,
    "driver.libcuda": None,
    "nvml": no_library(),
}


@pytest.mark.parametrize(
    ("changes", "says", "command"),
    [
        pytest.param({}, "installed for this kernel but not loaded", "sudo modprobe nvidia", id="simply not loaded"),
        pytest.param(
            {OWNER: "nouveau"},
            "nouveau holds",
            "update-initramfs",
            id="nouveau holds the GPU",
        ),
        pytest.param(
            {OWNER: "vfio-pci"},
            "vfio-pci holds",
            "driverctl",
            id="given to a virtual machine",
        ),
        pytest.param({"driver.secure_boot": True}, "Secure Boot", "mokutil --import", id="Secure Boot refuses it"),
        pytest.param(
            {"driver.on_disk": None, "driver.dkms_state": "added", "driver.headers_present": False},
            "headers are missing",
            "linux-headers-$(uname -r)",
            id="no headers to build it with",
        ),
        pytest.param(
            {"driver.on_disk": None, "driver.dkms_state": "built"},
            "could not be built for kernel 6.8.0-45-generic",
            "make.log",
            id="the build failed",
        ),
        pytest.param(
            {"driver.on_disk": None, "driver.dkms_state": ""},
            "could not be built",
            "dkms autoinstall",
            id="libraries without a module",
        ),
        pytest.param(NOTHING_INSTALLED, "no NVIDIA driver", "ubuntu-drivers install", id="nothing installed"),
        pytest.param(
            NOTHING_INSTALLED | {OWNER: "nouveau"},
            "no NVIDIA driver is installed",
            "ubuntu-drivers install",
            id="nothing installed, so nouveau took it: installing is the fix",
        ),
    ],
)
def test_why_the_driver_is_not_loaded(changes, says, command):
    finding = find_only("DRV001", changed(healthy(), NOT_LOADED | changes))
    assert says in finding.message
    assert any(command in line for line in finding.fix.commands)
    assert finding.severity is Severity.ERROR
    assert finding.fix.where is Side.HOST
    assert finding.fix.root


def test_a_gpu_of_several_on_another_driver_is_fine_while_the_module_is_loaded():
    other = PciGpu("0000:02:00.0", "0x2684", "vfio-pci")
    facts = changed(healthy(), {"driver.pci_gpus": (*healthy().driver.pci_gpus, other)})
    assert run_check("DRV001", facts) == Passed()


def test_a_container_is_sent_to_its_host():
    finding = find_only("DRV001", changed(inside(), NOT_LOADED))
    assert "Run devkit doctor on the host" in finding.fix.summary
    assert finding.fix.commands == ("devkit doctor",)


def test_libraries_without_a_gpu_are_a_warning():
    facts = changed(without_gpu(), {"nvml": failure(9, "Driver Not Loaded"), "driver.libnvidia_ml": r("580.95.05")})
    finding = find_only("DRV001", facts)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.POSSIBLE


def test_what_is_unknown_is_neither_found_nor_fine():
    assert isinstance(run_check("DRV001", changed(healthy(), {"driver.loaded": Unknown("hidden")})), Skipped)
    assert isinstance(
        run_check("DRV001", changed(healthy(), {"driver": Unknown("hidden"), "nvml": Unknown("?")})), Skipped
    )


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (UBUNTU, "sudo ubuntu-drivers install"),
        (DEBIAN, "sudo apt-get install -y linux-headers-$(uname -r) nvidia-driver"),
        (FEDORA, "sudo dnf install -y akmod-nvidia xorg-x11-drv-nvidia-cuda"),
        (ROCKY, "sudo dnf install -y nvidia-open"),
        (LEAP, "sudo zypper install -y nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06"),
        (ARCH, "sudo pacman -S --needed nvidia-open nvidia-utils"),
        (NIXOS, "sudo nixos-rebuild switch"),
    ],
    ids=lambda value: getattr(value, "name", "its command"),
)
def test_each_distribution_installs_its_own_driver(distribution, command):
    facts = changed(healthy(), NOTHING_INSTALLED | {"system.distribution": distribution})
    assert command in find_only("DRV001", facts).fix.commands


def test_an_unknown_distribution_gets_the_guide_instead_of_a_guess():
    fix = find_only("DRV001", changed(healthy(), NOTHING_INSTALLED | {"system.distribution": VOID})).fix
    assert fix.commands == ()
    assert fix.docs.startswith("https://docs.nvidia.com/")


UNVERSIONED = Unknown("no version in its name")
UPGRADE = "2026-11-11 06:41:09 upgrade nvidia-dkms-580-open:amd64 580.95.05 580.105.08"


def test_a_mismatch_names_both_versions_and_the_log_line():
    facts = changed(
        healthy(),
        {
            "driver.libnvidia_ml": r("580.105.08"),
            "nvml": failure(18, "mismatch"),
            "driver.upgraded_packages": ("x", UPGRADE),
        },
    )
    finding = find_only("DRV002", facts)
    assert finding.message == "the loaded NVIDIA module is 580.95.05, but its libraries are 580.105.08"
    assert f"package log: {UPGRADE}" in finding.evidence
    assert finding.fix.restart is Restart.HOST
    assert finding.fix.commands[0] == "sudo reboot"


@pytest.mark.parametrize(
    ("library", "nvml", "verdict"),
    [
        pytest.param(r("580.95.05"), healthy().nvml, Passed, id="the same version"),
        pytest.param(r("580.95.06"), healthy().nvml, Found, id="one patch apart"),
        pytest.param(r("580.95.05"), failure(18), Found, id="NVML says so though the files agree"),
        pytest.param(UNVERSIONED, healthy().nvml, Skipped, id="an unversioned library"),
        pytest.param(UNVERSIONED, failure(18), Found, id="an unversioned library, but NVML says so"),
        pytest.param(None, healthy().nvml, Skipped, id="no library at all"),
    ],
)
def test_library_and_module(library, nvml, verdict):
    assert isinstance(run_check("DRV002", changed(healthy(), {"driver.libnvidia_ml": library, "nvml": nvml})), verdict)


def test_a_container_with_old_libraries_is_recreated_not_rebooted():
    fix = find_only("DRV002", changed(inside(), {"nvml": failure(18)})).fix
    assert "recreate this container" in fix.summary
    assert "sudo reboot" not in fix.commands


def test_a_mismatch_silences_everything_above_it():
    facts = changed(
        healthy(),
        {
            "driver.on_disk": r("580.105.08"),
            "driver.libnvidia_ml": r("580.105.08"),
            "driver.libcuda": r("580.105.08"),
            "nvml": failure(18),
            "engine.runtimes": (),
            "engine.cdi_devices": (),
            "toolkit.version": None,
            "toolkit.daemon_files": (),
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("DRV002",)
    assert {shown.check.code for shown in report.following("DRV002")} >= {"DRV003", "CUD003", "CTK001", "CTK003"}


@pytest.mark.parametrize(
    ("nvml", "says", "restart"),
    [
        pytest.param(failure(0, end=NvmlEnd.TIMED_OUT), "the driver hangs", Restart.HOST, id="a hang"),
        pytest.param(failure(11, end=NvmlEnd.CRASHED), "crashes in nvmlInit_v2", Restart.NONE, id="a crash"),
        pytest.param(failure(4), "may not use the GPU", Restart.NONE, id="no permission"),
        pytest.param(failure(15), "is lost", Restart.HOST, id="a lost GPU that stops the start"),
        pytest.param(failure(999), "Unknown Error", Restart.HOST, id="an unknown error"),
        pytest.param(failure(3, "Not Supported"), "Not Supported", Restart.HOST, id="a code without advice of its own"),
    ],
)
def test_why_nvml_does_not_answer(nvml, says, restart):
    finding = find_only("DRV003", changed(healthy(), {"nvml": nvml}))
    assert says in finding.message
    assert finding.fix.restart is restart
    assert finding.evidence[0].startswith("nvmlInit_v2")


def test_a_hung_driver_is_the_root_even_where_the_bus_shows_no_gpu():
    facts = changed(without_gpu(), {"nvml": failure(0, end=NvmlEnd.TIMED_OUT)})
    assert build_full_report(facts).root_causes == ("DRV003",)


def test_windows_blocks_the_gpu_without_a_linux_driver_inside():
    facts = changed(windows_guest(), {"nvml": failure(17, "GPU access blocked by the operating system")})
    report = build_full_report(facts)
    assert report.root_causes == ("WSL004",)
    assert report.roots[0].finding.fix.where is Side.WINDOWS


@pytest.mark.parametrize(
    ("device", "is_open", "verdict"),
    [
        pytest.param("0x2b85", False, Found, id="the closed module on an RTX 5090"),
        pytest.param("0x2900", False, Found, id="the first id of Blackwell"),
        pytest.param("0x28ff", False, Passed, id="the last id before Blackwell"),
        pytest.param("0x2b85", True, Passed, id="the open module on an RTX 5090"),
        pytest.param("0x2b85", Unknown("not visible"), Skipped, id="a flavor that cannot be seen"),
        pytest.param("", False, Passed, id="no device id to read"),
    ],
)
def test_open_module_where_needed(device, is_open, verdict):
    facts = changed(healthy(), {"driver.pci_gpus.0.device_id": device, "driver.is_open": is_open})
    assert isinstance(run_check("DRV004", facts), verdict)


def test_the_closed_module_is_the_cause_of_the_missing_gpu():
    facts = changed(
        healthy(),
        {"driver.pci_gpus.0.device_id": "0x2b85", "driver.is_open": False, "nvml.gpus": ()},
    )
    report = build_full_report(facts)
    assert report.root_causes == ("DRV004",)
    assert "sudo apt-get install -y nvidia-driver-580-open" in report.roots[0].finding.fix.commands


def test_a_missing_uvm_node_is_made_and_kept():
    finding = find_only("DRV005", changed(healthy(), {"driver.device_nodes": ("/dev/nvidia0", "/dev/nvidiactl")}))
    assert "sudo nvidia-modprobe -u -c=0" in finding.fix.commands


def test_one_lost_gpu_of_eight_is_named_and_the_others_count():
    from devkit.facts.model import FailedGpu

    gpus = tuple(gpu(index) for index in range(8))
    gpus = (*gpus[:3], FailedGpu(3, 15, "GPU is lost"), *gpus[4:])
    facts = changed(healthy(), {"nvml.gpus": gpus, "driver.pci_gpus": healthy().driver.pci_gpus * 8})
    finding = find_only("GPU002", facts)
    assert finding.subject == "GPU 3"
    assert finding.message.startswith("GPU 3 of 8 is lost")
    assert build_full_report(facts).root_causes == ("GPU002",)


def test_fewer_gpus_than_on_the_bus():
    facts = changed(healthy(), {"driver.pci_gpus": healthy().driver.pci_gpus * 2})
    assert find_only("GPU005", facts).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("gpus", "severities"),
    [
        pytest.param((gpu(mig_enabled=True),), ["error"], id="the only GPU is empty"),
        pytest.param((gpu(mig_enabled=True), gpu(1)), ["warning"], id="one of two is empty"),
        pytest.param((gpu(mig_enabled=True, mig_instances=("MIG-1",)),), [], id="divided"),
    ],
)
def test_mig_without_instances(gpus, severities):
    verdict = run_check("GPU003", changed(healthy(), {"nvml.gpus": gpus}))
    findings = verdict.findings if isinstance(verdict, Found) else ()
    assert [finding.severity.value for finding in findings] == severities


@pytest.mark.parametrize(
    ("state", "verdict"),
    [("active", Passed), ("inactive", Found), ("failed", Found), (Unknown("no systemctl"), Skipped)],
    ids=["it runs", "it is stopped", "it failed", "nobody can say"],
)
def test_fabric_manager(state, verdict):
    facts = changed(healthy(), {"driver.nvswitch_present": True, "driver.fabric_manager": state})
    assert isinstance(run_check("GPU004", facts), verdict)


def test_the_fabric_manager_is_installed_in_the_drivers_very_version():
    facts = changed(healthy(), {"driver.nvswitch_present": True, "driver.fabric_manager": "inactive"})
    assert "sudo apt-get install -y 'nvidia-fabricmanager-580=580.95.05-*'" in find_only("GPU004", facts).fix.commands


def test_a_linux_driver_inside_wsl_is_removed_by_name_and_the_toolkit_stays():
    facts = changed(
        windows_guest(),
        {
            "wsl.linux_driver_packages": ("libnvidia-compute-580:amd64", "nvidia-utils-580"),
            "wsl.libnvidia_ml_path": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            "nvml": failure(17, "GPU access blocked by the operating system"),
        },
    )
    report = build_full_report(facts)
    assert report.root_causes == ("WSL001",)
    fix = report.roots[0].finding.fix
    assert fix.commands == ("sudo apt-get purge -y libnvidia-compute-580 nvidia-utils-580", "wsl.exe --shutdown")
    assert fix.where is Side.WSL
    assert [shown.check.code for shown in report.following("WSL001")] == ["DRV003"]


def test_wsl_1_has_no_gpu():
    from devkit.facts.model import Platform

    facts = changed(windows_guest(), {"system.platform": Platform.WSL1, "wsl": None, "nvml": no_library()})
    assert "WSL 1" in find_only("WSL002", facts).message


def test_a_kernel_of_ones_own_without_dxg():
    facts = changed(windows_guest(), {"wsl.has_dxg": False, "nvml": failure(9)})
    assert find_only("WSL002", facts).fix.where is Side.WINDOWS


@pytest.mark.parametrize(
    ("libraries", "verdict"),
    [
        pytest.param(("libcuda.so.1", "libnvidia-ml.so.1"), Passed, id="both there"),
        pytest.param(("libnvidia-ml.so.1", "libd3d12.so"), Found, id="libcuda missing"),
        pytest.param(("libd3d12.so",), Passed, id="no NVIDIA GPU in Windows"),
    ],
)
def test_windows_provides_libraries(libraries, verdict):
    assert isinstance(run_check("WSL003", changed(windows_guest(), {"wsl.libraries": libraries})), verdict)


def test_no_advice_installs_a_linux_driver_in_wsl():
    broken = [changed(windows_guest(), {"nvml": failure(code)}) for code in (4, 9, 15, 17, 18, 999)] + [
        changed(windows_guest(), {"nvml": no_library()}),
        changed(
            windows_guest(),
            {"nvml.driver": r("472.12"), "nvml.cuda": r("11.4"), "python.torch": inside().python.torch},
        ),
        changed(windows_guest(), {"wsl.libraries": ("libcuda.so.1",)}),
    ]
    seen = 0
    for facts in broken:
        for shown in build_full_report(facts).findings:
            seen += 1
            for command in shown.finding.fix.commands:
                assert not any(word in command for word in ("ubuntu-drivers", "nvidia-driver", "apt-get install"))
    assert seen >= len(broken)


def test_every_finding_carries_evidence_and_a_fix():
    for facts in (changed(healthy(), NOT_LOADED), changed(healthy(), {"nvml": failure(999)})):
        for shown in build_full_report(facts).findings:
            assert shown.finding.evidence
            assert shown.finding.fix.summary.endswith(".")
    assert find_all("DRV001", changed(healthy(), NOT_LOADED))
