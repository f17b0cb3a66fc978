import pytest

from devkit.facts.values import Release, Unknown
from devkit.probe.gpu.driver import read_driver
from tests.cases import cases
from tests.hosts import written

UNAME = '[[command]]\nargv = ["uname", "-s", "-r", "-m"]\nout = "Linux 6.8.0-1 x86_64"\n'


def driver(tmp_path, text):
    return read_driver(written(tmp_path, text + "\n" + UNAME))


def command(*argv, code=0, out="", err=""):
    return f"[[command]]\nargv = {list(argv)}\ncode = {code}\nout = '''{out}'''\nerr = '''{err}'''\n"


def file(path, text):
    return f"[files]\n\"{path}\" = '''{text}'''\n"


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"


@pytest.mark.parametrize(
    ("text", "loaded", "is_open"),
    [
        pytest.param(OPEN, "580.95.05", True, id="open"),
        pytest.param(CLOSED, "470.256.02", False, id="closed, whose line has another number first"),
    ],
)
def test_the_loaded_module_says_its_version_and_flavor(tmp_path, text, loaded, is_open):
    found = driver(tmp_path, file("/proc/driver/nvidia/version", text))
    assert (str(found.loaded), found.is_open) == (loaded, is_open)


def test_a_module_seen_only_in_sys_has_a_version_and_no_known_flavor(tmp_path):
    found = driver(tmp_path, file("/sys/module/nvidia/version", "580.95.05\n"))
    assert str(found.loaded) == "580.95.05"
    assert isinstance(found.is_open, Unknown)


MODINFO = ("modinfo", "-F", "version", "nvidia")


@cases(
    "recorded, on_disk",
    {
        "installed": (command(*MODINFO, out="580.95.05\n"), Release.parse("580.95.05")),
        "not installed": (command(*MODINFO, code=1, err="modinfo: ERROR: Module nvidia not found."), None),
        "modinfo is missing": ("", "modinfo is missing or did not answer"),
        "modinfo hangs": (command(*MODINFO, code=124), "`modinfo -F version nvidia` did not answer in time"),
        "a module without a version": (command(*MODINFO, out="\n"), "modinfo printed no version"),
    },
)
def test_a_missing_tool_is_never_taken_for_a_missing_module(tmp_path, recorded, on_disk):
    found = driver(tmp_path, recorded).on_disk
    assert (found.reason if isinstance(found, Unknown) else found) == on_disk


NVIDIA_DKMS = file("/var/lib/dkms/nvidia/x", "")


@cases(
    "text, state",
    {
        "nothing in dkms": ("", ""),
        "installed for this kernel": (
            NVIDIA_DKMS + command("dkms", "status", out="nvidia/580.95.05, 6.8.0-1, x86_64: installed\n"),
            "installed",
        ),
        "installed for another kernel only": (
            NVIDIA_DKMS + command("dkms", "status", out="nvidia/580.95.05, 6.5.0-9, x86_64: installed\n"),
            "",
        ),
        "an older dkms with a warning": (
            NVIDIA_DKMS + command("dkms", "status", out="nvidia, 535.1, 6.8.0-1, x86_64: built (WARNING! Diff)\n"),
            "built",
        ),
        "added but not built": (
            NVIDIA_DKMS + command("dkms", "status", out="zfs/2, 6.8.0-1, x86_64: installed\nnvidia/580.95.05: added\n"),
            "added",
        ),
        "dkms does not answer": (NVIDIA_DKMS, Unknown("dkms is missing or did not answer")),
    },
)
def test_dkms_state_of_the_running_kernel(tmp_path, text, state):
    assert driver(tmp_path, text).dkms_state == state


BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param(f'[files]\n"{BOOT}" = "\\u0006\\u0000\\u0000\\u0000\\u0001"', True, id="on"),
        pytest.param(f'[files]\n"{BOOT}" = "\\u0006\\u0000\\u0000\\u0000\\u0000"', False, id="off"),
        pytest.param(file("/sys/firmware/acpi/x", ""), False, id="a BIOS has none"),
        pytest.param(file("/sys/firmware/efi/x", ""), Unknown("the SecureBoot variable cannot be read"), id="hidden"),
        pytest.param("", Unknown("/sys/firmware is not visible here"), id="inside a container"),
    ],
)
def test_secure_boot_is_on_off_or_unknown(tmp_path, text, state):
    assert driver(tmp_path, text).secure_boot == state


def pci(vendor="0x10de", kind="0x030000"):
    folder = "/sys/bus/pci/devices/0000:01:00.0"
    return f'[files]\n"{folder}/vendor" = "{vendor}"\n"{folder}/class" = "{kind}"\n"{folder}/device" = "0x2684"\n'


def test_a_gpu_that_no_driver_owns_says_so(tmp_path):
    assert driver(tmp_path, pci()).pci_gpus[0].kernel_driver == ""


@pytest.mark.parametrize("outcome", ["EPERM", "EACCES", "EIO", "ETIMEDOUT"])
def test_how_opening_the_control_device_fails_is_kept(tmp_path, outcome):
    text = f'[nodes."/dev/nvidiactl"]\nkind = "character"\nopen = "{outcome}"\n'
    found = driver(tmp_path, text)
    assert (found.nvidiactl, found.device_nodes) == (outcome, ("/dev/nvidiactl",))


@cases(
    "log, line, kept",
    {
        "a driver library": ("/var/log/dpkg.log", "2026-01-01 upgrade libnvidia-compute-580:amd64 1 2", True),
        "a module": ("/var/log/dpkg.log", "2026-01-01 install linux-modules-nvidia-580:amd64 <none> 2", True),
        "the toolkit": ("/var/log/dpkg.log", "2026-01-01 upgrade libnvidia-container1:amd64 1 2", False),
        "a state": ("/var/log/dpkg.log", "2026-01-01 status installed nvidia-driver-580:amd64 2", False),
        "dnf": ("/var/log/dnf.rpm.log", "2026-01-01 SUBDEBUG Upgraded: nvidia-driver-3:580-1", True),
        "pacman": ("/var/log/pacman.log", "[x] [ALPM] upgraded nvidia-utils (1 -> 2)", True),
    },
)
def test_upgrades_of_the_driver_are_remembered(tmp_path, log, line, kept):
    assert driver(tmp_path, file(log, line + "\n")).upgraded_packages == ((line,) if kept else ())
