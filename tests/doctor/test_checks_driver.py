"""Checks of the driver: whether it is loaded, whole, and answers; and of the GPUs that it shows."""

import pytest

from devkit.facts.gpu import FailedGpu, NvmlEnd, NvmlFailure, PciGpu
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.judging import list_codes, list_wrong
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
    host,
    inside,
    no_library,
    r,
    windows_guest,
    without_gpu,
)
from tests.doctor.running import build_full_report, find_only


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
UNVERSIONED = Unknown("no version in its name")
UPGRADE = "2026-11-11 06:41:09 upgrade nvidia-dkms-580-open:amd64 580.95.05 580.105.08"
NEWER = r("580.105.08")
BUS = healthy().driver.pci_gpus


def not_loaded(owner="", **driver):
    return changed(healthy(), NOT_LOADED | {OWNER: owner} | {f"driver.{name}": value for name, value in driver.items()})


def not_built(dkms_state, **driver):
    return not_loaded(on_disk=None, dkms_state=dkms_state, **driver)


def nothing_installed(distribution=UBUNTU, owner=""):
    return changed(healthy(), NOTHING_INSTALLED | {OWNER: owner, "system.distribution": distribution})


def mismatched(library=NEWER, nvml=None):
    return host(driver__libnvidia_ml=library, nvml=nvml or healthy().nvml)


def answering(code, message="", end=NvmlEnd.ERROR):
    return host(nvml=failure(code, message, end=end))


def flavored(device, is_open):
    return host(driver__pci_gpus=(PciGpu("0000:01:00.0", device, "nvidia"),), driver__is_open=is_open)


EIGHT = tuple(FailedGpu(3, 15, "GPU is lost") if index == 3 else gpu(index) for index in range(8))
LOST = host(nvml__gpus=EIGHT, driver__pci_gpus=BUS * 8)
OWN_LIBRARY = changed(without_gpu(), {"nvml": failure(9, "Driver Not Loaded"), "driver.libnvidia_ml": r("580.95.05")})

CASES = [
    ("DRV001", not_loaded(), "error: but not loaded | sudo modprobe nvidia | where: host", "simply not loaded"),
    ("DRV001", not_loaded("nouveau"), "error: nouveau driver has claimed | update-initramfs", "nouveau holds the GPU"),
    ("DRV001", not_loaded("vfio-pci"), "error: vfio-pci reserves | driverctl", "given to a virtual machine"),
    ("DRV001", not_loaded(secure_boot=True), "error: Secure Boot | mokutil --import", "Secure Boot refuses it"),
    (
        "DRV001",
        not_built("added", headers_present=False),
        "error: headers are missing | linux-headers-$(uname -r)",
        "no headers to build it with",
    ),
    ("DRV001", not_built("built"), "error: not be built for kernel 6.8.0-87-generic | make.log", "the build failed"),
    ("DRV001", not_built(""), "error: could not be built | dkms autoinstall", "libraries without a module"),
    (
        "DRV001",
        nothing_installed(owner="nouveau"),
        "error: no NVIDIA driver is installed | ubuntu-drivers install",
        "nothing installed, so nouveau took it",
    ),
    ("DRV001", nothing_installed(), "error: no NVIDIA driver | sudo ubuntu-drivers install", "nothing on Ubuntu"),
    (
        "DRV001",
        nothing_installed(DEBIAN),
        "error: sudo apt-get install -y linux-headers-$(uname -r) nvidia-driver",
        "nothing on Debian",
    ),
    ("DRV001", nothing_installed(FEDORA), "error: akmod-nvidia xorg-x11-drv-nvidia-cuda", "nothing on Fedora"),
    ("DRV001", nothing_installed(ROCKY), "error: sudo dnf install -y nvidia-open", "nothing on Rocky Linux"),
    (
        "DRV001",
        nothing_installed(LEAP),
        "error: sudo zypper install -y nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06",
        "nothing on openSUSE",
    ),
    ("DRV001", nothing_installed(ARCH), "error: sudo pacman -S --needed nvidia-open nvidia-utils", "nothing on Arch"),
    ("DRV001", nothing_installed(NIXOS), "error: sudo nixos-rebuild switch", "nothing on NixOS"),
    ("DRV001", nothing_installed(VOID), "error: never sudo", "an unknown distribution gets no guess"),
    (
        "DRV001",
        host(driver__pci_gpus=(*BUS, PciGpu("0000:02:00.0", "0x2684", "vfio-pci"))),
        "passed",
        "a GPU of several on another driver is fine while the module is loaded",
    ),
    (
        "DRV001",
        changed(inside(), NOT_LOADED),
        "error: Run devkit doctor on the host | never modprobe",
        "in a container",
    ),
    ("DRV001", OWN_LIBRARY, "warning: confidence: possible", "libraries without a GPU"),
    ("DRV001", host(driver__loaded=Unknown("hidden")), "skipped", "a module that may be loaded"),
    ("DRV001", host(driver=Unknown("hidden"), nvml=Unknown("?")), "skipped", "a driver that was not read"),
    ("DRV002", mismatched(r("580.95.05")), "passed", "the same version"),
    ("DRV002", mismatched(r("580.95.06")), "error: sudo reboot | restart: host", "one patch apart"),
    (
        "DRV002",
        changed(mismatched(nvml=failure(18)), {"driver.upgraded_packages": ("x", UPGRADE)}),
        f"error: module is 580.95.05, but its libraries are 580.105.08 | package log: {UPGRADE} | sudo reboot",
        "both versions and the line of the log are named",
    ),
    ("DRV002", mismatched(r("580.95.05"), failure(18)), "error", "NVML says so though the files agree"),
    ("DRV002", mismatched(UNVERSIONED), "skipped", "an unversioned library"),
    ("DRV002", mismatched(UNVERSIONED, failure(18)), "error", "an unversioned library, but NVML says so"),
    ("DRV002", mismatched(None), "skipped", "no library at all"),
    (
        "DRV002",
        changed(inside(), {"nvml": failure(18)}),
        "error: Recreate this container | never sudo reboot",
        "a container with old libraries is recreated, not rebooted",
    ),
    ("DRV003", healthy(), "passed", "NVML answers"),
    ("DRV003", answering(0, end=NvmlEnd.TIMED_OUT), "error: the driver hangs | restart: host", "a hang"),
    ("DRV003", answering(11, end=NvmlEnd.CRASHED), "error: crashes in nvmlInit_v2 | restart: none", "a crash"),
    ("DRV003", answering(4), "error: cannot use the GPU | restart: none", "no permission"),
    ("DRV003", answering(15), "error: is lost | restart: host", "a lost GPU that stops the start"),
    ("DRV003", answering(999), "error: Unknown Error | prove the cause | restart: none", "an unknown error"),
    (
        "DRV003",
        answering(3, "Not Supported"),
        "error: Not Supported | prove the cause | restart: none",
        "a code without advice",
    ),
    (
        "DRV004",
        flavored("0x2b85", is_open=False),
        "error: sudo apt-get install -y nvidia-driver-580-open",
        "the closed module on an RTX 5090",
    ),
    ("DRV004", flavored("0x2900", is_open=False), "error", "the first id of Blackwell"),
    ("DRV004", flavored("0x28ff", is_open=False), "passed", "the last id before Blackwell"),
    ("DRV004", flavored("0x2b85", is_open=True), "passed", "the open module on an RTX 5090"),
    ("DRV004", flavored("0x2b85", is_open=Unknown("hidden")), "skipped", "a flavor that cannot be seen"),
    ("DRV004", flavored("", is_open=False), "passed", "no device id to read"),
    (
        "DRV005",
        host(driver__device_nodes=("/dev/nvidia0", "/dev/nvidiactl")),
        "warning: nvidia-uvm | sudo nvidia-modprobe -u -c=0",
        "no node of UVM",
    ),
    ("GPU002", LOST, "error: GPU 3 of 8 is lost", "one lost GPU of eight"),
    ("GPU002", healthy(), "passed", "no GPU is lost"),
    ("GPU003", host(nvml__gpus=(gpu(mig_enabled=True),)), "error", "the only GPU has no MIG device"),
    ("GPU003", host(nvml__gpus=(gpu(mig_enabled=True), gpu(1))), "warning: GPU 0", "one of two is empty"),
    ("GPU003", host(nvml__gpus=(gpu(mig_enabled=True, mig_instances=("MIG-1",)),)), "passed", "divided"),
    ("GPU005", host(driver__pci_gpus=BUS * 2), "warning: 2", "fewer GPUs than on the bus"),
    ("GPU005", healthy(), "passed", "as many as on the bus"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_driver(code):
    assert list_wrong(code, CASES) == []


def test_an_unknown_distribution_gets_the_guide():
    assert find_only("DRV001", nothing_installed(VOID)).fix.docs.startswith("https://docs.nvidia.com/")


UNREACHABLE = {
    "driver.on_disk": NEWER,
    "driver.libnvidia_ml": NEWER,
    "driver.libcuda": NEWER,
    "nvml": failure(18),
    "engine.runtimes": (),
    "engine.cdi_devices": (),
    "toolkit.version": None,
    "toolkit.daemon_files": (),
}
BLOCKED = failure(17, "GPU access blocked by the operating system")


@cases(
    "facts, root, others",
    {
        "a mismatch": (changed(healthy(), UNREACHABLE), "DRV002", {"DRV003", "CUD003", "CTK001", "CTK003"}),
        "a hung driver, even where the bus shows no GPU": (
            changed(without_gpu(), {"nvml": failure(0, end=NvmlEnd.TIMED_OUT)}),
            "DRV003",
            set(),
        ),
        "Windows blocks the GPU": (changed(windows_guest(), {"nvml": BLOCKED}), "WSL004", {"DRV003"}),
        "the closed module": (changed(flavored("0x2b85", is_open=False), {"nvml.gpus": ()}), "DRV004", set()),
        "a lost GPU": (LOST, "GPU002", set()),
    },
)
def test_the_driver_is_the_root(facts, root, others):
    report = build_full_report(facts)
    assert report.root_causes == (root,)
    assert {shown.check.code for shown in report.following(root)} >= others


def test_every_finding_carries_evidence_and_a_fix():
    for facts in (not_loaded(), answering(999)):
        findings = [shown.finding for shown in build_full_report(facts).findings]
        assert findings
        assert all(finding.evidence and finding.fix.summary.endswith(".") for finding in findings)
