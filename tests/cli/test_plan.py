"""`devkit plan` from the outside, in projects with requirements of their own and in those without torch."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.cli.test_init import GPU, assert_refused, devkit
from tests.forked_commands import run_devkit
from tests.hosts.golden import facts_file

# `devkit plan` from the outside: what it prints and ends with.


PASCAL_ON_580 = ("--gpu", "Tesla P40", "--driver", "580.95.05")


def plan(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_devkit("plan", *words, **{"NO_COLOR": "1", "COLUMNS": "100", **environ})


def test_a_plan_ends_with_0_and_says_why():
    done = plan(*PASCAL_ON_580)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cu126" in done.stdout and "Tesla P40 (6.1)" in done.stdout


def test_a_conflict_ends_with_1_in_text_and_json():
    text, document = plan(*PASCAL_ON_580, "--torch", "2.15"), plan(*PASCAL_ON_580, "--torch", "2.15", "--json")
    assert (text.returncode, document.returncode) == (1, 1)
    assert "✗ conflict" in text.stdout and "--torch 2.14.1+cu126" in text.stdout
    assert json.loads(document.stdout)["verdict"] == "conflict"
    assert document.stderr == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("--gpu", "RTX 9090"), "unknown GPU 'RTX 9090'", id="an unknown GPU"),
        pytest.param(("--driver", "newest"), "--driver 'newest' is not a version", id="a driver in words"),
        pytest.param(("--torch", "abc"), "--torch 'abc' is not a version", id="a torch in words"),
        pytest.param(("--facts", "/nowhere.json"), "cannot read /nowhere.json", id="facts that are not there"),
        pytest.param(("--facts", __file__), "does not contain the facts", id="facts that are something else"),
        pytest.param((*PASCAL_ON_580, "--why", "moon"), "no choice named 'moon'", id="a choice that is not made"),
    ],
)
def test_wrong_input_ends_with_2_one_line_and_a_hint(words, says):
    done = plan(*words)
    assert (done.returncode, done.stdout) == (2, "")
    first, *hint = done.stderr.splitlines()
    assert first.startswith("Error: ") and says in first
    assert hint and "Traceback" not in done.stderr


def test_saved_machines_are_planned_for_together():
    one = plan("--facts", str(facts_file("ubuntu-4090-ok")), "--json")
    both = plan("--facts", str(facts_file("ubuntu-4090-ok")), *PASCAL_ON_580, "--json")
    assert json.loads(one.stdout)["plan"]["variant"] == "cu130"
    assert json.loads(both.stdout)["plan"]["variant"] == "cu126"


def test_why_lists_what_was_not_chosen_in_text_and_json():
    text, document = plan(*PASCAL_ON_580, "--why", "torch"), plan(*PASCAL_ON_580, "--why", "torch", "--json")
    assert (text.returncode, document.returncode) == (0, 0)
    assert "torch 2.15.0+cu132  A1" in text.stdout
    assert json.loads(document.stdout)["others"][0]["choice"] == "torch 2.15.0+cu132"


def test_how_gpus_are_passed_on_decides_what_an_image_may_demand():
    words = ("--gpu", "A100", "--driver", "555.42.06", "--image", "nvidia/cuda:12.8.1-base-ubuntu24.04")
    assert plan(*words).returncode == plan(*words, "--gpu-runtime", "legacy").returncode == 1
    assert plan(*words, "--gpu-runtime", "cdi").returncode == 0


def test_without_flags_it_plans_for_this_machine():
    done = plan("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["vendor"] in ("cpu", "nvidia")


# `devkit plan` and `devkit init` in projects whose own files ask for packages.


ADA = ("--gpu", "RTX 4090", "--driver", "580.95.05")


def run_in_project(*words, cwd) -> subprocess.CompletedProcess[str]:
    return run_devkit(*words, cwd=cwd, NO_COLOR="1", COLUMNS="200")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "requirements.txt").write_text("# ours\n\ntorch==2.13.0\nnumpy<2\n")
    return tmp_path


def test_a_plan_takes_what_the_project_asks_for_and_says_which_line(project):
    done = run_in_project("plan", *ADA, cwd=project)
    assert done.returncode == 0
    assert "requirements.txt:3 wants torch==2.13.0" in done.stdout
    assert re.search(r"^dependencies +pip", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("how", ["--ignore-dependencies", "devkit.toml"])
def test_the_projects_files_can_be_left_aside(project, how):
    words = [how] if how.startswith("--") else []
    if not words:
        (project / "devkit.toml").write_text("[dependencies]\nignore_dependencies = true\n")
    done = run_in_project("plan", *ADA, *words, cwd=project)
    assert "requirements.txt" not in done.stdout
    assert run_in_project("init", ".", *ADA, "--yes", *words, cwd=project).returncode == 0
    assert "project: .." not in (project / ".devcontainer/docker-compose.yml").read_text()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        pytest.param(("--torch", "2.14.1"), "requirements.txt:3 wants torch==2.13.0", id="another torch"),
        pytest.param(("--pin", "numpy==2.1.0"), "requirements.txt:4 wants numpy<2", id="another package"),
    ],
)
def test_a_flag_against_the_projects_files_is_a_conflict_that_names_the_line(project, flags, line):
    for command in (("plan",), ("init", ".", "--yes")):
        done = run_in_project(*command, *ADA, *flags, cwd=project)
        assert done.returncode == 1
        assert line in done.stdout
    assert not (project / ".devcontainer").exists()


def test_init_binds_the_projects_files_and_update_sees_no_difference(project):
    assert run_in_project("init", ".", *ADA, "--yes", cwd=project).returncode == 0
    dockerfile = (project / ".devcontainer/Dockerfile").read_text()
    assert "--mount=type=bind,from=project,source=requirements.txt" in dockerfile
    assert "project: .." in (project / ".devcontainer/docker-compose.yml").read_text()
    assert run_in_project("update", ".", "--check", cwd=project).returncode == 0
    (project / "requirements.txt").write_text("torch==2.13.0\nnumpy<2\nrich\n")
    assert run_in_project("update", ".", "--check", cwd=project).returncode == 0
    (project / "requirements.txt").write_text("torch==2.13.0\n-r more.txt\n")
    (project / "more.txt").write_text("rich\n")
    changed = run_in_project("update", ".", "--check", cwd=project)
    assert changed.returncode == 1
    assert "source=more.txt" in changed.stdout


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nimport tiktoken\nimport strange\n")
    return tmp_path


def test_what_programs_import_is_named_where_no_file_asks_for_it(programs):
    done = run_in_project("init", ".", *ADA, "--dry-run", cwd=programs)
    assert "no dependency file" in done.stdout
    assert "imported but not listed in any file: tiktoken (train.py:2); --add-imports installs them" in done.stdout
    assert "strange (train.py:3); devkit's tables do not list their packages" in done.stdout
    document = json.loads(run_in_project("init", ".", *ADA, "--dry-run", "--json", cwd=programs).stdout)
    assert document["imports"][0] == {"module": "tiktoken", "name": "tiktoken", "origin": "train.py:2"}


@pytest.mark.parametrize("flag", ["--add-imports", "--yes"])
def test_imports_that_are_accepted_stand_in_devkit_toml_and_in_the_image(programs, flag):
    assert run_in_project("init", ".", *ADA, flag, cwd=programs).returncode == 0
    assert 'packages = ["tiktoken"]' in (programs / "devkit.toml").read_text()
    assert "        tiktoken \\\n        > /mnt/work/project.txt" in (programs / ".devcontainer/Dockerfile").read_text()
    # They stay, and are not proposed again.
    done = run_in_project("init", ".", *ADA, cwd=programs)
    assert "tiktoken" not in done.stdout
    assert "unchanged" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(("answer", "is_written"), [("n", False), ("y", True)])
def test_on_a_terminal_the_user_is_asked(programs, answer, is_written):
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(programs)
        os.execv(sys.executable, [sys.executable, "-m", "devkit", "init", ".", *ADA])
    os.write(terminal, f"{answer}\n".encode())
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
    assert ('\npackages = ["tiktoken"]' in (programs / "devkit.toml").read_text()) is is_written


# `devkit` in projects that do not use torch.


CMAKE = "project(fast LANGUAGES CXX CUDA)\n"


@pytest.mark.parametrize(
    ("files", "says", "base", "extra"),
    [
        ({"CMakeLists.txt": CMAKE}, "CUDA C++: CMakeLists.txt:1", r"nvidia/cuda:\S+-devel-", "CUDAARCHS"),
        ({"requirements.txt": "flax\n"}, "JAX, by jax[cuda12]: requirements.txt:1", "python:", "jax[cuda12]"),
        ({"Cargo.toml": "[package]\n"}, "no framework: the project has Cargo.toml", "python:", "FROM"),
    ],
)
def test_init_writes_a_container_without_torch(tmp_path, files, says, base, extra):
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    done = devkit("init", tmp_path, *GPU, COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout
    dockerfile = (tmp_path / ".devcontainer/Dockerfile").read_text()
    assert re.search(f"^FROM {base}", dockerfile, re.MULTILINE)
    assert extra in dockerfile
    assert "torch==" not in dockerfile
    again = devkit("update", tmp_path, "--check", "--no-resolve")
    assert again.returncode == 0, again.stdout


def test_an_empty_folder_gets_torch_to_fine_tune_with(tmp_path):
    done = devkit("plan", *GPU, "--json", cwd=tmp_path)
    plan = json.loads(done.stdout)["plan"]
    assert plan["framework"] == "torch"
    assert plan["packages"].keys() >= {"torch", "transformers", "peft"}


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
    assert_refused(devkit(command, *where), "needs a plan with torch, but this one has CUDA C++: CMakeLists.txt:1")


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ("jax", ("additions", "jax[cuda12]")),
        ("tensorflow", ("additions", "tensorflow[and-cuda]")),
        ("diffusers", ("framework", "torch")),
    ],
)
def test_a_stack_brings_its_requirements_and_devkit_toml_keeps_them(tmp_path, stack, shown):
    (tmp_path / "devkit.toml").write_text('[project]\npackages = ["einops"]\n')
    plan = devkit("plan", "--stack", stack, *GPU, "--no-resolve", "--json", cwd=tmp_path)
    field, value = shown
    assert value in json.loads(plan.stdout)["plan"][field]
    done = devkit("init", tmp_path, "--stack", stack, *GPU, "--no-resolve", "--yes")
    assert done.returncode == 0, done.stderr
    assert f'packages = ["einops", "{stack}"' in (tmp_path / "devkit.toml").read_text()
    assert "einops" in (tmp_path / ".devcontainer/Dockerfile").read_text()
