"""The Compose files for one machine, beside what tests/export/agreement reads in them, and what is refused there."""

from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.docker import DockerContextSettings, render_docker

from .tasks import CPU, FOUR, ONE, OUTPUT, ROCM, SPOT, TWO_NODES, context, texts, volumes

HERE = context("deploy/docker")


def read(task, file="compose.yml", **settings):
    return yaml.safe_load(texts(render_docker(task, DockerContextSettings(**settings), HERE))[file])


def test_the_service_has_no_more_rights_than_it_needs_and_is_not_restarted():
    found = read(ONE)["services"]["train"]
    assert (found["init"], found["restart"], found["security_opt"]) == (True, "no", ["no-new-privileges:true"])
    assert "user" not in found
    assert read(ONE, user="1000:1000")["services"]["train"]["user"] == "1000:1000"
    spot = render_docker(SPOT, DockerContextSettings(), context("a b"))
    assert "48 GiB of memory and 8 cores" in spot.notes[0] and "nothing restarts the job" in spot.notes[1]
    assert spot.next_steps == ("sh 'a b/run.sh'",)


def test_folders_are_bound_and_must_be_there():
    document = read(replace(CPU, volumes=volumes(models="/srv/m", data="/srv/d", checkpoints="/srv/$c")))
    bound = {each["target"]: each for each in document["services"]["train"]["volumes"]}[OUTPUT]
    assert bound == {"type": "bind", "source": "/srv/$$c", "target": OUTPUT, "bind": {"create_host_path": False}}
    assert "volumes" not in document and set(document["services"]) == {"train"}
    assert read(ONE)["volumes"]["demo-models"] == {"name": "demo-models"}
    assert read(replace(CPU, volumes=volumes(models="hub")))["volumes"]["hub"] == {"name": "hub", "external": True}


def test_an_overlay_for_each_way_to_the_gpus_asks_for_as_many():
    overlays = {ONE: {"compose.nvidia.yml", "compose.cdi.yml"}, ROCM: {"compose.rocm.yml"}, CPU: set()}
    for task, files in overlays.items():
        assert set(texts(render_docker(task, DockerContextSettings(), HERE))) == {"run.sh", "compose.yml"} | files
    (devices,) = read(FOUR, "compose.cdi.yml")["services"]["train"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices["device_ids"] == [f"nvidia.com/gpu={number}" for number in range(4)]
    assert (devices["driver"], devices["capabilities"]) == ("cdi", ["gpu"])
    amd = read(ROCM, "compose.rocm.yml")["services"]["train"]
    assert (amd["devices"], amd["environment"]) == (["/dev/kfd", "/dev/dri"], {"ROCR_VISIBLE_DEVICES": "0,1"})


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
        read(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint
