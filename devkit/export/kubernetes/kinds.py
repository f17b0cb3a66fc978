"""The kinds of jobs: Job, JobSet, TrainJob, PyTorchJob and RayJob. They share the pod; each is a wrapper around it.

Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/, https://jobset.sigs.k8s.io/docs/tasks/failure_policy/,
https://www.kubeflow.org/docs/components/trainer/operator-guides/,
https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/ and
https://github.com/ray-project/kuberay/blob/master/ray-operator/apis/ray/v1/rayjob_types.go. The fields are those of the
CustomResourceDefinitions of JobSet v0.12.0, Trainer v2.3.0 and the training operator v1.9.4.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from devkit.export.kubernetes.manifest import TRAINING_COMPONENT, Commented, Manifest, build_labels
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
from devkit.export.kubernetes.settings import JobKind, KubernetesSettings
from devkit.export.task import RENDEZVOUS_PORT, Task, build_rendezvous_variables
from devkit.export.values import MAX_JOB_NAME_LENGTH, MAX_LABEL_LENGTH
from devkit.render.templates import render_template

RETRIES = 3
"""Attempts after failures that may not recur: a lost GPU, node or network."""
JOB_TTL_S = 7 * 86400
"""The time that a finished job is kept, with its pods' logs."""
RESUME_EXIT_CODE = 75
"""The exit code of a run that was stopped and has saved (docs/guides/long-runs.md)."""
PERMANENT_EXIT_CODES = (1, 2, 126, 127)
"""Exit codes of `devkit finetune` after which another attempt fails as well: a NaN loss; wrong settings, or a full
disk; and those of a missing command. 3 is not among them: a lost GPU ends so, too; nor is 69, a lost process."""
PERMANENT_EXIT_CODES_OF_ANY_COMMAND = (2, 126, 127)
"""Those of wrong arguments and of a missing command. Any exception of Python's ends with 1."""
PYTORCHJOB_RESTARTS = 10
"""More than elsewhere: the operator counts all restarts of containers, also after a preemption."""
NODE_JOB = "node"
"""The name of the replicated job and of its container, as Kubeflow Trainer requires."""
VOLCANO = "volcano"
"""The scheduler for which Trainer makes a pod group: all nodes start together or none does."""
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Source: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""
SCRIPT_FOLDER = "/etc/devkit"
"""The folder of the script that starts the command on each node of a Ray cluster."""

_KEPT = Commented(JOB_TTL_S, "A week; then it is deleted with its pods and their logs.")
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


@dataclass(frozen=True)
class JobObjects:
    """The objects of a job, in the order in which they are applied, and notes."""

    objects: list[Manifest]
    notes: tuple[str, ...] = ()


def build_job(task: Task, settings: KubernetesSettings, kind: JobKind) -> JobObjects:
    """Build the objects of the job."""
    return _BUILDERS[kind](task, settings)


def find_max_name_length(task: Task, kind: JobKind) -> int:
    """Return the maximum length of the job's name: its pods' names must be DNS labels, too.

    Sources: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go (JOBSET-node-0-INDEX-xxxxx);
    ray-operator/controllers/ray/utils/constant.go of KubeRay, whose pods add a suffix of 16.
    """
    if kind in (JobKind.TRAINJOB, JobKind.JOBSET):
        return MAX_LABEL_LENGTH - len(f"-{NODE_JOB}-0-{task.nodes - 1}-xxxxx")
    return MAX_LABEL_LENGTH - 16 if kind is JobKind.RAYJOB else MAX_JOB_NAME_LENGTH


def _build_object(api: str, kind: str, task: Task, settings: KubernetesSettings, spec: Manifest) -> Manifest:
    """Build the job's own object, which a queue admits."""
    labels: Manifest = dict(build_job_labels(task, settings))
    if settings.queue:
        labels[QUEUE_LABEL] = Commented(
            settings.queue,
            "Kueue starts it once its quota covers all nodes, and stops it, with SIGTERM, to preempt it.",
        )
        suspended: Manifest = spec["runPolicy"] if "runPolicy" in spec else spec
        suspended["suspend"] = True
    return {"apiVersion": api, "kind": kind, "metadata": {"name": task.name, "labels": labels}, "spec": spec}


def _match_codes(container: str, *codes: int) -> Manifest:
    return {"containerName": container, "operator": "In", "values": list(codes)}


def _build_batch_job(task: Task, settings: KubernetesSettings) -> JobObjects:
    """Build the Job, indexed for several nodes, with the Service by which they find the first."""
    is_alone = task.nodes == 1
    address = "localhost" if is_alone else f"{task.name}-0.{task.name}"
    rank = "0" if is_alone else INDEX_PLACEHOLDER
    variables = build_rank_variables(build_rendezvous_variables(task, address=address, rank=rank))
    container = "trainer"
    template = build_pod_template(task, settings, build_container(task, settings, container, variables))
    rules = [
        Commented(
            {"action": "Ignore", "onPodConditions": [_DISRUPTED]},
            "Evicted, preempted, its node reclaimed or drained: not counted as a failure.",
        ),
        Commented(
            {"action": "Ignore", "onExitCodes": _match_codes(container, RESUME_EXIT_CODE)},
            f"{RESUME_EXIT_CODE}: stopped, and saved. The next pod resumes from there.",
        ),
    ]
    if not task.is_distributed:
        codes, why = PERMANENT_EXIT_CODES, "settings, a full disk, a NaN loss"
        if task.is_own_command:
            codes, why = PERMANENT_EXIT_CODES_OF_ANY_COMMAND, "wrong arguments, or no such command"
        hopeless = {"action": "FailJob", "onExitCodes": _match_codes(container, *codes)}
        rules.append(Commented(hopeless, f"Another attempt would fail, too: {why}."))
    spec: Manifest = {} if is_alone else _build_index(task)
    spec |= {
        "backoffLimit": Commented(
            RETRIES * task.nodes, f"Failures of a pod: {RETRIES} for each node. Preemptions do not count."
        ),
        "activeDeadlineSeconds": Commented(
            task.time_s,
            "Time limit of all attempts, waiting for a node included. Then the pods get SIGTERM and save, and the "
            "Job has failed with DeadlineExceeded; the same command resumes. A suspended Job's time starts over.",
        ),
        "ttlSecondsAfterFinished": _KEPT,
        "podReplacementPolicy": Commented(
            "Failed", "The next attempt starts when the last has ended: both write to --output."
        ),
        "podFailurePolicy": {"rules": rules},
        "template": template,
    }
    job = _build_object("batch/v1", "Job", task, settings, spec)
    if is_alone:
        return JobObjects([job])
    subdomain = Commented(task.name, "The Service's name: pods find each other by it.")
    template["spec"] = {"subdomain": subdomain, **template["spec"]}
    # Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": task.name, "labels": build_labels(task, "rendezvous")},
        "spec": {
            "clusterIP": Commented("None", "Headless: it gives each pod a DNS name, and carries no traffic."),
            "publishNotReadyAddresses": Commented(True, "They find each other before they are ready."),
            "selector": {"batch.kubernetes.io/job-name": task.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }
    return JobObjects([service, job])


def _build_index(task: Task) -> Manifest:
    return {
        "completionMode": Commented("Indexed", "The pod's index is the node's rank."),
        "completions": task.nodes,
        "parallelism": task.nodes,
    }


def _build_jobset(task: Task, settings: KubernetesSettings) -> JobObjects:
    """Build the JobSet. It creates the Service by which the nodes find the first."""
    address = f"{task.name}-{NODE_JOB}-0-0.{task.name}" if task.nodes > 1 else "localhost"
    variables = build_rank_variables(build_rendezvous_variables(task, address=address, rank=INDEX_PLACEHOLDER))
    spec = _build_jobset_spec(task, settings, build_container(task, settings, NODE_JOB, variables))
    spec["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = Commented(
        task.time_s,
        "Time limit of one attempt, waiting for nodes included. Then the pods get SIGTERM, save and exit; the same "
        "command resumes.",
    )
    overtime = Commented("FailJobSet", "The time limit is reached.")
    spec["failurePolicy"]["rules"].append(
        {"name": "overtime", "action": overtime, "onJobFailureReasons": ["DeadlineExceeded"]}
    )
    return JobObjects([_build_object("jobset.x-k8s.io/v1alpha2", "JobSet", task, settings, spec)])


def _build_jobset_spec(task: Task, settings: KubernetesSettings, container: Manifest) -> Manifest:
    """Build the spec that a JobSet and a TrainingRuntime's template share: one indexed Job that restarts as a whole."""
    disrupted = {"action": "FailJob", "onPodConditions": [_DISRUPTED]}
    saved = {"action": "FailJob", "onExitCodes": _match_codes(NODE_JOB, RESUME_EXIT_CODE)}
    preempted = {
        "name": "preempted",
        "action": Commented("RestartJobSetAndIgnoreMaxRestarts", "Not counted as a failure: unlimited restarts."),
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    job = {
        **_build_index(task),
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
        "ttlSecondsAfterFinished": _KEPT,
        "replicatedJobs": [{"name": NODE_JOB, "replicas": 1, "template": {"spec": job}}],
    }


def _build_trainjob(task: Task, settings: KubernetesSettings) -> JobObjects:
    """Build the TrainJob with a runtime of its own: only there do a pod failure policy and restarts have a place."""
    container: Manifest = {
        "name": Commented(NODE_JOB, "Trainer requires this name."),
        **build_container_context(task, settings),
        "image": Commented(task.image, "Replaced by the TrainJob's."),
    }
    template = _build_jobset_spec(task, settings, container)
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    template["replicatedJobs"][0]["template"] = step | template["replicatedJobs"][0]["template"]
    labels = build_labels(task, TRAINING_COMPONENT) | {"trainer.kubeflow.org/framework": "torch"}
    runtime = {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": {"name": task.name, "labels": labels},
        "spec": {
            "mlPolicy": {"numNodes": task.nodes, "torch": {}},
            **({"podGroupPolicy": {"volcano": {}}} if settings.scheduler == VOLCANO else {}),
            "template": {"spec": template},
        },
    }
    trainer = {
        "numNodes": task.nodes,
        "numProcPerNode": Commented(
            task.processes_per_node,
            "Trainer sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, which "
            "torchrun reads, and refuses a job that sets them itself.",
        ),
        **build_container_run(task, []),
        "resourcesPerNode": build_resources(task, settings),
    }
    spec: Manifest = {
        "activeDeadlineSeconds": Commented(task.time_s, "Time limit of all attempts together."),
        "runtimeRef": {"apiGroup": TRAINER_API.partition("/")[0], "kind": "TrainingRuntime", "name": task.name},
        "trainer": trainer,
    }
    return JobObjects([runtime, _build_object(TRAINER_API, "TrainJob", task, settings, spec)])


def _build_pytorchjob(task: Task, settings: KubernetesSettings) -> JobObjects:
    """Build the PyTorchJob, of the operator that preceded Trainer: a master, and workers for the other nodes.

    Pods that were evicted are recreated (https://github.com/kubeflow/trainer/pull/1572), those of a node that is gone
    stay (https://github.com/kubeflow/trainer/issues/2072).
    """
    # The operator sets RANK and WORLD_SIZE even for one process.
    variables = [] if task.is_distributed else [{"name": "LOCAL_RANK", "value": "0"}]

    def build_replicas(count: int) -> Manifest:
        container = build_container(task, settings, "pytorch", variables)
        container["name"] = Commented("pytorch", "The operator requires this name, and that of the port.")
        container["ports"] = [{"name": "pytorchjob-port", "containerPort": RENDEZVOUS_PORT}]
        restart = Commented(
            "OnFailure", "75 restarts the container. With ExitCode, 1 to 127 would be permanent failures."
        )
        template = build_pod_template(task, settings, container, restart="")
        return {"replicas": count, "restartPolicy": restart, "template": template}

    spec: Manifest = {
        "nprocPerNode": Commented(
            str(task.processes_per_node),
            "The operator sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, "
            "which torchrun reads.",
        ),
        "runPolicy": {
            "backoffLimit": Commented(PYTORCHJOB_RESTARTS, "Restarts of containers, after a preemption, too."),
            "activeDeadlineSeconds": Commented(task.time_s, "Time limit, restarts included."),
            "ttlSecondsAfterFinished": _KEPT,
            "cleanPodPolicy": Commented(
                "Running", "Pods that still run when the job has ended; ended ones keep their logs."
            ),
        },
        "pytorchReplicaSpecs": {
            "Master": build_replicas(1),
            **({"Worker": build_replicas(task.nodes - 1)} if task.nodes > 1 else {}),
        },
    }
    note = (
        "a PyTorchJob counts every end of a container as a failure, 75 too, and waits forever for a node that is lost "
        "without notice: kubectl delete pod --force lets it continue. --kind trainjob handles both"
    )
    return JobObjects([_build_object("kubeflow.org/v1", "PyTorchJob", task, settings, spec)], (note,))


def _build_rayjob(task: Task, settings: KubernetesSettings) -> JobObjects:
    """Build the RayJob: a Ray cluster of the job's nodes, and the script that starts the command on each of them."""
    script = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{task.name}-nodes", "labels": build_job_labels(task, settings)},
        "data": {"nodes.py": render_template("kubernetes/ray_nodes.py.j2")},
    }
    # The script sets the other two, since it alone knows the nodes.
    variables = [
        *build_rank_variables(
            tuple(
                (name, value)
                for name, value in build_rendezvous_variables(task, address="", rank="")
                if name not in ("PET_NODE_RANK", "PET_MASTER_ADDR")
            )
        ),
        {"name": "RAY_LOG_TO_STDERR", "value": "1"},  # for kubectl logs
    ]

    def build_template(name: str) -> Manifest:
        container = build_container(task, settings, name, variables)
        # The operator writes the command: ray start.
        del container["command"]
        container["volumeMounts"].append({"name": "nodes", "mountPath": SCRIPT_FOLDER})
        template = build_pod_template(task, settings, container, restart="")
        template["spec"]["volumes"].append({"name": "nodes", "configMap": {"name": f"{task.name}-nodes"}})
        return template

    head = Commented({}, "The head is a node like the others: it has GPUs, and works.")
    cluster: Manifest = {"headGroupSpec": {"rayStartParams": head, "template": build_template("ray-head")}}
    if task.nodes > 1:
        workers = {
            "groupName": "node",
            **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), task.nodes - 1),
            "rayStartParams": {},
            "template": build_template("ray-worker"),
        }
        cluster["workerGroupSpecs"] = [workers]
    words = ["python", f"{SCRIPT_FOLDER}/nodes.py", str(task.nodes), str(task.accelerator.count), *task.command]
    spec: Manifest = {
        "entrypoint": shlex.join(words),
        "backoffLimit": Commented(RETRIES, "Attempts, each with a new cluster; it resumes from its checkpoint."),
        "activeDeadlineSeconds": Commented(task.time_s, "Time limit."),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": _KEPT,
        "submissionMode": Commented("HTTPMode", "By the operator: another mode's pod is not restricted."),
        "rayClusterSpec": cluster,
    }
    notes = (
        "the image must have Ray, in the project's requirements, of a release that the operator supports",
        "Ray ends a command without a signal first: a RayJob that is preempted resumes from its last checkpoint",
    )
    return JobObjects([script, _build_object("ray.io/v1", "RayJob", task, settings, spec)], notes)


_BUILDERS: dict[JobKind, Callable[[Task, KubernetesSettings], JobObjects]] = {
    JobKind.JOB: _build_batch_job,
    JobKind.TRAINJOB: _build_trainjob,
    JobKind.PYTORCHJOB: _build_pytorchjob,
    JobKind.JOBSET: _build_jobset,
    JobKind.RAYJOB: _build_rayjob,
}
