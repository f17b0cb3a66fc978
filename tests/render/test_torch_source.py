"""What brings torch into a dev container of somebody else, and which of it stays as it is."""

import json
import time

import pytest

from devkit.doctor.checks.project.containers import find_torch_source, require_project_containers
from devkit.errors import DevkitError
from devkit.formats.jsonc import load_jsonc
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from devkit.render.adopt import adoption
from devkit.render.adopt.adoption import format_torch_source
from devkit.render.devkit_lock import parse_lock
from tests.cases import cases
from tests.cli.test_init import GPU, tree
from tests.render.test_repositories import devkit
from tests.repositories import write_repository

CU126 = "https://download.pytorch.org/whl/cu126"
BUILT = '{"build": {"dockerfile": "Dockerfile"}}'
PYPROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch>=2.7"]\n'


def dev(root, text, dockerfile="", files=()):
    """A project with this devcontainer.json, and with these files by path."""
    written = {".devcontainer/devcontainer.json": text, ".devcontainer/Dockerfile": dockerfile, **dict(files)}
    for path, content in written.items():
        if content:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
    return root


@cases(
    "text, dockerfile, files, expected",
    {
        "an image that names its torch": (
            '{"image": "pytorch/pytorch:2.1.2-cuda12.1-cudnn8-devel"}',
            "",
            {},
            "torch 2.1.2 (cu121), as .devcontainer/devcontainer.json:1 brings it",
        ),
        "an image with torch, which meets what is installed later": (
            BUILT,
            "FROM nvcr.io/nvidia/pytorch:26.04-py3\nRUN pip install torch torchvision\n",
            {},
            "torch is what .devcontainer/Dockerfile:1 brings",
        ),
        "an index": (
            BUILT,
            "FROM python:3.12\nRUN pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128\n",
            {},
            "torch 2.9.1 (cu128), as .devcontainer/Dockerfile:2 installs it",
        ),
        "the project itself": (
            '{"image": "python:3.12", "postCreateCommand": "pip install -e ."}',
            "",
            {"pyproject.toml": PYPROJECT},
            "torch is what .devcontainer/devcontainer.json:1 installs",
        ),
        "a script that installs a list": (
            '{"image": "python:3.12", "updateContentCommand": ["bash", "scripts/setup.sh"]}',
            "",
            {"scripts/setup.sh": "set -e\npip install -r requirements.txt\n", "requirements.txt": "torch==2.9.1\n"},
            "torch 2.9.1 with the CUDA of its default index, as scripts/setup.sh:2 installs it",
        ),
        "a package that needs torch, from the index for the CPU": (
            BUILT,
            "FROM python:3.12\nRUN pip install x[y] --extra-index-url https://download.pytorch.org/whl/cpu\n",
            {},
            "torch for the CPU is what .devcontainer/Dockerfile:2 installs",
        ),
        "a list that includes another one": (
            '{"image": "python:3.12", "postCreateCommand": "pip install -r requirements-dev.txt"}',
            "",
            {
                "requirements-dev.txt": "-r requirements.txt\npytest\n",
                "requirements.txt": f"--extra-index-url {CU126}\ntorch==2.14.1\n",
            },
            "torch 2.14.1 (cu126), as .devcontainer/devcontainer.json:1 installs it",
        ),
        "another project": (
            '{"image": "python:3.12", "postCreateCommand": "cd /opt/other && pip install ."}',
            "",
            {"pyproject.toml": PYPROJECT},
            "none of the project's files installs torch; devkit did not check the image of .devcontainer/devcontainer.json:1",
        ),
    },
)
def test_what_brings_torch(tmp_path, text, dockerfile, files, expected):
    dev(tmp_path, text, dockerfile, files)
    facts = gather_facts(LocalHost(), only=("project",), project=str(tmp_path))
    (container,) = (each for each in require_project_containers(facts) if each.dev is not None)
    assert format_torch_source(find_torch_source(container)) == expected


@pytest.mark.parametrize(
    "command",
    ["pip install torch", "sudo -H pip install torch", "conda install -y pytorch"],
    ids=["pip", "pip by sudo", "conda"],
)
def test_a_command_that_installs_torch_stays_and_the_line_to_write_is_said(tmp_path, command):
    root = dev(tmp_path / "x", f'{{"image": "python:3.12", "postCreateCommand": "{command}"}}')
    said = json.loads(devkit("init", root, *GPU, "--json").stdout)
    assert said["containers"][0]["torch"].endswith("and stays so")
    assert load_jsonc((root / ".devcontainer/devcontainer.json").read_text())["postCreateCommand"] == command
    (left,) = (each for each in said["left"] if each["code"] == "PRJ026")
    assert left["place"] == ".devcontainer/devcontainer.json:1"
    assert left["lines"] == [f"pip install torch==2.14.1+cu126 --extra-index-url {CU126}"]


def test_a_constraints_file_of_an_earlier_release_stays_as_long_as_it_is_named(tmp_path):
    held = ".devcontainer/devkit/constraints.txt"
    environment = {"PIP_CONSTRAINT": f"${{containerWorkspaceFolder}}/{held}"}
    text = {"image": "python:3.12", "runArgs": ["--gpus=all"], "containerEnv": environment}
    files = {held: "torch==2.9.1+cu126\n", "devkit.lock": ""}
    root = dev(tmp_path / "x", json.dumps(text | {"postCreateCommand": "pip install torch"}, indent=2), files=files)
    assert devkit("init", root, *GPU).return_value == 0
    assert json.loads((root / "devkit.lock").read_text())["files"].keys() == {held}
    assert devkit("init", root, "--driver", "580.95.05", "--gpu", "RTX 4090").return_value == 0
    assert (root / held).read_text() == "torch==2.9.1+cu126\n"


@pytest.mark.parametrize(
    ("text", "dockerfile", "files"),
    [
        ('{"image": "mcr.microsoft.com/devcontainers/base:ubuntu", "postCreateCommand": "pip install mkdocs"}', "", {}),
        (
            BUILT,
            "FROM python:3.10-slim\nRUN pip install a[b] --extra-index-url https://download.pytorch.org/whl/cpu\n",
            {},
        ),
    ],
    ids=["the documentation", "torch for the CPU"],
)
def test_a_dev_container_without_gpu_work_is_left_alone(tmp_path, text, dockerfile, files):
    root = dev(tmp_path / "x", text, dockerfile, files)
    before = tree(root)
    done = devkit("init", root, *GPU)
    assert done.return_value == 0
    assert "unchanged: your dev container requests no GPU" in " ".join(done.stdout.split())
    assert tree(root) == before
    assert json.loads(devkit("init", root, *GPU, "--json").stdout)["verdict"] == "unchanged"


def test_several_dev_containers_are_all_edited_and_each_is_named(tmp_path):
    root = dev(
        tmp_path / "x",
        BUILT,
        "FROM python:3.12\nRUN pip install torch\n",
        files={
            ".devcontainer/ngc/devcontainer.json": '{"image": "nvcr.io/nvidia/pytorch:26.04-py3", "runArgs": ["--gpus=all"]}',
            ".devcontainer/docs/devcontainer.json": '{"image": "python:3.12", "postCreateCommand": "pip install mkdocs"}',
        },
    )
    said = json.loads(devkit("init", root, *GPU, "--json").stdout)
    assert {each["path"]: each["is_changed"] for each in said["containers"]} == {
        ".devcontainer/devcontainer.json": True,
        ".devcontainer/ngc/devcontainer.json": False,
        ".devcontainer/docs/devcontainer.json": False,
    }
    assert (root / ".devcontainer/docs/devcontainer.json").read_text().endswith('"pip install mkdocs"}')


def test_a_dev_container_that_is_not_read_in_time_is_one_line_and_a_hint(tmp_path, monkeypatch):
    write_repository("commands-install", tmp_path / "project")
    before = tree(tmp_path / "project")

    def read_late(*words, **named):
        time.sleep(1)
        return read_project(*words, **named)

    monkeypatch.setattr("devkit.probe.gather.read_project", read_late)
    monkeypatch.setattr(
        adoption, "gather_facts", lambda *words, **named: gather_facts(*words, **named | {"deadline_s": 0.5})
    )
    with pytest.raises(DevkitError, match="the dev container was not read: project: no answer within") as refused:
        devkit("init", tmp_path / "project", *GPU, "--yes")
    assert refused.value.hint
    assert tree(tmp_path / "project") == before


@pytest.mark.parametrize(
    ("image", "python"),
    [("nvidia/cuda:12.4.1-devel-ubuntu22.04", "3.10"), ("ubuntu:24.04", "3.12"), ("python:3.13-slim", "3.13")],
)
def test_a_plan_for_an_image_takes_its_python(tmp_path, image, python):
    root = dev(tmp_path / "x", BUILT, f"FROM {image}\nRUN pip install torch\n", {})
    assert devkit("init", root, *GPU).return_value == 0
    assert parse_lock((root / "devkit.lock").read_bytes()).plan["python"] == python


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("requirements.txt", "torch<2.14\n"),
        ("pyproject.toml", PYPROJECT.replace("torch>=2.7", "torch<2.14")),
        (".devcontainer/Dockerfile", "FROM python:3.12\nRUN pip install 'torch<2.14'\n"),
    ],
    ids=["a list that the Dockerfile installs", "the project itself", "the Dockerfile"],
)
def test_a_line_that_moves_in_the_users_files_is_no_change_of_the_plan(tmp_path, path, text):
    dockerfile = (
        "FROM python:3.12\nCOPY . .\nRUN pip install torch\nRUN pip install -e .\nRUN pip install -r requirements.txt\n"
    )
    root = dev(tmp_path / "x", BUILT, dockerfile, {path: text})
    assert devkit("init", root, *GPU).return_value == 0
    assert f"{path} wants torch<2.14" in (root / "devkit.lock").read_text()
    (root / path).write_text(f"# mine\n\n{text}")
    assert devkit("update", root, "--check").return_value == 0
