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
from devkit.render.container.image import render_dockerfile, render_requirements
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
    assert f" pip install --no-cache-dir uv=={UV.version}" in order[0]
    assert all("uv pip install" in each for each in order[1:])
    assert f"uv=={UV.version}" in render_requirements(GPU_PLAN, PLAIN).splitlines()


def test_a_pinned_uv_is_taken_once_and_everywhere():
    plan = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("uv", "0.12.24")))
    assert "uv==0.12.24" in render_dockerfile(plan, PLAIN)
    assert [line for line in render_requirements(plan, PLAIN).splitlines() if line.startswith("uv==")] == [
        "uv==0.12.24"
    ]


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
