"""A command of the user's own in place of devkit finetune, in the project's image and in a foreign one."""

from dataclasses import replace

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.job_settings import JobSettings
from devkit.export.kubernetes import KubernetesSettings
from devkit.export.slurm.settings import ContainerRuntime, SlurmSettings
from devkit.export.targets import TARGETS, load_target
from devkit.export.task import HUB_CACHE, LAUNCHER, TORCHRUN, VolumeRole
from devkit.export.task_builder import ExportedProject, TaskAndEstimate, build_task
from devkit.export.values import GIB
from devkit.solver.plan import Vendor
from tests.export.kubernetes.api import problems
from tests.export.subjects import CPU, JOB, NVIDIA, PROJECT

TRAIN = ("python", "train.py", "--output_dir", "outputs")
OWN = replace(JOB, command=TRAIN, gpu="H100")


def built(job: JobSettings = OWN, plan=NVIDIA) -> TaskAndEstimate:
    return build_task(ExportedProject(PROJECT, plan, finetune=None, config=None), job)


def files(task, target: str, settings=None) -> dict[str, str]:
    chosen = load_target(target)
    rendered = chosen.render(task, settings or chosen.settings(), f"deploy/{target}")
    return {each.path: each.content.decode() for each in rendered.artifacts}


def test_the_words_are_the_users_behind_the_launcher_and_nothing_is_estimated():
    answer = built()
    assert answer.task.command == (*LAUNCHER, *TRAIN)
    assert (answer.needs, answer.refusal) == (None, None)
    assert any("no estimate" in note for note in answer.task.notes)
    assert answer.task.output == "/workspaces/tide-tables/outputs"
    assert dict(answer.task.environment)["DEVKIT_OUTPUT"] == answer.task.output


def test_a_node_has_as_much_memory_as_its_gpus_and_storage_is_a_guess_that_flags_replace():
    task = built(replace(OWN, gpus=4)).task
    assert 4 * 75 * GIB <= task.memory_bytes <= 4 * 80 * GIB
    assert built(replace(OWN, gpu="")).task.memory_bytes == 16 * GIB
    assert built(replace(OWN, memory="9Gi")).task.memory_bytes == 9 * GIB
    assert task.volume(VolumeRole.MODELS).size_bytes == 100 * GIB
    assert built(replace(OWN, models_size="7Gi")).task.volume(VolumeRole.MODELS).size_bytes == 7 * GIB


def test_torchrun_starts_processes_where_it_is_asked_to():
    for processes, per_node, is_wrapped in (("", 4, False), ("auto", 4, True), ("2", 2, True), ("1", 1, True)):
        task = built(replace(OWN, gpus=4, nodes=2, processes=processes)).task
        assert (task.processes_per_node, task.processes) == (per_node, 2 * per_node)
        assert (TORCHRUN[0] in task.command) is is_wrapped


def pod_of(answer: TaskAndEstimate, settings=None) -> dict:
    (job,) = yaml.safe_load_all(files(answer.task, "kubernetes", settings)["job.yaml"])
    assert problems(job) == []
    return job["spec"]["template"]["spec"]


def test_a_foreign_image_gets_nothing_of_devkit_and_says_nothing_of_the_gpus():
    foreign = replace(OWN, foreign_image=True)
    task = built(replace(foreign, processes="auto", gpus=2)).task
    assert task.command == (*TORCHRUN, *TRAIN)
    assert dict(task.environment)["HF_HOME"] == HUB_CACHE
    made = files(task, "kubernetes")
    assert not any("devkit launch" in text or "devkit finetune" in text for text in made.values())
    assert pod_of(built(foreign))["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    named = pod_of(built(foreign), KubernetesSettings(user=4000))
    assert (named["securityContext"]["runAsUser"], named["securityContext"]["fsGroup"]) == (4000, 4000)
    assert named["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert ["%test" in files(each, "slurm")["image.def"] for each in (task, built().task)] == [False, True]
    assert built(foreign, plan=CPU).task.accelerator.vendor is Vendor.NVIDIA
    assert built(replace(foreign, gpu="MI300X")).task.accelerator.vendor is Vendor.ROCM
    assert built(replace(OWN, gpu=""), plan=CPU).task.accelerator.count == 0


def test_any_exception_of_a_program_is_tried_again_and_wrong_arguments_are_not():
    (job,) = yaml.safe_load_all(files(built().task, "kubernetes")["job.yaml"])
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob"] == [[2, 126, 127]]


STORAGE = ("nas:/nas", "/scratch/set:/nas/set")


def test_storage_of_the_users_own_is_at_its_path_on_every_engine_and_the_command_starts_where_it_is_told():
    job = replace(OWN, mount=STORAGE, workdir="/usr/src/app", foreign_image=True)
    pod = pod_of(built(job))
    sources = {each["name"]: each for each in pod["volumes"]}
    mounted = {each["mountPath"]: sources[each["name"]] for each in pod["containers"][0]["volumeMounts"]}
    assert mounted["/nas"]["persistentVolumeClaim"] == {"claimName": "nas"}
    assert mounted["/nas/set"]["hostPath"] == {"path": "/scratch/set"}
    assert pod["containers"][0]["workingDir"] == "/usr/src/app"
    script = files(built(replace(job, mount=("$SCRATCH/a b:/nas",))).task, "slurm")["job.sbatch"]
    assert '--bind "${SCRATCH}/a b:/nas"' in script and "--pwd /usr/src/app" in script
    script = files(built(job).task, "docker")["run.sh"]
    assert "source=nas,target=/nas" in script and "source=/scratch/set,target=/nas/set" in script
    assert "--workdir /usr/src/app" in script
    bucket = yaml.safe_load(files(built(replace(job, mount=("s3://b/set:/nas",))).task, "skypilot")["task.yaml"])
    assert bucket["file_mounts"]["/nas"]["source"] == "s3://b/set"
    twice = pod_of(built(replace(OWN, data="nas", checkpoints="nas", mount=("nas:/nas",))))
    paths = {each["mountPath"]: each.get("subPath") for each in twice["containers"][0]["volumeMounts"]}
    assert (paths["/workspaces/tide-tables"], paths["/nas"]) == ("data", None)


def test_storage_without_a_path_or_over_what_the_job_needs_is_refused():
    says = {
        ("nas",): "does not specify storage and a path",
        ("nas:data",): "does not specify storage and a path",
        ("nas:/a/../b",): "does not specify storage and a path",
        ("nas:/opt",): "would hide /opt/cache/",
        ("nas:/dev/shm/",): "would hide /dev/shm",
        ("a:/nas", "b:/nas/"): "would hide /nas",
    }
    for mount, message in says.items():
        with pytest.raises(DevkitError, match=message):
            built(replace(OWN, mount=mount))


@pytest.mark.parametrize("target", TARGETS)
def test_every_engine_starts_it(target):
    for foreign in (False, True):
        made = files(built(replace(OWN, foreign_image=foreign)).task, target)
        assert any("train.py" in text for text in made.values())
        assert not any("devkit finetune" in text for text in made.values())


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (replace(OWN, processes="many"), "--set processes is 'many'"),
        (replace(OWN, command=("", "x")), "begins with an empty word"),
        (replace(JOB, processes="auto"), "applies only to your own command"),
        (replace(JOB, foreign_image=True), "applies only to your own command"),
        (replace(OWN, command=("python", "t.py", "--token", "hf_" + "a" * 34)), "seems to contain a secret"),
        (replace(OWN, results="../elsewhere"), "is outside the project"),
        (replace(OWN, command=("a\x00b",)), "invisible character"),
    ],
)
def test_wrong_commands_are_refused(job, said):
    with pytest.raises(DevkitError, match=said):
        built(job)


def test_slurm_without_a_container_needs_no_devkit_and_mounts_nothing():
    bare = SlurmSettings(flavor=ContainerRuntime.NONE)
    script = files(built(replace(OWN, gpus=2, processes="auto")).task, "slurm", bare)["job.sbatch"]
    assert not [text for text in ("devkit launch", "command -v devkit", "/workspaces/") if text in script]
    assert "set -- torchrun" in script and 'export checkpoints="$data/outputs"' in script
    with pytest.raises(DevkitError, match="--flavor none does not use one"):
        files(built(replace(OWN, mount=STORAGE)).task, "slurm", bare)
