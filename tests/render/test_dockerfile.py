"""The Dockerfile and what is built from it: packages of the distribution and of conda."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.facts.dependencies import CondaPackage, Dependencies, PackageManager
from devkit.render.container.compose import render_devcontainer_compose
from devkit.render.container.image import render_dockerfile
from devkit.render.container.settings import ContainerSettings, FromIndex
from devkit.solver.plan import SYSTEM_PACKAGE, Reason
from devkit.solver.system_packages import REQUESTED
from tests.cases import cases
from tests.render.plans import CPU_PLAN, GPU_PLAN, ROCM_PLAN
from tests.render.test_dependencies import instructions, made

# The Dockerfile by itself: what it installs, from where, and that it comes out the same everywhere.


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


@pytest.mark.parametrize(("python", "is_ignored"), [("3.7", True), ("3.12", False)])
def test_uv_is_installed_beside_a_python_that_its_metadata_no_longer_names(python, is_ignored):
    text = render_dockerfile(replace(CPU_PLAN, python=python, base_image=f"python:{python}-slim-bookworm"), PLAIN)
    assert ("pip install --no-cache-dir --ignore-requires-python --target=/opt/uv" in text) is is_ignored


def test_uv_comes_in_a_pinned_version_before_everything_that_it_installs():
    order = [each for each in steps(render_dockerfile(GPU_PLAN, PLAIN)) if "pip install" in each]
    assert f"--target=/opt/uv uv=={UV.version}" in " ".join(order[0].split())
    assert all("uv pip install" in each for each in order[1:])


def test_a_pinned_uv_installs_the_packages_too():
    plan = replace(GPU_PLAN, packages=(*GPU_PLAN.packages, ("uv", "0.12.24")))
    assert "uv==0.12.24" in step(render_dockerfile(plan, PLAIN), "/opt/uv/")


def test_a_plan_of_torch_alone_has_no_layer_of_other_packages():
    alone = replace(GPU_PLAN, packages=GPU_PLAN.packages[:1])
    assert "transformers==5.23.0 peft==0.21.2" in step(render_dockerfile(GPU_PLAN, PLAIN), "transformers")
    assert len(steps(render_dockerfile(alone, PLAIN))) == len(steps(render_dockerfile(GPU_PLAN, PLAIN))) - 1


@pytest.mark.parametrize(
    ("image", "python", "package"),
    [
        pytest.param("python:3.10.9-slim-bookworm", "3.10", "python3", id="Debian's own is newer than the project's"),
        pytest.param("nvidia/cuda:12.6.3-devel-ubuntu22.04", "3.10", "python3.11", id="Ubuntu has one beside its own"),
        pytest.param("ubuntu:20.04", "3.8", "", id="none is known"),
        pytest.param("python:3.12.9-slim-bookworm", "3.12", "", id="the project's will do"),
    ],
)
def test_devkit_has_a_python_of_its_own_where_the_projects_is_too_old(image, python, package):
    text = render_dockerfile(replace(GPU_PLAN, base_image=image, python=python), PLAIN)
    usual = render_dockerfile(replace(GPU_PLAN, base_image=image), PLAIN)
    listed, before = (set(re.findall(r"[a-z0-9.+-]+", step(each, "apt-get install"))) for each in (text, usual))
    assert listed - before == ({package} - before if package else set())
    assert "uv venv --python='>=3.11' /opt/devkit" in step(text, "devkit-gpu")


@cases(
    "plan, settings, may_be_prepared",
    {
        "a public image": (GPU_PLAN, PLAIN, False),
        "a closed network": (GPU_PLAN, replace(PLAIN, uses_wheelhouse=True), True),
        "mirrors": (GPU_PLAN, replace(PLAIN, index="https://pypi.example.org"), True),
        "the company's image": (replace(GPU_PLAN, base_image="registry.example.org/python:3.12"), PLAIN, True),
    },
)
def test_a_prepared_image_needs_no_package_mirror(plan, settings, may_be_prepared):
    assert ("dpkg-query" in step(render_dockerfile(plan, settings), "apt-get update")) is may_be_prepared


def test_an_image_without_a_newer_python_is_complete_but_for_devkit(tmp_path):
    """The step's own shell, with a uv that finds none."""
    old = render_dockerfile(replace(GPU_PLAN, python="3.10"), PLAIN)
    run = re.sub(r"--mount=\S+ ", "", step(old, "devkit-gpu")).removeprefix("RUN ")
    (tmp_path / "uv").write_text("#!/bin/sh\necho No interpreter found >&2\nexit 2\n")
    (tmp_path / "uv").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", run], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0
    assert "Python 3.11 or later was not found, so this image does not contain devkit" in done.stderr


TYPED = "__version__ = '2.13.0+x'\ndebug = False\ncuda: Optional[str] = {}\nhip: Optional[str] = {}\n"
OLD = "__version__ = '2.13.0'\ncuda = {}\n"


@cases(
    "plan, built, verdict",
    {
        "the planned CUDA": (GPU_PLAN, TYPED.format("'13.0'", None), 0),
        "another CUDA": (GPU_PLAN, TYPED.format("'12.8'", None), 1),
        "a CPU build for a GPU": (GPU_PLAN, OLD.format(None), 1),
        "another release": (GPU_PLAN, TYPED.format("'13.0'", None).replace("2.13.0", "2.13.01"), 1),
        "the planned ROCm": (ROCM_PLAN, TYPED.format(None, "'7.1.51831-a3e329ad8'"), 0),
        "a patch of ROCm": (replace(ROCM_PLAN, variant="rocm6.2.4"), TYPED.format(None, "'6.2.41134-65d1'"), 0),
        "another ROCm": (ROCM_PLAN, TYPED.format(None, "'7.14.1'"), 1),
        "a CPU build for ROCm": (ROCM_PLAN, TYPED.format(None, None), 1),
        "a CUDA build for ROCm": (ROCM_PLAN, TYPED.format("'13.0'", None), 1),
        "an old CPU build, which knows no hip": (CPU_PLAN, OLD.format(None), 0),
        "a CUDA build for the CPU": (CPU_PLAN, TYPED.format("'13.0'", None), 1),
    },
)
def test_the_build_stops_when_another_torch_is_installed_and_says_who_asks_for_it(plan, built, verdict, tmp_path):
    run = step(render_dockerfile(plan, PLAIN), "version.py").removeprefix("RUN ")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(built.replace("2.13.0", plan.torch))
    (tmp_path / "uv").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "uv").chmod(0o755)
    planted = run.replace(f"/opt/venv/lib/python{plan.python}/site-packages", str(tmp_path))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", planted], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == verdict, done.stderr
    says = ["the plan needs torch", "__version__ = ", "pip tree --invert --package=torch"]
    assert [each in done.stderr for each in says] == [bool(verdict)] * len(says)


@pytest.mark.full
def test_the_same_bytes_come_out_of_any_process(tmp_path):
    def made(**changes: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
        argv, cwd = [sys.executable, "-c", RENDER], tmp_path if changes else None
        return subprocess.run(argv, capture_output=True, text=True, check=True, env=env, cwd=cwd).stdout

    usual = made()
    assert made(PYTHONHASHSEED="1", LC_ALL="C", TZ="UTC") == usual
    assert made(PYTHONHASHSEED="4711", LC_ALL="tr_TR.UTF-8", TZ="Asia/Kolkata", HOME="/nowhere") == usual


# The layer of Debian packages, run by a shell with stand-ins for apt and dpkg, and what sudo changes.


MIRRORED = replace(PLAIN, index="https://pypi.example.org/simple")
"""A network whose base images may be prepared."""
INSTALLED = "ca-certificates curl g++ gcc git less libc6-dev openssh-client procps"
APT = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in *--simulate*) case " $MISSING " in *" $3 "*) exit 100 ;; esac ;; esac
"""
DPKG = """#!/bin/sh
for name; do :; done
case " $INSTALLED " in *" $name "*) printf installed ;; *) exit 1 ;; esac
"""


def planned(**because):
    reasons = tuple(Reason(name, SYSTEM_PACKAGE, why, "", "confirmed") for name, why in because.items())
    return replace(CPU_PLAN, reasons=(*CPU_PLAN.reasons, *reasons))


def run_layer(text: str, folder: Path, **variables: str) -> tuple[list[str], str]:
    """Run the first RUN instruction; return the calls of apt-get but for the trials, and the standard error."""
    script = next(found[0] for found in re.finditer(r"^RUN (?:[^\n]*\\\n)*[^\n]*", text, re.MULTILINE))
    for name, content in (("apt-get", APT), ("dpkg-query", DPKG)):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    script = script.removeprefix("RUN ").replace("\\\n", " ").replace("/var/lib/apt/lists", str(folder / "lists"))
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(log), "MISSING": "", **variables}
    done = subprocess.run(["sh", "-c", script], env=variables, capture_output=True, text=True, check=True, timeout=60)
    return [line for line in log.read_text().splitlines() if "--simulate" not in line], done.stderr


def test_a_prepared_base_image_needs_no_mirror(tmp_path):
    text = render_dockerfile(planned(ffmpeg="it runs it"), MIRRORED)
    assert run_layer(text, tmp_path, INSTALLED=f"{INSTALLED} ffmpeg") == ([], "")


@pytest.mark.parametrize(
    ("settings", "installs"),
    [
        pytest.param(MIRRORED, ["ffmpeg"], id="in a prepared image"),
        pytest.param(PLAIN, [INSTALLED, "ffmpeg"], id="in a public image"),
    ],
)
def test_what_the_distribution_lacks_does_not_end_the_build(tmp_path, settings, installs):
    text = render_dockerfile(planned(ffmpeg="it runs it", libosmesa6="Dockerfile installs it"), settings)
    calls, said = run_layer(text, tmp_path, INSTALLED=INSTALLED, MISSING="libosmesa6")
    assert calls == ["update", *(f"install -y --no-install-recommends {each}" for each in installs)]
    assert "this distribution has no libosmesa6" in said


def test_what_the_user_named_does(tmp_path):
    text = render_dockerfile(planned(ffmpeg="it runs it", nothing=REQUESTED), MIRRORED)
    calls, said = run_layer(text, tmp_path, INSTALLED=INSTALLED, MISSING="nothing")
    assert calls == ["update", "install -y --no-install-recommends ffmpeg nothing"]
    assert said == ""


@pytest.mark.parametrize("sudo", [pytest.param(True, id="requested"), pytest.param(False, id="by default not")])
def test_sudo(sudo):
    settings = replace(PLAIN, sudo=sudo)
    text = render_dockerfile(CPU_PLAN, settings)
    assert ("NOPASSWD" in text and re.search(r"apt-get install .* sudo ", text) is not None) is sudo
    compose = next(each for each in render_devcontainer_compose(CPU_PLAN, settings) if "compose" in each.path)
    service = yaml.safe_load(compose.content)["services"]["dev"]
    assert ("security_opt" not in service) is sudo


# The image of a conda project: micromamba makes the environment, and uv installs into it.


OPENFOLD = Dependencies(
    PackageManager.CONDA,
    "the project has environment.yml",
    files=("environment.yml",),
    conda=(CondaPackage("openmm>=8", "environment.yml", 9), CondaPackage("bioconda::hmmer", "environment.yml", 10)),
    conda_channels=("conda-forge", "bioconda"),
)


def test_uv_finds_the_environment_and_no_other_is_made():
    dockerfile = made(OPENFOLD)["Dockerfile"]
    assert "CONDA_PREFIX=/opt/venv" in dockerfile
    # `uv sync` would empty it.
    assert "UV_PROJECT_ENVIRONMENT" not in dockerfile
    assert "VIRTUAL_ENV" not in dockerfile
    assert "-m venv" not in dockerfile
    assert re.search(r"^COPY --from=mambaorg/micromamba:[\d.]+ /bin/micromamba ", dockerfile, re.MULTILINE)
    assert dockerfile.index("micromamba create") < dockerfile.index("&& uv pip install")


@pytest.mark.parametrize(
    ("packages", "names"),
    [
        pytest.param({"numpy-2.0-py_0": "python"}, [], id="none"),
        pytest.param({"pytorch-2.5.1-0": "python", "lightning-2.4-0": "pytorch >=2"}, ["lightning-2.4-0"], id="torch"),
        pytest.param({"libtorch-2.5.1-0": "mkl", "dgl-2.4-0": "libtorch"}, ["dgl-2.4-0"], id="its library"),
        pytest.param({"pytorch-lightning-2.4-0": "python"}, [], id="a name that begins alike"),
    ],
)
def test_a_torch_of_conda_ends_the_build_with_the_names_of_who_brought_it(tmp_path, packages, names):
    (run,) = instructions(made(OPENFOLD)["Dockerfile"], "micromamba create")
    (check,) = re.findall(r"&& (if \[ -n .*?\bfi) \\\n", run, re.DOTALL)
    (tmp_path / "conda-meta").mkdir()
    for name, needs in packages.items():
        (tmp_path / f"conda-meta/{name}.json").write_text(f'{{\n  "depends": [\n    "{needs}"\n  ]\n}}\n')
    script = check.replace("/opt/venv", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if names else 0)
    assert re.findall(r"conda-meta/(.+)\.json", done.stderr) == names


def test_a_closed_network_has_no_channel():
    with pytest.raises(DevkitError, match="a wheelhouse cannot contain conda packages, but this project needs openmm"):
        made(OPENFOLD, uses_wheelhouse=True)
