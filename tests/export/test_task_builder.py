"""From options to the task: what is decided, by which reason, and what is refused before a cluster would."""

from dataclasses import replace
from pathlib import Path

import pytest

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Sharding
from devkit.export.task import HUB_CACHE, TOKEN_FOLDER, TOKEN_PATH, VolumeRole, build_rendezvous_variables
from devkit.export.values import GIB
from devkit.solver.plan import Vendor
from tests.cases import cases

from .subjects import CPU, JOB, NVIDIA, PACKAGES, RUN, UNKNOWN, made


def job(**options):
    return replace(JOB, **options)


def refused(*arguments, **named):
    with pytest.raises(DevkitError) as raised:
        made(*arguments, **named)
    assert "\n" not in raised.value.message
    assert raised.value.hint
    return f"{raised.value.message} | {raised.value.hint}"


def test_one_gpu_is_one_process_and_needs_no_launcher():
    task = made(job=job(gpu="H100")).task
    assert (task.processes, task.is_distributed, task.command[:2]) == (1, False, ("devkit", "finetune"))
    assert task.environment == (("HF_TOKEN_PATH", TOKEN_PATH),)
    assert build_rendezvous_variables(task, address="a", rank="0") == ()
    assert (task.cpus, task.shm_bytes, task.nodes) == (8, 8 * GIB, 1)
    assert [(each.role, each.path) for each in task.volumes] == [
        (VolumeRole.MODELS, HUB_CACHE),
        (VolumeRole.DATA, "/workspaces/tide-tables"),
        (VolumeRole.CHECKPOINTS, "/workspaces/tide-tables/finetuned"),
    ]


def test_several_nodes_meet_by_torchruns_own_variables():
    task = made(job=job(gpu="H100", gpus=4, nodes=2, grace="5m", env=("NCCL_DEBUG=INFO",))).task
    assert (task.processes, task.cpus, task.shm_bytes) == (8, 32, 16 * GIB)
    assert dict(task.environment) == {
        "HF_TOKEN_PATH": TOKEN_PATH,
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        "PET_SHUTDOWN_TIMEOUT": "300",
        "NCCL_DEBUG": "INFO",
    }
    assert dict(build_rendezvous_variables(task, address="first", rank="$RANK")) == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "$RANK",
        "PET_MASTER_ADDR": "first",
        "PET_MASTER_PORT": "29500",
    }


def test_a_setting_of_the_user_counts_and_is_the_reason():
    task = made(job=job(cpus=3, memory="100Gi", shm="1Gi", name="other", time="1h", grace="60s")).task
    assert (task.cpus, task.memory_bytes, task.shm_bytes) == (3, 100 * GIB, GIB)
    assert (task.name, task.time_s, task.grace_s) == ("other", 3600, 60)
    assert {reason.because for reason in task.reasons} == {"requested"}
    # A launcher may take a machine with half of the cores that devkit recommends.
    assert (made().task.cpus, made().task.min_cpus, made(job=job(cpus=6)).task.min_cpus) == (8, 4, 6)
    for gpus, shm in ((1, 8), (2, 8), (3, 12), (8, 32)):
        assert made(job=job(gpus=gpus)).task.shm_bytes == shm * GIB
    assert made(job=job(checkpoints="/tmp/out")).task.volume(VolumeRole.CHECKPOINTS).source == "/tmp/out"
    for image, is_noted in (("r.example.org/x", True), (JOB.image, False)):
        assert any("a mutable tag" in note for note in made(job=job(image=image)).task.notes) is is_noted


def test_without_gpus_the_memory_of_the_node_holds_the_model():
    with_gpu, without = made(job=job(gpus=1)).task, made(plan=CPU, job=job()).task
    assert (without.accelerator.vendor, without.accelerator.count) == (Vendor.CPU, 0)
    weights_bytes = 8 * 10**9 * 4
    assert without.memory_bytes > with_gpu.memory_bytes + weights_bytes
    assert any("planned for the CPU" in note for note in without.notes)


def test_a_node_has_memory_for_one_checkpoint_beside_its_processes():
    whole = replace(RUN, method=Method.FULL, sharding=Sharding.ZERO3)
    two, eight = (made(whole, job=replace(JOB, gpu="H200", gpus=gpus)) for gpus in (2, 8))
    saved = two.needs.host.checkpoint_bytes
    for found, processes in ((two, 2), (eight, 8)):
        left = found.task.memory_bytes - saved - processes * found.needs.host.memory_bytes
        assert 0 <= left < GIB


def test_an_unknown_model_is_exported_with_a_note():
    found = made(config=UNKNOWN, job=job(gpu="H100"))
    assert (found.needs, found.refusal, found.task.memory_bytes, found.task.fitting_gpus) == (None, None, 16 * GIB, ())
    assert any("shape is unknown" in note for note in found.task.notes)


def test_a_local_model_needs_no_token_and_is_part_of_the_data_volume():
    task = made(is_local_model=True, project_bytes=100 * GIB).task
    assert not task.needs_token
    assert task.volume(VolumeRole.DATA).size_bytes == 120 * GIB
    assert task.volume(VolumeRole.MODELS).size_bytes == 10 * GIB


@cases(
    "options, said",
    {
        "a GPU that nobody knows": ({"gpu": "H1000"}, "the GPU 'H1000' is not in the tables"),
        "a GPU that this torch has left behind": ({"gpu": "Tesla K80"}, "has no code for Tesla K80"),
        "a name that is no label": ({"name": "My Job"}, "is not a DNS label"),
        "models": ({"models_size": "1Gi"}, "--set models_size 1Gi is less than the model's weights"),
        "checkpoints": ({"checkpoints_size": "1Gi"}, "less than 2 checkpoints of"),
        "not shared": ({"nodes": 2, "checkpoints": "/tmp/out"}, "is a separate folder on each of the 2 nodes"),
        "not shared either": ({"nodes": 2, "data": "/dev/shm"}, "is a separate folder on each of the 2 nodes"),
    },
)
def test_settings_that_cannot_work_are_refused(options, said):
    assert said in refused(job=job(**options))


def test_outputs_whose_storage_would_hide_something_and_paths_that_lead_out_of_the_project():
    hidden = {
        "../out": "is outside",
        ".": "is where the project would be",
        "/opt/cache": "is where the models would be",
        TOKEN_FOLDER: "is where the hub token is stored",
        f"{TOKEN_FOLDER}/tuned": "is where the hub token is stored",
    }
    for output, said in hidden.items():
        assert said in refused(replace(RUN, output=Path(output)))
    for fields in ({"model": "../model"}, {"data": ("a.jsonl", "../b.jsonl")}, {"eval_data": ("../e",)}):
        assert "is outside the project" in refused(replace(RUN, **fields), config=None)


def test_a_spot_node_wants_a_run_that_goes_on():
    anew = replace(RUN, resume=False)
    assert "start over" in refused(anew, job=job(spot=True))
    assert not made(anew, job=job()).task.is_spot
    assert made(job=job(spot=True)).task.is_spot


def test_smaller_gpus_that_hold_the_job_are_named_the_least_first():
    fitting = made(job=job(gpu="H100")).task.fitting_gpus
    assert fitting[0] in ("NVIDIA L4", "NVIDIA A30", "NVIDIA A10", "NVIDIA A10G")
    assert "NVIDIA H100 SXM" in fitting and "Tesla T4" not in fitting
    unnamed = made(job=job()).task
    assert any(unnamed.fitting_gpus[0] in note for note in unnamed.notes)
    assert unnamed.accelerator.memory_bytes == 0


def test_no_more_processes_than_a_batch_has_rows():
    for gpus, nodes in ((8, 4), (17, 1), (1, 17)):
        said = refused(job=job(gpus=gpus, nodes=nodes))
        assert f"{gpus * nodes} processes" in said and "batch of 16 rows" in said
        assert f"batch = {gpus * nodes}" in said
    for config in (UNKNOWN, None):
        assert "batch of 16 rows" in refused(config=config, job=job(gpus=17))
    assert made(job=job(gpus=8, nodes=2)).task.processes == 16


def test_gpus_and_settings_that_the_image_is_not_planned_for_are_refused():
    for options in ({"gpu": "H100"}, {"gpus": 2}):
        assert "planned for the CPU" in refused(plan=CPU, job=job(**options))
    rocm = replace(NVIDIA, vendor=Vendor.ROCM, variant="rocm7.1", cuda=None)
    assert "is not an AMD GPU" in refused(plan=rocm, job=job(gpu="H100"))
    task = made(plan=rocm, job=job(gpu="MI300X")).task
    assert (task.accelerator.name, task.accelerator.vendor) == ("MI300X", Vendor.ROCM)
    without = replace(NVIDIA, packages=(("torch", "2.13.0"),))
    assert "bitsandbytes" in refused(replace(RUN, method=Method.QLORA), plan=without)
    with pytest.raises(DevkitError, match="does not have `datasets` to read it"):
        made(hub_data=("yahma/alpaca-cleaned",))
    made(hub_data=("yahma/alpaca-cleaned",), plan=replace(NVIDIA, packages=(*PACKAGES, ("datasets", "4.0.0"))))
    assert made(replace(RUN, sharding=Sharding.ZERO3), job=job(gpus=2)).task.command[-2:] == ("--sharding", "zero3")
