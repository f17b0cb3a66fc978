import pytest

from devkit.doctor.fixes import DistroFamily, find_container_distro_family, find_distro_family
from devkit.doctor.model import Found, Skipped
from devkit.doctor.preconditions import has_nvidia_gpu
from devkit.doctor.registry import BY_CODE
from devkit.doctor.runner import run_checks
from devkit.facts.model import (
    Distribution,
    Endpoint,
    EngineEnd,
    EngineFailure,
    NvmlAnswer,
    NvmlEnd,
    NvmlFailure,
    Platform,
)
from devkit.facts.values import Unknown
from tests.doctor.machines import (
    ARCH,
    ROCKY,
    UBUNTU,
    VOID,
    changed,
    healthy,
    inside,
    no_library,
    windows_guest,
    without_gpu,
)

HIDDEN = Unknown("/sys is not visible here")
SILENT = {"nvml": no_library()}


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        pytest.param(healthy(), True, id="NVML lists one"),
        pytest.param(changed(healthy(), SILENT), True, id="the bus shows one while NVML is silent"),
        pytest.param(changed(healthy(), SILENT | {"driver.loaded": None}), True, id="the bus alone shows one"),
        pytest.param(
            changed(healthy(), SILENT | {"driver.pci_gpus": ()}), True, id="the module is loaded, as on a Jetson"
        ),
        pytest.param(without_gpu(), False, id="neither bus nor module"),
        pytest.param(
            changed(without_gpu(), {"driver.pci_gpus": HIDDEN}), False, id="a hidden bus and no trace of a driver"
        ),
        pytest.param(
            changed(without_gpu(), {"driver.pci_gpus": HIDDEN, "container": inside().container}),
            HIDDEN,
            id="a hidden bus inside a container proves nothing",
        ),
        pytest.param(
            changed(without_gpu(), {"nvml": NvmlFailure(NvmlEnd.ERROR, 9, "Driver Not Loaded", "nvmlInit_v2")}),
            False,
            id="a library without driver and GPU",
        ),
        pytest.param(
            changed(without_gpu(), {"nvml": NvmlFailure(NvmlEnd.TIMED_OUT, 0, "", "nvmlInit_v2")}),
            True,
            id="a driver that hangs",
        ),
        pytest.param(changed(without_gpu(), {"nvml": NvmlAnswer(HIDDEN, HIDDEN, ())}), False, id="NVML lists none"),
        pytest.param(changed(windows_guest(), SILENT), True, id="Windows put its libraries into the guest"),
        pytest.param(
            changed(windows_guest(), SILENT | {"wsl.libraries": ("libd3d12.so",)}),
            False,
            id="Windows has no NVIDIA driver",
        ),
        pytest.param(changed(windows_guest(), SILENT | {"wsl": HIDDEN}), HIDDEN, id="an unread guest"),
        pytest.param(changed(without_gpu(), {"system.platform": Platform.MACOS, "driver": HIDDEN}), False, id="a Mac"),
        pytest.param(
            changed(without_gpu(), {"system.platform": Platform.WINDOWS, "driver": HIDDEN}),
            False,
            id="Windows without NVML",
        ),
    ],
)
def test_whether_there_is_an_nvidia_gpu(facts, answer):
    assert has_nvidia_gpu(facts) == answer


@pytest.mark.parametrize(
    ("distribution", "family"),
    [
        (UBUNTU, DistroFamily.UBUNTU),
        (Distribution("linuxmint", ("ubuntu", "debian"), "22", "Linux Mint 22"), DistroFamily.UBUNTU),
        (Distribution("raspbian", ("debian",), "12", "Raspbian"), DistroFamily.DEBIAN),
        (ROCKY, DistroFamily.RHEL),
        (Distribution("opensuse-tumbleweed", ("opensuse", "suse"), "", "Tumbleweed"), DistroFamily.SUSE),
        (Distribution("endeavouros", ("arch",), "", "EndeavourOS"), DistroFamily.ARCH),
        (ARCH, DistroFamily.ARCH),
        (VOID, DistroFamily.OTHER),
        (Unknown("no os-release"), DistroFamily.OTHER),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "reason", str(value))),
)
def test_the_family_of_a_distribution(distribution, family):
    assert find_distro_family(changed(healthy(), {"system.distribution": distribution})) is family


def test_a_containers_distribution_says_nothing_about_its_host():
    assert find_distro_family(inside()) is DistroFamily.OTHER
    assert find_container_distro_family(inside()) is DistroFamily.DEBIAN


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        pytest.param({}, Skipped, id="no engine in the container"),
        pytest.param({"engine": healthy().engine}, Found, id="an engine runs in the container itself"),
        pytest.param(
            {"engine": changed(healthy(), {"engine.hook_on_path": Unknown("its process is not visible")}).engine},
            Skipped,
            id="a socket was passed in, the engine runs outside",
        ),
    ],
)
def test_a_container_judges_only_an_engine_of_its_own(engine, status):
    facts = changed(inside(), {**engine, "compose": None})
    (outcome,) = run_checks((BY_CODE["ENG005"],), facts, clock=lambda: 0.0)
    assert isinstance(outcome.verdict, status)


@pytest.mark.parametrize("end", [NvmlEnd.TIMED_OUT, NvmlEnd.CRASHED])
def test_a_library_that_hangs_or_crashes_is_not_blamed_on_a_gpu_that_was_not_given(end):
    without_node = {"driver.nvidiactl": "absent", "driver.device_nodes": ()}
    facts = changed(inside(), {"nvml": NvmlFailure(end, 11, "SIGSEGV", "nvmlInit_v2"), **without_node})
    outcomes = run_checks((BY_CODE["CON001"], BY_CODE["DRV003"]), facts, clock=lambda: 0.0)
    assert [type(outcome.verdict) for outcome in outcomes] == [Skipped, Found]


@pytest.mark.parametrize(
    ("end", "chosen_by", "status"),
    [
        pytest.param(EngineEnd.NOT_RUNNING, "default", Skipped, id="nobody speaks of an engine"),
        pytest.param(EngineEnd.NOT_RUNNING, "DOCKER_HOST", Found, id="a variable names one that is not there"),
        pytest.param(EngineEnd.PERMISSION_DENIED, "default", Found, id="a socket was passed in that refuses"),
    ],
)
def test_a_container_with_a_broken_way_to_an_engine_is_told(end, chosen_by, status):
    failure = EngineFailure(end, Endpoint("unix:///var/run/docker.sock", chosen_by), "no such file")
    (outcome,) = run_checks((BY_CODE["ENG001"],), changed(inside(), {"engine": failure}), clock=lambda: 0.0)
    assert isinstance(outcome.verdict, status)
