"""The script for Daytona, run with a stand-in for its SDK, beside what tests/export/agreement reads in it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.export.daytona import TARGET, DaytonaSettings, render_daytona

from .tasks import CPU, HOSTILE, NASTY, ONE, ROCM, SPOT, TWO_NODES, UNNAMED, gpus, texts, volumes

SDK = Path(__file__).parent / "stand_in"


def script(task, folder="deploy/daytona", **settings):
    return texts(render_daytona(task, DaytonaSettings(**settings), folder))["run.py"]


def ran(task, tmp_path, *, settings=None, env=()):
    """How the script ended, its project and what it asked Daytona for; the job's paths lie below tmp_path."""
    inside, project = tmp_path / "inside", tmp_path / "project"
    (project / "deploy/daytona").mkdir(parents=True)
    for folder in ("finetuned", ".git"):
        (project / folder).mkdir()
    (project / "finetuned/earlier").write_text("kept")
    task = replace(task, workspace=str(inside), output=f"{inside}/finetuned")
    text = script(task, **(settings or {})).replace("/home/dev/", f"{inside}/home/dev/")
    (project / "deploy/daytona/run.py").write_text(text.replace('"/tmp/devkit-', f'"{tmp_path}/devkit-'))
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(SDK), "DEVKIT_WAIT_S": "0.02"}
    argv = [sys.executable, project / "deploy/daytona/run.py"]
    done = subprocess.run(argv, env=variables | dict(env), capture_output=True, text=True, check=False, timeout=120)
    log = [json.loads(line) for line in (tmp_path / "daytona.log").read_text().splitlines()]
    return done, project, log


SAVES = 'printf "%s\\n" "$1" >>finetuned/words; n=$(wc -l <finetuned/words); if [ "$n" -lt 3 ]; then exit 75; fi'


def test_the_project_goes_there_a_run_that_saved_goes_on_and_the_output_comes_back(tmp_path):
    task = replace(HOSTILE, command=("sh", "-c", SAVES, "sh", NASTY))
    done, project, log = ran(task, tmp_path, env={"HF_TOKEN": "hf_x"}.items())
    assert done.returncode == 0, done.stderr
    asked = dict(log)
    assert [what for what, _ in log] == ["snapshot", "sandbox", *["start"] * 3, "deleted"]
    assert (asked["snapshot"]["image"], asked["snapshot"]["name"]) == (task.image, asked["sandbox"]["snapshot"])
    assert asked["snapshot"]["resources"] == {"cpu": 8, "memory": 48, "disk": 90, "gpu": 1, "gpu_type": ["H100"]}
    assert asked["sandbox"]["env_vars"]["NASTY"] == NASTY
    assert (asked["sandbox"]["auto_stop_interval"], asked["sandbox"]["ephemeral"]) == (0, True)
    assert (project / "finetuned/words").read_text() == f"{NASTY}\n" * 3
    assert (project / "finetuned/earlier").read_text() == "kept"
    assert (tmp_path / "inside/home/dev/.config/huggingface/token").read_text() == "hf_x"
    assert not (tmp_path / "inside/.git").exists()


IS_SAVED = 'sleep 60 & trap "kill $!; echo saved >finetuned/saved; exit 75" TERM; echo "$0"; wait'


@pytest.mark.parametrize(
    ("command", "time_s", "code", "starts"),
    [
        pytest.param(("sh", "-c", IS_SAVED, "stop me"), 3600, 75, 1, id="a stop"),
        pytest.param(("sh", "-c", IS_SAVED, "go on"), 1, 75, 1, id="its time over"),
        pytest.param(("sh", "-c", "exit 3"), 3600, 3, 1, id="a failure"),
        pytest.param(("sh", "-c", "exit 75"), 3600, 75, 6, id="a stop that does not cease"),
    ],
)
def test_what_ends_a_run_is_forwarded_and_the_output_comes_back(tmp_path, command, time_s, code, starts):
    done, project, log = ran(replace(CPU, command=command, time_s=time_s, grace_s=20), tmp_path)
    assert done.returncode == code, done.stderr
    assert ([what for what, _ in log].count("start"), log[-1]) == (starts, ["deleted", True])
    assert (project / "finetuned/saved").exists() is (IS_SAVED in command)


def test_what_is_asked_for_is_daytonas():
    fitting = replace(UNNAMED, fitting_gpus=("NVIDIA L4", "NVIDIA H100 SXM", "NVIDIA H200"))
    asked = {
        "Resources(cpu=8, memory=48, disk=90)": CPU,
        "Resources(cpu=8, memory=48, disk=90, gpu=2)": replace(ONE, accelerator=gpus(2, "")),
        "disk=90, gpu=2, gpu_type=[GpuType('H100'), GpuType('H200')])": fitting,
        "IS_SPOT = True": SPOT,
        "IS_SPOT = False": replace(CPU, is_spot=True),
    }
    for words, task in asked.items():
        assert words in script(task)
    names = {
        next(line for line in script(task).splitlines() if line.startswith("SNAPSHOT = "))
        for task in (ONE, replace(ONE, image="registry.example.org/me/demo:2"), replace(ONE, cpus=16))
    }
    assert len(names) == 3
    ready = script(replace(ONE, image=""), snapshot="mine:1", hub_secret="hub")
    assert "SNAPSHOT = 'mine:1'" in ready and "IMAGE = ''" in ready and "HUB_SECRET = 'hub'" in ready
    assert "HUB_SECRET = ''" in script(CPU, hub_secret="hub")
    assert [TARGET.needs_image(DaytonaSettings(snapshot=name)) for name in ("mine:1", "")] == [False, True]
    assert 'os.environ["DEVKIT_PROJECT"]' in script(ONE, "/elsewhere")
    rendered = render_daytona(SPOT, DaytonaSettings(), "my jobs")
    assert rendered.next_steps == ("uv run 'my jobs/run.py'",)
    assert "reclaimed without notice" in rendered.notes[1]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(TWO_NODES, {}, "a Daytona sandbox is one machine, but the job needs 2", id="two nodes"),
        pytest.param(replace(ONE, volumes=volumes(checkpoints="kept")), {}, "saving renames files", id="a volume"),
        pytest.param(ROCM, {}, "Daytona does not offer 'MI300X'", id="a GPU nobody rents"),
        pytest.param(replace(ONE, image="registry:5000/demo"), {}, "a mutable tag", id="no tag beside a port"),
        pytest.param(replace(ONE, image="demo:latest"), {}, "a mutable tag", id="latest"),
        pytest.param(ONE, {"snapshot": "a\nb"}, "is not a valid name", id="a snapshot of two lines"),
        pytest.param(ONE, {"hub_secret": "a b"}, "is not a valid name", id="a secret with a space"),
    ],
)
def test_what_daytona_cannot_run_is_refused(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        script(task, **settings)
    assert "\n" not in str(refused.value)
