"""The Dockerfile by itself: what it installs, from where, and that it comes out the same everywhere."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.render.container.image import render_dockerfile
from devkit.render.container.settings import ContainerSettings, FromIndex

from .plans import CPU_PLAN, GPU_PLAN, ROCM_PLAN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))
ROOT = Path(__file__).resolve().parents[2]
UV = load_tables().images.tools[0]

RENDER = """
import hashlib, sys
from devkit.render.project import render_devcontainer
from tests.render.test_dockerfile import CPU_PLAN, GPU_PLAN, PLAIN
for plan in (CPU_PLAN, GPU_PLAN):
    for artifact in render_devcontainer(plan, PLAIN):
        sys.stdout.write(f"{artifact.path} {artifact.mode:o} {hashlib.sha256(artifact.content).hexdigest()}\\n")
"""


def steps(text: str) -> list[str]:
    """Every RUN instruction, its continued lines joined."""
    return [found[0].replace("\\\n", " ") for found in re.finditer(r"^RUN (?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE)]


def step(text: str, word: str) -> str:
    """The one RUN instruction with this word in it."""
    (found,) = [each for each in steps(text) if word in each]
    return " ".join(found.split())


def test_uv_comes_in_a_pinned_version_before_everything_that_it_installs():
    order = [each for each in steps(render_dockerfile(GPU_PLAN, PLAIN)) if "pip install" in each]
    assert f"--target=/opt/uv uv=={UV.version}" in " ".join(order[0].split())
    assert all("uv pip install" in each for each in order[1:])


def test_a_pinned_uv_installs_the_packages_too():
    plan = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("uv", "0.12.24")))
    assert "uv==0.12.24" in step(render_dockerfile(plan, PLAIN), "/opt/uv/")


def test_the_projects_environment_holds_what_was_asked_for_and_neither_uv_nor_devkit():
    text = render_dockerfile(GPU_PLAN, PLAIN)
    into_project = [each for each in steps(text) if "uv pip install" in each and "--python=/opt/devkit" not in each]
    assert len(into_project) == 2
    assert not any("devkit-gpu" in each for each in into_project)
    assert "UV_PROJECT_ENVIRONMENT=/opt/venv" in text


def test_a_plan_of_torch_alone_has_no_layer_of_other_packages():
    alone = replace(GPU_PLAN, packages=GPU_PLAN.packages[:1])
    assert "transformers==5.23.0 peft==0.21.2" in step(render_dockerfile(GPU_PLAN, PLAIN), "transformers")
    assert len(steps(render_dockerfile(alone, PLAIN))) == len(steps(render_dockerfile(GPU_PLAN, PLAIN))) - 1
    jupyter = replace(PLAIN, profiles=("jupyter",))
    assert "jupyterlab==" in step(render_dockerfile(alone, jupyter), "jupyter")


@pytest.mark.parametrize(
    ("image", "python", "package"),
    [
        pytest.param("python:3.10-slim-bookworm", "3.10", "python3", id="Debian's own is newer than the project's"),
        pytest.param("nvidia/cuda:12.6.3-devel-ubuntu22.04", "3.10", "python3.11", id="Ubuntu has one beside its own"),
        pytest.param("ubuntu:20.04", "3.8", "", id="none is known"),
        pytest.param("registry.example.org/base:1", "3.10", "", id="an image of the user's"),
        pytest.param("python:3.12-slim-bookworm", "3.12", "", id="the project's will do"),
    ],
)
def test_devkit_has_a_python_of_its_own_where_the_projects_is_too_old(image, python, package):
    text = render_dockerfile(replace(GPU_PLAN, base_image=image, python=python), PLAIN)
    usual = render_dockerfile(replace(GPU_PLAN, base_image=image), PLAIN)
    listed, before = (set(re.findall(r"[a-z0-9.+-]+", step(each, "apt-get install"))) for each in (text, usual))
    assert listed - before == ({package} - before if package else set())
    assert "uv venv --python='>=3.11' /opt/devkit" in step(text, "devkit-gpu")


@pytest.mark.parametrize(
    ("plan", "settings", "may_be_prepared"),
    [
        pytest.param(GPU_PLAN, PLAIN, False, id="a public image"),
        pytest.param(GPU_PLAN, replace(PLAIN, uses_wheelhouse=True), True, id="a closed network"),
        pytest.param(GPU_PLAN, replace(PLAIN, index="https://pypi.example.org"), True, id="mirrors"),
        pytest.param(
            replace(GPU_PLAN, base_image="registry.example.org/python:3.12"), PLAIN, True, id="the company's image"
        ),
    ],
)
def test_a_prepared_image_needs_no_package_mirror(plan, settings, may_be_prepared):
    assert ("dpkg-query" in step(render_dockerfile(plan, settings), "apt-get update")) is may_be_prepared


def test_an_image_without_a_newer_python_is_complete_but_for_devkit(tmp_path):
    """The step's own shell, with a uv that finds none."""
    run = re.sub(r"--mount=\S+ ", "", step(render_dockerfile(GPU_PLAN, PLAIN), "devkit-gpu")).removeprefix("RUN ")
    (tmp_path / "uv").write_text("#!/bin/sh\necho No interpreter found >&2\nexit 2\n")
    (tmp_path / "uv").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", run], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0
    assert "no Python 3.11 or later, so this image has no devkit" in done.stderr


def test_every_installation_keeps_its_downloads_out_of_the_layers_and_compiles_them_once():
    for each in steps(render_dockerfile(GPU_PLAN, PLAIN)):
        if "uv pip install" in each:
            assert "--mount=type=cache,id=devkit-uv,target=/root/.cache/uv" in each
            assert "--link-mode=copy --compile-bytecode" in each


@pytest.mark.parametrize(
    ("plan", "index"),
    [
        pytest.param(GPU_PLAN, "https://download.pytorch.org/whl/cu130", id="CUDA"),
        pytest.param(CPU_PLAN, "https://download.pytorch.org/whl/cpu", id="CPU"),
        pytest.param(ROCM_PLAN, "https://download.pytorch.org/whl/rocm7.1", id="ROCm"),
    ],
)
def test_torch_comes_from_its_exact_index_and_from_no_other(plan, index):
    text = render_dockerfile(plan, PLAIN)
    assert f"--default-index={index} torch==2.13.0" in step(text, "torch==")
    assert "torch-backend" not in text
    assert "TORCH_BACKEND" not in text
    assert "extra-index" not in text


@pytest.mark.parametrize(
    ("plan", "built", "verdict"),
    [
        pytest.param(GPU_PLAN, "cuda = '13.0'; hip = None", 0, id="the planned CUDA"),
        pytest.param(GPU_PLAN, "cuda = '12.8'; hip = None", 1, id="another CUDA"),
        pytest.param(GPU_PLAN, "cuda = None", 1, id="a CPU build for a GPU"),
        pytest.param(ROCM_PLAN, "cuda = None; hip = '7.1.51831-a3e329ad8'", 0, id="the planned ROCm"),
        pytest.param(
            replace(ROCM_PLAN, variant="rocm6.2.4"), "cuda = None; hip = '6.2.41134-65d174c3e'", 0, id="a patch of ROCm"
        ),
        pytest.param(ROCM_PLAN, "cuda = None; hip = '7.14.1'", 1, id="another ROCm"),
        pytest.param(ROCM_PLAN, "cuda = None; hip = None", 1, id="a CPU build for ROCm"),
        pytest.param(ROCM_PLAN, "cuda = '13.0'; hip = None", 1, id="a CUDA build for ROCm"),
        pytest.param(CPU_PLAN, "cuda = None; hip = None", 0, id="a CPU build for the CPU"),
        pytest.param(CPU_PLAN, "cuda = None", 0, id="an old CPU build, which knows no hip"),
        pytest.param(CPU_PLAN, "cuda = '13.0'", 1, id="a CUDA build for the CPU"),
        pytest.param(CPU_PLAN, "cuda = None; hip = '6.4.43482'", 1, id="a ROCm build for the CPU"),
    ],
)
def test_the_build_stops_when_torch_is_built_for_something_else(plan, built, verdict, tmp_path):
    code = re.search(r'python -c "(import runpy.*?)"$', step(render_dockerfile(plan, PLAIN), "runpy"))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(built)
    planted = code[1].replace("sysconfig.get_path('platlib')", repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", planted], capture_output=True, text=True, check=False)
    assert done.returncode == verdict, done.stderr
    assert ("the plan needs torch for" in done.stderr) is bool(verdict)


def test_the_same_bytes_come_out_of_any_process(tmp_path):
    def made(**changes: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
        argv, cwd = [sys.executable, "-c", RENDER], tmp_path if changes else None
        return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, cwd=cwd).stdout

    usual = made()
    assert made(PYTHONHASHSEED="1", LC_ALL="C", TZ="UTC") == usual
    assert made(PYTHONHASHSEED="4711", LC_ALL="tr_TR.UTF-8", TZ="Asia/Kolkata", HOME="/nowhere") == usual


def test_the_installer_pin_cannot_leave_its_word():
    plan = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("uv", "0.1; touch /owned")))
    with pytest.raises(DevkitError, match="version"):
        render_dockerfile(plan, PLAIN)
