"""The GPU as WSL 2 passes it on: a paravirtual device, and libraries that Windows brings."""

import re

from devkit.facts.model import Platform, Wsl
from devkit.facts.values import Unknown
from devkit.probe.container import container_kind
from devkit.probe.host import Host
from devkit.probe.programs import find_libraries, loader_cache
from devkit.probe.shapes import whole
from devkit.probe.system import platform_of

WSL_LIBRARIES = "/usr/lib/wsl/lib"
WSL_DRIVERS = "/usr/lib/wsl/drivers"
DESKTOP_TOOLS = "/mnt/wsl/docker-desktop/cli-tools"
HARDWARE_CLOCK = "/sys/class/rtc/rtc0/since_epoch"
SYSTEM_CLOCK = ("date", "+%s")
RPM_PACKAGES = ("rpm", "-qa")
IMAGE_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
IMAGE_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libdxcore.so")

_DRIVER_FOLDER = re.compile(r"nv[a-z_]*\.inf_", re.IGNORECASE)
_LINUX_DRIVER = re.compile(
    r"^(?:nvidia-driver-|nvidia-dkms|nvidia-kernel-|nvidia-utils|nvidia-compute-utils|libnvidia-compute|libnvidia-gl"
    r"|libcuda1|cuda-drivers|nvidia-open|kmod-nvidia|akmod-nvidia|xorg-x11-drv-nvidia)"
)


def read_wsl(host: Host) -> Wsl | Unknown | None:
    """The guest's side of the GPU; None when this is not WSL 2."""
    if platform_of(host) is not Platform.WSL2:
        return None
    cache = loader_cache(host)
    paths = find_libraries(host, "libnvidia-ml.so.1", cache)
    inside = container_kind(host) != ""
    return Wsl(
        has_dxg=host.stat("/dev/dxg") is not None,
        libraries=host.list(WSL_LIBRARIES),
        linux_driver_packages=_linux_driver_packages(host),
        libnvidia_ml_path=paths[0] if paths else "",
        driver_store=tuple(name for name in host.list(WSL_DRIVERS) if _DRIVER_FOLDER.match(name)),
        libcuda_link_in_cache=cache if isinstance(cache, Unknown) else "libcuda.so" in cache,
        image_libraries=_image_libraries(host) if inside else (),
        swap_bytes=_swap_bytes(host),
        desktop_tools=Unknown("only the distribution shows it") if inside else bool(host.list(DESKTOP_TOOLS)),
        clock_behind_s=_clock_behind_s(host),
    )


def _image_libraries(host: Host) -> tuple[str, ...]:
    """Driver libraries on the container's own file system: those of Windows are mounts, or links to them."""
    mounted = {fields[1] for line in (host.read("/proc/mounts") or "").splitlines() if len(fields := line.split()) > 1}
    paths = (f"{folder}/{name}" for folder in IMAGE_FOLDERS for name in IMAGE_LIBRARIES)
    real = {path: host.link(path) for path in paths}
    own = (path for path, target in real.items() if target and not {path, target} & mounted)
    return tuple(path for path in own if not (real[path] or "").startswith("/usr/lib/wsl/"))


def _swap_bytes(host: Host) -> int | Unknown:
    total = re.search(r"^SwapTotal:\s+(\d{1,18}) kB", host.read("/proc/meminfo") or "", re.MULTILINE)
    return int(total[1]) * 1024 if total else Unknown("/proc/meminfo has no SwapTotal")


def _clock_behind_s(host: Host) -> int | Unknown:
    """The hardware clock of the virtual machine is Windows's; the guest's own stands still while the machine sleeps."""
    hardware_s = whole(host.read(HARDWARE_CLOCK) or "")
    if hardware_s is None:
        return Unknown("this guest shows no hardware clock")
    told_s = whole(host.run(SYSTEM_CLOCK).out)
    return Unknown("date did not say the time") if told_s is None else hardware_s - told_s


def _linux_driver_packages(host: Host) -> tuple[str, ...]:
    """Driver packages that are installed in the guest, by dpkg's or rpm's records."""
    suspects = [name.removesuffix(".list") for name in host.list("/var/lib/dpkg/info") if name.endswith(".list")]
    suspects = [name for name in suspects if _LINUX_DRIVER.match(name)]
    if suspects:
        # A removed package may leave its list of configuration files behind; only the status file knows.
        installed = _dpkg_installed(host.read("/var/lib/dpkg/status") or "")
        return tuple(name for name in suspects if name.partition(":")[0] in installed)
    if host.list("/usr/lib/sysimage/rpm") or host.list("/var/lib/rpm"):
        return tuple(sorted(name for name in host.run(RPM_PACKAGES).out.split() if _LINUX_DRIVER.match(name)))
    return ()


def _dpkg_installed(status: str) -> frozenset[str]:
    return frozenset(re.findall(r"^Package: (\S+)\nStatus: \S+ ok installed$", status, re.MULTILINE))
