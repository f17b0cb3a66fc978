"""The generated files, read by the launchers' own code: they mean there what the task says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.export.daytona import DaytonaSettings, render_daytona
from devkit.export.dstack import DstackSettings, render_dstack
from devkit.export.launcher_gpus import load_launcher_gpus
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.task import HUB_CACHE
from tests.engine import launchers
from tests.engine.binaries import NoEngineError

from .tasks import ONE, OUTPUT, SPOT, TASKS, TWO_NODES, context, texts

pytestmark = pytest.mark.full
READER = Path(__file__).parent / "own_programs.py"


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


def read_all(python, kind, render, folder, cases):
    """What the launcher makes of every file, by the case and the file's name."""
    files = {}
    for name, (task, settings) in cases.items():
        place = folder / name.replace(" ", "-")
        place.mkdir(parents=True)
        for path, text in texts(render(task, settings, context("deploy/here"))).items():
            (place / path).write_text(text)
            files[str(place / path)] = name, path
    meant = read(python, kind, folder / "home", *files)
    return {files[path]: found for path, found in meant.items()}


def test_dstack_reads_its_files_as_the_task_says(python, tmp_path):
    cases = {name: (task, DstackSettings()) for name, task in TASKS.items()}
    cases["a cloud"] = (TWO_NODES, DstackSettings(backend="aws", region="eu-west-1", hub_secret="hub"))
    meant = read_all(python, "dstack", render_dstack, tmp_path, cases)
    for name, (task, _) in cases.items():
        found = meant[name, "task.dstack.yml"]
        assert (found["type"], found["nodes"], found["image"]) == ("task", task.nodes, task.image)
        resources = found["resources"]
        assert (resources["shm_size"], resources["memory"]["min"], resources["cpu"]["count"]["min"]) == (8, 48, 8)
        assert resources["gpu"]["count"] == {"min": task.accelerator.count, "max": task.accelerator.count}
        assert (found["max_duration"], found["stop_duration"]) == (86400, 120)
        assert found["spot_policy"] == ("spot" if task.is_spot else "on-demand")
        assert meant[name, "dev.dstack.yml"]["resources"] == resources
    assert meant["a cloud", "volume-checkpoints.dstack.yml"]["size"] == 30


def test_skypilot_reads_its_files_as_the_task_says(python, tmp_path):
    cases = {name: (task, SkypilotSettings()) for name, task in TASKS.items()}
    cases["a cluster"] = (TWO_NODES, SkypilotSettings(infra="k8s/ctx"))
    cases["a cloud"] = (SPOT, SkypilotSettings(infra="aws/us-east-1"))
    cases["a workspace"] = (ONE, SkypilotSettings(workspace=True))
    meant = read_all(python, "skypilot", render_skypilot, tmp_path, cases)
    for name, (task, _) in cases.items():
        assert meant[name, "task.yaml"] == {
            "name": "demo",
            "nodes": task.nodes,
            "gpus": [task.accelerator.count] if task.accelerator.count else [],
            "image": [f"docker:{task.image}"],
            "spot": task.is_spot,
            "env": dict(task.environment),
            "storage": [] if name == "a cluster" else sorted((HUB_CACHE, OUTPUT)),
        }
    assert meant["a workspace", "workspace.yaml"]["name"] == "demo-dev"


def test_the_launchers_know_the_names_of_gpus(python, tmp_path):
    known = read(python, "names", tmp_path / "home")
    sizes = {tuple(each) for each in known["dstack"]}
    every = load_launcher_gpus().values()
    assert not {each.dstack for each in every if each.dstack} - {name for name, _ in sizes}
    assert all((each.dstack, each.gib) in sizes for each in every if each.gib)
    assert not {each.daytona for each in every if each.daytona} - set(known["daytona"])


def test_daytonas_types_accept_the_script(python, tmp_path):
    (tmp_path / "run.py").write_text(texts(render_daytona(ONE, DaytonaSettings(), context(".")))["run.py"])
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--follow-imports=silent"]
    done = subprocess.run([*argv, "run.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
