"""The configurations for dstack, read back as YAML, beside what tests/export/agreement reads in them."""

from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.dstack import DstackEditor, DstackSettings, render_dstack
from devkit.export.task import HUB_CACHE

from .scripts import ran
from .tasks import CPU, ONE, OUTPUT, ROCM, SPOT, TWO_NODES, UNNAMED, WORKSPACE, context, gpus, texts, volumes

HERE = context("deploy/dstack")


def made(task, **settings):
    return texts(render_dstack(task, DstackSettings(**settings), HERE))


def read(task, **settings):
    return yaml.safe_load(made(task, **settings)["task.dstack.yml"])


def test_resources_are_those_of_the_task():
    found = read(ONE)
    assert (found["type"], found["name"], found["working_dir"]) == ("task", "demo", WORKSPACE)
    sizes = {"cpu": "8..", "memory": "48GB..", "shm_size": "8GB", "disk": "100GB.."}
    assert found["resources"] == sizes | {"gpu": {"vendor": "nvidia", "name": "H100", "count": 1}}


@pytest.mark.parametrize(
    ("task", "gpu"),
    [
        pytest.param(CPU, 0, id="none"),
        pytest.param(ROCM, {"vendor": "amd", "name": "MI300X", "count": 2}, id="AMD"),
        pytest.param(
            replace(ONE, accelerator=gpus(8, "A100 40GB")),
            {"vendor": "nvidia", "name": "A100", "memory": "40GB", "count": 8},
            id="one of two sizes",
        ),
        pytest.param(UNNAMED, {"vendor": "nvidia", "memory": "22GB..", "count": 2}, id="any that holds the job"),
        pytest.param(replace(ONE, accelerator=gpus(3, "")), {"vendor": "nvidia", "count": 3}, id="any"),
    ],
)
def test_gpus_are_requested_by_dstacks_names(task, gpu):
    assert read(task)["resources"]["gpu"] == gpu


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(replace(ONE, name="2nd"), {}, "is no name for dstack", id="a name that begins with a digit"),
        pytest.param(replace(ONE, name="a" * 42), {}, "is no name for dstack", id="a name of 42"),
        pytest.param(replace(ONE, accelerator=gpus(1, "H20")), {}, "dstack rents no GPU", id="a GPU nobody rents"),
        pytest.param(replace(ONE, accelerator=gpus(1, "H100 MIG 1g.10gb")), {}, "no parts of GPUs", id="a slice"),
        pytest.param(replace(ONE, volumes=volumes(models="a:b")), {}, "is no volume of dstack's", id="a colon"),
        pytest.param(replace(ONE, volumes=volumes(models="/mnt/../etc")), {}, "contains `..`", id="a path upwards"),
        pytest.param(replace(ONE, environment=(("A", "b\nc"),)), {}, "several lines", id="a variable of two lines"),
        pytest.param(ONE, {"backend": "aws"}, "needs --backend and --region", id="a cloud without a region"),
        pytest.param(ONE, {"backend": "a", "region": "x\ny: 1"}, "--region .* is no name", id="a region of two lines"),
        pytest.param(ONE, {"hub_secret": "a }}"}, "--hub-secret .* is no name", id="a secret that closes its braces"),
    ],
)
def test_what_dstack_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        made(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_names_at_their_bounds_are_taken():
    for name in ("ab", "a" * 41):
        assert read(replace(ONE, name=name))["name"] == name


def test_a_node_that_is_taken_away_is_replaced_and_a_failure_is_not_tried_again():
    found = read(SPOT)
    assert found["spot_policy"] == "spot"
    assert found["retry"] == {"on_events": ["no-capacity", "interruption"], "duration": "86400s"}
    assert found["max_duration"] == "86400s"
    assert read(ONE)["spot_policy"] == "on-demand"


def test_new_storage_is_on_the_instance_and_storage_that_is_there_is_mounted():
    found = read(ONE)
    assert found["files"] == [{"local_path": "../..", "path": WORKSPACE}]
    assert found["volumes"] == [
        {"instance_path": "/var/lib/devkit/demo-models", "path": HUB_CACHE},
        {"instance_path": "/var/lib/devkit/demo-checkpoints", "path": OUTPUT},
    ]
    there = read(replace(ONE, volumes=volumes(models="/mnt/shared/hub", data="/mnt/project", checkpoints="kept")))
    assert "files" not in there
    assert there["volumes"] == [
        {"instance_path": "/mnt/shared/hub", "path": HUB_CACHE},
        {"instance_path": "/mnt/project", "path": WORKSPACE},
        {"name": "kept", "path": OUTPUT},
    ]


def test_new_storage_is_network_volumes_where_a_cloud_is_named_and_they_are_made_first():
    files = made(ONE, backend="aws", region="eu-west-1")
    assert yaml.safe_load(files["task.dstack.yml"])["volumes"] == [
        {"name": "demo-models", "path": HUB_CACHE},
        {"name": "demo-checkpoints", "path": OUTPUT},
    ]
    volume = yaml.safe_load(files["volume-checkpoints.dstack.yml"])
    cloud = {"backend": "aws", "region": "eu-west-1"}
    assert volume == {"type": "volume", "name": "demo-checkpoints", "size": "30GB"} | cloud
    order = ("volume-models", "volume-checkpoints", "task")
    steps = render_dstack(ONE, DstackSettings(**cloud), HERE).next_steps
    assert steps == tuple(f"dstack apply -f deploy/dstack/{name}.dstack.yml" for name in order)


def test_the_token_comes_from_the_shell_or_from_a_secret_and_lands_in_its_file(tmp_path):
    assert read(ONE)["env"][-1] == "HF_TOKEN"
    assert read(ONE, hub_secret="hub")["env"][-1] == "HF_TOKEN=${{ secrets.hub }}"
    assert read(CPU)["env"] == ["HF_TOKEN_PATH=/home/dev/.config/huggingface/token"]
    code, received = ran(read(ONE)["commands"][0], tmp_path, HF_TOKEN="hf_x")
    assert code == 75
    assert (tmp_path / "home/dev/.config/huggingface/token").read_text() == "hf_x"
    assert not [line for line in received if line.startswith("HF_TOKEN=")]


def test_nodes_meet_at_the_first_one_and_the_shell_becomes_the_command(tmp_path):
    script = read(TWO_NODES)["commands"][0]
    assert " && exec \\\n" in script
    _, received = ran(script, tmp_path, DSTACK_MASTER_NODE_IP="10.0.0.7", DSTACK_NODE_RANK="1")
    assert {"PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=10.0.0.7"} <= set(received)


@pytest.mark.parametrize("ide", list(DstackEditor))
def test_the_environment_has_what_the_task_has(ide):
    files = made(ONE, ide=ide)
    task, dev = (yaml.safe_load(files[name]) for name in ("task.dstack.yml", "dev.dstack.yml"))
    assert (dev["type"], dev["name"], dev["ide"]) == ("dev-environment", "demo-dev", ide)
    assert dev["inactivity_duration"] == "2h"
    for key in ("image", "user", "working_dir", "env", "files", "volumes", "resources"):
        assert dev[key] == task[key], key
    assert not {"commands", "nodes", "retry", "max_duration"} & set(dev)


KEPT = volumes(checkpoints="kept")
SHARED = volumes(checkpoints="/mnt/x")


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        pytest.param(ONE, {}, ["kills 10 s", "are deleted with the instance"], id="nothing named"),
        pytest.param(replace(ONE, grace_s=10, volumes=KEPT), {}, [], id="a volume"),
        pytest.param(replace(ONE, grace_s=10), {"backend": "aws", "region": "x"}, [], id="a new volume"),
        pytest.param(replace(TWO_NODES, grace_s=10), {}, ["every node must see"], id="nodes without a shared folder"),
        pytest.param(replace(TWO_NODES, grace_s=10, volumes=SHARED), {}, [], id="nodes with a shared folder"),
    ],
)
def test_what_may_be_lost_is_said(task, settings, said):
    *notes, size = render_dstack(task, DstackSettings(**settings), HERE).notes
    assert size.startswith("a server takes 2 MiB")
    assert all(part in note for part, note in zip(said, notes, strict=True))
