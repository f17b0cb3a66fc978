"""The task for SkyPilot, read back as YAML, beside what tests/export/agreement reads in it."""

import subprocess
from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.task import HUB_CACHE

from .scripts import ran
from .tasks import CPU, ONE, OUTPUT, SPOT, TWO_NODES, UNNAMED, WORKSPACE, context, gpus, texts, volumes

HERE = context("deploy/skypilot")


def made(task, **settings):
    return texts(render_skypilot(task, SkypilotSettings(**settings), HERE))


def read(task, **settings):
    return yaml.safe_load(made(task, **settings)["task.yaml"])


@pytest.mark.parametrize(("infra", "down"), [("", False), ("k8s/ctx", True)])
def test_a_workspace_has_the_jobs_image_gpus_and_storage_and_stops_when_it_is_idle(infra, down):
    files = made(SPOT, infra=infra, workspace=True, idle="90m")
    job, workspace = (yaml.safe_load(files[name]) for name in ("task.yaml", "workspace.yaml"))
    assert (workspace["name"], workspace["num_nodes"]) == ("demo-dev", 1)
    own = workspace["resources"]
    assert own.pop("autostop") == {"idle_minutes": 90, "wait_for": "jobs_and_ssh", "down": down}
    assert own.pop("use_spot") is False
    assert own == {name: value for name, value in job["resources"].items() if name not in ("use_spot", "job_recovery")}
    for name in ("file_mounts", "volumes", "config"):
        assert workspace.get(name) == job.get(name)
    assert "devkit" not in workspace["run"]
    assert list(made(replace(ONE, command=()), workspace=True)) == ["workspace.yaml"]


def test_resources_are_those_of_the_task():
    resources = read(ONE)["resources"]
    assert resources["accelerators"] == {"H100": 1, "H100-SXM": 1}
    assert (resources["cpus"], resources["memory"], resources["disk_size"]) == ("8+", "48+", 40 + 60)
    assert resources["use_spot"] is False
    assert read(SPOT)["resources"]["use_spot"] is True
    assert read(ONE)["config"]["docker"]["run_options"][0] == "--user=root"


def test_only_a_run_that_saved_is_started_again():
    recovery = read(ONE)["resources"]["job_recovery"]
    assert recovery == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}


def test_any_gpu_that_holds_the_job_will_do_where_none_is_named_and_one_may_be_in_skypilots_words():
    assert read(UNNAMED)["resources"]["accelerators"] == {"L4": 2, "A100-80GB": 2, "A100-80GB-SXM": 2}
    task = replace(ONE, accelerator=gpus(8, "H20"))
    assert read(task, accelerator="H20-X")["resources"]["accelerators"] == {"H20-X": 8}


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(replace(ONE, accelerator=gpus(1, "H20")), {}, "SkyPilot rents no GPU", id="a GPU nobody rents"),
        pytest.param(replace(ONE, accelerator=gpus(1, "")), {}, "needs the name of a GPU", id="no GPU named"),
        pytest.param(ONE, {"infra": "aws\nuse_spot: true"}, "is no place", id="a line break in the place"),
        pytest.param(replace(ONE, volumes=volumes(models="My Volume")), {}, "neither a bucket", id="no volume"),
        pytest.param(replace(ONE, volumes=volumes(checkpoints="s3://b/ x")), {}, "neither a bucket", id="a space"),
    ],
)
def test_what_skypilot_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        made(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_new_storage_is_buckets_and_buckets_that_are_there_are_mounted():
    cached = {"mode": "MOUNT_CACHED", "persistent": True}
    assert read(ONE)["file_mounts"] == {
        HUB_CACHE: {"name": "demo-models", **cached},
        WORKSPACE: ".",
        OUTPUT: {"name": "demo-checkpoints", **cached},
    }
    there = replace(ONE, volumes=volumes(models="gs://m", data="s3://d/x", checkpoints="s3://c/run"))
    assert read(there)["file_mounts"] == {
        HUB_CACHE: {"source": "gs://m", "mode": "MOUNT_CACHED"},
        WORKSPACE: {"source": "s3://d/x", "mode": "MOUNT"},
        OUTPUT: {"source": "s3://c/run", "mode": "MOUNT_CACHED"},
    }


def test_a_cluster_gets_claims_that_every_node_may_write():
    files = made(TWO_NODES, infra="k8s/ctx")
    assert yaml.safe_load(files["task.yaml"])["volumes"] == {HUB_CACHE: "demo-models", OUTPUT: "demo-checkpoints"}
    claim = yaml.safe_load(files["volume-checkpoints.yaml"])
    assert (claim["name"], claim["type"], claim["size"]) == ("demo-checkpoints", "k8s-pvc", "30Gi")
    assert (claim["infra"], claim["config"]) == ("k8s/ctx", {"access_mode": "ReadWriteMany"})
    assert yaml.safe_load(made(ONE, infra="k8s")["volume-models.yaml"])["config"]["access_mode"] == "ReadWriteOnce"


def test_the_token_lands_in_its_file_and_leaves_the_environment_and_the_code_is_kept(tmp_path):
    assert read(ONE)["secrets"] == {"HF_TOKEN": None}
    assert "secrets" not in read(CPU)
    code, received = ran(read(ONE)["run"], tmp_path, HF_TOKEN="hf_x")
    token = tmp_path / "home/dev/.config/huggingface/token"
    assert (code, token.read_text(), token.stat().st_mode & 0o777) == (75, "hf_x", 0o600)
    assert not [line for line in received if line.startswith("HF_TOKEN=")]


def test_nodes_meet_at_the_first_one(tmp_path):
    addresses = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9\n", "SKYPILOT_NODE_RANK": "1"}
    _, received = ran(read(TWO_NODES)["run"], tmp_path, **addresses)
    assert {"PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=10.0.0.7"} <= set(received)


def test_nothing_execs_because_skypilot_appends_the_wait_for_uploads():
    # What SkyPilot adds sees the command's code: https://docs.skypilot.co, MOUNT_CACHED.
    script = (read(ONE)["run"] + "\necho code $?").replace("cd /workspaces/demo", "cd /").replace("devkit", "false")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "code 1\n"


def test_a_run_that_is_over_its_time_limit_gets_a_signal_to_save():
    assert "timeout --signal=TERM --kill-after=30 90 " in read(replace(ONE, time_s=90, grace_s=30))["run"]


def test_what_to_type_begins_in_the_project_and_a_grace_that_skypilot_does_not_keep_is_said():
    rendered = render_skypilot(ONE, SkypilotSettings(), context("my jobs"))
    assert rendered.next_steps == ("sky jobs launch --secret HF_TOKEN 'my jobs/task.yaml'",)
    assert "kills a job 30 s" in rendered.notes[0]
    assert render_skypilot(replace(ONE, grace_s=30), SkypilotSettings(), HERE).notes == ()
