"""`devkit` in projects that do not use torch."""

import json

import pytest

from tests.cli.test_init import GPU, assert_refused, devkit

CMAKE = "project(fast LANGUAGES CXX CUDA)\n"
OLD_IMAGE = "nvidia/cuda:11.4.3-devel-ubuntu20.04"
COMPOSE = (
    "services:\n  dev:\n    build: .\n    command: sleep infinity\n    volumes: [..:/work]\n"
    "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}\n"
)


@pytest.mark.parametrize(
    ("files", "says", "base", "extra"),
    [
        ({"CMakeLists.txt": CMAKE}, "CUDA C++: CMakeLists.txt:1", "nvidia/cuda:12.8.1-devel-ubuntu24.04", "CUDAARCHS"),
        ({"requirements.txt": "flax\n"}, "JAX, by jax[cuda12]: requirements.txt:1", "python:3.12-slim", "jax[cuda12]"),
        ({"Cargo.toml": "[package]\n"}, "no framework: the project has Cargo.toml", "python:3.12-slim", "FROM"),
    ],
)
def test_init_writes_a_container_without_torch(tmp_path, files, says, base, extra):
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    done = devkit("init", tmp_path, *GPU, COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    dockerfile = (tmp_path / ".devcontainer/Dockerfile").read_text()
    assert f"FROM {base}" in dockerfile
    assert extra in dockerfile
    assert "torch==" not in dockerfile
    again = devkit("update", tmp_path, "--check", "--no-resolve")
    assert again.returncode == 0, again.stdout


def test_an_empty_folder_gets_torch_to_fine_tune_with(tmp_path):
    done = devkit("plan", *GPU, "--json", cwd=tmp_path)
    plan = json.loads(done.stdout)["plan"]
    assert plan["framework"] == "torch"
    assert plan["packages"].keys() >= {"torch", "transformers", "peft"}


def test_plan_as_json_has_the_keys_of_every_plan(tmp_path):
    (tmp_path / "train.py").write_text("import jax\n")
    plan = json.loads(devkit("plan", *GPU, "--json", cwd=tmp_path).stdout)["plan"]
    assert (plan["framework"], plan["torch"], plan["variant"], plan["packages"]) == ("jax", "", "", {})
    assert plan["additions"] == ["jax[cuda12]"]


@pytest.mark.parametrize(
    "words",
    [("init", "--lock"), ("bundle", "--dry-run"), ("export", "slurm", "--settings", "run.toml", "--image", "a/b:1")],
    ids=["lock", "bundle", "export"],
)
def test_what_needs_torch_says_so(tmp_path, words):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    assert devkit("init", tmp_path, *GPU).returncode == 0
    command, *options = words
    where = [*options, tmp_path] if command == "export" else [tmp_path, *options]
    assert_refused(devkit(command, *where), "needs a plan with torch, and this one has CUDA C++: CMakeLists.txt:1")


def test_an_own_container_of_cuda_keeps_its_image_and_is_told_what_it_cannot_compile(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    folder = tmp_path / ".devcontainer"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {OLD_IMAGE}\n")
    (folder / "compose.yml").write_text(COMPOSE)
    container = {"dockerComposeFile": "compose.yml", "service": "dev", "workspaceFolder": "/work"}
    (folder / "devcontainer.json").write_text(json.dumps(container))
    done = devkit("init", tmp_path, *GPU, "--yes", COLUMNS="300")
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch" not in done.stdout
    assert "CUDA C++: CMakeLists.txt:1 has nvcc compile" in done.stdout
    assert f"PRJ033 nvcc of {OLD_IMAGE} is CUDA 11.4.3 and cannot compile for NVIDIA GeForce RTX 4090" in done.stdout
    assert (folder / "Dockerfile").read_text() == f"FROM {OLD_IMAGE}\n"
