"""The Compose files for one machine, and what such a machine cannot run."""

from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.docker import DockerContextSettings, render_docker
from devkit.export.task import HUB_CACHE

from .tasks import CPU, FOUR, HOSTILE, ONE, OUTPUT, ROCM, SPOT, TWO_NODES, WORKSPACE, context, texts, volumes

HERE = context("deploy/docker")


def made(task, **settings):
    return texts(render_docker(task, DockerContextSettings(**settings), HERE))


def train(task, **settings):
    return yaml.safe_load(made(task, **settings)["compose.yml"])["services"]["train"]


@pytest.mark.parametrize(
    ("task", "files"),
    [
        pytest.param(ONE, {"run.sh", "compose.yml", "compose.nvidia.yml", "compose.cdi.yml"}, id="NVIDIA"),
        pytest.param(ROCM, {"run.sh", "compose.yml", "compose.rocm.yml"}, id="AMD"),
        pytest.param(CPU, {"run.sh", "compose.yml"}, id="no GPU"),
    ],
)
def test_there_is_an_overlay_for_each_way_to_the_gpus(task, files):
    assert set(made(task)) == files


def test_the_service_is_what_the_task_says():
    found = train(replace(FOUR, grace_s=77))
    assert (found["image"], found["working_dir"]) == (ONE.image, WORKSPACE)
    assert found["command"] == [word.replace("$", "$$") for word in FOUR.command]
    assert (found["init"], found["shm_size"], found["restart"]) == (True, 8 << 30, "no")
    assert (found["stop_signal"], found["stop_grace_period"]) == ("SIGTERM", "77s")
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["environment"]["PET_NPROC_PER_NODE"] == "4"
    assert [(each["source"], each["target"]) for each in found["volumes"]] == [
        ("demo-token", "/home/dev/.config/huggingface"),
        ("demo-models", HUB_CACHE),
        ("demo-data", WORKSPACE),
        ("demo-checkpoints", OUTPUT),
    ]
    assert "user" not in found
    assert train(ONE, user="1000:1000")["user"] == "1000:1000"


def test_volumes_have_the_names_that_the_script_uses():
    document = yaml.safe_load(made(ONE)["compose.yml"])
    assert {name: each["name"] for name, each in document["volumes"].items()} == {
        name: name for name in ("demo-token", "demo-models", "demo-data", "demo-checkpoints")
    }
    there = yaml.safe_load(made(replace(CPU, volumes=volumes(models="hub")))["compose.yml"])
    assert there["volumes"]["hub"] == {"name": "hub", "external": True}


def test_folders_are_bound_and_must_be_there():
    task = replace(CPU, volumes=volumes(models="/srv/m", data="/srv/d", checkpoints="/srv/$c"))
    document = yaml.safe_load(made(task)["compose.yml"])
    bound = {each["target"]: each for each in document["services"]["train"]["volumes"]}
    assert bound[OUTPUT] == {
        "type": "bind",
        "source": "/srv/$$c",
        "target": OUTPUT,
        "bind": {"create_host_path": False},
    }
    assert "volumes" not in document and set(document["services"]) == {"train"}


@pytest.mark.parametrize(
    ("task", "overlay", "reservation"),
    [
        (FOUR, "nvidia", {"driver": "nvidia", "count": 4, "capabilities": ["gpu"]}),
        (
            FOUR,
            "cdi",
            {"driver": "cdi", "device_ids": [f"nvidia.com/gpu={n}" for n in range(4)], "capabilities": ["gpu"]},
        ),
    ],
)
def test_an_overlay_asks_for_as_many_gpus(task, overlay, reservation):
    service = yaml.safe_load(made(task)[f"compose.{overlay}.yml"])["services"]["train"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [reservation]


def test_amd_gpus_are_device_nodes():
    service = yaml.safe_load(made(ROCM)["compose.rocm.yml"])["services"]["train"]
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    assert service["environment"] == {"ROCR_VISIBLE_DEVICES": "0,1"}


def test_the_token_is_no_variable_of_the_container():
    assert "HF_TOKEN" not in train(HOSTILE)["environment"]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(TWO_NODES, {}, "a Docker context is one machine, and the job needs 2", id="two nodes"),
        pytest.param(ONE, {"context": "a b"}, "is no name of one", id="a context with a space"),
        pytest.param(ONE, {"context": "x\nfoo"}, "is no name of one", id="a context of two lines"),
        pytest.param(ONE, {"user": "root; id"}, "is no user", id="a user with a command"),
        pytest.param(
            replace(ONE, volumes=volumes(models="a/b")), {}, "neither a volume nor a folder", id="half a path"
        ),
    ],
)
def test_what_one_machine_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        made(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_what_the_machine_should_have_is_said():
    assert render_docker(ONE, DockerContextSettings(), HERE).notes == (
        "no limit is set there: the machine should have 48 GiB of memory and 8 cores for this job",
    )
    assert "nothing restarts the job" in render_docker(SPOT, DockerContextSettings(), HERE).notes[1]


@pytest.mark.parametrize(
    ("folder", "step"),
    [
        ("deploy/docker", "sh deploy/docker/run.sh"),
        ("a b", "sh 'a b/run.sh'"),
        ("/x", "sh /x/run.sh"),
    ],
)
def test_one_command_starts_it(folder, step):
    assert render_docker(ONE, DockerContextSettings(), context(folder)).next_steps == (step,)
