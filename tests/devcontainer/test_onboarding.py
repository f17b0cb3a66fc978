"""What onboarding says is lacking, what it keeps, and the page that it writes."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devkit.cli.export import load_project_job
from devkit.cli.onboard import _estimate_job
from devkit.devcontainer.configuration import find_dev_container
from devkit.devcontainer.onboarding import (
    ONBOARDING_FILE,
    OnboardingPage,
    Progress,
    compute_page_change,
    find_editor_need,
    list_needs,
)
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks
from devkit.errors import DevkitError
from devkit.estimate.gpus import Fit
from devkit.probe.gather import gather_facts
from devkit.render.changes import write_changes
from tests.forked_commands import run_devkit
from tests.hosts import machine, written
from tests.hosts.golden import expected_document

ROOT = Path(__file__).resolve().parents[2]
PAGE = OnboardingPage("demo", "570.124.06", 24 << 30, "meta-llama/Llama-3.1-8B", needs_token=True, training_command="")


def needs_of(name):
    facts = gather_facts(machine(name))
    return list(list_needs(build_report(facts, run_checks(CHECKS, facts, clock=time.monotonic), devkit="0")))


def test_a_machine_without_an_engine_gets_it_first_and_cannot_start():
    first, *_ = needs_of("docker-stopped")
    assert (first.topic, first.code, first.stops) == ("container engine", "ENG001", True)
    assert first.commands


def test_what_does_not_stop_the_start_comes_after_what_does():
    needs = needs_of("toolkit-missing")
    assert [need.code for need in needs][:1] == ["CTK001"]
    assert not any(need.stops for need in needs)


def test_a_healthy_machine_lacks_nothing():
    assert needs_of("ubuntu-4090-ok") == []


@pytest.mark.parametrize(
    ("printed", "lacks"),
    [("ms-python.python\n", True), ("ms-python.python\nms-vscode-remote.remote-containers\n", False)],
    ids=["VS Code without it", "VS Code with it"],
)
def test_the_editors_extension_is_looked_for(tmp_path, printed, lacks):
    host = written(tmp_path, f'[[command]]\nargv = ["code", "--list-extensions"]\nout = {json.dumps(printed)}\n')
    need = find_editor_need(host)
    assert (need is not None) is lacks
    if need:
        assert need.commands == ("code --install-extension ms-vscode-remote.remote-containers",)


def test_without_vs_code_no_extension_is_missing():
    assert find_editor_need(machine("ubuntu-4090-ok")) is None


def test_what_was_done_is_kept_for_the_same_image(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / ".devcontainer.json").write_text('{"image": "debian"}')
    container = find_dev_container(tmp_path, env={})
    Progress.load(container).note("verify", "one", "proved")
    again = Progress.load(container)
    assert (again.find("verify", "one"), again.find("verify", "another"), again.find("train", "one")) == (
        "proved",
        None,
        None,
    )


def write(root, **options):
    change = compute_page_change(root, PAGE, force=options.get("force", False))
    write_changes(root, (change,))
    return change.action


def test_the_page_is_written_once_and_only_between_its_marks(tmp_path):
    file = tmp_path / ONBOARDING_FILE
    assert write(tmp_path) == "create"
    assert write(tmp_path) == "unchanged"
    text = file.read_text()
    assert "devkit onboard" in text and "24 GiB" in text and "570.124.06" in text and "hf auth login" in text
    file.write_text("Ours.\n" + text + "And this.\n")
    assert write(tmp_path) == "unchanged"
    file.write_text("Ours.\n" + text.replace("Every day", "Each day") + "And this.\n")
    with pytest.raises(DevkitError, match="was edited"):
        write(tmp_path)
    assert write(tmp_path, force=True) == "update"
    assert file.read_text() == "Ours.\n" + text + "And this.\n"


def test_a_page_of_others_stays(tmp_path):
    (tmp_path / ONBOARDING_FILE).write_text("# Welcome\n")
    with pytest.raises(DevkitError, match="did not write it"):
        write(tmp_path)
    assert write(tmp_path, force=True) == "update"
    assert (tmp_path / ONBOARDING_FILE).read_text().endswith("# Welcome\n")


def test_without_an_engine_it_says_what_is_lacking_and_starts_nothing(tmp_path):
    project, programs = tmp_path / "project", tmp_path / "bin"
    project.mkdir()
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    (project / ".devcontainer.json").write_text('{"image": "debian"}')
    env = {
        **os.environ,
        "PATH": str(programs),
        "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    argv = [sys.executable, "-m", "devkit", "onboard", str(project), "--json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "stopped"
    first = document["needs"][0]
    assert (first["topic"], first["stops"]) == ("container engine", True)
    assert document["next"] == ["do what is listed above, then: devkit onboard"]
    assert [step["name"] for step in document["steps"]] == ["machine"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--force"], "--force is for --write", id="--force alone"),
        pytest.param(["/nowhere"], "/nowhere is no directory", id="no such folder"),
    ],
)
def test_wrong_input_is_one_line_and_a_hint(words, message):
    done = run_devkit("onboard", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_gpu_that_is_too_small_for_the_job_is_said(tmp_path):
    shutil.copytree(ROOT / "examples/quickstart/expected", tmp_path, dirs_exist_ok=True)
    shutil.copy(ROOT / "examples/cluster/run.toml", tmp_path)
    with (tmp_path / "devkit.toml").open("a") as file:
        file.write('\n[job]\nsettings = "run.toml"\n')
    job = load_project_job(tmp_path)
    assert _estimate_job(job, "RTX 4090").verdict is not Fit.DOES_NOT_FIT
    assert _estimate_job(job, "GTX 1650").verdict is Fit.DOES_NOT_FIT
    done = run_devkit("onboard", str(tmp_path), "--write")
    assert done.returncode == 0, done.stderr
    assert "to train meta-llama/Llama-3.1-8B: a GPU with " in (tmp_path / ONBOARDING_FILE).read_text()


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        pytest.param("cat facts.json", 0, "GPU in containers: ", id="devkit is there"),
        pytest.param(
            "echo devkit: not found >&2; exit 127", 0, "is unknown: no devkit answers there: devkit: not", id="none"
        ),
    ],
)
def test_another_machine_is_read_by_its_own_devkit(tmp_path, answer, code, says):
    done = run_devkit("init", ".", "--vendor", "cpu", "--yes", "--no-resolve", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "facts.json").write_text(json.dumps(expected_document("toolkit-missing")))
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" >said\n{answer}\n')
    ssh.chmod(0o755)
    host = ("--host", "ssh://me@gpu-box/run/docker.sock")
    done = run_devkit("onboard", *host, "--check", cwd=tmp_path, PATH=f"{ssh.parent}:{os.environ['PATH']}")
    assert done.returncode == code
    assert says in done.stderr
    assert "-- ssh://me@gpu-box f=" in (tmp_path / "said").read_text()
    assert "devkit onboard --host ssh://me@gpu-box/run/docker.sock" in done.stdout
