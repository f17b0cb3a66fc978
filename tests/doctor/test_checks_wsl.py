"""Checks of WSL: what Windows passes in, its settings, its memory, its clock."""

import pytest

from devkit.doctor.thresholds import CLOCK_SKEW_S, WSL_MEMORY_BYTES
from devkit.facts.engine import EngineEnd, EngineFailure, EngineKind
from devkit.facts.gpu import NvmlEnd, NvmlFailure
from devkit.facts.machine import Platform, WslSettings
from devkit.facts.values import Unknown
from tests.cases import cases
from tests.doctor.judging import list_codes, list_wrong
from tests.doctor.machines import GIB, changed, healthy, inside, no_library, r, windows_guest
from tests.doctor.running import build_full_report

BLOCKED = NvmlFailure(NvmlEnd.ERROR, 17, "GPU access blocked by the operating system", "nvmlInit_v2")
OTHER_ERROR = NvmlFailure(NvmlEnd.ERROR, 9, "", "nvmlInit_v2")
UNREAD = Unknown("not read here")


def settings(**changes):
    values = {"path": "/mnt/c/Users/dev/.wslconfig", "memory": "", "kernel": "", "gpu_support": True, "networking": ""}
    return WslSettings(**values | changes)


def guest(**changes):
    return changed(windows_guest(), {path.replace("__", "."): value for path, value in changes.items()})


def blocked(**changes):
    return guest(nvml=BLOCKED, **changes)


def set_up(value, platform=Platform.WSL2):
    return guest(system__platform=platform, system__wsl_settings=value)


def memory(size, swap=0, **changes):
    return guest(system__memory_bytes=size, wsl__swap_bytes=swap, **changes)


def with_toolkit(version, kind=EngineKind.DOCKER):
    return guest(toolkit__version=version, engine__kind=kind)


NO_GPU_SUPPORT = settings(gpu_support=False)
OWN_KERNEL = settings(kernel="C:\\wsl\\bzImage")
LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
CONTAINER = changed(windows_guest(), {"container": inside().container})
WSL1 = guest(system__platform=Platform.WSL1, wsl=None, nvml=no_library())

CASES = [
    ("WSL002", guest(), "passed", "the device of the GPU is there"),
    ("WSL002", guest(wsl__has_dxg=False), "error: confidence: likely | where: windows", "it is not"),
    (
        "WSL002",
        guest(wsl__has_dxg=False, system__wsl_settings=OWN_KERNEL),
        "error: confidence: certain | .wslconfig: kernel=C:\\wsl\\bzImage",
        "it is not, and somebody set a kernel",
    ),
    ("WSL002", WSL1, "error: WSL 1", "WSL 1 has no GPU"),
    ("WSL003", guest(wsl__libraries=("libcuda.so.1", "libnvidia-ml.so.1")), "passed", "both libraries are there"),
    ("WSL003", guest(wsl__libraries=("libnvidia-ml.so.1", "libd3d12.so")), "error: libcuda", "libcuda is missing"),
    ("WSL003", guest(wsl__libraries=("libd3d12.so",)), "passed", "no NVIDIA GPU in Windows"),
    ("WSL004", guest(), "passed", "NVML answers"),
    ("WSL004", blocked(), "error: TCC | confidence: possible | where: windows", "access is blocked"),
    ("WSL004", blocked(wsl__driver_store=()), "error: from its driver store | confidence: likely", "an empty store"),
    ("WSL004", blocked(wsl__driver_store=UNREAD), "error: TCC | confidence: possible", "a store that was not read"),
    ("WSL004", guest(nvml=OTHER_ERROR), "passed", "another return value"),
    ("WSL004", blocked(wsl__linux_driver_packages=("nvidia-utils-580",)), "skipped", "a Linux driver is why"),
    ("WSL004", blocked(wsl=UNREAD), "skipped", "the guest was not read"),
    ("WSL005", set_up(NO_GPU_SUPPORT), "error", "the GPU is switched off"),
    ("WSL005", set_up(NO_GPU_SUPPORT, Platform.WINDOWS), "warning", "switched off, seen from Windows"),
    ("WSL005", set_up(settings()), "passed", "left on"),
    ("WSL005", set_up(settings(), Platform.WINDOWS), "passed", "left on, seen from Windows"),
    ("WSL005", set_up(None), "skipped", "no such file"),
    ("WSL005", set_up(UNREAD), "skipped", "which user it is cannot be told"),
    ("WSL006", memory(WSL_MEMORY_BYTES), "passed", "exactly enough"),
    ("WSL006", memory(WSL_MEMORY_BYTES - 1), "warning: restart: wsl", "one byte short"),
    (
        "WSL006",
        memory(4 * GIB, system__wsl_settings=settings(memory="4GB")),
        "warning: .wslconfig: memory=4GB",
        "as little as somebody set",
    ),
    ("WSL006", memory(WSL_MEMORY_BYTES - GIB, GIB), "passed", "swap makes up for it"),
    ("WSL006", memory(UNREAD), "skipped", "memory was not read"),
    ("WSL006", memory(GIB, UNREAD), "skipped", "swap was not read"),
    ("WSL007", guest(wsl__libcuda_link_in_cache=True), "passed", "in the cache"),
    ("WSL007", guest(wsl__libcuda_link_in_cache=False), "note", "left out"),
    ("WSL007", guest(wsl__libcuda_link_in_cache=UNREAD), "skipped", "ldconfig did not run"),
    ("WSL008", CONTAINER, "passed", "an image without a driver"),
    (
        "WSL008",
        changed(CONTAINER, {"wsl.image_libraries": LIBRARIES}),
        f"error: libcuda.so.1 and libnvidia-ml.so.1 | RUN rm -f {' '.join(LIBRARIES)} | where: image",
        "a driver in the image",
    ),
    ("WSL008", guest(wsl__image_libraries=LIBRARIES), "skipped", "seen from inside only"),
    ("WSL008", inside(), "skipped", "a container of plain Linux"),
    ("WSL009", with_toolkit(r("1.19.0")), "note: 1.19.0 | 1.19.1", "the last toolkit that does not refresh CDI"),
    ("WSL009", with_toolkit(r("1.19.1")), "passed", "the first toolkit that does"),
    ("WSL009", with_toolkit(r("1.18.2"), EngineKind.DOCKER_DESKTOP), "skipped", "Docker Desktop has its own"),
    ("WSL009", with_toolkit(None), "skipped", "no toolkit"),
    ("WSL010", guest(wsl__clock_behind_s=CLOCK_SKEW_S), "passed", "as far as is allowed"),
    ("WSL010", guest(wsl__clock_behind_s=CLOCK_SKEW_S + 1), "warning: hwclock -s", "a second further"),
    ("WSL010", guest(wsl__clock_behind_s=-CLOCK_SKEW_S - 1), "warning: ahead of", "ahead of Windows"),
    ("WSL010", guest(wsl__clock_behind_s=UNREAD), "skipped", "no hardware clock"),
]


@pytest.mark.parametrize("code", list_codes(CASES))
def test_the_verdict_on_each_guest(code):
    assert list_wrong(code, CASES) == []


@cases(
    "facts, root, others",
    {
        "a GPU that Windows blocks": (blocked(), "WSL004", {"DRV003"}),
        "a GPU that is switched off": (
            guest(system__wsl_settings=NO_GPU_SUPPORT, wsl__has_dxg=False, wsl__libraries=(), nvml=no_library()),
            "WSL005",
            {"GPU001"},
        ),
        "WSL 1, in which no engine runs": (
            changed(WSL1, {"engine": EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, "missing")}),
            "WSL002",
            {"ENG001"},
        ),
        "a Linux driver in the guest": (
            guest(
                wsl__linux_driver_packages=("libnvidia-compute-580:amd64", "nvidia-utils-580"),
                wsl__libnvidia_ml_path="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
                nvml=BLOCKED,
            ),
            "WSL001",
            {"DRV003"},
        ),
    },
)
def test_what_windows_holds_back_is_the_root(facts, root, others):
    report = build_full_report(facts)
    assert report.root_causes == (root,)
    assert {shown.check.code for shown in report.following(root)} >= others


def test_a_linux_driver_is_removed_by_name():
    packages = ("libnvidia-compute-580:amd64", "nvidia-utils-580")
    fix = build_full_report(blocked(wsl__linux_driver_packages=packages)).roots[0].finding.fix
    assert fix.commands == ("sudo apt-get purge -y libnvidia-compute-580 nvidia-utils-580", "wsl.exe --shutdown")
    assert fix.where == "wsl"


def test_no_fix_in_wsl_installs_a_linux_driver():
    old = {"nvml__driver": r("472.12"), "nvml__cuda": r("11.4"), "python__torch": inside().python.torch}
    answers = [NvmlFailure(NvmlEnd.ERROR, code, "", "nvmlInit_v2") for code in (4, 9, 15, 17, 18, 999)]
    broken = [
        *(guest(nvml=answer) for answer in (*answers, no_library())),
        guest(**old),
        guest(wsl__has_dxg=False),
        guest(system__wsl_settings=NO_GPU_SUPPORT),
        guest(wsl__libraries=("libnvidia-ml.so.1",)),
        guest(wsl__libraries=("libcuda.so.1",)),
    ]
    for facts in broken:
        shown = build_full_report(facts).findings
        assert shown
        commands = "\n".join(command for each in shown for command in each.finding.fix.commands)
        assert not any(word in commands for word in ("ubuntu-drivers", "nvidia-driver", "apt-get install"))
