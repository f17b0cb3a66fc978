"""`plan`, `init` and `update` where uv resolves: with a small index on this disk."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.wheels import make_index, make_wheel

ADA = ("--gpu", "RTX 4090", "--driver", "570.124.06")
RELEASES = (
    ("torch", "2.13.0", []),
    ("torch", "2.14.1", []),
    ("torch", "2.15.0", []),
    ("torchvision", "0.28.0", ["torch==2.13.0"]),
    ("torchvision", "0.29.0", ["torch==2.14.1"]),
    ("engine", "0.1", ["torch>=2"]),
    ("engine", "9.0", ["torch==2.13.0", "transformers"]),
    ("transformers", "4.44.2", ["huggingface-hub<1"]),
    ("huggingface-hub", "0.36.2", []),
    ("huggingface-hub", "2.4.0", []),
)


@pytest.fixture
def index(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    made = [make_wheel(wheels, name, version, requires=requires) for name, version, requires in RELEASES]
    return make_index(tmp_path / "simple", made)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def devkit(project, *words, index, **variables) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "UV_OFFLINE"}
    env |= {"NO_COLOR": "1", "COLUMNS": "200", "UV_DEFAULT_INDEX": index, **variables}
    env |= {"UV_CACHE_DIR": str(project.parent / "cache")}
    argv = [sys.executable, "-m", "devkit", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=project, check=False)


def requirements(project, text):
    (project / "requirements.txt").write_text(text)


def test_the_plan_is_what_uv_resolves_for_the_driver(project, index):
    requirements(project, "torch\ntorchvision\nengine\n")
    document = json.loads(devkit(project, "plan", *ADA, "--json", index=index).stdout)
    plan = document["plan"]
    assert (document["verdict"], plan["torch"], plan["variant"]) == ("plan", "2.13.0", "cu126")
    assert plan["packages"] == {"torch": "2.13.0", "engine": "9.0", "torchvision": "0.28.0"}
    resolution = document["resolution"]
    assert resolution["status"] == "resolved"
    assert resolution["packages"]["huggingface-hub"] == "0.36.2"


def test_a_plan_that_uv_refuses_is_a_conflict(project, index):
    requirements(project, "transformers==4.44.2\nhuggingface-hub==2.4.0\n")
    done = devkit(project, "plan", *ADA, index=index)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "uv Python 3.12: " in said
    assert "huggingface-hub<1" in said
    assert "change requirements.txt:" in said
    assert "--ignore-dependencies" in said
    refused = devkit(project, "init", ".", *ADA, "--yes", index=index)
    assert refused.returncode == 1
    assert sorted(path.name for path in project.iterdir()) == ["requirements.txt"]
    assert devkit(project, "plan", *ADA, "--ignore-dependencies", "--no-resolve", index=index).returncode == 0


@pytest.mark.parametrize(
    ("words", "variables", "because"),
    [
        pytest.param(("--no-resolve",), {}, "--no-resolve was given", id="by flag"),
        pytest.param((), {"UV_OFFLINE": "1"}, "UV_OFFLINE is set", id="by uv's own variable"),
        pytest.param(
            (), {"UV_DEFAULT_INDEX": "http://127.0.0.1:9"}, "uv cannot reach the package index", id="no network"
        ),
    ],
)
def test_without_uv_the_plan_says_that_it_was_not_checked(project, index, words, variables, because):
    requirements(project, "transformers==4.44.2\nhuggingface-hub==2.4.0\n")
    done = devkit(project, "plan", *ADA, *words, index=index, **variables)
    assert done.returncode == 0
    assert f"not checked: whether the project's packages can be installed; {because}" in done.stdout
    document = json.loads(devkit(project, "plan", *ADA, *words, "--json", index=index, **variables).stdout)
    assert document["resolution"] == {"status": "not checked", "because": because}
    assert document["plan"]["packages"] == {"torch": "2.14.1"}


def test_the_image_installs_the_projects_own_files_with_torch_held(project, index):
    requirements(project, "torch\nengine\n")
    done = devkit(project, "init", ".", *ADA, "--yes", "--pin", "huggingface-hub==0.36.2", index=index)
    assert done.returncode == 0
    assert "resolved: engine 9.0" in done.stdout
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    assert "torch==2.13.0" in dockerfile
    assert "--requirement=/mnt/project/requirements.txt" in dockerfile
    assert "printf '%s\\n' huggingface-hub==0.36.2 >> /mnt/work/held.txt" in dockerfile
    assert "engine" not in dockerfile


def test_update_check_is_what_was_resolved_and_needs_no_network(project, index):
    requirements(project, "torch\nengine\n")
    assert devkit(project, "init", ".", *ADA, "--yes", index=index).returncode == 0
    for variables in ({}, {"UV_OFFLINE": "1"}, {"UV_DEFAULT_INDEX": "http://127.0.0.1:9"}):
        for words in (("update", "--check"), ("init", ".", "--yes")):
            done = devkit(project, *words, index=index, **variables)
            assert done.returncode == 0, done.stdout
            assert "up to date" in done.stdout or "unchanged" in done.stdout


def test_other_requirements_are_resolved_again(project, index):
    requirements(project, "torch\nengine\n")
    devkit(project, "init", ".", *ADA, "--yes", index=index)
    requirements(project, "torch\n")
    done = devkit(project, "update", "--check", index=index)
    assert done.returncode == 1
    assert "torch==2.14.1" in done.stdout


def test_a_lock_that_was_written_without_uv_is_checked_without_it(project, index):
    requirements(project, "torch\nengine\n")
    assert devkit(project, "init", ".", *ADA, "--yes", "--no-resolve", index=index).returncode == 0
    done = devkit(project, "update", "--check", index=index)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_control_c_leaves_the_project_as_it_was(project, index):
    requirements(project, "engine\n")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        env = {name: value for name, value in os.environ.items() if name != "UV_OFFLINE"}
        env |= {"UV_DEFAULT_INDEX": f"http://127.0.0.1:{silent.getsockname()[1]}/simple"}
        argv = [sys.executable, "-m", "devkit", "init", ".", *ADA, "--yes"]
        process = subprocess.Popen(argv, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        connection.close()
    assert process.returncode == 130, err
    assert out == b""
    assert sorted(path.name for path in project.iterdir()) == ["requirements.txt"]
