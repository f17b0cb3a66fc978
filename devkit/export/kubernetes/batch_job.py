"""batch/v1 Job: one node; or several, each with its index, found by a headless Service."""

from devkit.export.kubernetes.labelled import TRAINING, labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.pod import BY_INDEX, container_of, pod_template, rank_variables
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.workload import KEPT_SECONDS, RETRIES, TRY_AGAIN, Place, Workload
from devkit.export.task import RENDEZVOUS_PORT, Task, rendezvous

CONTAINER = "trainer"
HOPELESS = (1, 2, 126, 127)
"""Exit codes of `devkit finetune` after which another attempt fails as well: the loss is no number; settings, or a full
disk; and those of a command that is not there. 3 is not among them: a GPU that falls off leaves so, too."""


def batch_job(task: Task, settings: KubernetesSettings) -> Workload:
    """The Job, with the Service by which several nodes find the first."""
    pods = Place("Job", task.name, "/spec/template")
    files = {"job.yaml": [_job(task, settings)]}
    if task.nodes > 1:
        files["service.yaml"] = [headless_service(task)]
    return Workload(
        kind="Job",
        files=files,
        owner=Place("Job", task.name, ""),
        suspend=Place("Job", task.name, "/spec/suspend"),
        pods=(pods,),
    )


def _job(task: Task, settings: KubernetesSettings) -> Manifest:
    is_alone = task.nodes == 1
    address = "localhost" if is_alone else f"{task.name}-0.{task.name}"
    variables = rank_variables(rendezvous(task, address=address, rank="0" if is_alone else BY_INDEX))
    template = pod_template(task, settings, container_of(task, settings, CONTAINER, variables))
    spec: Manifest = {}
    if not is_alone:
        template["spec"] = {"subdomain": Noted(task.name, "The Service's name: pods find each other by it.")} | (
            template["spec"]
        )
        spec |= {
            "completionMode": Noted("Indexed", "The pod's index is the node's rank."),
            "completions": task.nodes,
            "parallelism": task.nodes,
        }
    spec |= attempts(task)
    spec["podFailurePolicy"] = failure_policy(task)
    spec["template"] = template
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": task.name, "labels": labels_of(task, TRAINING)},
        "spec": spec,
    }


def attempts(task: Task) -> Manifest:
    """How often, how long, and how long it stays."""
    return {
        "backoffLimit": Noted(
            RETRIES * task.nodes, f"Failures of a pod: {RETRIES} for each node. Preemptions are none."
        ),
        "activeDeadlineSeconds": Noted(
            task.time_s,
            "The longest run, attempts and waiting for a node included. Then the pods get SIGTERM and save, and the "
            "Job has failed with DeadlineExceeded; the same command goes on. A suspended Job's time begins anew.",
        ),
        "ttlSecondsAfterFinished": Noted(KEPT_SECONDS, "A week; then the Job goes with its pods and their logs."),
        "podReplacementPolicy": Noted(
            "Failed", "The next attempt starts when the last has ended: both write to --output."
        ),
    }


def failure_policy(task: Task) -> Manifest:
    """What an end of a pod means, the first rule that holds.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [
        Noted(disrupted, "Evicted, preempted, its node taken back or drained: nobody's failure."),
        Noted(
            {"action": "Ignore", "onExitCodes": _codes(TRY_AGAIN)},
            f"{TRY_AGAIN}: told to end, and saved. The next pod goes on from there.",
        ),
    ]
    if not task.is_distributed:
        hopeless = {"action": "FailJob", "onExitCodes": _codes(*HOPELESS)}
        rules.append(Noted(hopeless, "What another attempt would meet as well: settings, a full disk, a loss of nan."))
    return {"rules": rules}


def _codes(*codes: int) -> Manifest:
    return {"containerName": CONTAINER, "operator": "In", "values": list(codes)}


def headless_service(task: Task) -> Manifest:
    """Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": task.name, "labels": labels_of(task, "rendezvous")},
        "spec": {
            "clusterIP": Noted("None", "Headless: it gives each pod a name, and carries no traffic."),
            "publishNotReadyAddresses": Noted(True, "They look for each other before they are ready."),
            "selector": {"batch.kubernetes.io/job-name": task.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }
