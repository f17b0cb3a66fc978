"""The NVIDIA kernel driver, read from the kernel's own files, its installation, and the Fabric Manager."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from devkit.facts.gpu import AptSource, Driver, DriverPackage
from devkit.facts.machine import Platform
from devkit.facts.values import NOT_READ, Release, Unknown
from devkit.probe.circumstances import detect_container
from devkit.probe.gpu.pci import read_pci
from devkit.probe.host import NOT_FOUND, TIMED_OUT, Host, explain_failure
from devkit.probe.machine.operating_system import (
    read_group_ids,
    read_kernel_and_machine,
    read_platform,
    read_tegra,
    read_user_id,
)
from devkit.probe.machine.programs import find_libraries, find_program, read_library_release, read_loader_cache

# The Fabric Manager, which connects GPUs through NVSwitches.
FABRIC_MANAGER_STATE = ("systemctl", "is-active", "nvidia-fabricmanager")
FABRIC_MANAGER_UNITS = (
    "/lib/systemd/system/nvidia-fabricmanager.service",
    "/usr/lib/systemd/system/nvidia-fabricmanager.service",
    "/etc/systemd/system/nvidia-fabricmanager.service",
)
FABRIC_MANAGER = "nv-fabricmanager"

UNIT_STATES = (
    *("active", "inactive", "failed", "activating", "deactivating", "reloading", "refreshing", "maintenance"),
    "unknown",
)
"""Everything that `systemctl is-active` prints. Source: systemd, unit-def.c and systemctl-is-active.c."""

# Installation: packages and their sources, signature, build, firmware, permissions of the device nodes.
SIGNER = ("modinfo", "-F", "signer", "nvidia")
RPM_DRIVER_PACKAGES = ("rpm", "-qa", "--qf", "%{NAME}=%{VERSION}-%{RELEASE} ", "*nvidia*", "cuda-drivers*")
DPKG_STATUS = "/var/lib/dpkg/status"
YUM_REPOSITORIES = "/etc/yum.repos.d"
APT_SOURCES = "/etc/apt/sources.list.d"
DKMS_TREE = "/var/lib/dkms"
FIRMWARE_FOLDERS = ("/lib/firmware", "/usr/lib/firmware", "/run/current-system/firmware")
MODULE_PARAMETERS = "/proc/driver/nvidia/params"
TELLING_PARAMETERS = ("DeviceFile", "ModifyDeviceFiles", "EnableGpuFirmware", "PreserveVideoMemoryAllocations")
INFINIBAND = "/sys/class/infiniband"
MAX_ERROR_CHARACTERS = 200
_INSTALLATION = tuple(each.name for each in fields(Driver) if each.default is NOT_READ)
"""Facts of the driver that are only read beside a GPU."""
_PACKAGES = ("nvidia-", "libnvidia-", "cuda-drivers", "linux-modules-nvidia", "libcuda1")
_PARAGRAPHS = tuple(f"Package: {name}" for name in _PACKAGES)
_FIELD = re.compile(r"^(Package|Status|Version): (.+)$", re.MULTILINE)
_TOOLKIT_PACKAGES = re.compile(r"(?:lib)?nvidia-container|nvidia-docker")
_TOOLKIT_URL = re.compile(r"https?://nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container)\S*")
_SIGNED_BY = re.compile(r"signed-by\s*[=:]\s*([^\]\s]+)", re.IGNORECASE)
_BUILD_ERROR = re.compile(r"(?:fatal )?error:|^ERROR|^Error!|modpost: .*undefined|unrecognized command-line option")
CHARACTER_DEVICES = "/proc/devices"
_GPU_DEVICES = ("nvidia", "nvidia-frontend")
"""What the GPUs' own nodes are called in /proc/devices; the second by older drivers."""
_NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm)")
_GPU_NODE = re.compile(r"nvidia\d+")
_MODULE = re.compile(r"^(nvidia\w*|nv_peer_mem|nouveau|ib_core|ib_uverbs|vfio_pci) ", re.MULTILINE)
_HOST_OF_KEY = re.compile(r"^\S+(?= Secure Boot Module Signature key)")

MODULE_ON_DISK = ("modinfo", "-F", "version", "nvidia")
DKMS = ("dkms", "status")
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PACKAGE_LOGS = ("/var/log/dpkg.log", "/var/log/dnf.rpm.log", "/var/log/zypp/history", "/var/log/pacman.log")
UPGRADES_KEPT = 5
_DRIVER_PACKAGE = re.compile(
    r"nvidia-(?:driver|dkms|utils|kernel|open|compute|firmware|settings|modprobe|x11)|libnvidia-(?!container)|libcuda1"
    r"|cuda-drivers|kmod-nvidia|linux-modules-nvidia|xorg-x11-drv-nvidia"
)
_CHANGE = re.compile(r" (?:upgrade|install) |Upgraded?:|Installed?:|\|install\||\[ALPM\] (?:upgraded|installed)")

_VERSION = re.compile(r"\b\d{3}\.\d{2,3}(?:\.\d{2,3})?\b")
"""Every driver since 2010: 260.19.06, 580.95.05."""


def read_driver(host: Host) -> Driver:
    """Read the kernel module, its libraries and device nodes, and the GPUs on the PCI bus."""
    kernel, _ = read_kernel_and_machine(host)
    cache = read_loader_cache(host)
    cuda_paths = find_libraries(host, "libcuda.so.1", cache)
    # The system's own is the driver's; what LD_LIBRARY_PATH puts before it counts where there is no other.
    ml_paths = find_libraries(host, "libnvidia-ml.so.1", cache, search_path="") or find_libraries(
        host, "libnvidia-ml.so.1", cache
    )
    absent = cache if isinstance(cache, Unknown) and cache.is_lost else None
    loaded, is_open = _loaded(host)
    pci_gpus, nvswitch = read_pci(host)
    names = [f"/dev/{name}" for name in host.list("/dev") if name.startswith("nvidia")]
    is_linux_host = read_platform(host) is Platform.LINUX and not detect_container(host)
    if isinstance(pci_gpus, Unknown) and names and is_linux_host:
        # The driver works with a GPU on a bus that does not show: not a machine without one.
        pci_gpus = nvswitch = replace(pci_gpus, is_lost=True)
    libcuda = read_library_release(host, cuda_paths[0]) if cuda_paths else absent
    if isinstance(libcuda, Unknown) and is_linux_host and read_tegra(host) is None:
        # NVIDIA's own is libcuda.so.580.95.05, and this one is something else.
        libcuda = replace(libcuda, is_lost=True)
    outcome = host.open_error("/dev/nvidiactl")
    modinfo = host.run(MODULE_ON_DISK)
    on_disk: Release | Unknown | None = None
    if modinfo.code == 0:
        version = _VERSION.fullmatch(modinfo.out.strip())
        on_disk = Release.parse(version[0]) if version else Unknown("modinfo printed no version", is_lost=True)
    elif modinfo.code == NOT_FOUND or "not found" not in modinfo.err:
        is_lost = modinfo.code != NOT_FOUND
        on_disk = explain_failure(MODULE_ON_DISK, modinfo, "modinfo is missing or did not answer", is_lost=is_lost)
    package_changes = [
        line.strip()
        for log in PACKAGE_LOGS
        for line in (host.read(log) or "").splitlines()
        if _DRIVER_PACKAGE.search(line) and _CHANGE.search(line)
    ]
    driver = Driver(
        loaded=loaded,
        is_open=is_open,
        on_disk=on_disk,
        dkms_state=_dkms_state(host, kernel),
        libnvidia_ml=read_library_release(host, ml_paths[0]) if ml_paths else absent,
        libcuda=libcuda,
        libcuda_paths=cuda_paths if cuda_paths or absent is None else absent,
        device_nodes=tuple(
            name for name in names if (found := host.stat(name)) is not None and found.kind == "character"
        ),
        nvidiactl="absent" if outcome == "ENOENT" else outcome,
        pci_gpus=pci_gpus,
        nvswitch_present=nvswitch,
        fabric_manager=read_fabric_manager_state(host, nvswitch),
        headers_present=host.stat(f"/lib/modules/{kernel}/build") is not None if kernel else Unknown("no kernel name"),
        secure_boot=_secure_boot(host),
        upgraded_packages=tuple(package_changes[-UPGRADES_KEPT:]),
    )
    return add_installation(host, driver)


def _loaded(host: Host) -> tuple[Release | Unknown | None, bool | Unknown]:
    """The loaded module's version and whether it is the open flavor."""
    text = host.read("/proc/driver/nvidia/version")
    version = host.read("/sys/module/nvidia/version")
    if text is None and version is None:
        return None, Unknown("the nvidia module is not loaded")
    is_open: bool | Unknown = "Open Kernel Module" in text if text else Unknown("/proc/driver/nvidia is not visible")
    found = _VERSION.fullmatch((version or "").strip()) or _VERSION.search(text or "")
    if found is None:
        return Unknown("the loaded module does not report its version"), is_open
    return Release.parse(found[0]), is_open


def _dkms_state(host: Host, kernel: str) -> str | Unknown:
    """The state of the nvidia module for the running kernel, out of lines like
    `nvidia/580.95.05, 6.8.0-45-generic, x86_64: installed`; "added" carries no kernel."""
    if not any(name.startswith("nvidia") for name in host.list("/var/lib/dkms")):
        return ""
    done = host.run(DKMS)
    if done.code != 0:
        return explain_failure(DKMS, done, "dkms is missing or did not answer")
    states = [
        state.strip().split(" ", 1)[0]
        for module, _, state in (line.rpartition(":") for line in done.out.splitlines())
        if module.startswith("nvidia") and (kernel in module or state.strip() == "added")
    ]
    return states[0] if states else ""


def _secure_boot(host: Host) -> bool | Unknown:
    if host.stat("/sys/firmware") is None:
        return Unknown("/sys/firmware is not visible here")
    if host.stat("/sys/firmware/efi") is None:
        return False
    text = host.read(SECURE_BOOT)
    # Four bytes of attributes, then the value.
    return text[4] == "\x01" if text and len(text) > 4 else Unknown("the SecureBoot variable cannot be read")


def read_fabric_manager_state(host: Host, nvswitch: bool | Unknown) -> str | Unknown:
    """Read the service's state from systemd; only with an NVSwitch, or with the service installed."""
    if nvswitch is not True and not any(host.stat(path) for path in FABRIC_MANAGER_UNITS):
        return Unknown("only read on machines with an NVSwitch, or with the service installed")
    done = host.run(FABRIC_MANAGER_STATE)
    state = done.out.strip()
    if done.code == TIMED_OUT or state not in UNIT_STATES:
        return explain_failure(FABRIC_MANAGER_STATE, done, "systemctl is missing or did not answer")
    return state


def read_fabric_manager_version(host: Host, nvswitch: bool | Unknown) -> Release | Unknown | None:
    """Read the installed Fabric Manager's version; None when it is not installed."""
    if nvswitch is not True:
        return Unknown("only read on machines with an NVSwitch")
    program = find_program(host, FABRIC_MANAGER)
    if not program:
        return None
    done = host.run((program, "--version"))
    return Release.find(done.out) or explain_failure(
        (FABRIC_MANAGER, "--version"),
        done,
        f"{FABRIC_MANAGER} --version ended with status {done.code} and did not print a version",
    )


def add_installation(host: Host, driver: Driver) -> Driver:
    """Return the driver with what only matters beside a GPU: without one nothing is read, and no program started."""
    gpus = driver.pci_gpus
    is_here = isinstance(driver.loaded, Release) or (not isinstance(gpus, Unknown) and bool(gpus))
    if not is_here or read_platform(host) is not Platform.LINUX:
        unread = Unknown("only read on systems with an NVIDIA GPU")
        fields: dict[str, Any] = dict.fromkeys(_INSTALLATION, unread)
        return replace(driver, **fields)
    signer, is_enrolled = _signature(host, driver)
    modules, parameters = host.read("/proc/modules"), host.read(MODULE_PARAMETERS)
    firmware_present: bool | Unknown = Unknown("only read where the driver is loaded, outside containers")
    if isinstance(driver.loaded, Release) and not detect_container(host):
        folders = [f"{folder}/nvidia/{driver.loaded}" for folder in FIRMWARE_FOLDERS]
        firmware_present = any(name.startswith("gsp") for folder in folders for name in host.list(folder))
    started = re.search(r"^btime (\d{9,11})$", host.read("/proc/stat") or "", re.MULTILINE)
    return replace(
        driver,
        module_signer=signer,
        signer_is_enrolled=is_enrolled,
        build_error=_build_error(host, driver),
        firmware_present=firmware_present,
        parameters=tuple(line for line in parameters.splitlines() if line.startswith(TELLING_PARAMETERS))
        if parameters
        else Unknown(f"{MODULE_PARAMETERS} is not visible here"),
        packages=_packages(host),
        apt_sources=tuple(_apt_sources(host)),
        closed_nodes=_closed_nodes(host),
        stale_nodes=tuple(_list_stale_nodes(host)),
        withheld_nodes=tuple(
            f"/dev/{name}"
            for name in host.list("/dev")
            if _GPU_NODE.fullmatch(name) and host.is_withheld(f"/dev/{name}")
        ),
        booted_at=datetime.fromtimestamp(int(started[1]), UTC).isoformat(timespec="seconds")
        if started
        else Unknown("/proc/stat does not say"),
        modules=tuple(sorted(_MODULE.findall(modules))) if modules else Unknown("/proc/modules is not visible here"),
        has_infiniband=bool(host.list(INFINIBAND)),
        fabric_manager_version=read_fabric_manager_version(host, driver.nvswitch_present),
    )


def _signature(host: Host, driver: Driver) -> tuple[str | Unknown, bool | Unknown]:
    """Return who signed the module on disk, and whether this machine's owner trusts that key."""
    if driver.loaded is not None or driver.secure_boot is not True or not isinstance(driver.on_disk, Release):
        unread = Unknown("only read where Secure Boot may have refused the module")
        return unread, unread
    done = host.run(SIGNER)
    if done.code != 0:
        unread = explain_failure(SIGNER, done, "modinfo is missing or did not answer")
        return unread, unread
    signer = done.out.strip()
    keys = host.run(("mokutil", "--list-enrolled"))
    is_listed = keys.code == 0 and "Subject:" in keys.out
    enrolled = signer in keys.out if is_listed and signer else Unknown("mokutil did not list the enrolled keys")
    return _HOST_OF_KEY.sub("(host)", signer), enrolled


def _build_error(host: Host, driver: Driver) -> str | Unknown:
    """The first error in DKMS's log of the newest version that it tried."""
    if driver.loaded is not None or driver.dkms_state not in ("added", "built"):
        return Unknown("only read where DKMS did not install the module")
    logs = [
        f"{DKMS_TREE}/{module}/{version}/build/make.log"
        for module in host.list(DKMS_TREE)
        if module.startswith("nvidia")
        for version in host.list(f"{DKMS_TREE}/{module}")
    ]
    texts = [text for text in map(host.read, logs) if text]
    if not texts:
        return Unknown("DKMS left no readable build log")
    lines = (line.strip() for line in texts[-1].splitlines())
    return next((line[:MAX_ERROR_CHARACTERS] for line in lines if _BUILD_ERROR.search(line)), "")


def _packages(host: Host) -> tuple[DriverPackage, ...] | Unknown:
    """Packages of the driver, the Container Toolkit's left out. RPM is only queried where two repositories compete."""
    if detect_container(host):
        return Unknown("a container's packages are not the host's")
    status = host.read(DPKG_STATUS)
    if status:
        found = []
        # Of dpkg's megabytes only the paragraphs of the driver are looked into.
        for paragraph in status.split("\n\n"):
            if paragraph.lstrip("\n").startswith(_PARAGRAPHS):
                fields: dict[str, str] = dict(_FIELD.findall(paragraph))
                if len(fields) == 3 and not _TOOLKIT_PACKAGES.match(fields["Package"]):
                    found.append(DriverPackage(fields["Package"], fields["Version"], fields["Status"].split()[-1]))
        return tuple(found)
    sources = host.list(YUM_REPOSITORIES)
    if not all(any(name.startswith(prefix) for name in sources) for prefix in ("cuda-", "rpmfusion-nonfree")):
        return Unknown("only dpkg's records are read, and RPM's where two repositories offer the driver")
    done = host.run(RPM_DRIVER_PACKAGES)
    if done.code == NOT_FOUND or not done.out:
        return Unknown("rpm did not answer")
    pairs = (word.split("=", 1) for word in sorted(done.out.split()) if "=" in word)
    return tuple(DriverPackage(name, version, "installed") for name, version in pairs)


def _apt_sources(host: Host) -> Iterator[AptSource]:
    for name in host.list(APT_SOURCES):
        path = f"{APT_SOURCES}/{name}"
        text = (host.read(path) or "") if name.endswith((".list", ".sources")) else ""
        # One entry a line in the old format, one a paragraph in the new.
        entries = text.split("\n\n") if name.endswith(".sources") else text.splitlines()
        for entry in entries:
            url = None if entry.lstrip().startswith("#") else _TOOLKIT_URL.search(entry)
            if url:
                key = _SIGNED_BY.search(entry)
                yield AptSource(path, url[0].rstrip("/"), key[1] if key else "")


def _list_stale_nodes(host: Host) -> Iterator[str]:
    """Yield nodes that an earlier driver left behind: the kernel may give other numbers at each load."""
    rows = re.findall(r"^\s*(\d+) (nvidia[\w-]*)$", host.read(CHARACTER_DEVICES) or "", re.MULTILINE)
    majors = {name: number for number, name in rows}
    for name in host.list("/dev") if majors else ():
        node = host.stat(f"/dev/{name}") if _NODE.fullmatch(name) else None
        driver = name if name.startswith("nvidia-") else next((each for each in _GPU_DEVICES if each in majors), "")
        if node is None or not node.device or driver not in majors:
            continue
        major = node.device.partition(":")[0]
        if major != majors[driver]:
            yield f"/dev/{name}: major number {major}, and the driver has {majors[driver]}"


def _closed_nodes(host: Host) -> tuple[str, ...] | Unknown:
    """Nodes whose mode keeps this user out; what a container's device rules forbid shows when they are opened."""
    user, groups = read_user_id(host), read_group_ids(host)
    if user is None:
        return Unknown("the user ID is unknown")
    closed = []
    for name in host.list("/dev"):
        node = host.stat(f"/dev/{name}") if _NODE.fullmatch(name) else None
        if node is None or node.kind != "character" or user == 0:
            continue
        shift = 6 if node.uid == user else 3 if node.gid in groups else 0
        if node.mode >> shift & 0o6 != 0o6:
            closed.append(f"/dev/{name}: mode {node.mode:04o}, user {node.uid}, group {node.gid}")
    return tuple(closed)
