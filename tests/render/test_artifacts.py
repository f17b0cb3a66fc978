"""The generated files: what each option changes in them, what they must never hold, and what cannot leave its place."""

import difflib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.release import __version__
from devkit.render.container.compose import GPU_MODES
from devkit.render.container.devcontainer import render_devcontainer_json
from devkit.render.container.settings import ContainerSettings, FromCheckout, FromIndex, FromUrl, FromWheel
from devkit.render.files import DEVCONTAINER_FOLDER
from devkit.render.project import render_devcontainer
from tests.golden import assert_golden
from tests.render.test_dockerfile import OPENFOLD

from .gpu_host import write_overlay
from .plans import ARM_PLAN, CPU_PLAN, GPU_PLAN, ROCM_PLAN, UBUNTU_PLAN, reason
from .test_certificates import AUTHORITY
from .test_dependencies import LIST, PIPENV, POETRY, UV, WRITTEN

PLAIN = ContainerSettings("Demo", "demo", FromIndex("0.1.0"))
CLOSED = replace(PLAIN, source=FromWheel("devkit_gpu-0.1.0-py3-none-any.whl", b"PK"), certificates=AUTHORITY)
CLOSED = replace(CLOSED, uses_wheelhouse=True)
MIRRORED = replace(PLAIN, index="http://pypi.example.org/simple", torch_index="https://t.example.org/whl")
MIRRORED = replace(MIRRORED, hub="https://hub.example.org", certificates=AUTHORITY)

CASES = {
    "a GPU plan": (GPU_PLAN, PLAIN),
    "a CPU plan": (CPU_PLAN, PLAIN),
    "an image without Python": (UBUNTU_PLAN, PLAIN),
    "a closed network": (CPU_PLAN, CLOSED),
    "a closed network and an image without Python": (UBUNTU_PLAN, CLOSED),
    "a ROCm plan": (ROCM_PLAN, PLAIN),
    "a plan for two kinds of processor": (ARM_PLAN, PLAIN),
    "Docker, and two GPUs": (GPU_PLAN, replace(PLAIN, engine="docker", devices=("1", "MIG-5c25bfa8"))),
    "Podman, and one GPU": (GPU_PLAN, replace(PLAIN, engine="podman", devices=("GPU-01234567",))),
    "a ROCm plan and Podman": (ROCM_PLAN, replace(PLAIN, engine="podman", devices=("0",))),
    "mirrors of everything": (GPU_PLAN, MIRRORED),
    "a list for pip": (GPU_PLAN, replace(PLAIN, dependencies=LIST)),
    "a plan of torch alone": (replace(GPU_PLAN, packages=GPU_PLAN.packages[:1]), replace(PLAIN, dependencies=LIST)),
    "uv in a closed network": (CPU_PLAN, replace(CLOSED, dependencies=UV)),
    "Poetry with mirrors": (GPU_PLAN, replace(MIRRORED, dependencies=POETRY)),
    "Poetry": (GPU_PLAN, replace(PLAIN, dependencies=POETRY)),
    "Pipenv": (GPU_PLAN, replace(PLAIN, dependencies=PIPENV)),
    "an environment of conda": (CPU_PLAN, replace(PLAIN, dependencies=WRITTEN)),
    "packages that only conda has": (GPU_PLAN, replace(PLAIN, dependencies=OPENFOLD)),
    "devkit's own checkout": (GPU_PLAN, replace(PLAIN, source=FromCheckout())),
    "devkit from git": (GPU_PLAN, replace(PLAIN, source=FromUrl("git+https://example.org/d@abc"))),
}


def texts(plan, settings) -> dict[str, str]:
    found = {
        each.path.removeprefix(f"{DEVCONTAINER_FOLDER}/"): each.content for each in render_devcontainer(plan, settings)
    }
    return {path: content.decode() for path, content in found.items() if not path.endswith(".whl")}


def linter(name: str) -> str:
    """A linter that pip installed beside this Python, or one on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} comes with the group `lint`"
    return found


GOLDEN = (
    "a ROCm plan and Podman",
    "a closed network and an image without Python",
    "Poetry",
    "packages that only conda has",
)


@pytest.mark.golden
def test_each_option_changes_the_files_of_a_plain_plan_as_recorded():
    """The files of a plain plan are examples/quickstart/expected; the scripts run in test_gpu_script.py."""
    plain = texts(GPU_PLAN, PLAIN)
    lines = []
    for name in GOLDEN:
        lines.append(f"=== {name}")
        for path, text in sorted(texts(*CASES[name]).items()):
            before = plain.get(path, "")
            if text == before or path.endswith((".sh", ".crt")):
                continue
            difference = difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0)
            lines += [f"--- {path}", *(line for line in list(difference)[2:] if not line.startswith("@@"))]
    golden = "\n".join(lines).replace(__version__, "VERSION") + "\n"
    assert_golden(Path(__file__).with_name("options.diff"), golden)


def test_only_scripts_can_be_run():
    for name, case in CASES.items():
        for each in render_devcontainer(*case):
            assert each.mode == (0o755 if each.content.startswith(b"#!") else 0o644), (name, each.path)


@pytest.mark.parametrize("mode", GPU_MODES, ids=lambda mode: mode.name)
def test_the_container_has_no_more_rights_than_it_needs(mode, tmp_path):
    plan = ROCM_PLAN if mode.vendor == "rocm" else ARM_PLAN
    compose = yaml.safe_load(texts(plan, PLAIN)["docker-compose.yml"])
    dev = compose["services"]["dev"]
    assert dev["security_opt"] == ["no-new-privileges:true"]
    assert dev["init"] is True
    assert dev["shm_size"] == "${DEVKIT_SHM_SIZE:-32gb}"
    text = json.dumps([compose, write_overlay(plan, PLAIN, mode.name, tmp_path)])
    for word in ("privileged", "ipc", "cap_add", "docker.sock", "network_mode", '"pid"', "ulimits"):
        assert word not in text.replace("no-new-privileges", "")


def test_the_image_never_holds_a_token_and_never_hides_the_hosts_driver():
    for plan, settings in CASES.values():
        text = texts(plan, settings)["Dockerfile"]
        instructions = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        for word in ("TOKEN", "HF_HOME", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "PROXY", "proxy"):
            assert word not in instructions
        assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "dev"


def test_everything_the_dockerfile_copies_is_let_through_the_ignore_file():
    made = texts(CPU_PLAN, CLOSED)
    allowed = {line[1:] for line in made[".dockerignore"].splitlines() if line.startswith("!")}
    read = r"source=(\S+?),|COPY \S+ (\S+?)/|/mnt/devcontainer/(\w+)/"
    sources = {name for found in re.findall(read, made["Dockerfile"]) for name in found if name}
    assert sources == allowed == {"wheels", "certificates"}
    assert "*" in made[".dockerignore"].splitlines()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        pytest.param(replace(GPU_PLAN, base_image="a\nRUN touch /owned"), "base image", id="a line break in the image"),
        pytest.param(replace(GPU_PLAN, base_image="a AS b"), "base image", id="a second word in the image"),
        pytest.param(replace(GPU_PLAN, torch="2.13.0; touch x"), "version", id="a command in a version"),
        pytest.param(replace(GPU_PLAN, torch_index="https://x/$(id)"), "wheel index", id="a substitution in the index"),
        pytest.param(replace(GPU_PLAN, packages=(("a b", "1"),)), "package name", id="a space in a package name"),
        pytest.param(replace(GPU_PLAN, python="٣.١٢"), "Python version", id="digits that Python's own parser refuses"),
    ],
)
def test_a_value_that_could_escape_the_dockerfile_is_refused(plan, says):
    with pytest.raises(DevkitError, match=says):
        render_devcontainer(plan, PLAIN)


@given(st.text(max_size=200))
def test_no_reason_leaves_its_comment(because):
    plan = replace(GPU_PLAN, reasons=(reason("base_image", "x", because), reason("peft", "y", because)))
    made, usual = texts(plan, PLAIN), texts(replace(plan, reasons=()), PLAIN)
    code = [line for line in re.split(r"[\n\r]", made["Dockerfile"]) if line and not line.startswith("#")]
    assert code == [line for line in usual["Dockerfile"].split("\n") if line and not line.startswith("#")]


def test_the_host_command_ends_well_without_a_posix_shell():
    command = json.loads(render_devcontainer_json(PLAIN))["initializeCommand"]
    argv = ["/bin/sh", "-c", command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"})
    assert done.returncode == 0
    assert "devkit init --set platform=windows" in done.stdout


def test_git_takes_what_teammates_need_and_leaves_what_is_this_hosts(tmp_path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("wheels/\n*.whl\n*.crt\ncertificates/\n")
    made = render_devcontainer(CPU_PLAN, CLOSED)
    hosts_own = (".env", ".env.123", "wheelhouse/torch.whl", ".gpu.sh.devkit-new", ".secrets/jupyter-token")
    local = {f"{DEVCONTAINER_FOLDER}/{path}" for path in hosts_own}
    for path in {each.path for each in made} | local:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"".join(each.content for each in made if each.path == path))
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    argv = ["git", "ls-files", DEVCONTAINER_FOLDER]
    listed = subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert set(listed.split()) == {each.path for each in made if not each.path.endswith(".whl")}


def test_a_build_without_the_wheel_says_what_to_do_and_goes_on():
    """The step's own words, run by a shell without the wheel's folder."""
    text = texts(CPU_PLAN, CLOSED)["Dockerfile"]
    (step,) = re.findall(r"^ +(if \[ -f /mnt/devcontainer(?:.|\n)*?; fi)$", text, re.MULTILINE)
    done = subprocess.run(["sh", "-c", step], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "devkit update" in done.stderr
