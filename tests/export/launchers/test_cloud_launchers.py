"""What SkyPilot has for itself, beside what tests/export/agreement reads in their files."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devkit.compat.version_tables import load_tables
from devkit.errors import DevkitError
from devkit.export.skypilot import SkypilotSettings, render_skypilot
from devkit.export.targets import find_path_to_project
from devkit.export.task import HUB_CACHE, LauncherGpu, find_launcher_gpu, load_launcher_gpus

from .tasks import CPU, ONE, OUTPUT, SPOT, TWO_NODES, UNNAMED, WORKSPACE, gpus, texts, volumes

KNOWN_TO_SKYPILOT = frozenset((Path(__file__).parent / "skypilot_gpus.txt").read_text().split("\n"))
"""Names in SkyPilot's public catalog, read on 2026-11-21, and in sky.utils.gpu_names of 0.14.1."""


def skypilot(task, **settings):
    (text,) = texts(render_skypilot(task, SkypilotSettings(**settings), "deploy/skypilot")).values()
    return yaml.safe_load(text)


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
    resources = skypilot(SPOT)["resources"]
    assert resources["accelerators"] == {"H100": 1, "H100-SXM": 1}
    assert (resources["cpus"], resources["memory"], resources["disk_size"]) == ("8+", "48+", 40 + 60)
    assert resources["job_recovery"] == {"recover_on_exit_codes": [75], "max_restarts_on_errors": 0}
    assert (resources["use_spot"], skypilot(ONE)["resources"]["use_spot"]) == (True, False)
    assert skypilot(ONE)["config"]["docker"]["run_options"][0] == "--user=root"
    fitting = skypilot(UNNAMED)["resources"]["accelerators"]
    assert fitting == {"L4": 2, "A100-80GB": 2, "A100-80GB-SXM": 2}
    own = skypilot(replace(ONE, accelerator=gpus(8, "H20")), accelerator="H20-X")
    assert own["resources"]["accelerators"] == {"H20-X": 8}
    cached = {"mode": "MOUNT_CACHED", "persistent": True}
    new = {"name": "demo-models", **cached}, ".", {"name": "demo-checkpoints", **cached}
    assert skypilot(ONE)["file_mounts"] == dict(zip((HUB_CACHE, WORKSPACE, OUTPUT), new, strict=True))
    there = skypilot(replace(ONE, volumes=volumes(models="gs://m", data="s3://d/x", checkpoints="s3://c/run")))
    assert there["file_mounts"] == {
        HUB_CACHE: {"source": "gs://m", "mode": "MOUNT_CACHED"},
        WORKSPACE: {"source": "s3://d/x", "mode": "MOUNT"},
        OUTPUT: {"source": "s3://c/run", "mode": "MOUNT_CACHED"},
    }
    volume = skypilot(replace(ONE, volumes=volumes(models="hub")), infra="k8s/ctx")
    assert (volume["volumes"], volume["resources"]["infra"]) == ({HUB_CACHE: "hub"}, "k8s/ctx")
    assert (
        render_skypilot(ONE, SkypilotSettings(infra="k8s"), ".").notes[1].startswith("new storage is a cloud bucket;")
    )
    rendered = render_skypilot(ONE, SkypilotSettings(), "my jobs")
    assert rendered.next_steps == ("sky jobs launch --secret HF_TOKEN 'my jobs/task.yaml'",)
    assert "kills a job 30 s" in rendered.notes[0]
    assert render_skypilot(replace(ONE, grace_s=30), SkypilotSettings(), ".").notes == ()


def test_nodes_meet_at_the_first_and_the_token_leaves_the_environment_for_its_file(tmp_path):
    assert "secrets" not in skypilot(CPU)
    # What SkyPilot adds sees the command's code: https://docs.skypilot.co, MOUNT_CACHED.
    script = skypilot(TWO_NODES)["run"] + "\ncode=$?; : after; exit $code"
    assert f"timeout --signal=TERM --kill-after={TWO_NODES.grace_s} {TWO_NODES.time_s} " in script
    met = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9\n", "SKYPILOT_NODE_RANK": "1"}
    code, received = ran(script, tmp_path, HF_TOKEN="hf_x", **met)
    assert {"PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=10.0.0.7"} <= set(received)
    token = tmp_path / "home/dev/.config/huggingface/token"
    assert (code, token.read_text(), token.stat().st_mode & 0o777) == (75, "hf_x", 0o600)
    assert not [line for line in received if line.startswith("HF_TOKEN=")]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (replace(ONE, accelerator=gpus(1, "H20")), {}, "SkyPilot does not offer"),
        (replace(ONE, accelerator=gpus(1, "")), {}, "needs the name of a GPU"),
        (ONE, {"infra": "aws\nuse_spot: true"}, "is not valid"),
        (replace(ONE, volumes=volumes(models="My Volume")), {}, "neither a bucket"),
        (replace(ONE, volumes=volumes(checkpoints="s3://b/ x")), {}, "neither a bucket"),
    ],
)
def test_what_skypilot_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        skypilot(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_the_project_is_found_from_the_files():
    ways = {"deploy/docker": "../..", "jobs": "..", "a/b c/d": "../../..", ".": ".", "/x/y": "", "../x": ""}
    assert {folder: find_path_to_project(folder) for folder in ways} == ways


def test_a_gpu_has_each_launchers_name_and_skypilot_knows_its_own():
    names = {
        "H100": LauncherGpu(("H100", "H100-SXM"), "H100"),
        "NVIDIA H100 80GB HBM3": LauncherGpu(("H100", "H100-SXM"), "H100"),
        "A100 40GB": LauncherGpu(("A100",)),
        "RTX 4090": LauncherGpu(("RTX4090",), "RTX-4090"),
        "AMD Instinct MI355X": LauncherGpu((), "MI355X"),
        # "A100" is the card with 80 GB to the estimate, and the one with 40 to SkyPilot: what it counts on is rented.
        **dict.fromkeys(("A100", "A100 80GB"), LauncherGpu(("A100-80GB", "A100-80GB-SXM"))),
        **dict.fromkeys(("", "banana", "9.0", "H100 MIG 3g.40gb", "NVIDIA H20 96GB"), LauncherGpu()),
    }
    assert {name: find_launcher_gpu(name) for name in names} == names
    known = {*(row.id for row in load_tables().gpus.models), *(row.name for row in load_tables().rocm.gpus)}
    assert {key.partition("@")[0] for key in load_launcher_gpus()} <= known
    assert not {name for each in load_launcher_gpus().values() for name in each.skypilot} - KNOWN_TO_SKYPILOT
