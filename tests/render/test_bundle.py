"""What a bundle is made from, and load.sh, which checks a bundle before anything of it is used."""

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.render.changes import write_changes
from devkit.render.container.settings import FromIndex
from devkit.render.devkit_lock import parse_locked_plan
from devkit.render.devkit_toml import ProjectSettings
from devkit.render.project import PathOptions, compute_project_changes, open_project
from devkit.solver.output import serialize_plan
from devkit.verify.bundle import Bundle, prepare_bundle

from .gpu_host import every_shell
from .plans import CPU_PLAN, GPU_PLAN, UBUNTU_PLAN

ONE_PLAN = replace(CPU_PLAN, architectures=("x86_64",))


def written(root: Path, plan=ONE_PLAN, settings: ProjectSettings = ProjectSettings(name="Demo")) -> Path:  # noqa: B008 - frozen
    """A project as `devkit init` leaves it."""
    project = open_project(root, settings, PathOptions())
    write_changes(root, compute_project_changes(project, plan, source=FromIndex("0.1.0")))
    return root


def bundled(root: Path) -> Bundle:
    return prepare_bundle(open_project(root, ProjectSettings(wheelhouse=True), PathOptions()))


def content(bundle: Bundle, path: str) -> str:
    return next(file.content.decode() for file in (*bundle.files, *bundle.render_texts()) if file.path == path)


@pytest.mark.parametrize("plan", [CPU_PLAN, GPU_PLAN, UBUNTU_PLAN], ids=["the CPU", "a GPU", "Ubuntu"])
def test_the_plan_of_a_lock_is_the_plan_that_was_written(plan):
    assert parse_locked_plan(json.loads(json.dumps(serialize_plan(plan)))) == replace(plan, warnings=())


def test_the_files_are_those_of_a_build_from_a_wheelhouse_with_devkit_beside_them(tmp_path):
    bundle = bundled(written(tmp_path / "demo"))
    assert "wheelhouse = true" in content(bundle, "devkit.toml")
    assert "--no-index --find-links=/mnt/wheelhouse" in content(bundle, ".devcontainer/Dockerfile")
    assert any(file.path.startswith(".devcontainer/wheels/devkit_gpu-") for file in bundle.files)
    assert json.loads(content(bundle, "devkit.lock"))["plan"]["torch"] == ONE_PLAN.torch


def test_wheels_come_from_the_mirror_and_nothing_below_the_base_is_built_for_them(tmp_path):
    mirrors = ProjectSettings(
        name="Demo", index="https://pypi.example.org/simple", torch_index="https://t.example.org/whl"
    )
    text = bundled(written(tmp_path / "demo", settings=mirrors)).wheels_dockerfile
    assert "--index-url=https://t.example.org/whl/cpu torch==2.13.0" in text
    assert "ENV PIP_INDEX_URL=https://pypi.example.org/simple" in text
    assert text.count("type=secret,id=netrc") == text.count("pip wheel") == 4
    assert "uv pip install" not in text
    assert "useradd" not in text


ENGINE = """#!/bin/sh
echo "$@" >> "$0.calls"
case $1 in version) echo "${ARCHITECTURE:-amd64}" ;; esac
"""
"""Stands in for docker: load.sh asks it for its processor and hands it the image. Real engines are in tests/engine."""


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """A bundle with a wheel and an image of a few bytes."""
    bundle = bundled(written(tmp_path / "demo"))
    folder = tmp_path / "it's carried"
    files = {f"project/{file.path}": file.content for file in bundle.files}
    files |= {file.path: file.content for file in bundle.render_texts()}
    files |= {"wheelhouse/torch-2.13.0-cp311-none-any.whl": b"wheel", "images/base-amd64.tar": b"image"}
    for path, written_bytes in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(written_bytes)
    (folder / "project/.devcontainer/gpu.sh").chmod(0o755)
    sums = [f"{hashlib.sha256(written_bytes).hexdigest()}  {path}\n" for path, written_bytes in sorted(files.items())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    (tmp_path / "bin").mkdir()
    for name in ("docker", "podman"):
        (tmp_path / "bin" / name).write_text(ENGINE)
        (tmp_path / "bin" / name).chmod(0o755)
    return folder.rename(tmp_path / "carried")


def load(folder: Path, *words: str | Path, shell: str = "sh", **environ: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{folder.parent / 'bin'}:{os.environ['PATH']}"} | environ
    argv = [*(["busybox", "sh"] if shell == "busybox" else [shell]), str(folder / "load.sh"), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=folder.parent)


def settings(project: Path) -> list[str]:
    return (project / ".devcontainer/.env").read_text().splitlines()


@pytest.mark.parametrize("shell", every_shell)
def test_a_whole_bundle_is_loaded_and_named_in_the_project(carried, shell):
    done = load(carried, shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert hashlib.sha256((carried / "SHA256SUMS").read_bytes()).hexdigest() in done.stdout
    assert "load --input images/base-amd64.tar" in (carried.parent / "bin/docker.calls").read_text()
    wheels, image = settings(carried / "project")
    assert wheels == f"DEVKIT_WHEELHOUSE='{carried}/wheelhouse'"
    assert image.startswith("DEVKIT_BASE_IMAGE='localhost/devkit-base/demo:") and image.endswith("-amd64'")
    assert load(carried, shell=shell).returncode == 0
    assert len(settings(carried / "project")) == 2


@pytest.mark.parametrize("shell", every_shell)
@pytest.mark.parametrize(
    ("damage", "names"),
    [
        pytest.param("change", "wheelhouse/torch-2.13.0-cp311-none-any.whl", id="a wheel with another byte"),
        pytest.param("remove", "images/base-amd64.tar", id="an image that is gone"),
        pytest.param("add", "wheelhouse/torch-99-py3-none-any.whl", id="a wheel that is not listed"),
    ],
)
def test_a_bundle_that_is_not_as_written_is_refused_by_the_name_of_the_file(carried, damage, names, shell):
    path = carried / names
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n")
    done = load(carried, shell=shell)
    assert done.returncode == 1
    assert names in done.stderr
    assert not (carried / "project/.devcontainer/.env").exists()
    assert not (carried.parent / "bin/docker.calls").exists()


@pytest.mark.parametrize(
    ("environ", "says"),
    [pytest.param({"DEVKIT_ENGINE": "missing"}, "missing does not respond", id="an engine that does not exist")],
)
def test_an_engine_that_cannot_take_it_has_a_message_of_its_own(carried, environ, says):
    done = load(carried, **environ)
    assert (done.returncode, says in done.stderr) == (1, True)
