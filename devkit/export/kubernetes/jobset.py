"""JobSet v1alpha2: one indexed Job that starts again as a whole; and the template of the same in a TrainingRuntime.

Sources: https://jobset.sigs.k8s.io/docs/concepts/, https://jobset.sigs.k8s.io/docs/tasks/failure_policy/; the fields
are those of JobSet v0.12.0's CustomResourceDefinition.
"""

from devkit.errors import DevkitError
from devkit.export.job_settings import MAX_LABEL_LENGTH
from devkit.export.kubernetes.manifest import (
    JOB_TTL_S,
    RESUME_EXIT_CODE,
    RETRIES,
    TRAINING_COMPONENT,
    Commented,
    JobManifests,
    Manifest,
    PatchTarget,
    build_labels,
)
from devkit.export.kubernetes.pod import (
    INDEX_PLACEHOLDER,
    build_container,
    build_container_context,
    build_container_run,
    build_pod_template,
    build_rank_variables,
)
from devkit.export.kubernetes.resources import build_resources
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Task, build_rendezvous_variables

NODE_JOB = "node"
"""The replicated job's name, and its container's: what Kubeflow Trainer asks for."""
POD_TEMPLATE_POINTER = "/spec/replicatedJobs/0/template/spec/template"


def find_max_name_length(task: Task) -> int:
    """How long the name may be: that of its last pod, JOBSET-node-0-INDEX and five letters, is a label, too.

    Source: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go
    """
    return MAX_LABEL_LENGTH - len(f"-{NODE_JOB}-0-{task.nodes - 1}-xxxxx")


def render_jobset(task: Task, settings: KubernetesSettings) -> JobManifests:
    """The JobSet. It makes the Service by which the nodes find the first by itself."""
    address = f"{task.name}-{NODE_JOB}-0-0.{task.name}" if task.nodes > 1 else "localhost"
    variables = build_rank_variables(build_rendezvous_variables(task, address=address, rank=INDEX_PLACEHOLDER))
    container = build_container(task, settings, NODE_JOB, variables)
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": task.name, "labels": build_labels(task, TRAINING_COMPONENT)},
        "spec": _timed(task, build_jobset_spec(task, settings, container)),
    }
    place = PatchTarget("JobSet", task.name, "")
    return JobManifests(
        kind="JobSet",
        files={"jobset.yaml": [manifest]},
        owner=place,
        suspend=PatchTarget("JobSet", task.name, "/spec/suspend"),
        pods=(PatchTarget("JobSet", task.name, POD_TEMPLATE_POINTER),),
    )


def build_jobset_spec(task: Task, settings: KubernetesSettings, container: Manifest) -> Manifest:
    """What a JobSet and a runtime's template say in the same words."""
    job = {
        "completionMode": Commented("Indexed", "The pod's index is the node's rank."),
        "completions": task.nodes,
        "parallelism": task.nodes,
        "backoffLimit": Commented(
            0, "One node that fails ends the Job: the others wait for it, and start again with it."
        ),
        "podFailurePolicy": _pod_failures(),
        "template": build_pod_template(task, settings, container),
    }
    return {
        "network": {
            "enableDNSHostnames": Commented(True, "Pods find each other by name, before they are ready, too."),
            "publishNotReadyAddresses": True,
        },
        "failurePolicy": _failures(),
        "ttlSecondsAfterFinished": Commented(JOB_TTL_S, "A week; then it goes with its pods and their logs."),
        "replicatedJobs": [{"name": NODE_JOB, "replicas": 1, "template": {"spec": job}}],
    }


def _timed(task: Task, spec: Manifest) -> Manifest:
    """`spec` with a deadline. A TrainJob has one of its own."""
    job = spec["replicatedJobs"][0]["template"]["spec"]
    job["activeDeadlineSeconds"] = Commented(
        task.time_s,
        "The longest attempt, waiting for nodes included. Then the pods get SIGTERM, save and leave; the same command "
        "goes on.",
    )
    overtime = {
        "name": "overtime",
        "action": Commented("FailJobSet", "The time is up."),
        "onJobFailureReasons": ["DeadlineExceeded"],
    }
    spec["failurePolicy"]["rules"].append(overtime)
    return spec


def _pod_failures() -> Manifest:
    """Preemptions end the Job by this policy, other failures by its backoffLimit: so they can be told apart."""
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    saved = {
        "action": "FailJob",
        "onExitCodes": {"containerName": NODE_JOB, "operator": "In", "values": [RESUME_EXIT_CODE]},
    }
    return {
        "rules": [
            Commented(disrupted, "Evicted, preempted, its node taken back or drained: all nodes start again (below)."),
            Commented(saved, f"{RESUME_EXIT_CODE}: told to end, and saved."),
        ]
    }


def _failures() -> Manifest:
    rules = [
        {
            "name": "preempted",
            "action": Commented("RestartJobSetAndIgnoreMaxRestarts", "Nobody's failure: as often as it takes."),
            "onJobFailureReasons": ["PodFailurePolicy"],
        },
    ]
    return {
        "maxRestarts": Commented(
            RETRIES, "Of all nodes together, after a failure: they go on from the last checkpoint."
        ),
        "restartStrategy": Commented(
            "BlockingRecreate", "Only once all are gone: a survivor would wait for the lost ones."
        ),
        "rules": rules,
    }


# Kubeflow Trainer v2: a TrainJob, and the TrainingRuntime that it starts from.
#
# The runtime is the job's own: only there do a pod failure policy, restarts and claims of devices have a place; a
# TrainJob may patch some fields of pods alone. With `--runtime` it is the cluster's, and these are left to it.
# Source: https://www.kubeflow.org/docs/components/trainer/operator-guides/; the fields are those of v2.3.0's
# CustomResourceDefinitions.

TRAINER_API = "trainer.kubeflow.org/v1alpha1"
PATCH_MANAGER = "devkit.export/kubernetes"
"""Who the patches of a runtime are by: one entry for each manager.
Source: https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime-patches/"""

_PATCHABLE = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "serviceAccountName", "volumes")
"""Fields of a pod that a TrainJob may patch, besides those written out below."""


def render_trainjob(task: Task, settings: KubernetesSettings) -> JobManifests:
    """The TrainJob with its runtime, or on one of the cluster's."""
    suspend = PatchTarget("TrainJob", task.name, "/spec/suspend")
    owner = PatchTarget("TrainJob", task.name, "")
    if settings.runtime:
        job = _trainjob(task, settings)
        job["spec"]["runtimePatches"] = [_patch(task, settings)]
        pointer = f"/spec/runtimePatches/0/trainingRuntimeSpec/template{POD_TEMPLATE_POINTER}"
        pods = (PatchTarget("TrainJob", task.name, pointer),)
        note = (
            f"{settings.runtime} says what follows a preemption, and by itself nothing does: delete it and apply "
            "it again, the same command goes on. Without --runtime the job brings its own"
        )
        return JobManifests(
            kind="TrainJob", files={"trainjob.yaml": [job]}, owner=owner, suspend=suspend, pods=pods, notes=(note,)
        )
    files = {"runtime.yaml": [_runtime(task, settings)], "trainjob.yaml": [_trainjob(task, settings)]}
    pods = (PatchTarget("TrainingRuntime", task.name, f"/spec/template{POD_TEMPLATE_POINTER}"),)
    return JobManifests(kind="TrainJob", files=files, owner=owner, suspend=suspend, pods=pods)


def _trainjob(task: Task, settings: KubernetesSettings) -> Manifest:
    kind = "ClusterTrainingRuntime" if settings.runtime else "TrainingRuntime"
    run = build_container_run(task, [])
    if settings.runtime:
        run["command"] = Commented(
            ["env", "-C", task.workspace, *run["command"]], "The folder first: a TrainJob cannot say it."
        )
    trainer: Manifest = {
        "numNodes": task.nodes,
        "numProcPerNode": Commented(
            max(1, task.accelerator.count),
            "Trainer sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which "
            "torchrun reads, and refuses a job that sets them itself.",
        ),
        **run,
    }
    if not settings.device_class:
        trainer["resourcesPerNode"] = build_resources(task, settings)
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainJob",
        "metadata": {"name": task.name, "labels": build_labels(task, TRAINING_COMPONENT)},
        "spec": {
            "activeDeadlineSeconds": Commented(task.time_s, "The longest run, all attempts together."),
            "runtimeRef": {
                "apiGroup": TRAINER_API.partition("/")[0],
                "kind": kind,
                "name": settings.runtime or task.name,
            },
            "trainer": trainer,
        },
    }


def _runtime(task: Task, settings: KubernetesSettings) -> Manifest:
    container: Manifest = {"name": Commented(NODE_JOB, "Trainer looks for this name."), **build_container_context(task)}
    container["image"] = Commented(task.image, "The TrainJob's, which is put in its place.")
    if settings.device_class:
        container["resources"] = Commented(build_resources(task, settings), "Here, since a TrainJob's hold no claims.")
    spec = build_jobset_spec(task, settings, container)
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    spec["replicatedJobs"][0]["template"] = step | spec["replicatedJobs"][0]["template"]
    labels = build_labels(task, TRAINING_COMPONENT) | {"trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": TRAINER_API,
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
    container = {name: value for name, value in build_container_context(task).items() if name != "workingDir"}
    template = build_pod_template(task, settings, {"name": NODE_JOB, **container})
    spec = template["spec"]
    kept = ("terminationGracePeriodSeconds", "securityContext", *_PATCHABLE, "containers")
    template["spec"] = {name: spec[name] for name in spec if name in kept}
    jobs = [{"name": NODE_JOB, "template": {"spec": {"template": template}}}]
    return {"manager": PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
