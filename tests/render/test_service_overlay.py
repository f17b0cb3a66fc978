"""The GPU of a Compose service that somebody wrote: requested in overlays of devkit's that start on every host."""

import json
import re
from pathlib import Path

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.formats.jsonc import load_jsonc
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from devkit.render.container.compose import render_gpu_files
from tests.cli.test_init import tree

from .gpu_host import GPU as HOST_GPU
from .gpu_host import PLAN, RUNTIME, Machine, docker_info, moved
from .test_repositories import GPU, devkit, findings

OVERLAYS = ".devcontainer/devkit"
SERVICE = {"build": {"context": ".", "dockerfile": "Dockerfile"}, "shm_size": "8gb"}
DOCKERFILE = "FROM python:3.12.9-slim-bookworm\nRUN apt-get install -y gcc\nRUN pip install torch==2.9.1\nRUN useradd dev\nUSER dev\n"
RESERVED = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}


def project(folder: Path, described: dict[str, object], **dev: object) -> Path:
    """A project whose dev container is a service of a Compose file in its root."""
    written = {"dockerComposeFile": "../compose.yaml", "service": "app", "workspaceFolder": "/w", **dev}
    files = {
        ".devcontainer/devcontainer.json": json.dumps(written, indent=2),
        "compose.yaml": yaml.safe_dump({"services": {"app": SERVICE | described}}),
        "Dockerfile": DOCKERFILE,
        ".gitignore": "*.pyc\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def dev_container(root: Path) -> dict[str, object]:
    document = load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    assert isinstance(document, dict)
    return document


def reset(root: Path) -> dict[str, str]:
    """What is taken out of the service: each key with its text."""
    path = root / OVERLAYS / "compose.reset.yml"
    text = path.read_text() if path.exists() else ""
    return dict(re.findall(r"^    (\w+):\s(.*)$", text, re.MULTILINE))


def naming(root: Path) -> str:
    """The GPUs that the script takes unless the user names others."""
    (found,) = re.findall(r" devices=\$\{devices:-([^}]*)\} ", (root / OVERLAYS / "gpu.sh").read_text(), re.MULTILINE)
    return found


@pytest.mark.parametrize(
    ("service", "taken", "named"),
    [
        pytest.param({"deploy": RESERVED}, {"deploy"}, "all", id="a reservation"),
        pytest.param({"gpus": "all"}, {"gpus"}, "all", id="the short form"),
        pytest.param({"runtime": "nvidia"}, {"runtime"}, "all", id="the runtime"),
        pytest.param(
            {"devices": ["/dev/fuse:/dev/fuse", "nvidia.com/gpu=1"]},
            {"devices"},
            "1",
            id="a CDI device beside another device",
        ),
        pytest.param({"gpus": [{"count": 2}]}, {"gpus"}, "0,1", id="a number of GPUs: the first ones"),
        pytest.param({}, set(), "all", id="no request at all"),
    ],
)
def test_every_form_of_request_becomes_the_same_overlay(tmp_path, service, taken, named):
    root = project(tmp_path, service)
    compose = (root / "compose.yaml").read_bytes()
    assert devkit("init", root, *GPU).return_value == 0
    assert (root / "compose.yaml").read_bytes() == compose, "the user's own file means what it meant"
    own = ["compose.reset.yml", "compose.gpu.yml"] if taken else ["compose.gpu.yml"]
    assert dev_container(root)["dockerComposeFile"] == ["../compose.yaml", *(f"devkit/{name}" for name in own)]
    assert set(reset(root)) == taken
    assert naming(root) == named
    assert findings(root) == set()
    assert devkit("update", root, "--check").return_value == 0


def test_the_doctor_follows_the_overlay_to_what_the_script_wrote(tmp_path):
    """Compose takes the path as from the first file, in a folder above the overlay; so must whoever reads it."""
    root = project(tmp_path, {"gpus": "all"})
    devkit("init", root, *GPU)
    (service,) = gather_facts(LocalHost(), only=("project",), project=str(root)).project.services
    assert service.requests == (), "the user's own request is taken away"
    (root / OVERLAYS / "gpu.local.yml").write_text("services:\n  gpu:\n    gpus: all\n")
    (root / ".env").write_text("DEVKIT_GPU_FILE=gpu.local\n")
    (service,) = gather_facts(LocalHost(), only=("project",), project=str(root)).project.services
    (request,) = service.requests
    assert request.path == f"{OVERLAYS}/gpu.local.yml"
    assert "DEVKIT_GPU_FILE" in request.condition


def test_other_devices_of_the_service_stay(tmp_path):
    root = project(tmp_path, {"devices": ["/dev/fuse:/dev/fuse", "nvidia.com/gpu=all"]})
    devkit("init", root, *GPU)
    assert reset(root)["devices"] == '!override ["/dev/fuse:/dev/fuse"]'


def test_an_overlay_stays_although_the_service_asks_for_no_gpu_any_more(tmp_path):
    root = project(tmp_path, {"gpus": "all"})
    (root / "Dockerfile").write_text("FROM python:3.12.9-slim-bookworm\n")
    devkit("init", root, *GPU)
    (root / "compose.yaml").write_text(yaml.safe_dump({"services": {"app": SERVICE}}))
    assert "asks for no GPU" not in devkit("init", root).stdout
    assert dev_container(root)["dockerComposeFile"] == ["../compose.yaml", "devkit/compose.gpu.yml"]
    assert not (root / OVERLAYS / "compose.reset.yml").exists()


def test_gpus_that_a_variable_names_are_left_to_their_author(tmp_path):
    gpu = {"driver": "nvidia", "device_ids": ["${GPU_ID}"], "capabilities": ["gpu"]}
    root = project(tmp_path, {"deploy": {"resources": {"reservations": {"devices": [gpu]}}}})
    done = devkit("init", root, *GPU)
    assert "left to you: PRJ011" in done.stdout
    assert not (root / OVERLAYS).exists()
    assert dev_container(root)["dockerComposeFile"] == "../compose.yaml"


def test_an_overlay_that_can_not_follow_its_service_is_not_taken_from_under_it(tmp_path):
    root = project(tmp_path, {"gpus": "all"})
    devkit("init", root, *GPU)
    gpu = {"driver": "nvidia", "device_ids": ["${GPU_ID}"], "capabilities": ["gpu"]}
    reserved = {"deploy": {"resources": {"reservations": {"devices": [gpu]}}}}
    (root / "compose.yaml").write_text(yaml.safe_dump({"services": {"app": SERVICE | reserved}}))
    before = tree(root)
    with pytest.raises(DevkitError, match="no longer matches its service"):
        devkit("init", root)
    assert tree(root) == before


@pytest.mark.parametrize(
    ("command", "becomes"),
    [
        pytest.param("cp -n .env.example .env", "(cp -n .env.example .env) && ({})", id="a text, which may make .env"),
        pytest.param(["make", "env"], {"project": ["make", "env"], "devkit-gpu": "{}"}, id="a list"),
        pytest.param({"env": "make env"}, {"env": "make env", "devkit-gpu": "{}"}, id="several side by side"),
        pytest.param(None, "{}", id="none"),
    ],
)
def test_a_command_before_the_start_is_kept(tmp_path, command, becomes):
    root = project(tmp_path, {}, **({} if command is None else {"initializeCommand": command}))
    devkit("init", root, *GPU)
    found = json.dumps(dev_container(root)["initializeCommand"])
    ours = f"sh {OVERLAYS}/gpu.sh || echo"
    before, _, after = json.dumps(becomes).partition("{}")
    assert found.startswith(before + ours)
    assert found.endswith(after)
    assert findings(root) == set()


def test_an_optional_gpu_of_the_editors_would_be_a_second_request(tmp_path):
    root = project(tmp_path, {}, hostRequirements={"gpu": "optional", "cpus": 4})
    devkit("init", root, *GPU)
    assert dev_container(root)["hostRequirements"] == {"cpus": 4}


def several(folder: Path, *services: dict[str, object]) -> Path:
    """A project with one dev container for each service, each with a Compose file of its own."""
    for number, service in enumerate(services):
        name = f"box{number}"
        (folder / ".devcontainer" / name).mkdir(parents=True)
        dev = {"dockerComposeFile": f"../../{name}/compose.yaml", "service": "app", "workspaceFolder": "/w"}
        (folder / ".devcontainer" / name / "devcontainer.json").write_text(json.dumps(dev, indent=2))
        (folder / name).mkdir()
        (folder / name / "compose.yaml").write_text(yaml.safe_dump({"services": {"app": SERVICE | service}}))
        (folder / name / "Dockerfile").write_text(DOCKERFILE)
    return folder


def test_each_of_several_dev_containers_has_an_overlay_and_the_script_writes_for_its_project(tmp_path):
    root = several(tmp_path, {"gpus": "all"}, {"deploy": RESERVED})
    assert devkit("init", root, *GPU).return_value == 0
    for name in ("box0", "box1"):
        dev = load_jsonc((root / ".devcontainer" / name / "devcontainer.json").read_text())
        assert dev["dockerComposeFile"][1:] == [f"../devkit/compose.{name}.{kind}.yml" for kind in ("reset", "gpu")]
        assert dev["initializeCommand"].startswith(f"sh {OVERLAYS}/gpu.sh {name} ||")
        overlay = yaml.safe_load((root / OVERLAYS / f"compose.{name}.gpu.yml").read_text())
        assert overlay["services"]["app"]["extends"]["file"].startswith("../.devcontainer/devkit/${DEVKIT_GPU_FILE")
    assert findings(root) == set()
    assert devkit("update", root, "--check").return_value == 0


def test_two_dev_containers_with_different_gpus_cannot_share_the_overlays(tmp_path):
    root = several(tmp_path, {"gpus": "all"}, {"devices": ["nvidia.com/gpu=1"]})
    assert "left to you: PRJ011" in devkit("init", root, *GPU).stdout
    assert [path.name for path in (root / OVERLAYS).glob("compose.*.gpu.yml")] == ["compose.box0.gpu.yml"]


def test_a_dev_container_file_in_the_root_is_named_from_there(tmp_path):
    root = project(tmp_path, {"deploy": RESERVED})
    dev = dev_container(root) | {"dockerComposeFile": ["compose.yaml"]}
    (root / ".devcontainer/devcontainer.json").unlink()
    (root / ".devcontainer.json").write_text(json.dumps(dev, indent=2))
    devkit("init", root, *GPU)
    named = load_jsonc((root / ".devcontainer.json").read_text())["dockerComposeFile"]
    assert named == ["compose.yaml", f"{OVERLAYS}/compose.reset.yml", f"{OVERLAYS}/compose.gpu.yml"]
    assert devkit("update", root, "--check").return_value == 0


@pytest.mark.parametrize("name", ["app;rm", "${SERVICE}", "a b"])
def test_a_service_whose_name_no_yaml_key_should_be_is_left_alone(tmp_path, name):
    root = project(tmp_path, {"deploy": RESERVED}, **{"service": name})
    text = (root / "compose.yaml").read_text()
    (root / "compose.yaml").write_text(text.replace("app:", f"{json.dumps(name)}:"))
    devkit("init", root, *GPU)
    assert not (root / OVERLAYS).exists()


@pytest.mark.parametrize("customizations", [{"jetbrains": {"backend": "PyCharm"}}, {"vscode": {}}])
def test_the_flag_stays_where_jetbrains_would_lose_the_gpu(tmp_path, customizations):
    (tmp_path / ".devcontainer").mkdir()
    dev = {"build": {"dockerfile": "../Dockerfile"}, "runArgs": ["--gpus", "all"], "customizations": customizations}
    (tmp_path / ".devcontainer/devcontainer.json").write_text(json.dumps(dev, indent=2))
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    done = devkit("init", tmp_path, *GPU)
    keeps = "jetbrains" in customizations
    assert ("--gpus" in dev_container(tmp_path)["runArgs"]) is keeps
    assert ("left to you: PRJ011" in done.stdout) is keeps
    assert dev_container(tmp_path).get("hostRequirements") == (None if keeps else {"gpu": "optional"})


@pytest.fixture
def host(tmp_path: Path) -> Machine:
    """A host whose project is somebody else's Compose project, with devkit's files in a folder of it."""
    made = Machine(tmp_path)
    made.prepare()
    for artifact in render_gpu_files(PLAN, OVERLAYS):
        path = made.root / made.name / artifact.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(moved(artifact.content.decode(), made.root))
    made.script = f"{OVERLAYS}/gpu.sh"
    return made


@pytest.mark.parametrize("folder", ["", "docker"])
def test_the_script_writes_into_the_projects_env_and_keeps_what_is_there(host, folder):
    env = host.root / host.name / folder / ".env"
    env.parent.mkdir(exist_ok=True)
    env.write_text("DATA=/data\nDEVKIT_UID=7\n")
    env.chmod(0o640)
    host.has(*HOST_GPU)
    host.docker(docker_info(Runtimes=RUNTIME))
    host.arguments = (folder,) if folder else ()
    assert "nvidia runtime" in host.run()
    host.run()
    assert env.read_text().splitlines() == ["DATA=/data", "DEVKIT_UID=7", "DEVKIT_GPU_FILE=gpu.local # gpu.sh"]
    assert "driver: nvidia" in (host.root / host.name / OVERLAYS / "gpu.local.yml").read_text()
    assert env.stat().st_mode & 0o777 == 0o640


def test_a_linked_env_stays_a_link(host):
    shared = host.root / "shared.env"
    shared.write_text("DATA=/data\n")
    env = host.root / host.name / ".env"
    env.symlink_to(shared)
    host.environ["DEVKIT_GPU"] = "nvidia"
    host.run()
    assert env.is_symlink()
    assert "DEVKIT_GPU_FILE=gpu.local" in shared.read_text()
