"""Containers that run, the commands for them, and the project's own dev container from the inside."""

import json

import pytest

from devkit.facts.engine import CredentialHelper, Engine, EngineKind, RunningContainer
from devkit.facts.model import Facts, format_facts
from devkit.facts.values import Release, Unknown
from devkit.probe.engine.client import read_clients
from devkit.probe.engine.containers import (
    DOCTOR_COMMAND,
    find_project_container,
    parse_local_images,
    parse_running_containers,
    parse_stopped_containers,
    read_facts_inside,
)
from devkit.probe.engine.daemon import read_engine
from devkit.probe.host import NOT_FOUND, TIMED_OUT, LocalHost, ProgramResult
from tests.cases import cases
from tests.doctor.machines import changed, healthy
from tests.doctor.machines import inside as healthy_inside
from tests.hosts import written
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


@cases(
    "labels, folder, is_dev",
    {
        "no labels": ({}, "", False),
        "a dev container tool's": ({FOLDER: "/home/dev/project"}, "/home/dev/project", True),
        "on Windows": ({FOLDER: "c:\\src\\project"}, "c:\\src\\project", True),
        "Compose's": ({"com.docker.compose.project.working_dir": "/home/dev/project"}, "/home/dev/project", False),
        "Compose's, of a file in the folder for dev containers": (
            {"com.docker.compose.project.working_dir": "/home/dev/project/.devcontainer"},
            "/home/dev/project",
            False,
        ),
    },
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
    assert "not answer in time" in read({}).reason
    assert "stuck" in read({"unlisted": "stuck"}).reason


WRONG = [None, 0, 1.5, "text", [], ["text"], [None], {}, {"a": 1}, True]


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_a_part_of_another_shape_breaks_nothing(wrong):
    for group in ("State", "Config", "HostConfig", "Id", "Image", "Name", "Sockets"):
        said = {
            "containers": [described() | {group: wrong}],
            "images": [{"Id": wrong, "RepoTags": wrong, "Env": wrong}],
        }
        assert isinstance(parse_running_containers(said), tuple), group
        assert isinstance(parse_stopped_containers(said), tuple), group
        assert len(parse_local_images(said)) == 1, group
    for key in ("DeviceRequests", "Devices", "Ulimits", "SecurityOpt", "ShmSize", "Memory", "Runtime", "IpcMode"):
        assert one(**{key: wrong}).name == "dev", key


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
    assert (container.id, container.folder) == (ID[:12], "/p")
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


@pytest.mark.parametrize("wrong", [None, {"message": "no"}, [None], [{"Id": 3}]], ids=json.dumps)
def test_a_list_of_another_shape_costs_only_itself(ask, wrong):
    found = ask(ANSWERS | {"/containers/json?all=1": wrong})
    assert str(found.version) == "28.5.2"
    assert isinstance(found.containers, Unknown) or found.containers == ()


@pytest.mark.clock
def test_a_list_that_never_comes_costs_two_seconds_and_no_more(ask):
    found = ask(ANSWERS, hang_at="json?all=1")
    assert str(found.version) == "28.5.2"
    assert "timed out" in found.containers.reason


# The project's running dev container is found by its label and read through the engine's own command.


BOX = RunningContainer("0123456789ab", "app-dev-1", "app", "/home/dev/project", "driver")
OTHER = RunningContainer("ba9876543210", "db-1", "postgres", "", "")


class AnsweringHost:
    """Answers every command with one `ProgramResult` and records the commands; the part of `Host` that is used."""

    def __init__(self, done):
        self.done = done
        self.asked = []

    def run(self, argv, *, deadline_s):
        self.asked.append((tuple(argv), deadline_s))
        return self.done


def engine_with(*containers, kind=EngineKind.DOCKER):
    engine = changed(healthy(), {"engine.containers": containers, "engine.kind": kind}).engine
    assert isinstance(engine, Engine)
    return engine


def read(done, *containers, project="/home/dev/project", kind=EngineKind.DOCKER):
    host = AnsweringHost(done)
    return read_facts_inside(host, engine_with(*containers, kind=kind), project=project, deadline_s=1.5), host


def test_the_inside_is_read_as_facts():
    facts, host = read(ProgramResult(1, format_facts(healthy_inside()), "Facts saved to /dev/stdout."), OTHER, BOX)
    assert facts == healthy_inside()
    assert host.asked == [(("docker", "exec", BOX.id, *DOCTOR_COMMAND), 1.5)]


def test_podman_runs_by_its_own_command():
    _, host = read(ProgramResult(0, format_facts(healthy_inside()), ""), BOX, kind=EngineKind.PODMAN)
    assert host.asked[0][0][0] == "podman"


@pytest.mark.parametrize(
    ("folder", "project", "is_it"),
    [
        pytest.param("/work/app", "/work/app", True, id="the same folder"),
        pytest.param("/work/app/", "/work/app", True, id="a trailing slash"),
        pytest.param("/work/app", "/work/app/src", True, id="from a folder below"),
        pytest.param("/work/app", "/work/apple", False, id="a name that begins alike"),
        pytest.param("/work/app/src", "/work/app", False, id="a container of a folder below"),
        pytest.param("c:\\work\\app", "c:/work/app", True, id="Windows separators"),
        pytest.param("", "/work/app", False, id="no dev container"),
    ],
)
def test_a_container_belongs_to_its_folder(folder, project, is_it):
    box = RunningContainer("0123456789ab", "one", "app", folder, "")
    assert (find_project_container((box,), project) is box) == is_it


def test_the_nearest_folder_wins():
    near = RunningContainer("1", "near", "app", "/work/app", "")
    far = RunningContainer("2", "far", "app", "/work", "")
    assert find_project_container((far, near), "/work/app/src") is near


@cases(
    "done, says",
    {
        "no devkit inside": (
            ProgramResult(127, "", "OCI runtime exec failed: executable file not found"),
            "not installed",
        ),
        "devkit that cannot be executed": (ProgramResult(126, "", "permission denied"), "not installed"),
        "an inside that hangs": (ProgramResult(TIMED_OUT, "", ""), "did not answer within 1.5 s"),
        "no docker command": (ProgramResult(NOT_FOUND, "", "no such program"), "docker command is missing"),
        "a devkit that fails": (ProgramResult(2, "", "Error: no such option"), "no such option"),
        "an answer that is no facts": (ProgramResult(0, "{}", ""), "status 0"),
        "an answer that is cut off": (ProgramResult(1, format_facts(healthy_inside())[:100], ""), "status 1"),
    },
)
def test_an_inside_that_cannot_be_read_is_unknown_with_the_reason(done, says):
    facts, _ = read(done, BOX)
    assert isinstance(facts, Unknown)
    assert says in facts.reason
    assert BOX.name in facts.reason


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(engine_with(OTHER), id="no dev container runs"),
        pytest.param(engine_with(), id="nothing runs"),
        pytest.param(changed(healthy(), {"engine.containers": Unknown("an old engine")}).engine, id="not known"),
        pytest.param(Unknown("no engine"), id="no engine"),
    ],
)
def test_without_a_dev_container_there_is_no_inside(engine):
    host = AnsweringHost(ProgramResult(0, "", ""))
    assert read_facts_inside(host, engine, project="/home/dev/project", deadline_s=1.0) is None
    assert host.asked == []


def test_facts_of_both_sides_travel_in_one_file():
    from dataclasses import replace

    from devkit.facts.model import parse_facts
    from devkit.facts.secrets import redact_facts

    both = replace(healthy(), inside=healthy_inside())
    assert parse_facts(format_facts(both)) == both
    assert isinstance(redact_facts(both).inside, Facts)


# The commands for containers, and the docker command's settings.


EXE = '{ kind = "file", mode = 0o755 }'
WRAPPER = '#!/bin/sh\\n[ -e /etc/containers/nodocker ] || echo Emulate >&2\\nexec /usr/bin/podman \\"$@\\"\\n'


def host(tmp_path, *programs, env="", files="", links="", commands=""):
    nodes = "".join(f'"{path}" = {EXE}\n' for path in programs)
    return written(
        tmp_path, f'[env]\nHOME = "/h"\n{env}\n[files]\n{files}\n[links]\n{links}\n[nodes]\n{nodes}\n{commands}'
    )


def says(path, text, code=0):
    return f"[[command]]\nargv = ['{path}', '--version']\nout = '''{text}'''\ncode = {code}\n"


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        pytest.param("Docker version 28.5.1, build e180ab8", Release.parse("28.5.1"), id="Docker"),
        pytest.param("Docker version 20.10.24+dfsg1, build 297e128", Release.parse("20.10.24"), id="Debian's build"),
        pytest.param("", Unknown("/usr/bin/docker --version ended with status 0", is_lost=True), id="nothing"),
    ],
)
def test_the_version_of_docker(tmp_path, printed, version):
    shown = printed.replace("\x1b", "")
    clients = read_clients(host(tmp_path, "/usr/bin/docker", commands=says("/usr/bin/docker", shown)))
    assert clients.named("docker").version == version


def test_only_docker_is_started(tmp_path):
    clients = read_clients(host(tmp_path, "/usr/bin/podman", "/usr/local/bin/docker-compose", "/usr/bin/devcontainer"))
    assert [client.name for client in clients.found] == ["podman", "docker-compose", "devcontainer"]
    assert {client.version for client in clients.found} == {Unknown("only docker's version is read")}
    assert clients.named("docker") is None


@pytest.mark.parametrize(
    ("files", "links", "is_podman"),
    [
        pytest.param("", "", False, id="a program"),
        pytest.param(f'"/usr/bin/docker" = "{WRAPPER}"', "", True, id="the script of podman-docker"),
        pytest.param('"/usr/bin/docker" = "#!/bin/sh\\n# not podman\\nexec /opt/docker"', "", False, id="a remark"),
        pytest.param("", '"/usr/bin/docker" = "/usr/bin/podman"', True, id="a link to podman"),
        pytest.param('"/usr/bin/docker" = "ELF podman"', "", False, id="machine code with the word in it"),
    ],
)
def test_docker_that_hands_over_to_podman(tmp_path, files, links, is_podman):
    programs = ("/usr/bin/podman",) if links else ("/usr/bin/docker",)
    docker = read_clients(host(tmp_path, *programs, files=files, links=links)).named("docker")
    assert docker.is_podman is is_podman


def test_a_wrapper_is_not_started(tmp_path):
    machine = host(
        tmp_path,
        "/usr/bin/docker",
        files=f'"/usr/bin/docker" = "{WRAPPER}"',
        commands=says("/usr/bin/docker", "podman version 4.9.4"),
    )
    assert read_clients(machine).named("docker").version == Unknown("only docker's version is read")


def test_windows_folders_are_searched_for_docker_alone(tmp_path):
    windows = "/mnt/c/Program Files/Docker/Docker/resources/bin"
    machine = host(
        tmp_path, f"{windows}/docker", f"{windows}/docker-compose", env=f'PATH = "/usr/bin:{windows}:/mnt/wsl/bin"'
    )
    clients = read_clients(machine)
    assert [client.path for client in clients.found] == [f"{windows}/docker"]


def test_every_installed_daemon_is_named(tmp_path):
    clients = read_clients(host(tmp_path, "/usr/bin/dockerd", "/snap/bin/docker", env='PATH = "/usr/bin"'))
    assert clients.engine_programs == ("/usr/bin/dockerd", "/snap/bin/docker")


CONFIG = "\"/h/.docker/config.json\" = '{0}'"


@cases(
    "text, error, helpers, gives_proxy",
    {
        "an empty file": ("", "", (), False),
        "logins alone": ('{"auths": {"x": {"auth": "c2VjcmV0"}}}', "", (), False),
        "a helper on PATH": (
            '{"credsStore": "pass"}',
            "",
            (CredentialHelper("pass", "/b/docker-credential-pass", ""),),
            False,
        ),
        "a helper that is missing": (
            '{"credHelpers": {"aws": "ecr"}}',
            "",
            (CredentialHelper("ecr", "", "aws"),),
            False,
        ),
        "odd values": ('{"credsStore": 7, "credHelpers": []}', "", (), False),
        "proxies": ('{"proxies": {"default": {}}}', "", (), True),
        "cut off": ('{"credsStore": ', "line 1, column 16: it ends too early", (), False),
        "a list": ("[1]", "the top level is not an object", (), False),
    },
)
def test_the_settings_of_the_docker_command(tmp_path, text, error, helpers, gives_proxy):
    machine = host(tmp_path, "/b/docker-credential-pass", env='PATH = "/b"', files=CONFIG.format(text))
    settings = read_clients(machine).settings
    assert (settings.error, settings.credential_helpers, settings.gives_proxy) == (error, helpers, gives_proxy)
    assert "c2VjcmV0" not in repr(settings)


def test_the_proxies_that_the_docker_command_gives_to_containers_have_no_logins(tmp_path):
    text = (
        '{"proxies": {"default": {"httpProxy": "http://me:pass@p:1", "noProxy": "x"}, "tcp://h": {"httpsProxy": "q"}}}'
    )
    settings = read_clients(host(tmp_path, files=CONFIG.format(text))).settings
    assert settings.proxies == ("http://p:1", "q")
