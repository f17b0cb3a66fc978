"""Kubeflow Trainer v2: a TrainJob, and the TrainingRuntime that it starts from.

The runtime is the job's own: only there do a pod failure policy, restarts and claims of devices have a place; a
TrainJob may patch some fields of pods alone. With `--runtime` it is the cluster's, and these are left to it.
Source: https://www.kubeflow.org/docs/components/trainer/operator-guides/; the fields are those of v2.3.0's
CustomResourceDefinitions.
"""

from devkit.errors import DevkitError
from devkit.export.kubernetes.gpus import requested
from devkit.export.kubernetes.jobset import POD_TEMPLATE, ROLE, jobset_spec
from devkit.export.kubernetes.labelled import TRAINING, labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.pod import held, pod_template, run_of
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.workload import Place, Workload
from devkit.export.task import Task

API = "trainer.kubeflow.org/v1alpha1"
MANAGER = "devkit.export/kubernetes"
"""Who the patches of a runtime are by: one entry for each manager.
Source: https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime-patches/"""

_PATCHABLE = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "serviceAccountName", "volumes")
"""Fields of a pod that a TrainJob may patch, besides those written out below."""


def trainjob(task: Task, settings: KubernetesSettings) -> Workload:
    """The TrainJob with its runtime, or on one of the cluster's."""
    suspend = Place("TrainJob", task.name, "/spec/suspend")
    owner = Place("TrainJob", task.name, "")
    if settings.runtime:
        job = _trainjob(task, settings)
        job["spec"]["runtimePatches"] = [_patch(task, settings)]
        pointer = f"/spec/runtimePatches/0/trainingRuntimeSpec/template{POD_TEMPLATE}"
        pods = (Place("TrainJob", task.name, pointer),)
        note = (
            f"{settings.runtime} says what follows a preemption, and by itself nothing does: delete it and apply "
            "it again, the same command goes on. Without --runtime the job brings its own"
        )
        return Workload(
            kind="TrainJob", files={"trainjob.yaml": [job]}, owner=owner, suspend=suspend, pods=pods, notes=(note,)
        )
    files = {"runtime.yaml": [_runtime(task, settings)], "trainjob.yaml": [_trainjob(task, settings)]}
    pods = (Place("TrainingRuntime", task.name, f"/spec/template{POD_TEMPLATE}"),)
    return Workload(kind="TrainJob", files=files, owner=owner, suspend=suspend, pods=pods)


def _trainjob(task: Task, settings: KubernetesSettings) -> Manifest:
    kind = "ClusterTrainingRuntime" if settings.runtime else "TrainingRuntime"
    run = run_of(task, [])
    if settings.runtime:
        run["command"] = Noted(
            ["env", "-C", task.workspace, *run["command"]], "The folder first: a TrainJob cannot say it."
        )
    trainer: Manifest = {
        "numNodes": task.nodes,
        "numProcPerNode": Noted(
            max(1, task.accelerator.count),
            "Trainer sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which "
            "torchrun reads, and refuses a job that sets them itself.",
        ),
        **run,
    }
    if not settings.device_class:
        trainer["resourcesPerNode"] = requested(task, settings)
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": task.name, "labels": labels_of(task, TRAINING)},
        "spec": {
            "activeDeadlineSeconds": Noted(task.time_s, "The longest run, all attempts together."),
            "runtimeRef": {
                "apiGroup": API.partition("/")[0],
                "kind": kind,
                "name": settings.runtime or task.name,
            },
            "trainer": trainer,
        },
    }


def _runtime(task: Task, settings: KubernetesSettings) -> Manifest:
    container: Manifest = {"name": Noted(ROLE, "Trainer looks for this name."), **held(task)}
    container["image"] = Noted(task.image, "The TrainJob's, which is put in its place.")
    if settings.device_class:
        container["resources"] = Noted(requested(task, settings), "Here, since a TrainJob's hold no claims.")
    spec = jobset_spec(task, settings, container)
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    spec["replicatedJobs"][0]["template"] = step | spec["replicatedJobs"][0]["template"]
    labels = labels_of(task, TRAINING) | {"trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": API,
        "kind": "TrainingRuntime",
        "metadata": {"name": task.name, "labels": labels},
        "spec": {"mlPolicy": {"numNodes": task.nodes, "torch": {}}, "template": {"spec": spec}},
    }


def _patch(task: Task, settings: KubernetesSettings) -> Manifest:
    """What of the pod a TrainJob can say on a runtime of the cluster. Raises DevkitError for what it cannot."""
    for flag, value in (("--device-class", settings.device_class), ("--priority-class", settings.priority_class)):
        if value:
            raise DevkitError(
                f"{flag} has no place in a TrainJob on the runtime {settings.runtime}",
                f"Leave out --runtime, so that the job brings its own, or leave out {flag}.",
            )
    container = {name: value for name, value in held(task).items() if name != "workingDir"}
    template = pod_template(task, settings, {"name": ROLE, **container})
    spec = template["spec"]
    kept = ("terminationGracePeriodSeconds", "securityContext", *_PATCHABLE, "containers")
    template["spec"] = {name: spec[name] for name in spec if name in kept}
    jobs = [{"name": ROLE, "template": {"spec": {"template": template}}}]
    return {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
