import pytest

from devkit.doctor.model import Found, Passed, Severity, Skipped
from devkit.facts.model import Smoke
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, windows_guest, without_gpu
from tests.doctor.running import build_full_report, find_only, run_check

NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
REFUSED = {"code": 125, "device_nodes": Unknown("-"), "nvidiactl": Unknown("-"), "libcuda": Unknown("-")}


def smoke(**changes):
    values = {
        "image": "5b0ad6d2c3f4",
        "request": "gpus",
        "code": 0,
        "out": "",
        "err": "",
        "device_nodes": NODES,
        "nvidiactl": "open",
        "libcuda": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "nvidia_smi": "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-0)",
        "timed_out": False,
        "left_behind": "",
    }
    return changed(healthy(), {"smoke": Smoke(**values | changes)})


def test_a_container_with_its_gpu_passes():
    assert isinstance(run_check("CTK013", smoke()), Passed)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"device_nodes": (), "nvidiactl": "absent"}, "finds no GPU", id="no nodes"),
        pytest.param({"nvidiactl": "refused"}, "may not open", id="nodes that may not be opened"),
        pytest.param({"libcuda": ""}, "not the driver's library", id="no libcuda"),
        pytest.param({"nvidia_smi": "Failed to initialize NVML: Unknown Error"}, "Unknown Error", id="NVML fails"),
        pytest.param({"timed_out": True, "code": 124}, "did not end in time", id="it hangs"),
        pytest.param(REFUSED | {"err": "docker: strange words.\n"}, "strange words", id="an error nobody knows"),
    ],
)
def test_what_can_be_wrong(changes, says):
    finding = find_only("CTK013", smoke(**changes))
    assert finding.severity is Severity.ERROR
    assert says in finding.message
    assert finding.evidence[0].startswith("run --gpus all 5b0ad6d2c3f4")


FAR = "docker: Error response from daemon: failed to create task: " + "one layer after the other: " * 20
HELP = "\n\nRun 'docker run --help' for more information\n"


def test_the_cause_of_a_long_error_is_shown_and_the_commands_help_is_not():
    finding = find_only("CTK013", smoke(**REFUSED, err=f"{FAR}the cause of it all{HELP}"))
    assert finding.message.endswith("the cause of it all")
    assert len(finding.message) < 300
    assert finding.evidence[1] == f"{FAR}the cause of it all"


def test_a_known_error_is_explained():
    err = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'
    finding = find_only("CTK013", smoke(**REFUSED, err=err))
    assert err.strip() not in finding.message
    assert finding.fix.commands


def test_no_nvidia_smi_in_the_image_is_no_fault():
    assert isinstance(run_check("CTK013", smoke(nvidia_smi="")), Passed)


def test_a_container_that_could_not_be_removed_is_named():
    finding = find_only("CTK013", smoke(left_behind="devkit-smoke-1234"))
    assert finding.severity is Severity.WARNING
    assert finding.fix.commands == ("docker rm --force devkit-smoke-1234",)


@pytest.mark.parametrize(
    ("nodes", "verdict"),
    [pytest.param(("/dev/dxg",), Passed, id="with it"), pytest.param((), Found, id="without it")],
)
def test_in_wsl_the_gpu_is_one_node(nodes, verdict):
    guest = changed(windows_guest(), {"smoke": smoke(device_nodes=nodes, nvidiactl="absent").smoke})
    assert isinstance(run_check("CTK013", guest), verdict)


@pytest.mark.parametrize(
    "facts",
    [changed(without_gpu(), {"smoke": smoke().smoke}), changed(healthy(), {"smoke": Unknown("only run with --smoke")})],
    ids=["without a GPU", "not asked for"],
)
def test_nothing_is_said_where_nothing_was_tried(facts):
    assert isinstance(run_check("CTK013", facts), Skipped)


def test_a_missing_toolkit_is_the_cause():
    changes = {
        "smoke": smoke(**REFUSED, err="could not select device driver").smoke,
        "engine.runtimes": (),
        "engine.cdi_devices": (),
        "engine.hook_on_path": False,
        "engine.containers": (),
        "toolkit.version": None,
        "toolkit.daemon_files": (),
        "cdi": (),
    }
    assert build_full_report(changed(healthy(), changes)).root_causes == ("CTK001",)
