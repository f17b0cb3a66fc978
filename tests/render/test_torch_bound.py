"""What brings torch into a dev container of somebody else, and how its own commands come to take the plan's."""

import json
import os
import subprocess
import sys
import time

import pytest

from devkit.doctor.checks.project.containers import find_torch_source, require_project_containers
from devkit.errors import DevkitError
from devkit.probe.gather import gather_facts
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from devkit.render.adopt import adoption
from devkit.render.adopt.adoption import format_torch_source
from devkit.formats import jsonc
from tests.cli.test_init import GPU, tree
from tests.render.test_repositories import devkit
from tests.repositories import write_repository
from tests.wheels import make_index, make_wheel

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


@pytest.mark.parametrize(
    ("text", "dockerfile", "files", "expected"),
    [
        pytest.param(
            '{"image": "pytorch/pytorch:2.1.2-cuda12.1-cudnn8-devel"}',
            "",
            {},
            "torch 2.1.2 (cu121), as .devcontainer/devcontainer.json:1 brings it",
            id="an image that names its torch",
        ),
        pytest.param(
            BUILT,
            "FROM nvcr.io/nvidia/pytorch:26.04-py3\nRUN pip install torch torchvision\n",
            {},
            "torch is what .devcontainer/Dockerfile:1 brings",
            id="an image with torch, which meets what is installed later",
        ),
        pytest.param(
            BUILT,
            "FROM python:3.12\nRUN pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128\n",
            {},
            "torch 2.9.1 (cu128), as .devcontainer/Dockerfile:2 installs it",
            id="an index",
        ),
        pytest.param(
            '{"image": "python:3.12", "postCreateCommand": "pip install -e ."}',
            "",
            {"pyproject.toml": PYPROJECT},
            "torch is what .devcontainer/devcontainer.json:1 installs",
            id="the project itself",
        ),
        pytest.param(
            '{"image": "python:3.12", "updateContentCommand": ["bash", "scripts/setup.sh"]}',
            "",
            {"scripts/setup.sh": "set -e\npip install -r requirements.txt\n", "requirements.txt": "torch==2.9.1\n"},
            "torch 2.9.1 with the CUDA of its default index, as scripts/setup.sh:2 installs it",
            id="a script that installs a list",
        ),
        pytest.param(
            BUILT,
            "FROM python:3.12\nRUN pip install x[y] --extra-index-url https://download.pytorch.org/whl/cpu\n",
            {},
            "torch for the CPU is what .devcontainer/Dockerfile:2 installs",
            id="a package that needs torch, from the index for the CPU",
        ),
        pytest.param(
            '{"image": "python:3.12", "postCreateCommand": "pip install -r requirements-dev.txt"}',
            "",
            {
                "requirements-dev.txt": "-r requirements.txt\npytest\n",
                "requirements.txt": f"--extra-index-url {CU126}\ntorch==2.14.1\n",
            },
            "torch 2.14.1 (cu126), as .devcontainer/devcontainer.json:1 installs it",
            id="a list that includes another one",
        ),
        pytest.param(
            '{"image": "python:3.12", "postCreateCommand": "cd /opt/other && pip install ."}',
            "",
            {"pyproject.toml": PYPROJECT},
            "no file of the project installs torch; whether the image of .devcontainer/devcontainer.json:1 has one was not"
            " checked",
            id="another project",
        ),
    ],
)
def test_what_brings_torch(tmp_path, text, dockerfile, files, expected):
    dev(tmp_path, text, dockerfile, files)
    facts = gather_facts(LocalHost(), only=("project",), project=str(tmp_path))
    (container,) = (each for each in require_project_containers(facts) if each.dev is not None)
    assert format_torch_source(find_torch_source(container)) == expected


@pytest.fixture
def indexes(tmp_path):
    """Stand-ins for PyPI, whose newest torch is for a newer driver, and for torch's own index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    others = [make_wheel(wheels, "lightning", "1.0", requires=["torch>=2"])]
    newest = [make_wheel(wheels, "torch", version) for version in ("2.15.0", "2.14.1")]
    built = [make_wheel(wheels, "torch", version) for version in ("2.15.0+cu126", "2.14.1+cu126")]
    return make_index(tmp_path / "pypi", [*others, *newest]), make_index(tmp_path / "torch", built)


def environment_of(root, torch_index):
    """The variables of the dev container, with its folder and a stand-in for torch's index."""
    document = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    values = {
        name: value.replace("${containerWorkspaceFolder}", str(root))
        for name, value in document["containerEnv"].items()
    }
    return {name: value.replace(CU126, torch_index) for name, value in values.items()}


@pytest.mark.full
def test_the_command_that_took_the_newest_torch_takes_the_plan_s(tmp_path, indexes):
    root = tmp_path / "commands-install"
    write_repository("commands-install", root)
    pypi, torch = indexes
    command = [sys.executable, "-m", "pip", "install", "-U", "--ignore-installed", "--no-build-isolation", "--dry-run"]
    command += ["--quiet", "--report", "-", "torch>=2.7", "lightning"]

    def installed(variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
        done = subprocess.run(
            command, env=clean | {"PIP_INDEX_URL": pypi} | variables, capture_output=True, text=True, check=True
        )
        found = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}
        return found["torch"]

    assert installed({}) == "2.15.0"
    assert devkit("init", root, *GPU).return_value == 0
    assert installed(environment_of(root, torch)) == "2.14.1+cu126"


def test_the_constraints_file_stays_as_long_as_it_is_named(tmp_path):
    text = '{"image": "python:3.12", "runArgs": ["--gpus=all"], "postCreateCommand": "pip install torch"}'
    root = dev(tmp_path / "x", text)
    devkit("init", root, *GPU)
    path = root / ".devcontainer/devcontainer.json"
    path.write_text(path.read_text().replace("pip install torch", "pip install rich"))
    devkit("init", root)
    assert (root / ".devcontainer/devkit/constraints.txt").exists()


def test_a_renewed_plan_renews_the_constraint(tmp_path):
    root = tmp_path / "commands-install"
    write_repository("commands-install", root)
    assert devkit("init", root, *GPU).return_value == 0
    assert devkit("init", root, "--driver", "580.95.05", "--gpu", "RTX 4090").return_value == 0
    variables = environment_of(root, "")
    held = (root / ".devcontainer/devkit/constraints.txt").read_text().splitlines()[-1]
    assert variables["PIP_EXTRA_INDEX_URL"].endswith(held.rpartition("+")[2])
    assert not held.endswith("cu126")


@pytest.mark.parametrize(
    ("text", "files"),
    [
        pytest.param(
            '{"image": "python:3.12", "postCreateCommand": "pip install torch", "remoteEnv": {"PIP_CONSTRAINT": "/c"}}',
            {},
            id="a constraints file of the user's",
        ),
        pytest.param(
            '{"image": "python:3.12", "postCreateCommand": "sudo -H pip install torch"}', {}, id="sudo drops variables"
        ),
        pytest.param(
            '{"image": "x", "postCreateCommand": "pip install torch", "workspaceFolder": "/w",'
            ' "workspaceMount": "source=code,target=/w,type=volume"}',
            {},
            id="a volume instead of the folder",
        ),
        pytest.param(
            '{"image": "x", "postCreateCommand": "conda install -y pytorch"}', {}, id="conda, which pip cannot hold"
        ),
    ],
)
def test_what_cannot_be_held_is_left_to_the_user_with_the_line(tmp_path, text, files):
    root = dev(tmp_path / "x", text, files=files)
    said = json.loads(devkit("init", root, *GPU, "--json").stdout)
    (left,) = (each for each in said["left"] if each["lines"] and "nothing holds it" in each["message"])
    assert left["lines"] == [f"pip install torch==2.14.1+cu126 --extra-index-url {CU126}"]
    after = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())
    assert "containerEnv" not in after
    assert said["containers"][0]["torch"].endswith("and stays so")


@pytest.mark.parametrize(
    ("text", "mounted"),
    [
        ('"workspaceFolder": "/w", "workspaceMount": "source=${localWorkspaceFolder},target=/w/x,type=bind"', "/w/x"),
        ('"workspaceFolder": "/w"', "${containerWorkspaceFolder}"),
        ("", "${containerWorkspaceFolder}"),
    ],
    ids=["a mount of its own", "a folder of its own", "neither"],
)
def test_the_constraints_file_is_named_where_the_project_is_mounted(tmp_path, text, mounted):
    more = f", {text}" if text else ""
    root = dev(tmp_path / "x", f'{{"image": "python:3.12", "postCreateCommand": "pip install torch"{more}}}')
    assert devkit("init", root, *GPU).return_value == 0
    variables = jsonc.load_jsonc((root / ".devcontainer/devcontainer.json").read_text())["containerEnv"]
    assert variables["PIP_CONSTRAINT"] == f"{mounted}/.devcontainer/devkit/constraints.txt"


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
    assert "unchanged: your dev container asks for no GPU" in " ".join(done.stdout.split())
    assert tree(root) == before
    assert json.loads(devkit("init", root, *GPU, "--json").stdout)["verdict"] == "unchanged"


def test_several_dev_containers_are_all_repaired_and_each_is_named(tmp_path):
    root = dev(
        tmp_path / "x",
        '{"image": "python:3.12", "postCreateCommand": "pip install torch"}',
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


def test_the_extras_that_the_command_installs_limit_the_plan(tmp_path):
    manifest = PYPROJECT + 'optional-dependencies.old = ["torch<2.10"]\noptional-dependencies.other = ["torch<2.8"]\n'
    text = '{"image": "python:3.12", "postCreateCommand": "pip install -e \'.[old]\'"}'
    root = dev(tmp_path / "x", text, files={"pyproject.toml": manifest})
    assert devkit("init", root, *GPU, "--no-resolve").return_value == 0
    held = (root / ".devcontainer/devkit/constraints.txt").read_text().splitlines()[-1]
    assert held.startswith("torch==2.9.")


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
