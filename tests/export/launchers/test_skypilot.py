"""The task for SkyPilot, read back as YAML."""

import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.task import HUB_CACHE
from tests.render.test_artifacts import linter

from .scripts import ran
from .tasks import (
    CPU,
    FOUR,
    GIB,
    HOSTILE,
    NASTY,
    ONE,
    OUTPUT,
    SPOT,
    TASKS,
    TWO_NODES,
    UNNAMED,
    WORKSPACE,
    context,
    gpus,
    texts,
    volumes,
)

HERE = context("deploy/skypilot")


def made(task, **settings):
    return texts(render_skypilot(task, SkypilotSettings(**settings), HERE))


def read(task, **settings):
    return yaml.safe_load(made(task, **settings)["task.yaml"])


@pytest.mark.parametrize(("infra", "down"), [("", False), ("k8s/ctx", True)])
def test_a_workspace_has_the_jobs_image_gpus_and_storage_and_stops_when_it_is_idle(infra, down):
    job, workspace = (
        yaml.safe_load(made(SPOT, infra=infra, workspace=True, idle="90m")[name])
        for name in ("task.yaml", "workspace.yaml")
    )
    assert (workspace["name"], workspace["num_nodes"]) == ("demo-dev", 1)
    own = workspace["resources"]
    assert own.pop("autostop") == {"idle_minutes": 90, "wait_for": "jobs_and_ssh", "down": down}
    assert own.pop("use_spot") is False
    assert own == {name: value for name, value in job["resources"].items() if name not in ("use_spot", "job_recovery")}
    assert [workspace.get(name) for name in ("file_mounts", "volumes", "config")] == [
        job.get(name) for name in ("file_mounts", "volumes", "config")
    ]
    assert "devkit" not in workspace["run"]


def test_a_workspace_needs_no_job():
    assert list(made(replace(ONE, command=()), workspace=True)) == ["workspace.yaml"]


def test_one_gpu_asks_for_what_the_task_says():
    found = read(ONE)
    assert (found["name"], found["num_nodes"]) == ("demo", 1)
    resources = found["resources"]
    assert resources["accelerators"] == {"H100": 1, "H100-SXM": 1}
    assert (resources["cpus"], resources["memory"], resources["disk_size"]) == ("8+", "48+", 40 + 60)
    assert resources["image_id"] == "docker:registry.example.org/me/demo:1"
    assert resources["use_spot"] is False
    assert found["envs"] == dict(ONE.environment)
    assert found["config"]["docker"]["run_options"] == ["--user=root", f"--shm-size={8 * GIB}"]


def test_only_a_run_that_saved_is_started_again():
    recovery = read(ONE)["resources"]["job_recovery"]
    assert recovery == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}


def test_several_nodes_are_requested():
    assert read(TWO_NODES)["num_nodes"] == 2


def test_spot_is_requested():
    assert read(SPOT)["resources"]["use_spot"] is True


def test_a_job_without_gpus_asks_for_none():
    assert "accelerators" not in read(CPU)["resources"]


def test_any_gpu_that_holds_the_job_will_do_where_none_is_named():
    assert read(UNNAMED)["resources"]["accelerators"] == {"L4": 2, "A100-80GB": 2, "A100-80GB-SXM": 2}


def test_a_gpu_that_devkit_has_no_name_for_can_be_named_in_skypilots_words():
    task = replace(ONE, accelerator=gpus(8, "H20"))
    assert read(task, accelerator="H20-X")["resources"]["accelerators"] == {"H20-X": 8}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(replace(ONE, accelerator=gpus(1, "H20")), {}, "SkyPilot rents no GPU", id="a GPU nobody rents"),
        pytest.param(replace(ONE, accelerator=gpus(1, "")), {}, "needs the name of a GPU", id="no GPU named"),
        pytest.param(ONE, {"infra": "aws\nuse_spot: true"}, "is no place", id="a line break in the place"),
        pytest.param(
            replace(ONE, volumes=volumes(models="My Volume")), {}, "neither a bucket nor a volume", id="no volume"
        ),
        pytest.param(
            replace(ONE, volumes=volumes(checkpoints="s3://b/ x")), {}, "neither a bucket", id="a bucket with a space"
        ),
    ],
)
def test_what_skypilot_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        made(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_new_storage_is_buckets_and_the_project_is_copied():
    mounts = read(ONE)["file_mounts"]
    cached = {"mode": "MOUNT_CACHED", "persistent": True}
    assert mounts == {
        HUB_CACHE: {"name": "demo-models", **cached},
        WORKSPACE: ".",
        OUTPUT: {"name": "demo-checkpoints", **cached},
    }
    assert "volumes" not in read(ONE)


def test_buckets_that_are_there_are_mounted():
    task = replace(ONE, volumes=volumes(models="gs://m", data="s3://d/x", checkpoints="s3://c/run"))
    assert read(task)["file_mounts"] == {
        HUB_CACHE: {"source": "gs://m", "mode": "MOUNT_CACHED"},
        WORKSPACE: {"source": "s3://d/x", "mode": "MOUNT"},
        OUTPUT: {"source": "s3://c/run", "mode": "MOUNT_CACHED"},
    }


def test_a_cluster_gets_claims_that_every_node_may_write():
    files = made(TWO_NODES, infra="k8s/ctx")
    assert yaml.safe_load(files["task.yaml"])["volumes"] == {HUB_CACHE: "demo-models", OUTPUT: "demo-checkpoints"}
    claim = yaml.safe_load(files["volume-checkpoints.yaml"])
    assert claim == {
        "name": "demo-checkpoints",
        "type": "k8s-pvc",
        "infra": "k8s/ctx",
        "size": "30Gi",
        "config": {"access_mode": "ReadWriteMany"},
    }
    assert yaml.safe_load(made(ONE, infra="k8s")["volume-models.yaml"])["config"]["access_mode"] == "ReadWriteOnce"


def test_the_token_is_a_secret_of_the_launcher_and_never_written():
    assert read(ONE)["secrets"] == {"HF_TOKEN": None}
    assert "secrets" not in read(CPU)


def test_the_token_lands_in_its_file_and_leaves_the_environment(tmp_path):
    code, received = ran(read(ONE)["run"], tmp_path, HF_TOKEN="hf_x")
    token = tmp_path / "home/dev/.config/huggingface/token"
    assert (code, token.read_text(), token.stat().st_mode & 0o777) == (75, "hf_x", 0o600)
    assert not [line for line in received if line.startswith("HF_TOKEN=")]


def test_the_words_arrive_and_the_code_is_kept(tmp_path):
    code, received = ran(read(HOSTILE)["run"], tmp_path)
    assert code == 75
    assert received[:5] == ["finetune", "--model", NASTY, "--output", "finetuned"]
    assert received[-2] == str(tmp_path / "workspaces/demo")


def test_every_value_of_the_environment_is_what_it_was():
    assert read(HOSTILE)["envs"]["NASTY"] == NASTY


def test_nodes_meet_at_the_first_one(tmp_path):
    script = read(TWO_NODES)["run"]
    addresses = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9\n", "SKYPILOT_NODE_RANK": "1"}
    _, received = ran(script, tmp_path, **addresses)
    expected = {
        "NNODES": "2",
        "NPROC_PER_NODE": "4",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "29500",
    }
    assert {line for line in received if line.startswith("PET_")} == {
        f"PET_{key}={value}" for key, value in expected.items()
    }


def test_processes_of_one_node_meet_on_it(tmp_path):
    _, received = ran(read(FOUR)["run"], tmp_path)
    assert {"PET_NNODES=1", "PET_NODE_RANK=0", "PET_MASTER_ADDR=127.0.0.1"} <= set(received)


def test_nothing_execs_because_skypilot_appends_the_wait_for_uploads():
    # What SkyPilot adds sees the command's code: https://docs.skypilot.co, MOUNT_CACHED.
    script = read(ONE)["run"] + "\necho code $?"
    done = subprocess.run(
        ["bash", "-c", script.replace("cd /workspaces/demo", "cd /").replace("devkit", "false")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "code 1\n"


def test_a_run_that_is_over_its_time_limit_gets_a_signal_to_save():
    words = shlex.split(read(replace(ONE, time_s=90, grace_s=30))["run"].split(" && ")[-1].replace("\\\n", ""))
    assert words[:4] == ["timeout", "--signal=TERM", "--kill-after=30", "90"]


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_shellcheck_finds_nothing_in_the_script(task, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(read(task)["run"])
    # Single quotes are meant: what they hold is the command's.
    argv = [linter("shellcheck"), "--shell=bash", "--exclude=SC2016,SC2155", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("folder", "steps"),
    [
        ("deploy/skypilot", ("sky jobs launch --secret HF_TOKEN deploy/skypilot/task.yaml",)),
        ("my jobs", ("sky jobs launch --secret HF_TOKEN 'my jobs/task.yaml'",)),
        ("/tmp/elsewhere", ("sky jobs launch --secret HF_TOKEN /tmp/elsewhere/task.yaml",)),
    ],
)
def test_the_commands_to_type_begin_in_the_project(folder, steps):
    assert render_skypilot(ONE, SkypilotSettings(), context(folder)).next_steps == steps


def test_a_grace_that_skypilot_does_not_keep_is_said():
    assert "kills a job 30 s" in render_skypilot(ONE, SkypilotSettings(), HERE).notes[0]
    assert render_skypilot(replace(ONE, grace_s=30), SkypilotSettings(), HERE).notes == ()
