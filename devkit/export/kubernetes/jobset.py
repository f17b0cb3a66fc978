"""JobSet v1alpha2: one indexed Job that starts again as a whole; and the template of the same in a TrainingRuntime.

Sources: https://jobset.sigs.k8s.io/docs/concepts/, https://jobset.sigs.k8s.io/docs/tasks/failure_policy/; the fields
are those of JobSet v0.12.0's CustomResourceDefinition.
"""

from devkit.export.kubernetes.labelled import TRAINING, labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.pod import BY_INDEX, container_of, pod_template, rank_variables
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.workload import KEPT_SECONDS, RETRIES, TRY_AGAIN, Place, Workload
from devkit.export.labels import LONGEST
from devkit.export.task import Task, rendezvous

ROLE = "node"
"""The replicated job's name, and its container's: what Kubeflow Trainer asks for."""
POD_TEMPLATE = "/spec/replicatedJobs/0/template/spec/template"


def longest_name(task: Task) -> int:
    """How long the name may be: that of its last pod, JOBSET-node-0-INDEX and five letters, is a label, too.

    Source: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go
    """
    return LONGEST - len(f"-{ROLE}-0-{task.nodes - 1}-xxxxx")


def jobset(task: Task, settings: KubernetesSettings) -> Workload:
    """The JobSet. It makes the Service by which the nodes find the first by itself."""
    address = f"{task.name}-{ROLE}-0-0.{task.name}" if task.nodes > 1 else "localhost"
    variables = rank_variables(rendezvous(task, address=address, rank=BY_INDEX))
    container = container_of(task, settings, ROLE, variables)
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": task.name, "labels": labels_of(task, TRAINING)},
        "spec": _timed(task, jobset_spec(task, settings, container)),
    }
    place = Place("JobSet", task.name, "")
    return Workload(
        kind="JobSet",
        files={"jobset.yaml": [manifest]},
        owner=place,
        suspend=Place("JobSet", task.name, "/spec/suspend"),
        pods=(Place("JobSet", task.name, POD_TEMPLATE),),
    )


def jobset_spec(task: Task, settings: KubernetesSettings, container: Manifest) -> Manifest:
    """What a JobSet and a runtime's template say in the same words."""
    job = {
        "completionMode": Noted("Indexed", "The pod's index is the node's rank."),
        "completions": task.nodes,
        "parallelism": task.nodes,
        "backoffLimit": Noted(0, "One node that fails ends the Job: the others wait for it, and start again with it."),
        "podFailurePolicy": _pod_failures(),
        "template": pod_template(task, settings, container),
    }
    return {
        "network": {
            "enableDNSHostnames": Noted(True, "Pods find each other by name, before they are ready, too."),
            "publishNotReadyAddresses": True,
        },
        "failurePolicy": _failures(),
        "ttlSecondsAfterFinished": Noted(KEPT_SECONDS, "A week; then it goes with its pods and their logs."),
        "replicatedJobs": [{"name": ROLE, "replicas": 1, "template": {"spec": job}}],
    }


def _timed(task: Task, spec: Manifest) -> Manifest:
    """`spec` with a deadline. A TrainJob has one of its own."""
    job = spec["replicatedJobs"][0]["template"]["spec"]
    job["activeDeadlineSeconds"] = Noted(
        task.time_s,
        "The longest attempt, waiting for nodes included. Then the pods get SIGTERM, save and leave; the same command "
        "goes on.",
    )
    overtime = {
        "name": "overtime",
        "action": Noted("FailJobSet", "The time is up."),
        "onJobFailureReasons": ["DeadlineExceeded"],
    }
    spec["failurePolicy"]["rules"].append(overtime)
    return spec


def _pod_failures() -> Manifest:
    """Preemptions end the Job by this policy, other failures by its backoffLimit: so they can be told apart."""
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    saved = {"action": "FailJob", "onExitCodes": {"containerName": ROLE, "operator": "In", "values": [TRY_AGAIN]}}
    return {
        "rules": [
            Noted(disrupted, "Evicted, preempted, its node taken back or drained: all nodes start again (below)."),
            Noted(saved, f"{TRY_AGAIN}: told to end, and saved."),
        ]
    }


def _failures() -> Manifest:
    rules = [
        {
            "name": "preempted",
            "action": Noted("RestartJobSetAndIgnoreMaxRestarts", "Nobody's failure: as often as it takes."),
            "onJobFailureReasons": ["PodFailurePolicy"],
        },
    ]
    return {
        "maxRestarts": Noted(RETRIES, "Of all nodes together, after a failure: they go on from the last checkpoint."),
        "restartStrategy": Noted(
            "BlockingRecreate", "Only once all are gone: a survivor would wait for the lost ones."
        ),
        "rules": rules,
    }
