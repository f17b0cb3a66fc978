"""The operating system and its user; the settings of WSL, and Jetson boards."""

import re

from devkit.facts.machine import Distribution, Platform, System, Tegra, WslSettings
from devkit.facts.values import Release, Unknown
from devkit.probe.documents import parse_int
from devkit.probe.host import Host, explain_failure

# Jetson boards, whose GPU and driver are part of the board.
TEGRA_MODEL = "/proc/device-tree/model"
"""Shows through into containers."""
TEGRA_RELEASE = "/etc/nv_tegra_release"
_BOARD = re.compile(r"jetson|tegra|nvidia .*(?:orin|xavier|thor)", re.IGNORECASE)

# The file .wslconfig, which is on the Windows side and configures the guest.
WSL_SETTINGS_FILE = ".wslconfig"
_USER_ON_PATH = re.compile(r"(?:^|:)(/mnt/[a-z]/Users/[^/:]+)/")
"""WSL appends Windows's PATH, which holds folders of the Windows user."""

UNAME = ("uname", "-s", "-r", "-m")
GLIBC = ("getconf", "GNU_LIBC_VERSION")
MAX_GROUPS = 65536
"""Linux's own limit. Source: include/uapi/linux/limits.h, NGROUPS_MAX."""
SCHEDULERS = (
    ("SLURM_JOB_ID", "Slurm job"),
    ("PBS_JOBID", "PBS job"),
    ("LSB_JOBID", "LSF job"),
    ("FLUX_JOB_ID", "Flux job"),
    ("_CONDOR_JOB_AD", "HTCondor job"),
)
"""Variables of batch schedulers, and what runs below each. Source: the manual of each."""
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev", "/etc", "/var")
_NAME = re.compile(r"[\w.+~-]{1,100}", re.ASCII)
"""A kernel's release and hardware name: they become part of paths and commands."""
_WSL_SIGNS = ("/proc/sys/fs/binfmt_misc/WSLInterop", "/run/WSL", "/usr/lib/wsl/lib")
_SURE_WSL_SIGN = "/run/WSL"
"""Where a running guest keeps the sockets to Windows."""


def read_system(host: Host) -> System:
    """Read what every other probe depends on: platform, kernel, distribution, C library, user."""
    kernel, machine = read_kernel_and_machine(host)
    user, groups = _user_and_groups(host)
    member, active = _docker_group(host, user=user, groups=groups)
    systemd, glibc = host.stat("/run/systemd/system"), host.run(GLIBC)
    platform = read_platform(host)
    name = (host.read("/proc/sys/kernel/hostname") or host.env.get("COMPUTERNAME", "")).strip()
    os_release = host.read("/etc/os-release") or host.read("/usr/lib/os-release")
    pairs = re.findall(r"^([A-Z_]+)=[\"']?(.*?)[\"']?$", os_release or "", re.MULTILINE)
    values: dict[str, str] = dict(pairs)
    by_image = "image" if values.get("ID") in IMAGE_SYSTEMS else ""
    return System(
        platform=platform,
        kernel=kernel,
        machine=machine,
        distribution=Unknown("/etc/os-release does not exist")
        if os_release is None
        else Distribution(
            id=values.get("ID", "linux"),
            like=tuple(values.get("ID_LIKE", "").split()),
            version=values.get("VERSION_ID", ""),
            name=values.get("PRETTY_NAME", values.get("NAME", "Linux")),
        ),
        glibc=Release.parse(glibc.out)
        if glibc.code == 0 and re.match(r"glibc \d", glibc.out)
        else explain_failure(GLIBC, glibc, "the C library is not glibc, or getconf is missing"),
        memory_bytes=read_memory_bytes(host),
        is_root=user == 0,
        in_docker_group=member,
        docker_group_is_active=active,
        runs_systemd=systemd is not None and systemd.kind == "directory",
        wsl_settings=read_wsl_settings(host, platform),
        tegra=read_tegra(host),
        host_name=name or Unknown("neither the kernel nor the environment shows it"),
        managed_by=_find_manager(host),
        is_in_job=any(host.env.get(variable) for variable, _ in SCHEDULERS),
        image_tool="rpm-ostree" if host.stat("/run/ostree-booted") is not None else by_image,
        hidden_folders=tuple(folder for folder in SYSTEM_FOLDERS if not host.list(folder))
        if platform in (Platform.LINUX, Platform.WSL2)
        else Unknown("only Linux has these folders"),
    )


IMAGE_SYSTEMS = ("cos", "bottlerocket", "talos", "flatcar")
"""Systems whose programs only their next image changes, by ID of /etc/os-release."""


def _find_manager(host: Host) -> str:
    """Find what lends this machine to several people, by the variables that it sets in its jobs."""
    for variable, name in (*SCHEDULERS, ("KUBERNETES_SERVICE_HOST", "Kubernetes pod")):
        if number := host.env.get(variable):
            return f"{name} {number}" if number.isalnum() else f"a {name}"
    is_lxc = host.env.get("container") == "lxc" or (host.read("/run/systemd/container") or "").strip() == "lxc"
    return "an LXC container" if is_lxc else ""


def _user_and_groups(host: Host) -> tuple[int | None, tuple[int, ...]]:
    text = host.read("/proc/self/status")
    if text is None:
        user, groups = (host.run(argv).out.split() for argv in (("id", "-u"), ("id", "-G")))
    else:
        found = {key: value.split() for key, _, value in (line.partition(":") for line in text.splitlines())}
        user, primary = (found.get(key, [])[1:2] for key in ("Uid", "Gid"))
        groups = [*primary, *found.get("Groups", ())]
    groups = groups[:MAX_GROUPS]
    numbers = tuple(number for group in groups if (number := parse_int(group)) is not None)
    return (parse_int(user[0]) if user else None), numbers


def _docker_group(host: Host, *, user: int | None, groups: tuple[int, ...]) -> tuple[bool | Unknown, bool | Unknown]:
    """Return whether the user is a member of the docker group by the files, and whether this session carries it."""
    text = host.read("/etc/group")
    if text is None:
        unread = Unknown("/etc/group is missing or unreadable")
        return unread, unread
    entry = next((line.split(":") for line in text.splitlines() if line.startswith("docker:")), None)
    if entry is None or len(entry) < 4 or parse_int(entry[2]) is None:
        return False, False
    active = parse_int(entry[2]) in groups
    users = [fields for line in (host.read("/etc/passwd") or "").splitlines() if len(fields := line.split(":")) > 2]
    name = next((fields[0] for fields in users if fields[2] == str(user)), "")
    name = name or host.env.get("USER") or host.env.get("LOGNAME") or "?"
    return active or name in entry[3].split(","), active


def read_user_id(host: Host) -> int | None:
    """Read the effective user's number; None where users have none."""
    return _user_and_groups(host)[0]


def read_group_ids(host: Host) -> tuple[int, ...]:
    """Read the numbers of all groups that this process has."""
    return _user_and_groups(host)[1]


def read_tegra(host: Host) -> Tegra | None:
    """Read the board and its L4T release; None on any other machine."""
    model = (host.read(TEGRA_MODEL) or "").strip("\0\n ")
    text = host.read(TEGRA_RELEASE) or ""
    # "# R36 (release), REVISION: 4.7, GCID: …"
    reply = re.search(r"R(\d+)\s*\(release\),\s*REVISION:\s*([\d.]+)", text)
    if reply is None and not _BOARD.search(model):
        return None
    return Tegra(model, Release.parse(f"{reply[1]}.{reply[2]}") if reply else None)


def read_wsl_settings(host: Host, platform: Platform) -> WslSettings | Unknown | None:
    """Read the settings of the Windows user's WSL; None when there is no such file, or no WSL."""
    if platform is Platform.WINDOWS:
        home = host.env.get("USERPROFILE", "")
        path = f"{home}\\{WSL_SETTINGS_FILE}" if home else ""
    elif platform in (Platform.WSL2, Platform.WSL1):
        user = _USER_ON_PATH.search(host.env.get("PATH", ""))
        path = f"{user[1]}/{WSL_SETTINGS_FILE}" if user else ""
    else:
        return None
    if not path:
        return Unknown("the Windows user is not known here")
    text = host.read(path)
    if text is None:
        return None if host.stat(path) is None else Unknown(f"{path} cannot be read")
    # Its keys without regard to case, in whatever section: some moved from [experimental] to [wsl2].
    pairs = re.findall(r"^[ \t]*(\w+)[ \t]*=[ \t]*([^#;\r\n]*)", text.lstrip("\ufeff"), re.MULTILINE)
    values = {key.lower(): value.strip() for key, value in pairs}
    return WslSettings(
        path=path,
        memory=values.get("memory", ""),
        kernel=values.get("kernel", ""),
        gpu_support=values.get("gpusupport", "true").lower() not in ("false", "0"),
        networking=values.get("networkingmode", "").lower(),
    )


def read_platform(host: Host) -> Platform:
    """Detect Linux, WSL 1 or 2, macOS or Windows; a container on a WSL 2 kernel counts as WSL 2."""
    if host.env.get("OS") == "Windows_NT" and host.read("/proc/sys/kernel/osrelease") is None:
        return Platform.WINDOWS
    release = host.read("/proc/sys/kernel/osrelease") or host.run(UNAME).out
    if release.startswith("Darwin"):
        return Platform.MACOS
    if "wsl2" in release.lower():
        return Platform.WSL2
    if "Microsoft" in release:
        return Platform.WSL1
    # A kernel that the user built for WSL need not carry the name, nor show the GPU.
    if host.stat(_SURE_WSL_SIGN) is not None:
        return Platform.WSL2
    is_wsl = "WSL_DISTRO_NAME" in host.env or any(host.stat(sign) for sign in _WSL_SIGNS)
    return Platform.WSL2 if is_wsl and host.stat("/dev/dxg") else Platform.LINUX


def read_kernel_and_machine(host: Host) -> tuple[str, str]:
    """Read the kernel's release and the hardware name: ("6.8.0-45-generic", "x86_64")."""
    done = host.run(UNAME)
    words = done.out.split() if done.code == 0 else []
    if len(words) >= 3 and _NAME.fullmatch(words[1]) and _NAME.fullmatch(words[2]):
        return words[1], {"arm64": "aarch64", "amd64": "x86_64"}.get(words[2].lower(), words[2])
    release, arch = ((host.read(f"/proc/sys/kernel/{name}") or "").strip() for name in ("osrelease", "arch"))
    if _NAME.fullmatch(release) and _NAME.fullmatch(arch):
        return release, arch
    machine = host.env.get("PROCESSOR_ARCHITECTURE", "").lower()
    return "", {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def read_memory_bytes(host: Host) -> int | Unknown:
    """Read the machine's memory in bytes; inside a container still the whole machine's."""
    text = host.read("/proc/meminfo")
    if text is not None:
        return parse_memory_size(text, "MemTotal")
    done = host.run(("sysctl", "-n", "hw.memsize"))
    total_bytes = parse_int(done.out)
    return Unknown("this platform's memory size is not read") if total_bytes is None else total_bytes


def parse_memory_size(text: str | None, name: str) -> int | Unknown:
    """Parse a size of /proc/meminfo, such as SwapTotal, in bytes."""
    found = re.search(rf"^{name}:\s+(\d{{1,18}}) kB", text or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else Unknown(f"/proc/meminfo does not say {name}")
