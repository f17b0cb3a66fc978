"""The environment of this process: the container around it, and the WSL 2 guest with the GPU that Windows passes in."""

import re

from devkit.facts.machine import Container, Platform, Wsl
from devkit.facts.values import Unknown
from devkit.probe.circumstances import detect_container
from devkit.probe.documents import parse_int
from devkit.probe.host import Host
from devkit.probe.machine.interpreter import find_workload_python
from devkit.probe.machine.operating_system import parse_memory_size, read_group_ids, read_memory_bytes, read_platform
from devkit.probe.machine.programs import find_libraries, find_program, read_loader_cache

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - read, not written
_COMPAT = re.compile(r"/cuda[^/]*/compat/")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

WSL_LIBRARIES = "/usr/lib/wsl/lib"
WSL_DRIVERS = "/usr/lib/wsl/drivers"
DESKTOP_TOOLS = "/mnt/wsl/docker-desktop/cli-tools"
HARDWARE_CLOCK = "/sys/class/rtc/rtc0/since_epoch"
IMAGE_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
IMAGE_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libdxcore.so")
_DRIVER_FOLDER = re.compile(r"nv[a-z_]*\.inf_", re.IGNORECASE)
_LINUX_DRIVER = re.compile(
    r"^(?:nvidia-driver-|nvidia-dkms|nvidia-kernel-|nvidia-utils|nvidia-compute-utils|libnvidia-compute|libnvidia-gl"
    r"|libcuda1|cuda-drivers|nvidia-open|kmod-nvidia|akmod-nvidia|xorg-x11-drv-nvidia)"
)


_GRAPHICS_LIBRARIES = ("libEGL_nvidia.so.0", "libEGL.so.1", "libvulkan.so.1")
_GRAPHICS_FILES = {
    "10_nvidia.json": ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d"),
    "nvidia_icd.json": ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d"),
}
"""The files by which the loaders of EGL and Vulkan find the driver's libraries, and the folders that they look in."""


def read_container(host: Host) -> Container | None:
    """Read the container around this process; None outside one."""
    kind = detect_container(host)
    if not kind:
        return None
    cache = read_loader_cache(host)
    first = next(iter(find_libraries(host, "libcuda.so.1", cache)), "")
    python = find_workload_python(host)
    group_file = host.read("/etc/group")
    nameless_groups: tuple[int, ...] | Unknown = Unknown("/etc/group or /proc/self/status cannot be read")
    if group_file is not None and host.read("/proc/self/status") is not None:
        named = {fields[2] for line in group_file.splitlines() if len(fields := line.split(":")) > 2}
        nameless_groups = tuple(number for number in sorted(set(read_group_ids(host))) if str(number) not in named)
    return Container(
        kind=kind,
        visible_devices=host.env.get("NVIDIA_VISIBLE_DEVICES"),
        driver_capabilities=host.env.get("NVIDIA_DRIVER_CAPABILITIES"),
        require_cuda=host.env.get("NVIDIA_REQUIRE_CUDA"),
        shm_bytes=_shm_bytes(host),
        c_compiler=next(filter(None, (find_program(host, name) for name in ("cc", "gcc", "clang"))), ""),
        python_headers=python
        if isinstance(python, Unknown)
        else any(host.stat(f"{folder}/Python.h") is not None for folder in python.include_folders),
        libcuda_in_cache=cache if isinstance(cache, Unknown) else "libcuda.so" in cache,
        compat_libcuda=first if _COMPAT.search(host.link(first) or "") else "",
        nameless_groups=nameless_groups,
        missing_graphics=_find_missing_graphics(host, cache),
    )


def _find_missing_graphics(host: Host, cache: dict[str, tuple[str, ...]] | Unknown) -> tuple[str, ...] | Unknown:
    if "graphics" not in host.env.get("NVIDIA_DRIVER_CAPABILITIES", ""):
        return Unknown("the container does not request graphics")
    if isinstance(cache, Unknown):
        return cache
    libraries = (name for name in _GRAPHICS_LIBRARIES if not find_libraries(host, name, cache))
    files = (
        name
        for name, folders in _GRAPHICS_FILES.items()
        if all(host.stat(f"{folder}/{name}") is None for folder in folders)
    )
    return (*libraries, *files)


def _shm_bytes(host: Host) -> int | Unknown:
    """The size of /dev/shm by its mount options; the kernel's default is half of the memory."""
    mounts = (line.split() for line in (host.read("/proc/mounts") or "").splitlines())
    options = next((fields[3] for fields in mounts if len(fields) > 3 and fields[1] == SHARED_MEMORY), None)
    if options is None:
        return Unknown(f"{SHARED_MEMORY} is not mounted")
    if size := re.search(r"(?:^|,)size=(\d{1,15})([kmg]?)", options):
        return int(size[1]) * _UNITS[size[2]]
    total = read_memory_bytes(host)
    return total if isinstance(total, Unknown) else total // 2


def read_wsl(host: Host) -> Wsl | Unknown | None:
    """Read the WSL 2 guest's side of the GPU; None outside WSL 2."""
    if read_platform(host) is not Platform.WSL2:
        return None
    cache = read_loader_cache(host)
    paths = find_libraries(host, "libnvidia-ml.so.1", cache)
    inside = detect_container(host) != ""
    # The hardware clock of the virtual machine is Windows's; the guest's own stops while the machine sleeps.
    clock_behind_s: int | Unknown = Unknown("this guest has no hardware clock")
    if (hardware_s := parse_int(host.read(HARDWARE_CLOCK) or "")) is not None:
        guest_s = parse_int(host.run(("date", "+%s")).out)
        clock_behind_s = Unknown("date did not print the time") if guest_s is None else hardware_s - guest_s
    # Driver libraries on the container's own file system: those of Windows are mounts, or links to them.
    mounted = {fields[1] for line in (host.read("/proc/mounts") or "").splitlines() if len(fields := line.split()) > 1}
    paths_in_image = (f"{folder}/{name}" for folder in IMAGE_FOLDERS for name in IMAGE_LIBRARIES if inside)
    real = {path: target for path in paths_in_image if (target := host.link(path))}
    own = (
        path for path, target in real.items() if not ({path, target} & mounted or target.startswith("/usr/lib/wsl/"))
    )
    return Wsl(
        has_dxg=host.stat("/dev/dxg") is not None,
        libraries=host.list(WSL_LIBRARIES),
        linux_driver_packages=_linux_driver_packages(host),
        libnvidia_ml_path=paths[0] if paths else "",
        driver_store=tuple(name for name in host.list(WSL_DRIVERS) if _DRIVER_FOLDER.match(name)),
        libcuda_link_in_cache=cache if isinstance(cache, Unknown) else "libcuda.so" in cache,
        image_libraries=tuple(own),
        swap_bytes=parse_memory_size(host.read("/proc/meminfo"), "SwapTotal"),
        desktop_tools=Unknown("only the distribution shows it") if inside else bool(host.list(DESKTOP_TOOLS)),
        clock_behind_s=clock_behind_s,
    )


def _linux_driver_packages(host: Host) -> tuple[str, ...]:
    """Driver packages that are installed in the guest, by dpkg's or rpm's records."""
    suspects = [name.removesuffix(".list") for name in host.list("/var/lib/dpkg/info") if name.endswith(".list")]
    suspects = [name for name in suspects if _LINUX_DRIVER.match(name)]
    if suspects:
        # A removed package may leave its list of configuration files behind; only the status file knows.
        status = host.read("/var/lib/dpkg/status") or ""
        installed = set(re.findall(r"^Package: (\S+)\nStatus: \S+ ok installed$", status, re.MULTILINE))
        return tuple(name for name in suspects if name.partition(":")[0] in installed)
    if host.list("/usr/lib/sysimage/rpm") or host.list("/var/lib/rpm"):
        return tuple(sorted(name for name in host.run(("rpm", "-qa")).out.split() if _LINUX_DRIVER.match(name)))
    return ()
