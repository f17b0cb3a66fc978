"""How the driver is installed: packages and their sources, signature, build, firmware, who may use its devices."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from devkit.facts.model import AptSource, Driver, DriverPackage, Platform
from devkit.facts.values import Release, Unknown
from devkit.probe.container import container_kind
from devkit.probe.fabric import fabric_manager_version
from devkit.probe.host import NOT_FOUND, Host
from devkit.probe.system import group_ids, platform_of, user_id

SIGNER = ("modinfo", "-F", "signer", "nvidia")
ENROLLED_KEYS = ("mokutil", "--list-enrolled")
RPM_PACKAGES = ("rpm", "-qa", "--qf", "%{NAME}=%{VERSION}-%{RELEASE} ", "*nvidia*", "cuda-drivers*")
DPKG_STATUS = "/var/lib/dpkg/status"
YUM_REPOSITORIES = "/etc/yum.repos.d"
APT_SOURCES = "/etc/apt/sources.list.d"
DKMS_TREE = "/var/lib/dkms"
FIRMWARE_FOLDERS = ("/lib/firmware", "/usr/lib/firmware", "/run/current-system/firmware")
PARAMETERS = "/proc/driver/nvidia/params"
TELLING_PARAMETERS = ("DeviceFile", "ModifyDeviceFiles", "EnableGpuFirmware", "PreserveVideoMemoryAllocations")
INFINIBAND = "/sys/class/infiniband"

MOST_ERROR_CHARACTERS = 200

_PACKAGES = ("nvidia-", "libnvidia-", "cuda-drivers", "linux-modules-nvidia", "libcuda1")
_PARAGRAPHS = tuple(f"Package: {name}" for name in _PACKAGES)
_FIELD = re.compile(r"^(Package|Status|Version): (.+)$", re.MULTILINE)
_TOOLKIT_PACKAGES = re.compile(r"(?:lib)?nvidia-container|nvidia-docker")
_TOOLKIT_URL = re.compile(r"https?://nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container)\S*")
_SIGNED_BY = re.compile(r"signed-by\s*[=:]\s*([^\]\s]+)", re.IGNORECASE)
_BUILD_ERROR = re.compile(r"(?:fatal )?error:|^ERROR|^Error!|modpost: .*undefined|unrecognized command-line option")
_NODE = re.compile(r"nvidia(?:\d+|ctl|-uvm)")
_MODULE = re.compile(r"^(nvidia\w*|nv_peer_mem|nouveau|ib_core|ib_uverbs|vfio_pci) ", re.MULTILINE)
_HOST_OF_KEY = re.compile(r"^\S+(?= Secure Boot Module Signature key)")


def with_installation(host: Host, driver: Driver) -> Driver:
    """The same driver with what only matters beside a GPU: it is not read, and no program started, without one."""
    gpus = driver.pci_gpus
    is_here = isinstance(driver.loaded, Release) or (not isinstance(gpus, Unknown) and bool(gpus))
    if not is_here or platform_of(host) is not Platform.LINUX:
        return _without_installation(driver)
    signer, is_enrolled = _signature(host, driver)
    return replace(
        driver,
        module_signer=signer,
        signer_is_enrolled=is_enrolled,
        build_error=_build_error(host, driver),
        firmware_present=_firmware_present(host, driver),
        parameters=_parameters(host),
        packages=_packages(host),
        apt_sources=tuple(_apt_sources(host)),
        closed_nodes=_closed_nodes(host),
        booted_at=_booted_at(host),
        modules=_modules(host),
        has_infiniband=bool(host.list(INFINIBAND)),
        fabric_manager_version=fabric_manager_version(host, driver.nvswitch_present),
    )


def _without_installation(driver: Driver) -> Driver:
    unread = Unknown("only read beside an NVIDIA GPU of this system")
    return replace(
        driver,
        module_signer=unread,
        signer_is_enrolled=unread,
        build_error=unread,
        firmware_present=unread,
        parameters=unread,
        packages=unread,
        apt_sources=unread,
        closed_nodes=unread,
        booted_at=unread,
        modules=unread,
        has_infiniband=unread,
        fabric_manager_version=unread,
    )


def _signature(host: Host, driver: Driver) -> tuple[str | Unknown, bool | Unknown]:
    """Who signed the module on disk, and whether this machine's owner trusts that key."""
    if driver.loaded is not None or driver.secure_boot is not True or not isinstance(driver.on_disk, Release):
        unread = Unknown("only read where Secure Boot may have refused the module")
        return unread, unread
    done = host.run(SIGNER)
    if done.code != 0:
        unread = Unknown("modinfo is missing or did not answer")
        return unread, unread
    signer = done.out.strip()
    keys = host.run(ENROLLED_KEYS)
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
    return next((line[:MOST_ERROR_CHARACTERS] for line in lines if _BUILD_ERROR.search(line)), "")


def _firmware_present(host: Host, driver: Driver) -> bool | Unknown:
    if container_kind(host) or not isinstance(driver.loaded, Release):
        return Unknown("only read where the driver is loaded, outside of containers")
    folders = (f"{folder}/nvidia/{driver.loaded}" for folder in FIRMWARE_FOLDERS)
    return any(name.startswith("gsp") for folder in folders for name in host.list(folder))


def _parameters(host: Host) -> tuple[str, ...] | Unknown:
    text = host.read(PARAMETERS)
    if not text:
        return Unknown(f"{PARAMETERS} is not visible here")
    return tuple(line for line in text.splitlines() if line.startswith(TELLING_PARAMETERS))


def _packages(host: Host) -> tuple[DriverPackage, ...] | Unknown:
    """Packages of the driver, the Container Toolkit's left out. RPM is only asked where two repositories compete."""
    if container_kind(host):
        return Unknown("a container's packages are not the host's")
    status = host.read(DPKG_STATUS)
    if status:
        return tuple(_dpkg_packages(status))
    sources = host.list(YUM_REPOSITORIES)
    if not all(any(name.startswith(prefix) for name in sources) for prefix in ("cuda-", "rpmfusion-nonfree")):
        return Unknown("only dpkg's records are read, and RPM's where two repositories offer the driver")
    done = host.run(RPM_PACKAGES)
    if done.code == NOT_FOUND or not done.out:
        return Unknown("rpm did not answer")
    pairs = (word.split("=", 1) for word in sorted(done.out.split()) if "=" in word)
    return tuple(DriverPackage(name, version, "installed") for name, version in pairs)


def _dpkg_packages(status: str) -> Iterator[DriverPackage]:
    """The driver's packages out of the megabytes of dpkg's records, of which one paragraph each is looked into."""
    for paragraph in status.split("\n\n"):
        if not paragraph.lstrip("\n").startswith(_PARAGRAPHS):
            continue
        fields: dict[str, str] = dict(_FIELD.findall(paragraph))
        if len(fields) == 3 and not _TOOLKIT_PACKAGES.match(fields["Package"]):
            yield DriverPackage(fields["Package"], fields["Version"], fields["Status"].split()[-1])


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


def _closed_nodes(host: Host) -> tuple[str, ...] | Unknown:
    """Nodes whose mode keeps this user out; what a container's device rules forbid shows when they are opened."""
    user, groups = user_id(host), group_ids(host)
    if user is None:
        return Unknown("the user's number is not known")
    closed = []
    for name in host.list("/dev"):
        node = host.stat(f"/dev/{name}") if _NODE.fullmatch(name) else None
        if node is None or node.kind != "character" or user == 0:
            continue
        shift = 6 if node.uid == user else 3 if node.gid in groups else 0
        if node.mode >> shift & 0o6 != 0o6:
            closed.append(f"/dev/{name}: mode {node.mode:04o}, user {node.uid}, group {node.gid}")
    return tuple(closed)


def _booted_at(host: Host) -> str | Unknown:
    found = re.search(r"^btime (\d{9,11})$", host.read("/proc/stat") or "", re.MULTILINE)
    if found is None:
        return Unknown("/proc/stat does not say")
    return datetime.fromtimestamp(int(found[1]), UTC).isoformat(timespec="seconds")


def _modules(host: Host) -> tuple[str, ...] | Unknown:
    text = host.read("/proc/modules")
    return tuple(sorted(_MODULE.findall(text))) if text else Unknown("/proc/modules is not visible here")
