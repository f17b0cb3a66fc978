"""batch/v1 Job: one node; or several, each with its index, found by a headless Service."""

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
from devkit.export.kubernetes.pod import INDEX_PLACEHOLDER, build_container, build_pod_template, build_rank_variables
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import RENDEZVOUS_PORT, Task, build_rendezvous_variables

JOB_CONTAINER = "trainer"
PERMANENT_EXIT_CODES = (1, 2, 126, 127)
"""Exit codes of `devkit finetune` after which another attempt fails as well: the loss is no number; settings, or a full
disk; and those of a command that is not there. 3 is not among them: a GPU that falls off leaves so, too."""


def render_batch_job(task: Task, settings: KubernetesSettings) -> JobManifests:
    """The Job, with the Service by which several nodes find the first."""
    pods = PatchTarget("Job", task.name, "/spec/template")
    files = {"job.yaml": [_job(task, settings)]}
    if task.nodes > 1:
        files["service.yaml"] = [build_headless_service(task)]
    return JobManifests(
        kind="Job",
        files=files,
        owner=PatchTarget("Job", task.name, ""),
        suspend=PatchTarget("Job", task.name, "/spec/suspend"),
        pods=(pods,),
    )


def _job(task: Task, settings: KubernetesSettings) -> Manifest:
    is_alone = task.nodes == 1
    address = "localhost" if is_alone else f"{task.name}-0.{task.name}"
    variables = build_rank_variables(
        build_rendezvous_variables(task, address=address, rank="0" if is_alone else INDEX_PLACEHOLDER)
    )
    template = build_pod_template(task, settings, build_container(task, settings, JOB_CONTAINER, variables))
    spec: Manifest = {}
    if not is_alone:
        template["spec"] = {"subdomain": Commented(task.name, "The Service's name: pods find each other by it.")} | (
            template["spec"]
        )
        spec |= {
            "completionMode": Commented("Indexed", "The pod's index is the node's rank."),
            "completions": task.nodes,
            "parallelism": task.nodes,
        }
    spec |= build_retry_policy(task)
    spec["podFailurePolicy"] = build_pod_failure_policy(task)
    spec["template"] = template
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": task.name, "labels": build_labels(task, TRAINING_COMPONENT)},
        "spec": spec,
    }


def build_retry_policy(task: Task) -> Manifest:
    """How often, how long, and how long it stays."""
    return {
        "backoffLimit": Commented(
            RETRIES * task.nodes, f"Failures of a pod: {RETRIES} for each node. Preemptions are none."
        ),
        "activeDeadlineSeconds": Commented(
            task.time_s,
            "The longest run, attempts and waiting for a node included. Then the pods get SIGTERM and save, and the "
            "Job has failed with DeadlineExceeded; the same command goes on. A suspended Job's time begins anew.",
        ),
        "ttlSecondsAfterFinished": Commented(JOB_TTL_S, "A week; then the Job goes with its pods and their logs."),
        "podReplacementPolicy": Commented(
            "Failed", "The next attempt starts when the last has ended: both write to --output."
        ),
    }


def build_pod_failure_policy(task: Task) -> Manifest:
    """What an end of a pod means, the first rule that holds.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [
        Commented(disrupted, "Evicted, preempted, its node taken back or drained: nobody's failure."),
        Commented(
            {"action": "Ignore", "onExitCodes": _codes(RESUME_EXIT_CODE)},
            f"{RESUME_EXIT_CODE}: told to end, and saved. The next pod goes on from there.",
        ),
    ]
    if not task.is_distributed:
        hopeless = {"action": "FailJob", "onExitCodes": _codes(*PERMANENT_EXIT_CODES)}
        rules.append(
            Commented(hopeless, "What another attempt would meet as well: settings, a full disk, a loss of nan.")
        )
    return {"rules": rules}


def _codes(*codes: int) -> Manifest:
    return {"containerName": JOB_CONTAINER, "operator": "In", "values": list(codes)}


def build_headless_service(task: Task) -> Manifest:
    """Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": task.name, "labels": build_labels(task, "rendezvous")},
        "spec": {
            "clusterIP": Commented("None", "Headless: it gives each pod a name, and carries no traffic."),
            "publishNotReadyAddresses": Commented(True, "They look for each other before they are ready."),
            "selector": {"batch.kubernetes.io/job-name": task.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }
