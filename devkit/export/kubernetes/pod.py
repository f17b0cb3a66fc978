"""The pod of one node: the same for every kind of job."""

from typing import Any

from devkit.export.kubernetes.manifest import (
    TRAINING_COMPONENT,
    Commented,
    Manifest,
    build_labels,
    build_training_selector,
)
from devkit.export.kubernetes.resources import CLAIM_NAME, build_resources, build_tolerations, name_claim_template
from devkit.export.kubernetes.settings import KubernetesSettings, parse_node_selector
from devkit.export.kubernetes.storage import SECURE_CONTAINER, SECURE_POD, build_pod_volumes, build_volume_mounts
from devkit.export.task import Task

INDEX_PLACEHOLDER = "\0"
"""In place of a rank: the pod's index, which no manifest can know."""

_NCCL = (
    "NCCL says what it warns of, which is little. Not set here: NCCL_SOCKET_IFNAME, since NCCL leaves lo and docker* "
    "out by itself and the name differs between clusters (a pod with several networks: --env NCCL_SOCKET_IFNAME=eth0); "
    "NCCL_IB_DISABLE and NCCL_P2P_DISABLE, which hide a fault and cost the speed."
)


def build_pod_template(
    task: Task, settings: KubernetesSettings, container: Manifest, *, restart: str = "Never"
) -> Manifest:
    """Labels, annotations and spec of the pods. `restart` is "" where the kind of job says it elsewhere."""
    return {
        "metadata": {
            "labels": build_pod_labels(task),
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": Commented(
                    "false", "A node is not emptied to save it while it trains. Taking back a spot node goes on."
                ),
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": build_pod_spec(task, settings, container, restart=restart),
    }


def build_pod_labels(task: Task) -> Manifest:
    """The pods' labels. Sources of the last: https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/"""
    no_sidecar = "In a mesh a proxy beside the training would outlive it, and the job would never be complete."
    return {**build_labels(task, TRAINING_COMPONENT), "sidecar.istio.io/inject": Commented("false", no_sidecar)}


def build_pod_spec(task: Task, settings: KubernetesSettings, container: Manifest, *, restart: str) -> Manifest:
    """All of the pod but its container's own."""
    spec: Manifest = {}
    if restart:
        spec["restartPolicy"] = Commented(
            restart, "Each attempt is a pod of its own: its exit code decides what follows."
        )
    spec["terminationGracePeriodSeconds"] = build_grace_period(task)
    spec["automountServiceAccountToken"] = Commented(False, "The job asks nothing of the cluster.")
    spec["enableServiceLinks"] = Commented(False, "No variables named after services: the environment is that below.")
    for field, value in (
        ("serviceAccountName", settings.service_account),
        ("priorityClassName", settings.priority_class),
    ):
        if value:
            spec[field] = value
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    spec["securityContext"] = {**SECURE_POD}
    if settings.gpu_group is not None and task.accelerator.count:
        why = "Who may open /dev/kfd and /dev/dri on the nodes; the user of the image is not root."
        spec["securityContext"]["supplementalGroups"] = Commented([settings.gpu_group], why)
    spec |= build_placement(task, settings)
    if settings.device_class:
        spec["resourceClaims"] = [{"name": CLAIM_NAME, "resourceClaimTemplateName": name_claim_template(task)}]
    spec["containers"] = [container]
    spec["volumes"] = build_pod_volumes(task, settings)
    return spec


def build_grace_period(task: Task) -> Commented:
    """How long a pod has after SIGTERM."""
    return Commented(
        task.grace_s,
        "After SIGTERM the run finishes its step, saves and leaves with 75; SIGKILL comes after so many seconds (30 "
        "unless set). The seconds field of the checkpoint events in metrics.jsonl says how long a save takes.",
    )


def build_placement(task: Task, settings: KubernetesSettings) -> Manifest:
    """Which nodes the pods may go to."""
    found: Manifest = {}
    if settings.node_selector:
        found["nodeSelector"] = dict(parse_node_selector(settings))
    found["tolerations"] = build_tolerations(task, settings)
    if settings.topology and not settings.queue and task.nodes > 1:
        term = {"labelSelector": {"matchLabels": build_training_selector(task)}, "topologyKey": settings.topology}
        pods = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        found["affinity"] = Commented(pods, "All nodes where the first is: they talk at every step.")
    return found


def build_container(task: Task, settings: KubernetesSettings, name: str, variables: list[Manifest]) -> Manifest:
    """The whole container; `variables` come after the task's."""
    return {
        "name": name,
        **build_container_run(task, variables),
        "resources": build_resources(task, settings),
        **build_container_context(task),
    }


def build_container_run(task: Task, variables: list[Manifest]) -> Manifest:
    """What the container runs."""
    return {
        "image": task.image,
        "command": escape_command(task.command),
        "env": [*build_pod_environment(task), *variables],
    }


def build_container_context(task: Task) -> Manifest:
    """What holds the container: folder, rights, mounts."""
    return {
        "workingDir": task.workspace,
        "securityContext": SECURE_CONTAINER,
        "volumeMounts": build_volume_mounts(task),
    }


def escape_command(words: tuple[str, ...]) -> list[str]:
    """The words as the API wants them: what looks like a variable is written so that it stays as it is."""
    return [escape_variables(word) for word in words]


def build_pod_environment(task: Task) -> list[Any]:
    """The variables that are the same on every engine, and NCCL's where nodes talk to each other."""
    once = dict(task.environment)  # the last of a name counts, and a list in which one stands twice cannot be merged
    found: list[Any] = [{"name": name, "value": escape_variables(value)} for name, value in once.items()]
    if task.nodes > 1 and task.accelerator.count and "NCCL_DEBUG" not in once:
        found.append(Commented({"name": "NCCL_DEBUG", "value": "WARN"}, _NCCL))
    return found


def escape_variables(text: str) -> str:
    """`text` such that the kubelet, which puts variables in for $(NAME) and makes $$ a $, makes it `text` again.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container
    """
    found = []
    for position, char in enumerate(text):
        found.append("$$" if char == "$" and text[position + 1 : position + 2] in ("$", "(") else char)
    return "".join(found)


def build_rank_variables(variables: tuple[tuple[str, str], ...]) -> list[Manifest]:
    """torchrun's variables; `BY_INDEX` is the pod's index, which the Job's controller writes on it.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    return [
        {"name": name, "valueFrom": index}
        if value == INDEX_PLACEHOLDER
        else {"name": name, "value": escape_variables(value)}
        for name, value in variables
    ]
