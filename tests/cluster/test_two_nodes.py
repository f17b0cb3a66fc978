"""Two nodes run a job by the command and the environment that every target writes down, and real torchrun.

They are network namespaces with nothing in common but a cable and a folder.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.estimate.settings import Precision
from devkit.export.task import build_rendezvous_variables
from devkit.export.task_builder import ExportedProject, build_task
from devkit.workload.finetune.settings import FinetuneSettings
from tests.export.subjects import CPU, JOB, PROJECT

from . import namespaces

pytestmark = [pytest.mark.full, pytest.mark.workload]

BIN = Path(sys.executable).parent
STEPS = 80
TIME_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A shared folder with a model of two small layers and a text."""
    if reason := namespaces.missing():
        pytest.skip(reason)
    from tests.workload.small_models import save_model

    root = tmp_path_factory.mktemp("shared")
    save_model(root / "model")
    lines = (f'{{"text": "the keeper of light {at} counts the waves {at * 7 % 11}"}}\n' for at in range(24))
    (root / "text.jsonl").write_text("".join(lines))
    return root


@pytest.fixture(scope="module")
def two(folder):
    with namespaces.nodes(folder) as made:
        yield made


def task_for(output, *, nodes):
    run = FinetuneSettings(
        model="model",
        data=("text.jsonl",),
        output=Path(output),
        steps=STEPS,
        batch=4,
        sequence=64,
        save_every=1000,
        learning_rate=0.001,
        precision=Precision.FP32,
    )
    return build_task(ExportedProject(PROJECT, CPU, run, None), replace(JOB, nodes=nodes, grace="60s")).task


def variables(task, node, first):
    """What a target writes: the task's own variables, and where the processes meet."""
    met = build_rendezvous_variables(task, address=first.name, rank=node.name.removeprefix("node-"))
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
    return {**quiet, **dict(task.environment), **dict(met)}


def started(task, nodes, folder):
    return [
        node.start(
            task.command,
            folder=folder,
            environment=variables(task, node, nodes[0]),
            log=folder / f"{Path(task.output).name}-{node.name}.log",
        )
        for node in nodes
    ]


def ended(processes, folder):
    """The exit codes, once all have ended."""
    try:
        return [process.wait(TIME_S) for process in processes]
    except subprocess.TimeoutExpired:
        logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.log")))
        pytest.fail(f"not ended after {TIME_S} s\n{logs}")
    finally:
        for process in processes:
            process.kill()


def events(folder, output):
    return [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]


def losses(folder, output):
    return [each["loss"] for each in events(folder, output) if each["event"] == "step"]


def preempted_on_one_node(task, nodes, folder):
    """The exit codes of the nodes, after the second was told to stop in the middle."""
    running = started(task, nodes, folder)
    try:
        metrics = folder / Path(task.output).name / "metrics.jsonl"
        deadline_s = time.monotonic() + TIME_S
        while not metrics.exists() or '"event": "step"' not in metrics.read_text():
            assert all(process.poll() is None for process in running)
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        running[1].send_signal(signal.SIGTERM)
    finally:
        codes = ended(running, folder)
    return codes


def test_one_node_is_told_to_stop_both_leave_with_75_and_the_same_command_goes_on(two, folder):
    task = task_for("preempted", nodes=2)
    assert preempted_on_one_node(task, two, folder) == [75, 75]
    record = json.loads((folder / "preempted/run.json").read_text())
    assert (record["status"], record["world"]) == ("preempted", 2)
    done = [each["step"] for each in events(folder, "preempted") if each["event"] == "checkpoint"]
    assert 0 < done[-1] < STEPS
    assert ended(started(task, two, folder), folder) == [0, 0]
    alone = task_for("alone", nodes=1)
    assert ended(started(alone, two[:1], folder), folder) == [0]
    assert len(losses(folder, "preempted")) == STEPS
    assert losses(folder, "preempted") == pytest.approx(losses(folder, "alone"), rel=1e-3)
    assert ended(started(task_for("straight", nodes=2), two, folder), folder) == [0, 0]
    assert losses(folder, "preempted") == losses(folder, "straight")


def test_a_run_that_cannot_begin_fails_on_both_nodes_even_after_one_that_was_preempted(two, folder):
    (folder / "stale").mkdir()
    (folder / "stale/run.json").write_text(json.dumps({"schema": "devkit.finetune/1", "status": "preempted"}))
    task = task_for("stale", nodes=2)
    words = tuple("nothing.jsonl" if word == "text.jsonl" else word for word in task.command)
    assert set(ended(started(replace(task, command=words), two, folder), folder)) == {2}
