"""Checks of how the driver was installed: module, firmware, packages, sources, sleep, Secure Boot."""

import pytest

from devkit.facts.gpu import AptSource, DriverPackage, KernelLog, NvmlAnswer, NvmlEnd, NvmlFailure, PciGpu
from devkit.facts.runs import CudaCall, Deep
from devkit.facts.values import Unknown
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import DRIVER, FEDORA, GIB, NIXOS, changed, gpu, health, healthy, inside, r, windows_guest
from tests.doctor.running import build_full_report

MIB = 1 << 20
HERE = "0000:01:00.0"
NO_GPU = NvmlAnswer(DRIVER, r("13.0"), ())
NOT_LOADED = NvmlFailure(NvmlEnd.ERROR, 9, "Driver Not Loaded", "nvmlInit_v2")
NOT_KNOWN = Unknown("not read")


def host(*lines, woke=None, nvml=None, distribution=None, **changes):
    """The healthy host with fields of its driver changed, and `lines` in its kernel log."""
    facts = changed(healthy(), {f"driver.{name}": value for name, value in changes.items()})
    facts = changed(facts, {"system.distribution": distribution or facts.system.distribution})
    return changed(facts, {"nvml": nvml or facts.nvml, "kernel_log": KernelLog((), lines, "journalctl", True, woke)})


def device(device_id="0x2684", driver="nvidia", bar1=32 * GIB):
    return (PciGpu(HERE, device_id, driver, 16, bar1),)


def window(size, *lines, driver="nvidia", nvml=NO_GPU):
    return host(*lines, pci_gpus=device(bar1=size, driver=driver), nvml=nvml)


def old(device_id, version=DRIVER, *, is_open=True, nvml=None, **changes):
    return host(pci_gpus=device(device_id), loaded=version, is_open=is_open, nvml=nvml, **changes)


FAILED_START = f"NVRM: GPU {HERE}: RmInitAdapter failed! (0x22:0x56:884)"
OTHER_DEVICE = "pci 0000:05:00.0: BAR 1: can't assign; no space"
LEGACY = (
    "NVRM: The NVIDIA GeForce GTX 1080 Ti GPU installed in this system is supported through the NVIDIA 580.xx Legacy"
    " drivers. Please visit http://www.nvidia.com/object/unix.html for more information. The 610.43.02 NVIDIA driver"
    " will ignore this GPU."
)
OPEN_WANTED = (
    f"NVRM: The NVIDIA GPU {HERE} (PCI ID: 10de:2684) installed in this system requires use of the NVIDIA open kernel"
    " modules."
)
NOT_FOUND = f"nvidia {HERE}: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2"
STUCK = "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM"
BLACKWELL_CLOSED = {"is_open": False, "pci_gpus": device("0x2b85"), "nvml": NO_GPU}
OTHER = r("570.172.08")


def package(name, version="580.95.05", state="installed"):
    return DriverPackage(name, version, state)


META = package("cuda-drivers", "580.95.05-0ubuntu1")
OF_UBUNTU = package("nvidia-driver-580-open", "580.95.05-0ubuntu0.24.04.2")
OF_NVIDIA = package("nvidia-driver-580-open", "580.95.05-0ubuntu1")

REPOSITORY = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
KEY = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"


def sources(**keys):
    """The list of today's guide, and others by name with their key and repository."""
    new = AptSource("/etc/apt/sources.list.d/nvidia-container-toolkit.list", REPOSITORY, KEY)
    others = [AptSource(f"/etc/apt/sources.list.d/{name}.list", *where) for name, where in keys.items()]
    return host(apt_sources=(*others, new))


def deep(code, **changes):
    return changed(host(**changes), {"deep": Deep(CudaCall(code, "/usr/lib/libcuda.so.580.95.05"))})


WAITING = changed(deep(802), {"nvml.gpus": (gpu(health=health(fabric_state="in-progress", fabric_status=0)),)})
WOKE = "2025-12-31T13:02:07+0000"
FORGETS = ("PreserveVideoMemoryAllocations: 0",)
ASLEEP_INSIDE = changed(deep(999, woke=WOKE), {"container": inside().container})


def upgraded(moment):
    line = f"{moment} upgrade libnvidia-compute-580:amd64 580.82.07 580.95.05"
    return host(loaded=r("580.82.07"), upgraded_packages=(line,), booted_at="2025-12-30T08:00:00+00:00")


def unsigned(*lines, **changes):
    gone = {"loaded": None, "is_open": NOT_KNOWN, "pci_gpus": device(driver=""), "nvml": NOT_LOADED}
    return host(*lines, **gone | {"secure_boot": True} | changes)


DKMS = "DKMS module signing key"
LOCKED = unsigned("Lockdown: modprobe: unsigned module loading is restricted", secure_boot=False)
BUILD_FAILED = unsigned(on_disk=None, dkms_state="added", build_error="x.c:1: error: too many arguments")
NOT_ENROLLED = "error: key is not enrolled | confidence: certain"
NOT_IT = "error: is installed for this kernel but not loaded | confidence: certain"

CASES = [
    ("GPU008", host(), "passed", "a window of 32 GiB"),
    ("GPU008", host(pci_gpus=device(bar1=256 * MIB)), "passed", "a small one that works"),
    ("GPU008", window(256 * MIB, FAILED_START), "error", "a small one that failed"),
    ("GPU008", window(257 * MIB, FAILED_START), "passed", "one just larger"),
    ("GPU008", window(256 * MIB), "passed", "failed for no reason in the log"),
    ("GPU008", window(256 * MIB, OTHER_DEVICE), "passed", "another device has no window"),
    ("GPU008", window(256 * MIB, FAILED_START, OPEN_WANTED), "passed", "failed for another reason"),
    ("GPU008", window(0), "error", "none"),
    ("GPU008", window(0, nvml=healthy().nvml), "passed", "none, of a GPU that NVML answers for"),
    ("GPU008", window(0, nvml=healthy().nvml, driver="vfio-pci"), "passed", "none, of a GPU that is given away"),
    ("GPU008", window(NOT_KNOWN, nvml=healthy().nvml), "passed", "unknown"),
    ("GPU008", host(pci_gpus=NOT_KNOWN), "skipped", "no bus to see"),
    ("DRV008", old("0x1b06", is_open=False), "passed", "Pascal under 580, proprietary"),
    ("DRV008", old("0x1b06"), "warning: 580", "Pascal under the open module"),
    ("DRV008", old("0x1b06", distribution=FEDORA), "warning: akmod-nvidia-580xx", "the same on Fedora"),
    ("DRV008", old("0x1b06", r("590.44.01"), is_open=False, nvml=NOT_LOADED), "error: 580", "Pascal under 590"),
    ("DRV008", old("0x1e04", r("610.43.02")), "passed", "Turing under 610"),
    ("DRV008", old("0x102d", r("535.230.02"), is_open=False, nvml=NOT_LOADED), "error: 470", "Kepler under 535"),
    ("DRV008", old("0x1b06", None, on_disk=None), "passed", "no driver is no old driver"),
    ("DRV008", host(LEGACY), "skipped", "a line about another GPU, and all that are here work"),
    ("DRV008", host(LEGACY, nvml=NO_GPU), "error", "the driver's own words"),
    ("DRV008", old("?"), "passed", "an id that cannot be read"),
    ("DRV004", host(**BLACKWELL_CLOSED), "error: confidence: likely", "the closed module on Blackwell"),
    ("DRV004", host(OPEN_WANTED, **BLACKWELL_CLOSED), "error: confidence: certain", "and the driver says so"),
    ("DRV004", host(OPEN_WANTED, is_open=False), "error", "the driver says so of an unknown generation"),
    ("DRV007", host(), "passed", "no word of firmware"),
    ("DRV007", host(firmware_present=False), "passed", "no firmware, and all GPUs work"),
    ("DRV007", host(firmware_present=False, nvml=NO_GPU), "error", "no firmware, and no GPU"),
    ("DRV007", host(firmware_present=NOT_KNOWN, nvml=NO_GPU), "passed", "firmware unknown"),
    ("DRV007", host(firmware_present=False, is_open=False, nvml=NO_GPU), "passed", "a module that may do without"),
    ("DRV007", host(NOT_FOUND, nvml=NO_GPU), "error: nvidia-firmware-580", "the log misses it"),
    ("DRV007", host(NOT_FOUND), "warning", "the log missed it, and all GPUs work"),
    ("DRV007", host(STUCK, nvml=NO_GPU), "error: no command that restarts", "it is there and does not start"),
    ("DRV007", host(STUCK), "passed", "it did not start once, and works now"),
    ("DRV007", host(loaded=None), "skipped", "no module is loaded"),
    ("DRV006", host(), "passed", "nodes open to all"),
    ("DRV006", host(closed_nodes=("/dev/nvidia0: mode 0660, user 0, group 44",)), "error: mode 0660", "closed"),
    ("DRV006", host(closed_nodes=NOT_KNOWN), "skipped", "modes that are not known"),
    ("DRV006", windows_guest(), "skipped", "under WSL"),
    ("DRV012", host(on_disk=OTHER), "error: 570.172.08 | 580.95.05", "another module on disk"),
    ("DRV012", host(on_disk=None), "passed", "no module, which is another finding"),
    ("DRV012", host(on_disk=NOT_KNOWN), "skipped", "not known"),
    ("DRV012", host(on_disk=OTHER, distribution=NIXOS), "skipped", "on NixOS"),
    ("DRV012", host(packages=(package("nvidia-dkms-580-open", state="half-configured"),)), "warning", "half installed"),
    (
        "DRV012",
        host(packages=(package("nvidia-utils-570", state="config-files"),)),
        "passed",
        "what a removed one left",
    ),
    ("DRV012", inside(), "skipped", "inside a container"),
    ("DRV002", upgraded("2025-12-31 06:41:02"), "error: never update-initramfs | restart: host", "not rebooted since"),
    (
        "DRV002",
        upgraded("2025-12-29 08:00:00"),
        "error: never update-initramfs",
        "perhaps rebooted since, in local time",
    ),
    ("DRV002", upgraded("2025-12-29 07:59:59"), "error: sudo update-initramfs -u | restart: host", "surely rebooted"),
    ("DRV013", host(packages=(OF_UBUNTU,)), "passed", "Ubuntu's driver alone"),
    ("DRV013", host(packages=(META, OF_NVIDIA)), "passed", "NVIDIA's driver alone"),
    ("DRV013", host(packages=(META, OF_UBUNTU)), "warning", "both"),
    ("DRV013", host(packages=(META, package("akmod-nvidia"))), "warning", "RPM Fusion's beside"),
    ("DRV013", host(packages=NOT_KNOWN), "skipped", "packages that were not listed"),
    ("DRV013", changed(inside(), {"driver.packages": (META, OF_UBUNTU)}), "skipped", "packages of a container"),
    ("DRV011", sources(), "passed", "one list"),
    ("DRV011", sources(b=(REPOSITORY, "")), "warning: sudo rm /etc/apt/sources.list.d/b.list", "two keys"),
    ("DRV011", sources(b=(REPOSITORY, KEY)), "passed", "two lists, one key"),
    ("DRV011", sources(b=("https://nvidia.github.io/nvidia-docker", "")), "passed", "two repositories"),
    ("DRV011", host(apt_sources=()), "passed", "no list"),
    ("DRV011", host(apt_sources=NOT_KNOWN), "skipped", "lists that were not read"),
    ("DRV009", deep(999, woke=WOKE), "error", "999 after sleep"),
    ("DRV009", deep(999, woke=NOT_KNOWN), "error", "999, and the log is closed"),
    ("DRV009", deep(999), "skipped", "999 without sleep is another's"),
    ("DRV009", deep(0, woke=WOKE), "passed", "it works after sleep"),
    ("DRV009", host(woke=WOKE, parameters=FORGETS), "note", "not tried, and memory is not kept"),
    ("DRV009", host(woke=WOKE), "skipped", "not tried, and memory is kept"),
    ("DRV009", host(parameters=FORGETS), "skipped", "not tried, and never slept"),
    ("DRV009", ASLEEP_INSIDE, "skipped", "inside a container"),
    ("DRV010", deep(802), "error: 802", "802 without an NVSwitch"),
    ("DRV010", deep(3), "error", "3 without an NVSwitch"),
    ("DRV010", deep(100), "passed", "another error"),
    ("DRV010", deep(802, nvswitch_present=True, fabric_manager="active"), "skipped", "802 with an NVSwitch"),
    ("DRV010", WAITING, "skipped", "802 of a GPU that waits for its fabric"),
    ("DRV010", host(), "skipped", "not tried"),
    ("DRV001", unsigned(), "error: most likely not enrolled | confidence: likely", "nothing more is known"),
    ("DRV001", unsigned("Loading of module with unavailable key is rejected"), NOT_ENROLLED, "the log says so"),
    ("DRV001", unsigned(module_signer=DKMS, signer_is_enrolled=False), NOT_ENROLLED, "the key is not in the list"),
    ("DRV001", unsigned(module_signer=""), "error: it is not signed | confidence: certain", "no signature at all"),
    ("DRV001", LOCKED, "error: this kernel rejects | confidence: likely", "a locked kernel without Secure Boot"),
    ("DRV001", unsigned(module_signer=DKMS, signer_is_enrolled=True), NOT_IT, "the key is enrolled"),
    (
        "DRV001",
        unsigned(module_signer="Canonical Ltd. Kernel Module Signing", signer_is_enrolled=False),
        NOT_IT,
        "the distribution's key needs no enrolment",
    ),
    ("DRV001", BUILD_FAILED, "error: too many arguments", "the build log's error is evidence"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_installation(code):
    assert list_wrong(code, CASES) == []


@pytest.mark.parametrize(
    ("facts", "root"),
    [
        pytest.param(host(OPEN_WANTED, **BLACKWELL_CLOSED), "DRV004", id="the closed module, and no GPU"),
        pytest.param(host(loaded=OTHER, on_disk=OTHER), "DRV012", id="a mismatch that a reboot does not mend"),
    ],
)
def test_a_wrong_module_is_the_root(facts, root):
    assert build_full_report(facts).root_causes == (root,)
