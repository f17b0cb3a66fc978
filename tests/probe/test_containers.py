import json

import pytest

from devkit.facts.values import Unknown
from devkit.probe.engine.containers import parse_local_images, parse_running_containers, parse_stopped_containers
from devkit.probe.engine.daemon import read_engine
from devkit.probe.host import LocalHost
from tests.probe.engines import INFO, VERSION, engine

DEADLINE_S = 5.0
GPUS = {"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]]}
COMPOSE = {"Driver": "nvidia", "Count": 0, "DeviceIDs": ["0"], "Capabilities": [["compute", "utility"]]}
CDI = {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=all"], "Capabilities": None}
OTHER_CDI = {"Driver": "cdi", "DeviceIDs": ["vendor.com/nic=0"], "Capabilities": None}
NODE = {"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rwm"}
RUNNING = {"Status": "running", "Running": True, "ExitCode": 0, "OOMKilled": False, "Error": ""}
FOLDER = "devcontainer.local_folder"


def described(*, env=(), labels=None, state=RUNNING, **host):
    return {
        "Id": "3f" * 32,
        "Name": "/dev",
        "Image": "sha256:" + "5b" * 32,
        "State": state,
        "Config": {"Image": "vsc-project", "User": "dev", "Env": list(env), "Labels": labels or {}},
        "HostConfig": {"Runtime": "runc", "ShmSize": 64 << 20, **host},
    }


def one(**changes):
    (found,) = parse_running_containers({"containers": [described(**changes)]})
    return found


@pytest.mark.parametrize(
    ("changes", "request_"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"DeviceRequests": [GPUS]}, "driver", id="--gpus all"),
        pytest.param({"DeviceRequests": [COMPOSE]}, "driver", id="a Compose reservation by driver"),
        pytest.param({"DeviceRequests": [CDI]}, "cdi", id="a CDI name"),
        pytest.param({"DeviceRequests": [OTHER_CDI]}, "", id="a CDI name of another vendor"),
        pytest.param({"Devices": [{"PathOnHost": "nvidia.com/gpu=0"}]}, "cdi", id="a CDI name among devices"),
        pytest.param({"Devices": [NODE]}, "devices", id="a device node"),
        pytest.param({"Devices": [{"PathOnHost": "/dev/fuse"}]}, "", id="another device node"),
        pytest.param({"Runtime": "nvidia", "env": ["NVIDIA_VISIBLE_DEVICES=0"]}, "runtime", id="the nvidia runtime"),
        pytest.param({"Runtime": "nvidia", "env": ["NVIDIA_VISIBLE_DEVICES=void"]}, "", id="the runtime, for nothing"),
        pytest.param({"Runtime": "nvidia"}, "", id="the runtime alone"),
        pytest.param({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "", id="the variable alone"),
        pytest.param({"DeviceRequests": [GPUS], "Devices": [NODE]}, "driver", id="a request and a node"),
    ],
)
def test_the_form_of_a_gpu_request(changes, request_):
    assert one(**changes).gpu_request == request_


@pytest.mark.parametrize(
    ("labels", "folder", "is_dev"),
    [
        pytest.param({}, "", False, id="no labels"),
        pytest.param({FOLDER: "/home/dev/project"}, "/home/dev/project", True, id="a dev container tool's"),
        pytest.param({FOLDER: "c:\\src\\project"}, "c:\\src\\project", True, id="on Windows"),
        pytest.param(
            {"com.docker.compose.project.working_dir": "/home/dev/project"}, "/home/dev/project", False, id="Compose's"
        ),
        pytest.param(
            {"com.docker.compose.project.working_dir": "/home/dev/project/.devcontainer"},
            "/home/dev/project",
            False,
            id="Compose's, of a file in the folder for dev containers",
        ),
    ],
)
def test_whose_container_it_is(labels, folder, is_dev):
    found = one(labels=labels)
    assert (found.folder, found.is_dev_container) == (folder, is_dev)


def test_limits_and_options_are_read():
    found = one(
        Ulimits=[{"Name": "RLIMIT_MEMLOCK", "Soft": -1, "Hard": -1}, {"Name": "stack", "Soft": 67108864, "Hard": 1}],
        SecurityOpt=["label=disable"],
        Memory=8 << 30,
        Privileged=True,
        IpcMode="host",
        NetworkMode="host",
    )
    assert found.ulimits == ("memlock=-1:-1", "stack=67108864:1")
    assert (found.memory_bytes, found.is_privileged, found.ipc_mode) == (8 << 30, True, "host")
    assert found.security_options == ("label=disable",)


def test_no_memory_limit_is_none_and_an_unsaid_one_unknown():
    assert one(Memory=0).memory_bytes is None
    assert isinstance(one().memory_bytes, Unknown)


def test_requirements_may_be_switched_off():
    wanted = ["NVIDIA_REQUIRE_CUDA=cuda>=12.8"]
    assert one(env=wanted).require_cuda == "cuda>=12.8"
    assert one(env=[*wanted, "NVIDIA_DISABLE_REQUIRE=true"]).require_cuda is None


def test_stopped_containers_are_listed_apart():
    ended = {"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True, "Error": ""}
    said = {"containers": [described(), described(state=ended, labels={FOLDER: "/p"})]}
    assert len(parse_running_containers(said)) == 1
    (stopped,) = parse_stopped_containers(said)
    assert (stopped.state, stopped.exit_code, stopped.out_of_memory, stopped.folder) == ("exited", 137, True, "/p")


@pytest.mark.parametrize("read", [parse_running_containers, parse_stopped_containers, parse_local_images])
def test_an_engine_that_did_not_come_that_far_is_unknown_with_its_reason(read):
    assert "no answer in time" in read({}).reason
    assert "stuck" in read({"unlisted": "stuck"}).reason


WRONG = [None, 0, 1.5, "text", [], ["text"], [None], {}, {"a": 1}, True]


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
@pytest.mark.parametrize("group", ["State", "Config", "HostConfig", "Id", "Image", "Name", "Sockets"])
def test_a_part_of_another_shape_breaks_nothing(group, wrong):
    said = {"containers": [described() | {group: wrong}], "images": [{"Id": wrong, "RepoTags": wrong, "Env": wrong}]}
    assert isinstance(parse_running_containers(said), tuple)
    assert isinstance(parse_stopped_containers(said), tuple)
    assert len(parse_local_images(said)) == 1


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
@pytest.mark.parametrize(
    "key", ["DeviceRequests", "Devices", "Ulimits", "SecurityOpt", "ShmSize", "Memory", "Runtime", "IpcMode"]
)
def test_a_setting_of_another_shape_breaks_nothing(key, wrong):
    assert one(**{key: wrong}).name == "dev"


ID = "3f" * 32
INSPECTED = described(labels={FOLDER: "/p", "secret": "label"}, env=["NVIDIA_API_KEY=secret", "HF_TOKEN=secret"])
ANSWERS = {
    "version": VERSION,
    "info": INFO,
    "/containers/json?all=1": [{"Id": ID, "State": "running", "Labels": {FOLDER: "/p"}}],
    f"/containers/{ID}/json": INSPECTED | {"Mounts": [{"Source": "/var/run/docker.sock"}], "Path": "/bin/secret"},
    f"/images/sha256:{'5b' * 32}/json": {
        "Id": "sha256:" + "5b" * 32,
        "RepoTags": ["vsc-project:latest"],
        "Architecture": "arm64",
        "Config": {
            "Env": ["NVIDIA_REQUIRE_CUDA=cuda>=12.8", "TOKEN=secret"],
            "Labels": {"devcontainer.metadata": "[]"},
        },
    },
}


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """What is read of an engine that gives these answers."""

    def read(answers, **options):
        with engine(tmp_path / "engine.sock", answers=answers, **options) as url:
            monkeypatch.setenv("DOCKER_HOST", url)
            return read_engine(LocalHost(), deadline_s=DEADLINE_S)

    return read


def test_containers_and_their_images_are_listed_without_secrets(ask):
    found = ask(ANSWERS)
    (container,), (image,) = found.containers, found.images
    assert (container.id, container.folder, container.has_engine_socket) == (ID[:12], "/p", True)
    assert (image.name, image.machine, image.require_cuda, image.is_dev_container) == (
        "vsc-project:latest",
        "arm64",
        "cuda>=12.8",
        True,
    )
    assert "secret" not in repr(found)


def test_a_container_that_ends_meanwhile_is_left_out(ask):
    answers = {key: value for key, value in ANSWERS.items() if key != f"/containers/{ID}/json"}
    assert ask(answers).containers == ()


def test_an_engine_without_such_lists_is_still_an_engine(ask):
    found = ask({"version": VERSION, "info": INFO})
    assert str(found.version) == "28.5.2"
    assert "404" in found.containers.reason


@pytest.mark.parametrize("wrong", [None, 3, "text", {"message": "no"}, [3], [None], [{"Id": 3}]], ids=json.dumps)
def test_a_list_of_another_shape_costs_only_itself(ask, wrong):
    found = ask(ANSWERS | {"/containers/json?all=1": wrong})
    assert str(found.version) == "28.5.2"
    assert isinstance(found.containers, Unknown) or found.containers == ()


@pytest.mark.clock
def test_a_list_that_never_comes_costs_two_seconds_and_no_more(ask):
    found = ask(ANSWERS, hang_at="json?all=1")
    assert str(found.version) == "28.5.2"
    assert "timed out" in found.containers.reason


def test_at_most_twenty_that_run_and_ten_that_stopped_are_looked_at(ask):
    many = [{"Id": f"{number:064x}", "State": "running", "Labels": {}} for number in range(30)]
    many += [{"Id": f"{number:064x}", "State": "exited", "Labels": {FOLDER: "/p"}} for number in range(100, 130)]
    ended = {"Running": False, "Status": "exited"}
    answers = ANSWERS | {"/containers/json?all=1": many}
    for summary in many:
        state = RUNNING if summary["State"] == "running" else ended
        answers[f"/containers/{summary['Id']}/json"] = described(state=state)
    found = ask(answers)
    assert (len(found.containers), len(found.stopped)) == (20, 10)
