"""JobSet v1alpha2, one indexed Job that restarts as a whole; and Kubeflow Trainer v2, whose runtime contains one.

A TrainJob brings its own TrainingRuntime: only there do a pod failure policy, restarts and device claims have a place; a
TrainJob itself can only patch some fields of pods. With `--runtime` it is the cluster's, which decides about them.

Sources: https://jobset.sigs.k8s.io/docs/concepts/, https://jobset.sigs.k8s.io/docs/tasks/failure_policy/,
https://www.kubeflow.org/docs/components/trainer/operator-guides/; the fields are those of the CustomResourceDefinitions
of JobSet v0.12.0 and Trainer v2.3.0.
"""

from devkit.errors import DevkitError
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
    build_job_labels,
    build_pod_template,
    build_rank_variables,
)
from devkit.export.kubernetes.resources import build_resources
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Task, build_rendezvous_variables
from devkit.export.values import MAX_LABEL_LENGTH

NODE_JOB = "node"
"""The name of the replicated job and of its container, as Kubeflow Trainer requires."""
POD_TEMPLATE_POINTER = "/spec/replicatedJobs/0/template/spec/template"


def find_max_name_length(task: Task) -> int:
    """Return the maximum length of the name: that of its last pod, JOBSET-node-0-INDEX-xxxxx, is a DNS label, too.

    Source: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go
    """
    return MAX_LABEL_LENGTH - len(f"-{NODE_JOB}-0-{task.nodes - 1}-xxxxx")


def render_jobset(task: Task, settings: KubernetesSettings) -> JobManifests:
    """Render the JobSet. It creates the Service by which the nodes find the first."""
    address = f"{task.name}-{NODE_JOB}-0-0.{task.name}" if task.nodes > 1 else "localhost"
    variables = build_rank_variables(build_rendezvous_variables(task, address=address, rank=INDEX_PLACEHOLDER))
    container = build_container(task, settings, NODE_JOB, variables)
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": task.name, "labels": build_job_labels(task, settings)},
        "spec": _add_deadline(task, build_jobset_spec(task, settings, container)),
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
    """Build the spec that a JobSet and a TrainingRuntime's template share."""
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    saved = {
        "action": "FailJob",
        "onExitCodes": {"containerName": NODE_JOB, "operator": "In", "values": [RESUME_EXIT_CODE]},
    }
    preempted = {
        "name": "preempted",
        "action": Commented("RestartJobSetAndIgnoreMaxRestarts", "Not counted as a failure: unlimited restarts."),
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    job = {
        "completionMode": Commented("Indexed", "The pod's index is the node's rank."),
        "completions": task.nodes,
        "parallelism": task.nodes,
        "backoffLimit": Commented(0, "One node that fails ends the Job: the others depend on it, and restart with it."),
        # Preemptions end the Job by this policy, other failures by its backoffLimit: so they differ below.
        "podFailurePolicy": {
            "rules": [
                Commented(disrupted, "Evicted, preempted, its node reclaimed or drained: all nodes restart (below)."),
                Commented(saved, f"{RESUME_EXIT_CODE}: stopped, and saved."),
            ]
        },
        "template": build_pod_template(task, settings, container),
    }
    return {
        "network": {
            "enableDNSHostnames": Commented(True, "Pods find each other by name, even before they are ready."),
            "publishNotReadyAddresses": True,
        },
        "failurePolicy": {
            "maxRestarts": Commented(RETRIES, "Of all nodes, after a failure: they resume from the last checkpoint."),
            "restartStrategy": Commented(
                "BlockingRecreate", "Only after all pods are deleted: a remaining one would wait for the others."
            ),
            "rules": [preempted],
        },
        "ttlSecondsAfterFinished": Commented(JOB_TTL_S, "A week; then it is deleted with its pods and their logs."),
        "replicatedJobs": [{"name": NODE_JOB, "replicas": 1, "template": {"spec": job}}],
    }


def _add_deadline(task: Task, spec: Manifest) -> Manifest:
    """Add a deadline to the spec. A TrainJob has one of its own."""
    job = spec["replicatedJobs"][0]["template"]["spec"]
    job["activeDeadlineSeconds"] = Commented(
        task.time_s,
        "Time limit of one attempt, waiting for nodes included. Then the pods get SIGTERM, save and exit; the same "
        "command resumes.",
    )
    overtime = {
        "name": "overtime",
        "action": Commented("FailJobSet", "The time limit is reached."),
        "onJobFailureReasons": ["DeadlineExceeded"],
    }
    spec["failurePolicy"]["rules"].append(overtime)
    return spec


VOLCANO = "volcano"
"""The scheduler for which Trainer makes a pod group: all nodes start together or none does."""
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
PATCH_MANAGER = "devkit.export/kubernetes"
"""The manager of the runtime patches: one entry for each manager.
Source: https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime-patches/"""

_PATCHABLE = ("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "serviceAccountName", "volumes")
"""Fields of a pod that a TrainJob may patch, besides those written out below."""


def render_trainjob(task: Task, settings: KubernetesSettings) -> JobManifests:
    """Render the TrainJob with its runtime, or on one of the cluster's."""
    suspend = PatchTarget("TrainJob", task.name, "/spec/suspend")
    owner = PatchTarget("TrainJob", task.name, "")
    if settings.runtime:
        job = _build_trainjob(task, settings)
        job["spec"]["runtimePatches"] = [_build_patch(task, settings)]
        pointer = f"/spec/runtimePatches/0/trainingRuntimeSpec/template{POD_TEMPLATE_POINTER}"
        pods = (PatchTarget("TrainJob", task.name, pointer),)
        note = (
            f"{settings.runtime} decides what follows a preemption; by default nothing does: delete the job and apply "
            "it again, and it resumes. Without --runtime the job brings its own"
        )
        return JobManifests(
            kind="TrainJob", files={"trainjob.yaml": [job]}, owner=owner, suspend=suspend, pods=pods, notes=(note,)
        )
    files = {"runtime.yaml": [_build_runtime(task, settings)], "trainjob.yaml": [_build_trainjob(task, settings)]}
    pods = (PatchTarget("TrainingRuntime", task.name, f"/spec/template{POD_TEMPLATE_POINTER}"),)
    return JobManifests(kind="TrainJob", files=files, owner=owner, suspend=suspend, pods=pods)


def _build_trainjob(task: Task, settings: KubernetesSettings) -> Manifest:
    kind = "ClusterTrainingRuntime" if settings.runtime else "TrainingRuntime"
    run = build_container_run(task, [])
    if settings.runtime:
        run["command"] = Commented(
            ["env", "-C", task.start_folder, *run["command"]], "The folder first: a TrainJob has no field for it."
        )
    trainer: Manifest = {
        "numNodes": task.nodes,
        "numProcPerNode": Commented(
            task.processes_per_node,
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
        "metadata": {"name": task.name, "labels": build_job_labels(task, settings)},
        "spec": {
            "activeDeadlineSeconds": Commented(task.time_s, "Time limit of all attempts together."),
            "runtimeRef": {
                "apiGroup": TRAINER_API.partition("/")[0],
                "kind": kind,
                "name": settings.runtime or task.name,
            },
            "trainer": trainer,
        },
    }


def _build_runtime(task: Task, settings: KubernetesSettings) -> Manifest:
    container: Manifest = {
        "name": Commented(NODE_JOB, "Trainer requires this name."),
        **build_container_context(task, settings),
    }
    container["image"] = Commented(task.image, "Replaced by the TrainJob's.")
    if settings.device_class:
        container["resources"] = Commented(
            build_resources(task, settings), "Here, since a TrainJob's resources cannot have claims."
        )
    spec = build_jobset_spec(task, settings, container)
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    spec["replicatedJobs"][0]["template"] = step | spec["replicatedJobs"][0]["template"]
    labels = build_labels(task, TRAINING_COMPONENT) | {"trainer.kubeflow.org/framework": "torch"}
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": {"name": task.name, "labels": labels},
        "spec": {
            "mlPolicy": {"numNodes": task.nodes, "torch": {}},
            **({"podGroupPolicy": {"volcano": {}}} if settings.scheduler == VOLCANO else {}),
            "template": {"spec": spec},
        },
    }


def _build_patch(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the fields of the pod that a TrainJob can patch in a runtime. Raises DevkitError for what it cannot."""
    for flag, value in (
        ("--device-class", settings.device_class),
        ("--priority-class", settings.priority_class),
        ("--scheduler", settings.scheduler),
        ("--host-network", settings.host_network),
    ):
        if value:
            raise DevkitError(
                f"{flag} has no place in a TrainJob on the runtime {settings.runtime}",
                f"Leave out --runtime, so that the job brings its own, or leave out {flag}.",
            )
    container = {name: value for name, value in build_container_context(task, settings).items() if name != "workingDir"}
    template = build_pod_template(task, settings, {"name": NODE_JOB, **container})
    spec = template["spec"]
    kept = ("terminationGracePeriodSeconds", "securityContext", *_PATCHABLE, "containers")
    template["spec"] = {name: spec[name] for name in spec if name in kept}
    jobs = [{"name": NODE_JOB, "template": {"spec": {"template": template}}}]
    return {"manager": PATCH_MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
