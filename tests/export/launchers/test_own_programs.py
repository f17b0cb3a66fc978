"""The generated files, read by the launchers' own code: they mean there what the task says."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.export.daytona import DaytonaSettings, render_daytona
from devkit.export.dstack import DstackSettings, render_dstack
from devkit.export.launcher_gpus import load_launcher_gpus
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.task import HUB_CACHE
from tests.engine import launchers
from tests.engine.binaries import NoEngineError

from .tasks import CPU, HOSTILE, NASTY, ONE, OUTPUT, SPOT, TASKS, TWO_NODES, WORKSPACE, context, volumes

pytestmark = pytest.mark.full
READER = Path(__file__).parent / "own_programs.py"
DRIVER = Path(__file__).parent / "daytona_locally.py"


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return launchers.python()
    except NoEngineError as error:
        pytest.skip(f"the launchers' own programs cannot be had: {str(error)[-300:]}")


def read(python, kind, home, *files):
    """What the launcher's code makes of the files."""
    home.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "NO_COLOR": "1"}
    argv = [str(python), str(READER), kind, *map(str, files)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.rpartition("\n")[2])


def written(render, folder, cases):
    """Every file of every case; those of one in a folder of its name."""
    files = {}
    for name, (task, settings) in cases.items():
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True)
        for made in render(task, settings, context("deploy/here")).artifacts:
            (place / made.path).write_bytes(made.content)
            files[name, made.path] = place / made.path
    return files


def test_dstack_reads_its_files_as_the_task_says(python, tmp_path):
    cases = {name: (task, DstackSettings()) for name, task in TASKS.items()}
    cloud = DstackSettings(backend="aws", region="eu-west-1", hub_secret="hub")
    cases["a cloud"] = (TWO_NODES, cloud)
    cases["folders"] = (replace(ONE, volumes=volumes(models="/m", data="/d", checkpoints="kept")), DstackSettings())
    files = written(render_dstack, tmp_path, cases)
    meant = read(python, "dstack", tmp_path / "home", *files.values())
    for name, (task, _) in cases.items():
        found = meant[str(files[name, "task.dstack.yml"])]
        assert (found["type"], found["name"]) == ("task", "demo")
        assert (found["nodes"], found["image"]) == (task.nodes, task.image)
        assert {key: found["env"][key] for key, _ in task.environment} == dict(task.environment)
        resources = found["resources"]
        assert resources["shm_size"] == 8
        assert (resources["memory"]["min"], resources["cpu"]["count"]["min"]) == (48, 8)
        assert resources["gpu"]["count"] == {"min": task.accelerator.count, "max": task.accelerator.count}
        assert (found["max_duration"], found["stop_duration"]) == (86400, 120)
        assert found["spot_policy"] == ("spot" if task.is_spot else "on-demand")
        assert found["retry"] == {"on_events": ["no-capacity", "interruption"], "duration": 86400}
        assert meant[str(files[name, "dev.dstack.yml"])]["resources"] == resources
    assert meant[str(files["one GPU", "task.dstack.yml"])]["env"]["HF_TOKEN"] == "of the shell"
    assert meant[str(files["a cloud", "task.dstack.yml"])]["env"]["HF_TOKEN"] == "THE TOKEN"
    assert meant[str(files["a cloud", "volume-checkpoints.dstack.yml"])]["size"] == 30
    mounted = meant[str(files["folders", "task.dstack.yml"])]["volumes"]
    assert [each["path"] for each in mounted] == [HUB_CACHE, WORKSPACE, OUTPUT]


def test_skypilot_reads_its_files_as_the_task_says(python, tmp_path):
    cases = {name: (task, SkypilotSettings()) for name, task in TASKS.items()}
    cases["a cluster"] = (TWO_NODES, SkypilotSettings(infra="k8s/ctx"))
    cases["a cloud"] = (SPOT, SkypilotSettings(infra="aws/us-east-1"))
    cases["a workspace"] = (ONE, SkypilotSettings(workspace=True))
    files = written(render_skypilot, tmp_path, cases)
    meant = read(python, "skypilot", tmp_path / "home", *files.values())
    for name, (task, _) in cases.items():
        found = meant[str(files[name, "task.yaml"])]
        assert (found["name"], found["nodes"], found["image"]) == ("demo", task.nodes, [f"docker:{task.image}"])
        assert (found["cpus"], found["memory"], found["disk"], found["spot"]) == ("8+", "48+", 100, task.is_spot)
        assert found["recovery"]["recover_on_exit_codes"] == [75]
        assert found["env"] == dict(task.environment)
        assert found["secrets"] == (["HF_TOKEN"] if task.needs_token else [])
        counts = {count for each in found["accelerators"] for count in (json.loads(each) or {}).values()}
        assert counts == ({task.accelerator.count} if task.accelerator.count else set())
        assert found["files"] == {WORKSPACE: "."}
    assert meant[str(files["one GPU", "task.yaml"])]["storage"] == {
        HUB_CACHE: ["demo-models", None, "MOUNT_CACHED"],
        OUTPUT: ["demo-checkpoints", None, "MOUNT_CACHED"],
    }
    claims = {HUB_CACHE: "demo-models", OUTPUT: "demo-checkpoints"}
    assert meant[str(files["a cluster", "task.yaml"])]["volumes"] == claims
    assert meant[str(files["a workspace", "workspace.yaml"])]["name"] == "demo-dev"
    options = meant[str(files["one GPU", "task.yaml"])]["overrides"]["docker"]["run_options"]
    assert options == ["--user=root", f"--shm-size={ONE.shm_bytes}"]


def test_dstack_and_daytona_know_every_gpu_name_of_ours(python, tmp_path):
    known = read(python, "gpuhunt", tmp_path / "home")
    sizes = {tuple(each) for each in known["nvidia"]}
    names = {name for name, _ in sizes} | {name for (name,) in known["amd"]}
    every = load_launcher_gpus().values()
    assert not {each.dstack for each in every if each.dstack} - names
    assert all((each.dstack, each.gib) in sizes for each in every if each.gib)
    # One name for two sizes that the estimate tells apart must come with its size.
    two = {name for name, _ in sizes if len({gib for other, gib in sizes if other == name}) > 1}
    assert {each.dstack for each in every if each.dstack in two and not each.gib} <= {"RTX3060", "RTX4060"}
    names = {each.daytona for each in every if each.daytona}
    assert not names - set(read(python, "daytona", tmp_path / "home")["gpus"])


@pytest.fixture
def sandboxed(tmp_path):
    """Writes the script for a task whose paths inside are below tmp_path, and its project."""

    def made(task, **settings):
        inside = tmp_path / "inside"
        name = f"devkit-test-{tmp_path.name}".lower().replace("_", "-")
        workspace = f"{inside}/workspace"
        task = replace(task, name=name, workspace=workspace, output=f"{workspace}/finetuned")
        project = tmp_path / "project"
        (project / "deploy/daytona").mkdir(parents=True)
        (project / "finetuned").mkdir()
        (project / "finetuned/earlier").write_text("kept")
        (project / ".git").mkdir()
        (rendered,) = render_daytona(task, DaytonaSettings(**settings), context("deploy/daytona")).artifacts
        text = rendered.content.decode().replace("/home/dev/", f"{inside}/home/dev/")
        text = text.replace('"/tmp/devkit-', f'"{tmp_path}/devkit-')
        (project / "deploy/daytona/run.py").write_text(text)
        return project

    return made


def run_locally(python, project, *words, env=()):
    log = project.parent / "log.json"
    argv = [str(python), str(DRIVER), str(project / "deploy/daytona/run.py"), str(log), *words]
    variables = {"PATH": os.environ["PATH"], "HOME": str(project.parent), "DEVKIT_WAIT_S": "0.05", **dict(env)}
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False, timeout=120)
    return done, json.loads(log.read_text()) if log.exists() else {}


SAVES = 'printf "%s\\n" "$1" >>finetuned/words; n=$(wc -l <finetuned/words); pwd; if [ "$n" -lt 3 ]; then exit 75; fi'


def test_daytonas_sdk_takes_every_call_and_a_run_that_saved_goes_on(python, sandboxed):
    task = replace(HOSTILE, command=("sh", "-c", SAVES, "sh", NASTY))
    project = sandboxed(task)
    done, received = run_locally(python, project, env=(("HF_TOKEN", "hf_x"),))
    assert done.returncode == 0, done.stderr
    assert received["snapshot"]["name"] == received["sandbox"]["snapshot"]
    assert received["snapshot"]["image"] == task.image
    assert received["resources"] == {"cpu": 8, "memory": 48, "disk": 90, "gpu": 1, "gpu_type": ["H100"]}
    assert received["sandbox"]["env_vars"]["NASTY"] == NASTY
    assert (received["sandbox"]["auto_stop_interval"], received["sandbox"]["ephemeral"]) == (0, True)
    assert (received["starts"], received["deleted"]) == (3, True)
    assert (project / "finetuned/words").read_text() == f"{NASTY}\n" * 3
    assert (project / "finetuned/earlier").read_text() == "kept"
    assert "workspace" in done.stdout
    inside = project.parent / "inside"
    assert (inside / "home/dev/.config/huggingface/token").read_text() == "hf_x"
    assert not (inside / "workspace/.git").exists()


IS_SAVED = 'sleep 60 & trap "kill $!; echo saved >finetuned/saved; exit 75" TERM; echo up; wait'
ENDS = [
    pytest.param(IS_SAVED, ("told",), 3600, 75, id="a stop"),
    pytest.param(IS_SAVED, (), 1, 75, id="its time over"),
    pytest.param("exit 3", (), 3600, 3, id="a failure"),
    pytest.param("exit 75", (), 3600, 75, id="a stop that does not cease"),
]


@pytest.mark.parametrize(("command", "words", "time_s", "code"), ENDS)
def test_what_ends_a_run_on_daytona_is_forwarded_and_the_output_comes_back(
    python, sandboxed, command, words, time_s, code
):
    project = sandboxed(replace(CPU, command=("sh", "-c", command), time_s=time_s, grace_s=20))
    done, received = run_locally(python, project, *words)
    assert (done.returncode, received["deleted"]) == (code, True), done.stderr
    assert (project / "finetuned/earlier").exists()
    assert (project / "finetuned/saved").exists() is (command == IS_SAVED)


def test_daytonas_types_accept_the_script(python, sandboxed):
    script = sandboxed(ONE) / "deploy/daytona/run.py"
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--follow-imports=silent"]
    done = subprocess.run([*argv, str(script)], capture_output=True, text=True, check=False, cwd=script.parent)
    assert done.returncode == 0, done.stdout
