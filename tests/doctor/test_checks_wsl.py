"""Checks of WSL: what Windows passes in, its settings, its memory, its clock."""

import pytest

from devkit.doctor.model import Confidence, Found, Passed, Restart, Severity, Side, Skipped
from devkit.doctor.thresholds import CLOCK_SKEW_S, WSL_MEMORY_BYTES
from devkit.facts.model import EngineEnd, EngineFailure, EngineKind, NvmlEnd, NvmlFailure, Platform, WslSettings
from devkit.facts.values import Unknown
from tests.doctor.machines import GIB, changed, healthy, inside, no_library, r, windows_guest
from tests.doctor.running import build_full_report, find_codes, find_only, run_check

BLOCKED = NvmlFailure(NvmlEnd.ERROR, 17, "GPU access blocked by the operating system", "nvmlInit_v2")
UNREAD = Unknown("not read here")


def settings(**changes):
    values = {"path": "/mnt/c/Users/dev/.wslconfig", "memory": "", "kernel": "", "gpu_support": True, "networking": ""}
    return WslSettings(**values | changes)


def guest(**changes):
    return changed(windows_guest(), {path.replace("__", "."): value for path, value in changes.items()})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, Passed, id="NVML answers"),
        pytest.param({"nvml": BLOCKED}, Found, id="access is blocked"),
        pytest.param({"nvml": NvmlFailure(NvmlEnd.ERROR, 9, "", "nvmlInit_v2")}, Passed, id="another return value"),
        pytest.param(
            {"nvml": BLOCKED, "wsl__linux_driver_packages": ("nvidia-utils-580",)}, Skipped, id="a Linux driver is why"
        ),
        pytest.param({"nvml": BLOCKED, "wsl": UNREAD}, Skipped, id="the guest was not read"),
    ],
)
def test_windows_blocks_the_gpu(changes, verdict):
    assert isinstance(run_check("WSL004", guest(**changes)), verdict)


@pytest.mark.parametrize(
    ("store", "says", "confidence"),
    [
        pytest.param((), "no driver from its driver store", Confidence.LIKELY, id="an empty driver store"),
        pytest.param(("nv_dispi.inf_amd64_1",), "TCC", Confidence.POSSIBLE, id="a driver in the store"),
        pytest.param(UNREAD, "TCC", Confidence.POSSIBLE, id="a store that was not read"),
    ],
)
def test_an_empty_driver_store_is_told_apart_from_a_wrong_driver_model(store, says, confidence):
    facts = guest(nvml=BLOCKED, wsl__driver_store=store)
    finding = find_only("WSL004", facts)
    assert says in finding.message
    assert finding.confidence is confidence
    assert finding.fix.where is Side.WINDOWS
    assert build_full_report(facts).root_causes == ("WSL004",)


def test_no_fix_in_wsl_installs_a_linux_driver():
    broken = [
        guest(nvml=BLOCKED),
        guest(wsl__has_dxg=False),
        guest(system__wsl_settings=settings(gpu_support=False)),
        guest(wsl__libraries=("libnvidia-ml.so.1",)),
    ]
    for facts in broken:
        for shown in build_full_report(facts).findings:
            assert not any("nvidia-driver" in command for command in shown.finding.fix.commands)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        pytest.param(settings(gpu_support=False), Found, id="switched off"),
        pytest.param(settings(), Passed, id="left on"),
        pytest.param(None, Skipped, id="no such file"),
        pytest.param(UNREAD, Skipped, id="which user it is cannot be told"),
    ],
)
@pytest.mark.parametrize("platform", [Platform.WSL2, Platform.WINDOWS], ids=["from the guest", "from Windows"])
def test_the_gpu_switched_off_in_wslconfig(platform, value, verdict):
    facts = guest(system__platform=platform, system__wsl_settings=value)
    assert isinstance(run_check("WSL005", facts), verdict)


def test_a_switched_off_gpu_is_why_the_guest_has_none():
    facts = guest(
        system__wsl_settings=settings(gpu_support=False), wsl__has_dxg=False, wsl__libraries=(), nvml=no_library()
    )
    assert build_full_report(facts).root_causes == ("WSL005",)
    assert find_codes(facts) == ["WSL005"]


def test_a_kernel_of_ones_own_makes_the_missing_device_certain():
    facts = guest(wsl__has_dxg=False, system__wsl_settings=settings(kernel="C:\\wsl\\bzImage"))
    finding = find_only("WSL002", facts)
    assert finding.confidence is Confidence.CERTAIN
    assert ".wslconfig: kernel=C:\\wsl\\bzImage" in finding.evidence
    assert find_only("WSL002", guest(wsl__has_dxg=False)).confidence is Confidence.LIKELY


def test_wsl1_is_why_no_engine_answers():
    facts = guest(
        system__platform=Platform.WSL1,
        wsl=None,
        nvml=no_library(),
        engine=EngineFailure(EngineEnd.NOT_RUNNING, healthy().engine.endpoint, "missing"),
    )
    report = build_full_report(facts)
    assert report.root_causes == ("WSL002",)
    assert [shown.check.code for shown in report.following("WSL002")] == ["ENG001"]


@pytest.mark.parametrize(
    ("memory", "swap", "verdict"),
    [
        pytest.param(WSL_MEMORY_BYTES.value, 0, Passed, id="exactly enough"),
        pytest.param(WSL_MEMORY_BYTES.value - 1, 0, Found, id="one byte short"),
        pytest.param(WSL_MEMORY_BYTES.value - GIB, GIB, Passed, id="swap makes up for it"),
        pytest.param(UNREAD, 0, Skipped, id="memory was not read"),
        pytest.param(GIB, UNREAD, Skipped, id="swap was not read"),
    ],
)
def test_memory_of_the_guest(memory, swap, verdict):
    facts = guest(system__memory_bytes=memory, wsl__swap_bytes=swap)
    assert isinstance(run_check("WSL006", facts), verdict)


def test_the_memory_that_somebody_set_is_shown():
    facts = guest(system__memory_bytes=4 * GIB, wsl__swap_bytes=0, system__wsl_settings=settings(memory="4GB"))
    finding = find_only("WSL006", facts)
    assert finding.severity is Severity.WARNING
    assert ".wslconfig: memory=4GB" in finding.evidence
    assert finding.fix.restart is Restart.WSL


@pytest.mark.parametrize(
    ("in_cache", "verdict"),
    [
        pytest.param(True, Passed, id="in the cache"),
        pytest.param(False, Found, id="left out"),
        pytest.param(UNREAD, Skipped, id="ldconfig did not run"),
    ],
)
def test_the_plain_name_of_libcuda_is_a_note(in_cache, verdict):
    facts = guest(wsl__libcuda_link_in_cache=in_cache)
    assert isinstance(run_check("WSL007", facts), verdict)
    assert find_codes(facts) == []


def test_a_driver_in_the_image_is_seen_from_inside_only():
    libraries = ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    container = changed(windows_guest(), {"container": inside().container})
    assert run_check("WSL008", container) == Passed()
    finding = find_only("WSL008", changed(container, {"wsl.image_libraries": libraries}))
    assert finding.message.startswith("the image carries libcuda.so.1 and libnvidia-ml.so.1")
    assert finding.fix.commands == (f"RUN rm -f {' '.join(libraries)}",)
    assert finding.fix.where is Side.IMAGE
    assert isinstance(run_check("WSL008", guest(wsl__image_libraries=libraries)), Skipped)
    assert isinstance(run_check("WSL008", inside()), Skipped)


@pytest.mark.parametrize(
    ("version", "kind", "verdict"),
    [
        pytest.param(r("1.19.0"), EngineKind.DOCKER, Found, id="the last toolkit that does not refresh"),
        pytest.param(r("1.19.1"), EngineKind.DOCKER, Passed, id="the first toolkit that does"),
        pytest.param(r("1.18.2"), EngineKind.DOCKER_DESKTOP, Skipped, id="Docker Desktop brings its own"),
        pytest.param(None, EngineKind.DOCKER, Skipped, id="no toolkit"),
    ],
)
def test_the_toolkit_that_does_not_refresh_cdi_in_wsl(version, kind, verdict):
    facts = guest(toolkit__version=version, engine__kind=kind)
    assert isinstance(run_check("WSL009", facts), verdict)


@pytest.mark.parametrize(
    ("behind", "verdict"),
    [
        pytest.param(CLOCK_SKEW_S.value, Passed, id="as far as is allowed"),
        pytest.param(CLOCK_SKEW_S.value + 1, Found, id="a second further"),
        pytest.param(-CLOCK_SKEW_S.value - 1, Found, id="before Windows"),
        pytest.param(UNREAD, Skipped, id="no hardware clock"),
    ],
)
def test_the_clock_of_the_guest(behind, verdict):
    assert isinstance(run_check("WSL010", guest(wsl__clock_behind_s=behind)), verdict)


def test_nothing_of_wsl_is_said_on_plain_linux():
    wsl = [outcome for outcome in build_full_report(healthy()).outcomes if outcome.check.code.startswith("WSL")]
    assert len(wsl) == 10
    assert [outcome.check.code for outcome in wsl if not isinstance(outcome.verdict, Skipped | Passed)] == []
