"""The script for Daytona, read as Python without running it, beside what tests/export/agreement reads in it."""

import ast
from dataclasses import replace

import pytest

from devkit.errors import DevkitError
from devkit.export.daytona import TARGET, DaytonaSettings, render_daytona

from .tasks import CPU, HOSTILE, NASTY, ONE, ROCM, SPOT, TWO_NODES, UNNAMED, context, gpus, texts, volumes


def script(task, **settings):
    return texts(render_daytona(task, DaytonaSettings(**settings), context("deploy/daytona")))["run.py"]


def constants(task, **settings):
    """The values that the script begins with; what is no literal as it is written."""
    found = {}
    for line in ast.parse(script(task, **settings)).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                found[line.targets[0].id] = ast.unparse(line.value)
    return found


def test_the_job_is_what_the_task_says():
    found = constants(ONE)
    assert (found["NAME"], found["OUTPUT"], found["LOCAL_OUTPUT"]) == ("demo", ONE.output, "finetuned")
    assert (found["TIME_S"], found["IS_SPOT"]) == (86400, False)
    hostile = constants(HOSTILE)
    assert (hostile["COMMAND"][3], hostile["ENVIRONMENT"]["NASTY"]) == (NASTY, NASTY)
    assert script(HOSTILE).isascii()


@pytest.mark.parametrize(
    ("task", "asked"),
    [
        pytest.param(ONE, ", gpu=1, gpu_type=[GpuType('H100')]", id="one by name"),
        pytest.param(CPU, "", id="none"),
        pytest.param(replace(ONE, accelerator=gpus(2, "")), ", gpu=2", id="any of two"),
        pytest.param(
            replace(UNNAMED, fitting_gpus=("NVIDIA L4", "NVIDIA H100 SXM", "NVIDIA H200")),
            ", gpu=2, gpu_type=[GpuType('H100'), GpuType('H200')]",
            id="any that holds the job",
        ),
    ],
)
def test_gpus_are_requested_by_daytonas_names(task, asked):
    assert constants(task)["RESOURCES"] == f"Resources(cpu=8, memory=48, disk=90{asked})"


def test_another_image_or_size_is_another_snapshot():
    first = constants(ONE)["SNAPSHOT"]
    others = [replace(ONE, image="registry.example.org/me/demo:2"), replace(ONE, cpus=16), replace(ONE, grace_s=1)]
    assert [constants(each)["SNAPSHOT"] == first for each in others] == [False, False, True]


def test_a_snapshot_that_is_there_needs_no_image():
    found = constants(replace(ONE, image=""), snapshot="mine:1")
    assert (found["SNAPSHOT"], found["IMAGE"]) == ("mine:1", "")
    assert not TARGET.needs_image(DaytonaSettings(snapshot="mine:1"))
    assert TARGET.needs_image(DaytonaSettings())


def test_the_token_is_a_secret_or_comes_from_the_shell():
    assert constants(ONE)["TOKEN_PATH"] == "/home/dev/.config/huggingface/token"
    assert constants(ONE, hub_secret="hub")["HUB_SECRET"] == "hub"
    assert (constants(CPU)["TOKEN_PATH"], constants(CPU, hub_secret="hub")["HUB_SECRET"]) == ("", "")


def test_spot_is_for_gpus_alone():
    assert constants(SPOT)["IS_SPOT"] is True
    assert constants(replace(CPU, is_spot=True))["IS_SPOT"] is False
    for task in (ONE, SPOT):
        notes = render_daytona(task, DaytonaSettings(), context("deploy/daytona")).notes
        assert any("reclaimed without notice" in note for note in notes) is task.is_spot


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        pytest.param(TWO_NODES, {}, "a sandbox of Daytona's is one machine, and the job needs 2", id="two nodes"),
        pytest.param(replace(ONE, volumes=volumes(checkpoints="kept")), {}, "files cannot be renamed", id="a volume"),
        pytest.param(ROCM, {}, "rents no GPU that devkit knows as 'MI300X'", id="a GPU nobody rents"),
        pytest.param(replace(ONE, image="registry:5000/demo"), {}, "a mutable tag", id="no tag beside a port"),
        pytest.param(replace(ONE, image="demo:latest"), {}, "a mutable tag", id="latest"),
        pytest.param(ONE, {"snapshot": "a\nb"}, "is no name", id="a snapshot of two lines"),
        pytest.param(ONE, {"hub_secret": "a b"}, "is no name", id="a secret with a space"),
    ],
)
def test_what_daytona_cannot_run_is_refused_in_one_line(task, settings, message):
    with pytest.raises(DevkitError, match=message) as refused:
        script(task, **settings)
    assert "\n" not in str(refused.value)
    assert refused.value.hint


def test_an_image_that_stays_what_it_is_is_taken_and_one_command_starts_it():
    for image in ("demo:1", "registry:5000/demo:1", "demo@sha256:0a"):
        assert constants(replace(ONE, image=image))["IMAGE"] == image
    assert render_daytona(ONE, DaytonaSettings(), context("my jobs")).next_steps == ("uv run 'my jobs/run.py'",)
