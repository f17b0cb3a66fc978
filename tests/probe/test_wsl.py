"""WSL: the guest's side of the GPU, and the file that rules it from Windows."""

from devkit.facts.machine import Platform, WslSettings
from devkit.facts.values import Unknown
from devkit.probe.machine.environment import read_wsl
from devkit.probe.machine.operating_system import read_platform, read_wsl_settings
from devkit.probe.machine.resources import read_storage
from tests.cases import cases
from tests.hosts import written

KERNEL = '"/proc/sys/kernel/osrelease" = "6.6.87.2-microsoft-standard-WSL2\\n"\n'
LDCONFIG = '[[command]]\nargv = ["ldconfig", "-p"]\nout = "{0}"\n'


def guest(tmp_path, *, env="", files="", links="", nodes="", commands=""):
    text = f"[env]\n{env}\n[files]\n{KERNEL}{files}\n[links]\n{links}\n[nodes]\n{nodes}\n{commands}"
    return written(tmp_path, text)


def test_outside_of_wsl_there_is_nothing_to_read(tmp_path):
    assert read_wsl(written(tmp_path, '[files]\n"/proc/sys/kernel/osrelease" = "6.8.0-45-generic"\n')) is None


def test_only_folders_of_nvidia_count_in_the_driver_store(tmp_path):
    names = ("nv_dispi.inf_amd64_1", "nvlt.inf_amd64_2", "iigd_dch.inf_amd64_3", "nvidia-readme")
    nodes = "".join(f'"/usr/lib/wsl/drivers/{name}/x" = {{ kind = "file" }}\n' for name in names)
    assert read_wsl(guest(tmp_path, nodes=nodes)).driver_store == ("nv_dispi.inf_amd64_1", "nvlt.inf_amd64_2")


LISTED = "\\tlibcuda.so (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so\\n"


@cases(
    "commands, in_cache",
    {
        "listed": (LDCONFIG.format(LISTED), True),
        "only with its number": (LDCONFIG.format(LISTED.replace("libcuda.so ", "libcuda.so.1 ")), False),
        "no ldconfig": ("", Unknown("ldconfig -p ended with status 127")),
    },
)
def test_the_plain_name_of_libcuda(tmp_path, commands, in_cache):
    assert read_wsl(guest(tmp_path, commands=commands)).libcuda_link_in_cache == in_cache


LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
INSIDE = '"/.dockerenv" = ""\n'


@cases(
    "files, links, found",
    {
        "no library": (INSIDE, "", ()),
        "a copy of the image's own": (INSIDE + f'"{LIBRARY}" = "ELF"\n', "", (LIBRARY,)),
        "an empty file that a commit left": (INSIDE + f'"{LIBRARY}" = ""\n', "", (LIBRARY,)),
        "a mount": (INSIDE + f'"{LIBRARY}" = "ELF"\n"/proc/mounts" = "none {LIBRARY} 9p ro 0 0\\n"\n', "", ()),
        "a link to what Windows brings": (
            INSIDE + '"/usr/lib/wsl/lib/libcuda.so.1" = "ELF"\n',
            f'"{LIBRARY}" = "/usr/lib/wsl/lib/libcuda.so.1"\n',
            (),
        ),
        "the guest itself is no image": (f'"{LIBRARY}" = "ELF"\n', "", ()),
    },
)
def test_driver_libraries_of_an_image(tmp_path, files, links, found):
    assert read_wsl(guest(tmp_path, files=files, links=links)).image_libraries == found


@cases(
    "files, commands, behind",
    {
        "ten minutes": ('"/sys/class/rtc/rtc0/since_epoch" = "2000\\n"', '"1400"', 600),
        "a date that says no number": ('"/sys/class/rtc/rtc0/since_epoch" = "2000\\n"', '"now"', None),
        "an odd hardware clock": ('"/sys/class/rtc/rtc0/since_epoch" = "soon\\n"', '"1400"', None),
        "no hardware clock": ("", '"1400"', None),
    },
)
def test_the_guests_clock_against_the_hardwares(tmp_path, files, commands, behind):
    command = f'[[command]]\nargv = ["date", "+%s"]\nout = {commands}\n'
    found = read_wsl(guest(tmp_path, files=files, commands=command)).clock_behind_s
    assert (None if isinstance(found, Unknown) else found) == behind


def test_swap_and_docker_desktops_commands(tmp_path):
    files = (
        '"/proc/meminfo" = "MemTotal: 8 kB\\nSwapTotal:  1024 kB\\n"\n"/mnt/wsl/docker-desktop/cli-tools/usr/x" = ""\n'
    )
    found = read_wsl(guest(tmp_path, files=files))
    assert (found.swap_bytes, found.desktop_tools) == (1 << 20, True)
    assert read_wsl(guest(tmp_path)).swap_bytes == Unknown("/proc/meminfo does not say SwapTotal")


def test_a_kernel_of_ones_own_is_known_by_the_guests_sockets(tmp_path):
    text = (
        '[files]\n"/proc/sys/kernel/osrelease" = "6.12.8-zfs+"\n[nodes]\n"/run/WSL/1_interop" = { kind = "socket" }\n'
    )
    assert read_platform(written(tmp_path, text)) is Platform.WSL2


PATH = 'PATH = "/usr/bin:/mnt/c/Windows:/mnt/c/Users/ann/AppData/Local/Microsoft/WindowsApps"\n'
FILE = '"/mnt/c/Users/ann/.wslconfig" = """{0}"""\n'


@cases(
    "text, memory, kernel, gpu, networking",
    {
        "empty": ("", "", "", True, ""),
        "a remark behind a value": ("[wsl2]\nmemory=8GB # half\nswap = 0\n", "8GB", "", True, ""),
        "a line that is a remark": ("# gpuSupport=false\n[wsl2]\n", "", "", True, ""),
        "other letters and line ends": ("[WSL2]\r\nGpuSupport = False\r\n", "", "", False, ""),
        "a byte order mark": ("\ufeff[wsl2]\nkernel=C:\\\\\\\\k\n", "", "C:\\\\k", True, ""),
        "the older section": ("[experimental]\nnetworkingMode=Mirrored", "", "", True, "mirrored"),
        "garbage": ("\u0000\u0001 garbage [[[=", "", "", True, ""),
    },
)
def test_the_settings_of_wsl(tmp_path, text, memory, kernel, gpu, networking):
    host = guest(tmp_path, env=PATH, files=FILE.format(text.replace("\x00", "\\u0000").replace("\x01", "\\u0001")))
    path = "/mnt/c/Users/ann/.wslconfig"
    assert read_wsl_settings(host, Platform.WSL2) == WslSettings(path, memory, kernel, gpu, networking)


@cases(
    "platform, env, expected",
    {
        "no such file": (Platform.WSL2, PATH, None),
        "a PATH without Windows": (Platform.WSL2, 'PATH = "/usr/bin"', Unknown("the Windows user is not known here")),
        "Windows without the file": (Platform.WINDOWS, 'USERPROFILE = "C:/Users/ann"', None),
        "no WSL at all": (Platform.LINUX, PATH, None),
        "a Mac": (Platform.MACOS, "", None),
    },
)
def test_where_the_settings_of_wsl_are_not(tmp_path, platform, env, expected):
    assert read_wsl_settings(guest(tmp_path, env=env), platform) == expected


def test_windows_reads_its_own_file(tmp_path):
    text = '[env]\nUSERPROFILE = "C:\\\\Users\\\\ann"\n[files]\n"C:/Users/ann/.wslconfig" = "[wsl2]\\nmemory=9GB"\n'
    found = read_wsl_settings(written(tmp_path, text), Platform.WINDOWS)
    assert (found.path, found.memory) == ("C:\\Users\\ann\\.wslconfig", "9GB")


@cases(
    "files, purposes",
    {
        "the guest": ("", ["workspace", "temporary", "Windows drive"]),
        "a container in it": (INSIDE, ["workspace", "temporary"]),
    },
)
def test_the_drive_under_the_guests_disk_counts(tmp_path, files, purposes):
    nodes = '"/mnt/c" = { kind = "directory" }\n"/tmp" = { kind = "directory" }\n'
    found = read_storage(guest(tmp_path, files=files, nodes=nodes), project="/p").directories
    assert [directory.purpose for directory in found] == purposes


def test_inodes_are_counted_where_a_file_system_counts_them(tmp_path):
    text = '[free_files]\n"/data" = 12\n[nodes]\n"/data/p" = { kind = "directory" }\n"/tmp" = { kind = "directory" }\n'
    found = {
        one.purpose: one.free_files for one in read_storage(written(tmp_path, text), project="/data/p").directories
    }
    assert found == {"workspace": 12, "temporary": Unknown("the file system of /tmp does not count its files")}
