"""batch/v1 Job: one node, or several, indexed, with a headless Service."""

from devkit.export.kubernetes.manifest import (
    JOB_TTL_S,
    RESUME_EXIT_CODE,
    RETRIES,
    Commented,
    JobManifests,
    Manifest,
    PatchTarget,
    build_labels,
)
from devkit.export.kubernetes.pod import (
    INDEX_PLACEHOLDER,
    build_container,
    build_job_labels,
    build_pod_template,
    build_rank_variables,
)
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import RENDEZVOUS_PORT, Task, build_rendezvous_variables

JOB_CONTAINER = "trainer"
PERMANENT_EXIT_CODES = (1, 2, 126, 127)
"""Exit codes of `devkit finetune` after which another attempt fails as well: a NaN loss; wrong settings, or a full
disk; and those of a missing command. 3 is not among them: a lost GPU ends so, too; nor is 69, a lost process."""
PERMANENT_EXIT_CODES_OF_ANY_COMMAND = (2, 126, 127)
"""Those of wrong arguments and of a missing command. Any exception of Python's ends with 1."""


def render_batch_job(task: Task, settings: KubernetesSettings) -> JobManifests:
    """Render the Job, with the Service by which several nodes find the first."""
    pods = PatchTarget("Job", task.name, "/spec/template")
    files = {"job.yaml": [_build_job(task, settings)]}
    if task.nodes > 1:
        files["service.yaml"] = [build_headless_service(task)]
    return JobManifests(
        kind="Job",
        files=files,
        owner=PatchTarget("Job", task.name, ""),
        suspend=PatchTarget("Job", task.name, "/spec/suspend"),
        pods=(pods,),
    )


def _build_job(task: Task, settings: KubernetesSettings) -> Manifest:
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
        "metadata": {"name": task.name, "labels": build_job_labels(task, settings)},
        "spec": spec,
    }


def build_retry_policy(task: Task) -> Manifest:
    """Build attempts, deadline and lifetime of the Job."""
    return {
        "backoffLimit": Commented(
            RETRIES * task.nodes, f"Failures of a pod: {RETRIES} for each node. Preemptions do not count."
        ),
        "activeDeadlineSeconds": Commented(
            task.time_s,
            "Time limit of all attempts, waiting for a node included. Then the pods get SIGTERM and save, and the "
            "Job has failed with DeadlineExceeded; the same command resumes. A suspended Job's time starts over.",
        ),
        "ttlSecondsAfterFinished": Commented(
            JOB_TTL_S, "A week; then the Job is deleted with its pods and their logs."
        ),
        "podReplacementPolicy": Commented(
            "Failed", "The next attempt starts when the last has ended: both write to --output."
        ),
    }


def build_pod_failure_policy(task: Task) -> Manifest:
    """Build the rules on how a pod's end counts, the first that matches.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    rules = [
        Commented(disrupted, "Evicted, preempted, its node reclaimed or drained: not counted as a failure."),
        Commented(
            {"action": "Ignore", "onExitCodes": _match_codes(RESUME_EXIT_CODE)},
            f"{RESUME_EXIT_CODE}: stopped, and saved. The next pod resumes from there.",
        ),
    ]
    if not task.is_distributed:
        codes: tuple[int, ...] = PERMANENT_EXIT_CODES
        why = "settings, a full disk, a NaN loss"
        if task.is_own_command:
            codes, why = PERMANENT_EXIT_CODES_OF_ANY_COMMAND, "wrong arguments, or no such command"
        hopeless = {"action": "FailJob", "onExitCodes": _match_codes(*codes)}
        rules.append(Commented(hopeless, f"Another attempt would fail, too: {why}."))
    return {"rules": rules}


def _match_codes(*codes: int) -> Manifest:
    return {"containerName": JOB_CONTAINER, "operator": "In", "values": list(codes)}


def build_headless_service(task: Task) -> Manifest:
    """Build the Service. Source: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/."""
    return {
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
