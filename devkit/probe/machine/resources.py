"""Resources of a training process: limits, control group, network interfaces, paths between GPUs, and disk space."""

import re
import stat
from collections.abc import Iterator

from devkit.facts.machine import Directory, Limits, Mps, Platform, Storage
from devkit.facts.values import Unknown
from devkit.probe.circumstances import detect_container
from devkit.probe.documents import parse_int
from devkit.probe.gpu.pci import DISPLAY_CLASSES, PCI_DEVICES, list_nvidia_functions
from devkit.probe.host import Host
from devkit.probe.machine.control_group import read_cgroup
from devkit.probe.machine.operating_system import parse_memory_size, read_platform, read_user_id

LIMITS = "/proc/self/limits"
SELINUX = "/sys/fs/selinux"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
PROCESS_STATUS = "/proc/self/status"
NUMA_NODES = "/sys/devices/system/node"
NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"
INTERFACES = "/sys/class/net"
ROUTES = "/proc/net/route"
INFINIBAND = "/sys/class/infiniband"
NCCL_FILES = ("/etc/nccl.conf", "{home}/.nccl.conf")
"""Source: NVIDIA, NCCL user guide, "Environment Variables"; the environment wins over both."""
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - read, not written
_OF_NCCL = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_NET",
    "NCCL_DEBUG",
)
_OF_LAUNCHERS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_LOCAL = ("localhost", "127.0.0.1", "::1")

# The directories that devkit, an engine or a hub library will write to.
NOBODY_KNOWN = -1
"""The owner of a directory that does not exist, and every user on Windows."""

ENGINE_FOLDERS = ("/var/lib/docker", "/var/snap/docker/common/var-lib-docker", "/var/lib/containers/storage")
WINDOWS_DRIVE = "/mnt/c"
USERS_ENGINE_FOLDERS = (".local/share/docker", ".local/share/containers/storage")


def read_limits(host: Host) -> Limits | Unknown:
    """Read what a training process started here may use; Unknown on systems other than Linux."""
    limits = host.read(LIMITS)
    memory = host.read("/proc/meminfo")
    if limits is None and memory is None:
        return Unknown("this system has no /proc with limits")
    group = read_cgroup(host)
    # The first number is what holds now, the second what a pending change would make of it.
    switch = (host.read(f"{SELINUX}/booleans/container_use_devices") or "").split()
    selinux: str | Unknown = ""
    if host.stat(f"{SELINUX}/enforce") is not None:
        mode = host.read(f"{SELINUX}/enforce")
        selinux = Unknown(f"{SELINUX}/enforce cannot be read")
        if mode is not None:
            selinux = "enforcing" if mode.strip() == "1" else "permissive"
    soft = re.search(r"^Max locked memory\s+(\d{1,18}|unlimited)\s", limits or "", re.MULTILINE)
    locked: int | Unknown | None = Unknown(f"{LIMITS} does not report it 'Max locked memory'")
    if soft is not None:
        locked = None if soft[1] == "unlimited" else int(soft[1])
    balancing = host.read(NUMA_BALANCING)
    model = re.search(r"^model name\s*: (.{1,200})$", host.read("/proc/cpuinfo") or "", re.MULTILINE)
    interfaces = tuple(name for name in host.list(INTERFACES) if name != "lo")
    return Limits(
        locked_memory_bytes=locked,
        group_memory_bytes=group.memory_bytes,
        out_of_memory_kills=group.kills,
        cpu_count=group.cpu_count,
        numa_nodes=_numa_nodes(host),
        swap_bytes=parse_memory_size(memory, "SwapTotal"),
        interfaces=interfaces if host.list(INTERFACES) else Unknown(f"{INTERFACES} is empty or missing"),
        default_interface=_default_interface(host),
        has_infiniband=bool(host.list(INFINIBAND)),
        fabric_ports=tuple(_fabric_ports(host)),
        link_mtus=tuple(
            f"{name} {mtu.strip()}"
            for name in interfaces
            if host.stat(f"{INTERFACES}/{name}/device") and (mtu := host.read(f"{INTERFACES}/{name}/mtu"))
        ),
        numa_balancing=Unknown(f"{NUMA_BALANCING} cannot be read") if balancing is None else balancing.strip() != "0",
        cpu_model=model[1] if model else Unknown("/proc/cpuinfo does not contain a model name"),
        nccl=tuple(_nccl(host)),
        iommu_domains=tuple(_iommu_domains(host)),
        selinux=selinux,
        selinux_allows_devices=switch[0] == "1"
        if switch
        else Unknown("the policy has no switch container_use_devices, or it cannot be read"),
        mps=_mps(host),
    )


def _mps(host: Host) -> Mps | None:
    """Source: NVIDIA, Multi-Process Service, "Environment Variables"; engines name a container's own memory "shm"."""
    settings = tuple(f"{name}={value}" for name, value in sorted(host.env.items()) if name.startswith("CUDA_MPS_"))
    folder = host.env.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_PIPES
    control = host.stat(f"{folder}/control")
    answers = control is not None and control.kind == "socket"
    own_ipc = re.search(r"^shm /dev/shm ", host.read("/proc/mounts") or "", re.MULTILINE) is not None
    return Mps(folder, answers, settings, own_ipc) if answers or settings else None


def _numa_nodes(host: Host) -> tuple[int, ...] | Unknown:
    """List the NUMA nodes with a CPU that this process may use."""
    allowed = re.search(r"^Cpus_allowed_list:\s*([\d,-]+)$", host.read(PROCESS_STATUS) or "", re.MULTILINE)
    nodes = [
        (int(name.removeprefix("node")), name) for name in host.list(NUMA_NODES) if re.fullmatch(r"node\d{1,4}", name)
    ]
    if allowed is None or not nodes:
        return Unknown("the kernel does not list NUMA nodes")
    cpus = _parse_cpu_list(allowed[1])
    lists = {number: _parse_cpu_list(host.read(f"{NUMA_NODES}/{name}/cpulist") or "") for number, name in nodes}
    return tuple(sorted(number for number, its_cpus in lists.items() if cpus & its_cpus))


def _parse_cpu_list(text: str) -> set[int]:
    """Parse the kernel's list of CPUs: "0-3,8" is {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def _default_interface(host: Host) -> str | Unknown:
    """The interface of the route to 0.0.0.0 with the lowest metric."""
    text = host.read(ROUTES)
    if text is None:
        return Unknown(f"{ROUTES} cannot be read")
    routes = [fields for line in text.splitlines()[1:] if len(fields := line.split()) > 7]
    defaults = [fields for fields in routes if fields[1] == "00000000" and fields[7] == "00000000"]
    best = min(defaults, key=lambda fields: parse_int(fields[6]) or 0, default=None)
    return best[0] if best else ""


def _nccl(host: Host) -> Iterator[str]:
    """Settings of NCCL and of launchers. Where the master is says only whether it is this machine."""
    settings: dict[str, str] = {}
    for path in NCCL_FILES:
        for line in (host.read(path.format(home=host.env.get("HOME", ""))) or "").splitlines():
            name, _, value = line.partition("=")
            settings[name.strip()] = value.strip()
    settings |= host.env
    for name in (*_OF_NCCL, *_OF_LAUNCHERS):
        if name in settings:
            yield f"{name}={settings[name]}"
    if master := settings.get("MASTER_ADDR"):
        yield f"MASTER_ADDR={'this machine' if master in _LOCAL else 'another name'}"


def _fabric_ports(host: Host) -> Iterator[str]:
    """One entry per port. Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband."""
    for device in host.list(INFINIBAND):
        folder = f"{INFINIBAND}/{device}"
        node = (host.read(f"{folder}/device/numa_node") or "unknown").strip()
        for port in host.list(f"{folder}/ports"):
            state = (host.read(f"{folder}/ports/{port}/state") or "unknown").rpartition(":")[2].strip()
            rate = (host.read(f"{folder}/ports/{port}/rate") or "unknown rate").strip()
            yield f"{device}/{port} {state} {rate}, NUMA node {node}"


def _iommu_domains(host: Host) -> Iterator[str]:
    """One entry per NVIDIA GPU in an IOMMU group. Source: Linux, Documentation/ABI, sysfs-kernel-iommu_groups."""
    if not host.list(IOMMU_GROUPS):
        return
    functions = list_nvidia_functions(host)
    for address, function in () if isinstance(functions, Unknown) else functions:
        kind = (host.read(f"{PCI_DEVICES}/{address}/iommu_group/type") or "").strip()
        if kind and function.startswith(DISPLAY_CLASSES):
            yield kind


def read_storage(host: Host, *, project: str, engine_folder: str = "") -> Storage:
    """Read hub cache, `project` (the workspace's absolute path), engine data, temporary files, and the user.

    `engine_folder` is the one that the running engine names; without it, those that engines use by default are read.
    """
    user = read_user_id(host)
    # WSL shows the drive of Windows that holds the guest's own disk, as a file that grows.
    is_guest = read_platform(host) is Platform.WSL2 and not detect_container(host)
    home = host.env.get("HOME")
    engine_folders = [*ENGINE_FOLDERS, *(f"{home}/{folder}" for folder in USERS_ENGINE_FOLDERS if home)]
    if engine_folder:
        engine_folders = [engine_folder]
    wanted = [
        ("hub cache", find_hub_cache(host)),
        ("workspace", project),
        *(("engine data", path) for path in engine_folders if host.stat(path) is not None),
        ("temporary", host.env.get("TMPDIR") or host.env.get("TEMP") or "/tmp"),  # noqa: S108 - read, not written
        ("Windows drive", WINDOWS_DRIVE if is_guest and host.stat(WINDOWS_DRIVE) is not None else ""),
    ]
    # Mount points with their file system types, the longest first.
    rows = (line.split() for line in (host.read("/proc/mounts") or "").splitlines())
    pairs = {(row[1].replace("\\040", " "), row[2], row[3]) for row in rows if len(row) > 3}
    mounts = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)
    directories = []
    for purpose, path in wanted:
        if not path:
            continue
        found = host.stat(path)
        nearest = path
        while host.stat(nearest) is None and "/" in nearest[1:]:
            nearest = nearest.rpartition("/")[0]
        if host.stat(nearest) is None and host.env.get("OS") != "Windows_NT":
            nearest = "/" if path.startswith("/") else project
        free, files = host.free_bytes(nearest), host.free_files(nearest)
        real = (host.link(nearest) or nearest).rstrip("/")
        kind, options = next(
            ((kind, options) for at, kind, options in mounts if f"{real}/".startswith(at.rstrip("/") + "/")), ("", "")
        )
        directories.append(
            Directory(
                path=path,
                purpose=purpose,
                exists=found is not None and found.kind == "directory",
                # What does not exist yet is as writable as the parent it will be made in.
                is_writable=host.is_writable(nearest),
                owner_uid=found.uid if found else NOBODY_KNOWN,
                file_system=kind,
                free_bytes=Unknown(f"the file system of {nearest} does not report it") if free is None else free,
                free_files=Unknown(f"the file system of {nearest} does not count its files")
                if files is None
                else files,
                is_read_only="ro" in options.split(","),
                allows_programs="noexec" not in options.split(",")
                if options
                else Unknown("/proc/mounts does not show its file system"),
                is_in_home=f"{path}/".startswith(f"{home.rstrip('/')}/") if home else False,
                is_world_writable=bool(found.mode & stat.S_IWOTH) if found else Unknown(f"{path} is not there"),
            )
        )
    return Storage(NOBODY_KNOWN if user is None else user, tuple(directories))


def find_hub_cache(host: Host) -> str:
    """Find the model cache of huggingface_hub: HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME or ~/.cache; "" without a home."""
    home = find_hub_home(host)
    return host.env.get("HF_HUB_CACHE") or host.env.get("HUGGINGFACE_HUB_CACHE") or (f"{home}/hub" if home else "")


def find_hub_home(host: Host) -> str:
    """Find the folder of huggingface_hub: HF_HOME, XDG_CACHE_HOME/huggingface or ~/.cache/huggingface; "" without a home."""
    home = host.env.get("HOME") or host.env.get("USERPROFILE")
    caches = host.env.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    return host.env.get("HF_HOME") or (f"{caches}/huggingface" if caches else "")
