"""The GPU as WSL 2 passes it on: a paravirtual device, and libraries that Windows brings."""

import re

from devkit.facts.model import Platform, Wsl
from devkit.facts.values import Unknown
from devkit.probe.host import Host
from devkit.probe.programs import find_libraries, loader_cache
from devkit.probe.system import platform_of

WSL_LIBRARIES = "/usr/lib/wsl/lib"
RPM_PACKAGES = ("rpm", "-qa")

_LINUX_DRIVER = re.compile(
    r"^(?:nvidia-driver-|nvidia-dkms|nvidia-kernel-|nvidia-utils|nvidia-compute-utils|libnvidia-compute|libnvidia-gl"
    r"|libcuda1|cuda-drivers|nvidia-open|kmod-nvidia|akmod-nvidia|xorg-x11-drv-nvidia)"
)


def read_wsl(host: Host) -> Wsl | Unknown | None:
    """The guest's side of the GPU; None when this is not WSL 2."""
    if platform_of(host) is not Platform.WSL2:
        return None
    paths = find_libraries(host, "libnvidia-ml.so.1", loader_cache(host))
    return Wsl(
        has_dxg=host.stat("/dev/dxg") is not None,
        libraries=host.list(WSL_LIBRARIES),
        linux_driver_packages=_linux_driver_packages(host),
        libnvidia_ml_path=paths[0] if paths else "",
    )


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
