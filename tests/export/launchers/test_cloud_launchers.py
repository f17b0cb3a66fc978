"""What SkyPilot and dstack have each for itself, beside what tests/export/agreement reads in their files."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.export.dstack import DstackSettings, render_dstack
from devkit.export.launcher_gpus import LauncherGpu, find_launcher_gpu, load_launcher_gpus
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.targets import find_path_to_project
from devkit.export.task import HUB_CACHE

from .tasks import CPU, ONE, OUTPUT, ROCM, SPOT, TWO_NODES, UNNAMED, WORKSPACE, context, gpus, texts, volumes

KNOWN_TO_SKYPILOT = frozenset((Path(__file__).parent / "skypilot_gpus.txt").read_text().split("\n"))
"""Names in SkyPilot's public catalog, read on 2026-11-21, and in sky.utils.gpu_names of 0.14.1."""
CLOUD = {"backend": "aws", "region": "eu-west-1"}


def skypilot(task, **settings):
    files = texts(render_skypilot(task, SkypilotSettings(**settings), context("deploy/skypilot")))
    return {path.partition(".")[0]: yaml.safe_load(text) for path, text in files.items()}


def dstack(task, folder="deploy/dstack", **settings):
    files = texts(render_dstack(task, DstackSettings(**settings), context(folder)))
    return {path.partition(".")[0]: yaml.safe_load(text) for path, text in files.items()}


def ran(script, folder, **variables):
    """The exit code and the variables of a stand-in for the command, with workspace and token below `folder`."""
    (folder / "bin").mkdir()
    (folder / "workspaces/demo").mkdir(parents=True)
    received = folder / "received"
    for name in ("devkit", "python"):
        (folder / "bin" / name).write_text(f"#!/bin/sh\nenv >{shlex.quote(str(received))}\nexit 75\n")
        (folder / "bin" / name).chmod(0o755)
    moves = {"/workspaces/": f"{folder}/workspaces/", "/home/dev/": f"{folder}/home/dev/", "/opt/venv/bin": "/none"}
    for path, moved in moves.items():
        script = script.replace(path, moved)
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", **variables}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    return done.returncode, received.read_text().splitlines()


def test_skypilot_gets_resources_storage_and_recovery_in_its_words():
    resources = skypilot(SPOT)["task"]["resources"]
    assert resources["accelerators"] == {"H100": 1, "H100-SXM": 1}
    assert (resources["cpus"], resources["memory"], resources["disk_size"]) == ("8+", "48+", 40 + 60)
    assert resources["job_recovery"] == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}
    assert (resources["use_spot"], skypilot(ONE)["task"]["resources"]["use_spot"]) == (True, False)
    assert skypilot(ONE)["task"]["config"]["docker"]["run_options"][0] == "--user=root"
    fitting = skypilot(UNNAMED)["task"]["resources"]["accelerators"]
    assert fitting == {"L4": 2, "A100-80GB": 2, "A100-80GB-SXM": 2}
    own = skypilot(replace(ONE, accelerator=gpus(8, "H20")), accelerator="H20-X")["task"]
    assert own["resources"]["accelerators"] == {"H20-X": 8}
    cached = {"mode": "MOUNT_CACHED", "persistent": True}
    new = {"name": "demo-models", **cached}, ".", {"name": "demo-checkpoints", **cached}
    assert skypilot(ONE)["task"]["file_mounts"] == dict(zip((HUB_CACHE, WORKSPACE, OUTPUT), new, strict=True))
    there = skypilot(replace(ONE, volumes=volumes(models="gs://m", data="s3://d/x", checkpoints="s3://c/run")))
    assert there["task"]["file_mounts"] == {
        HUB_CACHE: {"source": "gs://m", "mode": "MOUNT_CACHED"},
        WORKSPACE: {"source": "s3://d/x", "mode": "MOUNT"},
        OUTPUT: {"source": "s3://c/run", "mode": "MOUNT_CACHED"},
    }
    on_cluster = skypilot(TWO_NODES, infra="k8s/ctx")
    assert on_cluster["task"]["volumes"] == {HUB_CACHE: "demo-models", OUTPUT: "demo-checkpoints"}
    claim = on_cluster["volume-checkpoints"]
    assert (claim["type"], claim["size"], claim["infra"]) == ("k8s-pvc", "30Gi", "k8s/ctx")
    modes = [made["volume-checkpoints"]["config"] for made in (on_cluster, skypilot(ONE, infra="k8s"))]
    assert modes == [{"access_mode": "ReadWriteMany"}, {"access_mode": "ReadWriteOnce"}]
    rendered = render_skypilot(ONE, SkypilotSettings(), context("my jobs"))
    assert rendered.next_steps == ("sky jobs launch --secret HF_TOKEN 'my jobs/task.yaml'",)
    assert "kills a job 30 s" in rendered.notes[0]
    assert render_skypilot(replace(ONE, grace_s=30), SkypilotSettings(), context(".")).notes == ()


@pytest.mark.parametrize(("infra", "down"), [("", False), ("k8s/ctx", True)])
def test_a_workspace_of_skypilots_is_the_jobs_and_stops_when_it_is_idle(infra, down):
    files = skypilot(SPOT, infra=infra, workspace=True, idle="90m")
    job, workspace = files["task"], files["workspace"]
    assert (workspace["name"], workspace["num_nodes"]) == ("demo-dev", 1)
    own = workspace["resources"]
    assert own.pop("autostop") == {"idle_minutes": 90, "wait_for": "jobs_and_ssh", "down": down}
    assert own.pop("use_spot") is False
    assert own == {name: value for name, value in job["resources"].items() if name not in ("use_spot", "job_recovery")}
    assert [workspace.get(name) == job.get(name) for name in ("file_mounts", "volumes", "config")] == [True] * 3
    assert "devkit" not in workspace["run"]
    assert list(skypilot(replace(ONE, command=()), workspace=True)) == ["workspace"]


def test_dstack_gets_resources_storage_and_retries_in_its_words():
    task = dstack(SPOT)["task"]
    assert (task["type"], task["name"], task["working_dir"]) == ("task", "demo", WORKSPACE)
    sizes = {"cpu": "8..", "memory": "48GB..", "shm_size": "8GB", "disk": "100GB.."}
    assert task["resources"] == sizes | {"gpu": {"vendor": "nvidia", "name": "H100", "count": 1}}
    assert task["retry"] == {"on_events": ["no-capacity", "interruption"], "duration": "86400s"}
    assert (task["spot_policy"], dstack(ONE)["task"]["spot_policy"]) == ("spot", "on-demand")
    requests = (
        (CPU, 0),
        (ROCM, {"vendor": "amd", "name": "MI300X", "count": 2}),
        (
            replace(ONE, accelerator=gpus(8, "A100 40GB")),
            {"vendor": "nvidia", "name": "A100", "memory": "40GB", "count": 8},
        ),
        (UNNAMED, {"vendor": "nvidia", "memory": "22GB..", "count": 2}),
        (replace(ONE, accelerator=gpus(3, "")), {"vendor": "nvidia", "count": 3}),
    )
    for asking, gpu in requests:
        assert dstack(asking)["task"]["resources"]["gpu"] == gpu
    assert task["files"] == [{"local_path": "../..", "path": WORKSPACE}]
    assert task["volumes"][1] == {"instance_path": "/var/lib/devkit/demo-checkpoints", "path": OUTPUT}
    there = dstack(replace(ONE, volumes=volumes(models="/mnt/hub", data="/mnt/d", checkpoints="kept")), "/elsewhere")
    assert "files" not in there["task"]
    assert [next(iter(each.items())) for each in there["task"]["volumes"]] == [
        *(("instance_path", "/mnt/hub"), ("instance_path", "/mnt/d"), ("name", "kept")),
    ]
    in_cloud = dstack(ONE, **CLOUD)
    assert in_cloud["task"]["volumes"][1] == {"name": "demo-checkpoints", "path": OUTPUT}
    assert in_cloud["volume-checkpoints"] == {"type": "volume", "name": "demo-checkpoints", "size": "30GB"} | CLOUD
    steps = render_dstack(ONE, DstackSettings(**CLOUD), context("d")).next_steps
    order = ("volume-models", "volume-checkpoints", "task")
    assert steps == tuple(f"dstack apply -f d/{name}.dstack.yml" for name in order)
    files = dstack(ONE, ide="zed")
    assert (files["dev"]["type"], files["dev"]["name"], files["dev"]["ide"]) == ("dev-environment", "demo-dev", "zed")
    for key in ("image", "user", "working_dir", "env", "files", "volumes", "resources"):
        assert files["dev"][key] == files["task"][key], key
    assert not {"commands", "nodes", "retry", "max_duration"} & set(files["dev"])


def test_what_may_be_lost_on_dstack_is_said():
    short = replace(ONE, grace_s=10)
    nodes = replace(TWO_NODES, grace_s=10)
    said = (
        (ONE, {}, ["kills 10 s", "are deleted with the instance"]),
        (replace(short, volumes=volumes(checkpoints="kept")), {}, []),
        (short, CLOUD, []),
        (nodes, {}, ["every node must see"]),
        (replace(nodes, volumes=volumes(checkpoints="/mnt/x")), {}, []),
    )
    for task, settings, parts in said:
        *notes, size = render_dstack(task, DstackSettings(**settings), context("d")).notes
        assert size.startswith("a server takes 2 MiB")
        assert all(part in note for part, note in zip(parts, notes, strict=True))


@pytest.mark.parametrize("target", ["skypilot", "dstack"])
def test_nodes_meet_at_the_first_and_the_token_leaves_the_environment_for_its_file(target, tmp_path):
    if target == "skypilot":
        assert "secrets" not in skypilot(CPU)["task"]
        # What SkyPilot adds sees the command's code: https://docs.skypilot.co, MOUNT_CACHED.
        script = skypilot(TWO_NODES)["task"]["run"] + "\ncode=$?; : after; exit $code"
        assert f"timeout --signal=TERM --kill-after={TWO_NODES.grace_s} {TWO_NODES.time_s} " in script
    else:
        assert dstack(ONE)["task"]["env"][-1] == "HF_TOKEN"
        assert dstack(ONE, hub_secret="hub")["task"]["env"][-1] == "HF_TOKEN=${{ secrets.hub }}"
        assert "HF_TOKEN" not in dstack(CPU)["task"]["env"]
        (script,) = dstack(TWO_NODES)["task"]["commands"]
        assert " && exec \\\n" in script
    met = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9\n", "SKYPILOT_NODE_RANK": "1"}
    met |= {"DSTACK_MASTER_NODE_IP": "10.0.0.7", "DSTACK_NODE_RANK": "1"}
    code, received = ran(script, tmp_path, HF_TOKEN="hf_x", **met)
    assert {"PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=10.0.0.7"} <= set(received)
    token = tmp_path / "home/dev/.config/huggingface/token"
    assert (code, token.read_text(), token.stat().st_mode & 0o777) == (75, "hf_x", 0o600)
    assert not [line for line in received if line.startswith("HF_TOKEN=")]


@pytest.mark.parametrize(
    ("made", "task", "settings", "message"),
    [
        (skypilot, replace(ONE, accelerator=gpus(1, "H20")), {}, "SkyPilot rents no GPU"),
        (skypilot, replace(ONE, accelerator=gpus(1, "")), {}, "needs the name of a GPU"),
        (skypilot, ONE, {"infra": "aws\nuse_spot: true"}, "is no place"),
        (skypilot, replace(ONE, volumes=volumes(models="My Volume")), {}, "neither a bucket"),
        (skypilot, replace(ONE, volumes=volumes(checkpoints="s3://b/ x")), {}, "neither a bucket"),
        (dstack, replace(ONE, name="2nd"), {}, "is no name for dstack"),
        (dstack, replace(ONE, name="a" * 42), {}, "is no name for dstack"),
        (dstack, replace(ONE, accelerator=gpus(1, "H20")), {}, "dstack rents no GPU"),
        (dstack, replace(ONE, accelerator=gpus(1, "H100 MIG 1g.10gb")), {}, "no parts of GPUs"),
        (dstack, replace(ONE, volumes=volumes(models="a:b")), {}, "is no volume of dstack's"),
        (dstack, replace(ONE, volumes=volumes(models="/mnt/../etc")), {}, "contains `..`"),
        (dstack, replace(ONE, environment=(("A", "b\nc"),)), {}, "several lines"),
        (dstack, ONE, {"backend": "aws"}, "needs --backend and --region"),
        (dstack, ONE, {"backend": "a", "region": "x\ny: 1"}, "--region .* is no name"),
        (dstack, ONE, {"hub_secret": "a }}"}, "--hub-secret .* is no name"),
        (dstack, ONE, {"folder": "/elsewhere"}, "/elsewhere is outside of it"),
    ],
)
def test_what_a_launcher_cannot_run_is_refused_in_one_line(made, task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        made(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint
    assert dstack(replace(ONE, name="a" * 41)) and dstack(replace(ONE, name="ab"))


def test_the_project_is_found_from_the_files():
    ways = {"deploy/docker": "../..", "jobs": "..", "a/b c/d": "../../..", ".": ".", "/x/y": "", "../x": ""}
    assert {folder: find_path_to_project(folder) for folder in ways} == ways


def test_a_gpu_has_each_launchers_name_and_skypilot_knows_its_own():
    names = {
        "H100": LauncherGpu(("H100", "H100-SXM"), "H100", "H100"),
        "NVIDIA H100 80GB HBM3": LauncherGpu(("H100", "H100-SXM"), "H100", "H100"),
        "A100 40GB": LauncherGpu(("A100",), "A100", gib=40),
        "v100": LauncherGpu(("V100",), "V100", gib=16),
        "RTX 4090": LauncherGpu(("RTX4090",), "RTX4090", "RTX-4090"),
        "AMD Instinct MI355X": LauncherGpu((), "MI355X", "MI355X"),
        **dict.fromkeys(("", "banana", "9.0", "H100 MIG 3g.40gb", "NVIDIA H20 96GB"), LauncherGpu()),
    }
    assert {name: find_launcher_gpu(name) for name in names} == names
    # "A100" is the card with 80 GB to the estimate, and the one with 40 to SkyPilot: what it counts on is rented.
    assert (
        find_launcher_gpu("A100")
        == find_launcher_gpu("A100 80GB")
        == LauncherGpu(("A100-80GB", "A100-80GB-SXM"), "A100", gib=80)
    )
    known = {*(row.id for row in load_tables().gpus.models), *(row.name for row in load_tables().rocm.gpus)}
    assert {key.partition("@")[0] for key in load_launcher_gpus()} <= known
    assert not {name for each in load_launcher_gpus().values() for name in each.skypilot} - KNOWN_TO_SKYPILOT
