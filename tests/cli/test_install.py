"""`devkit plan --install` and `devkit doctor --setup`: the commands for this machine, and one that really installs."""

import json
import subprocess
import sys

import pytest
from packaging.version import Version

from devkit.doctor.setup import plan_setup
from tests.cli.test_init import GPU, assert_refused, devkit
from tests.doctor.running import build_full_report
from tests.hosts import facts_of
from tests.hosts.golden import facts_file
from tests.wheels import make_index, make_wheel


def test_the_command_has_torch_in_the_build_of_the_plan(tmp_path):
    plan = json.loads(devkit("plan", *GPU, "--no-resolve", "--json", cwd=tmp_path).stdout)["plan"]
    done = devkit("plan", "--install", *GPU, "--no-resolve", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"uv pip install --torch-backend={plan['variant']} torch=={plan['torch']} transformers=="
    )


@pytest.mark.parametrize(
    ("active", "says"), [("", "none is active"), ("/gone", "VIRTUAL_ENV is /gone, which does not")]
)
def test_nothing_is_installed_without_a_virtual_environment(tmp_path, active, says):
    words = ("plan", "--install", "--run", *GPU, "--no-resolve")
    assert_refused(devkit(*words, cwd=tmp_path, VIRTUAL_ENV=active), says)


def test_run_installs_into_the_virtual_environment(tmp_path):
    """The release for the virtual environment's Python is installed there, and nowhere else."""
    environment, project = tmp_path / "env", tmp_path / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    project.mkdir()
    (project / "requirements.txt").write_text("leaf\n")
    (tmp_path / "wheels").mkdir()
    index = make_index(
        tmp_path / "simple", [make_wheel(tmp_path / "wheels", "leaf", version) for version in ("1.0", "2.0")]
    )
    variables = {"UV_OFFLINE": "0", "UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": str(tmp_path / "cache")}
    done = devkit(
        "plan", "--install", "--run", "--vendor", "cpu", cwd=project, VIRTUAL_ENV=str(environment), **variables
    )
    assert (done.returncode, done.stdout) == (0, "uv pip install leaf==2.0\n"), done.stderr
    python = next(path for path in (environment / "bin/python", environment / "Scripts/python.exe") if path.exists())
    found = subprocess.run(
        [python, "-c", "import leaf; print(leaf.__version__)"], capture_output=True, text=True, check=True
    )
    assert Version(found.stdout.strip()) == Version("2.0")


@pytest.mark.parametrize(
    ("name", "ready", "said", "not_said"),
    [
        ("toolkit-missing", ["driver", "Docker"], "sudo apt-get install -y nvidia-container-toolkit", "ubuntu-drivers"),
        ("ubuntu-4090-ok", ["driver", "Docker", "Container Toolkit"], "docker run --rm --gpus all", "install"),
        ("wsl2-desktop", ["driver", "Docker Desktop", "Container Toolkit"], "docker run", "install"),
        ("no-gpu-laptop", ["this machine has no NVIDIA GPU"], "", "install"),
    ],
)
def test_the_steps_are_those_that_the_machine_needs(name, ready, said, not_said):
    facts = facts_of(name)
    setup = plan_setup(facts, build_full_report(facts))
    assert [each.split(" ")[0] for each in setup.ready] == [each.split(" ")[0] for each in ready]
    commands = "\n".join(command for step in setup.steps for command in step.commands)
    assert said in commands
    assert not_said not in commands


def test_setup_prints_what_is_ready_and_the_steps_of_saved_facts(tmp_path):
    saved = facts_file("toolkit-missing")
    done = devkit("doctor", "--setup", "--facts", saved, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("✓ driver 580.95.05\n✓ Docker 28.5.1\n1. Install the toolkit")
    document = json.loads(devkit("doctor", "--setup", "--facts", saved, "--json", cwd=tmp_path).stdout)
    assert document["ready"] == ["driver 580.95.05", "Docker 28.5.1"]
    assert [step["root"] for step in document["steps"]] == [True, False]


def test_setup_of_a_machine_without_a_gpu_installs_nothing(tmp_path):
    done = devkit("doctor", "--setup", "--facts", facts_file("no-gpu-laptop"), cwd=tmp_path)
    assert done.stdout.splitlines()[0].startswith("✓ this machine has no NVIDIA GPU")
    assert done.stdout.splitlines()[1:] == ["Nothing to install."]
