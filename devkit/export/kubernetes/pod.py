"""The pod of one node: the same for every kind of job."""

from typing import Any

from devkit.export.kubernetes.manifest import (
    TRAINING_COMPONENT,
    Commented,
    Manifest,
    build_labels,
)
from devkit.export.kubernetes.resources import build_resources, build_tolerations
from devkit.export.kubernetes.settings import KubernetesSettings, parse_label, parse_node_selector
from devkit.export.kubernetes.storage import (
    build_container_security,
    build_pod_security,
    build_pod_volumes,
    build_volume_mounts,
)
from devkit.export.task import Task

SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
)
"""Labels of spot nodes, by cloud or autoscaler.
Sources: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html,
https://learn.microsoft.com/azure/aks/spot-node-pool, https://karpenter.sh/docs/concepts/scheduling/"""
INDEX_PLACEHOLDER = "\0"
"""Placeholder of a rank: the pod's index, which no manifest can know."""

_NCCL = (
    "NCCL prints warnings only. Not set here: NCCL_SOCKET_IFNAME, since NCCL leaves lo and docker* "
    "out by itself and the name differs between clusters (a pod with several networks: --env NCCL_SOCKET_IFNAME=eth0); "
    "NCCL_IB_DISABLE and NCCL_P2P_DISABLE, which hide a fault and cost the speed."
)


def build_pod_template(
    task: Task, settings: KubernetesSettings, container: Manifest, *, restart: str = "Never"
) -> Manifest:
    """Build labels, annotations and spec of the pods. `restart` is "" where the kind of job sets it elsewhere."""
    return {
        "metadata": {
            "labels": build_pod_labels(task, settings),
            "annotations": {
                **dict(text.partition("=")[::2] for text in settings.annotation),
                "cluster-autoscaler.kubernetes.io/safe-to-evict": Commented(
                    "false", "No autoscaler removes a node while it trains. Spot nodes are reclaimed all the same."
                ),
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": build_pod_spec(task, settings, container, restart=restart),
    }


def build_job_labels(task: Task, settings: KubernetesSettings) -> dict[str, str]:
    """Build the labels of the job's own object: the user's, and those that devkit selects by."""
    return {
        **dict(parse_label(text, "--label") for text in settings.label),
        **build_labels(task, TRAINING_COMPONENT),
    }


def build_pod_labels(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build the pods' labels. Source of the last: https://istio.io/latest/docs/setup/additional-setup/sidecar-injection/"""
    no_sidecar = "In a mesh a proxy beside the training would outlive it, and the job would never be complete."
    return {**build_job_labels(task, settings), "sidecar.istio.io/inject": Commented("false", no_sidecar)}


def build_pod_spec(task: Task, settings: KubernetesSettings, container: Manifest, *, restart: str) -> Manifest:
    """Build the spec of the pod around its container."""
    spec: Manifest = {}
    if restart:
        spec["restartPolicy"] = Commented(restart, "Each attempt is a new pod: its exit code decides what follows.")
    spec["terminationGracePeriodSeconds"] = build_grace_period(task)
    spec["automountServiceAccountToken"] = Commented(False, "The job does not use the cluster's API.")
    spec["enableServiceLinks"] = Commented(False, "No variables for services: the environment is that below.")
    for field, value in (
        ("serviceAccountName", settings.service_account),
        ("priorityClassName", settings.priority_class),
        ("schedulerName", settings.scheduler),
    ):
        if value:
            spec[field] = value
    if settings.host_network:
        spec["hostNetwork"] = Commented(True, "Requested: NCCL sees the node's own interfaces. One such job on a node.")
        spec["dnsPolicy"] = Commented("ClusterFirstWithHostNet", "Names of the cluster are found all the same.")
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    spec["securityContext"] = build_pod_security(task, settings)
    if settings.gpu_group is not None and task.accelerator.count:
        why = "The group that may open /dev/kfd and /dev/dri on the nodes; the user of the image is not root."
        spec["securityContext"]["supplementalGroups"] = Commented([settings.gpu_group], why)
    spec |= build_placement(task, settings)
    spec["containers"] = [container]
    spec["volumes"] = build_pod_volumes(task, settings)
    return spec


def build_grace_period(task: Task) -> Commented:
    """Build the grace period of a pod."""
    return Commented(
        task.grace_s,
        "After SIGTERM the run finishes its step, saves and exits with 75; SIGKILL follows after so many seconds (30 "
        "unless set). The seconds field of the checkpoint events in metrics.jsonl is the time of a save.",
    )


def build_placement(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build node selector, tolerations and affinity of the pods."""
    found: Manifest = {}
    if settings.node_selector:
        found["nodeSelector"] = dict(parse_node_selector(settings))
    found["tolerations"] = build_tolerations(task, settings)
    if task.is_spot and not settings.node_selector:
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in SPOT_LABELS
        ]
        nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        found["affinity"] = Commented(
            {"nodeAffinity": nodes},
            "Spot nodes have one of these labels, set by GKE, EKS, AKS and Karpenter. Elsewhere give --node-selector, which "
            "replaces it. AWS warns two minutes before it reclaims a node, Azure 30 s; Google leaves pods 15 s of its 30 s, "
            "more where the node pool says so.",
        )
    return found


def build_container(task: Task, settings: KubernetesSettings, name: str, variables: list[Manifest]) -> Manifest:
    """Build the whole container; `variables` come after the task's."""
    return {
        "name": name,
        **build_container_run(task, variables),
        "resources": build_resources(task, settings),
        **build_container_context(task, settings),
    }


def build_container_run(task: Task, variables: list[Manifest]) -> Manifest:
    """Build image, command and environment of the container."""
    return {
        "image": task.image,
        "command": [escape_variables(word) for word in task.command],
        "env": [*build_pod_environment(task), *variables],
    }


def build_container_context(task: Task, settings: KubernetesSettings) -> Manifest:
    """Build working directory, security context and mounts of the container."""
    return {
        "workingDir": task.start_folder,
        "securityContext": build_container_security(task, settings, pins_memory=bool(settings.rdma)),
        "volumeMounts": build_volume_mounts(task),
    }


def build_pod_environment(task: Task) -> list[Any]:
    """Build the variables that are the same on every engine, and NCCL's for several nodes."""
    once = dict(task.environment)  # the last of a name counts, and a list with a name twice cannot be merged
    found: list[Any] = [{"name": name, "value": escape_variables(value)} for name, value in once.items()]
    if task.nodes > 1 and task.accelerator.count and "NCCL_DEBUG" not in once:
        found.append(Commented({"name": "NCCL_DEBUG", "value": "WARN"}, _NCCL))
    return found


def escape_variables(text: str) -> str:
    """Escape text for the kubelet, which expands $(NAME) and turns $$ into $.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#Container
    """
    return "".join(
        "$$" if char == "$" and text[position + 1 : position + 2] in ("$", "(") else char
        for position, char in enumerate(text)
    )


def build_rank_variables(variables: tuple[tuple[str, str], ...]) -> list[Manifest]:
    """Build torchrun's variables; `INDEX_PLACEHOLDER` becomes the pod's index, from the annotation of the Job's controller.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    return [
        {"name": name, "valueFrom": index}
        if value == INDEX_PLACEHOLDER
        else {"name": name, "value": escape_variables(value)}
        for name, value in variables
    ]
