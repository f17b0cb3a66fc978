"""Checks of the nodes: the doctor on each of them, and the proof on those that the job would use.

Reports leave by the pods' logs, since whoever may start a job may read them: no rights of the pods' own, no storage
that every node can write to. Nothing of the node is mounted, so what only the node itself can see is not looked at.
"""

from devkit.export.kubernetes.checks_scripts import DONE, REPORTS, doctor_script, verify_script
from devkit.export.kubernetes.gpus import CLAIM, claim_template, quantity, resource_of
from devkit.export.kubernetes.labelled import INSTANCE, labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.overlays import QUEUE_LABEL
from devkit.export.kubernetes.pod import literal, placement
from devkit.export.kubernetes.settings import KubernetesSettings, selected
from devkit.export.kubernetes.storage import SECURE_CONTAINER, SECURE_POD
from devkit.export.labels import LONGEST
from devkit.export.quantities import GIB
from devkit.export.task import Task
from devkit.solver.model import Vendor

DOCTOR, VERIFY = "doctor", "verify"
"""The components: names of folders, ends of names, and labels."""

GPU_NODES = {
    Vendor.NVIDIA: ("nvidia.com/gpu.present", "true"),
    Vendor.ROCM: ("feature.node.kubernetes.io/amd-gpu", "true"),
}
"""Labels of nodes with a GPU. Sources: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
and https://github.com/ROCm/gpu-operator (the rule for Node Feature Discovery)"""

PROOF_SECONDS = 3600
"""Longest life of a proof's pod: pulling the image, 90 s for the doctor, 1800 s for the proof."""
KEPT_SECONDS = 86400
_MIB = 1 << 20
_PROOF_BYTES, _PROOF_BYTES_PER_GPU = 8 * GIB, 4 * GIB
"""torch with CUDA and the reference on the CPU, and a process for each GPU that adds up over NCCL."""
_PROOF_CPUS = 4


def doctor_objects(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """A DaemonSet: the doctor on every node with a GPU, without taking one."""
    labels = _labels(task, DOCTOR)
    spec: Manifest = {
        "selector": {"matchLabels": {INSTANCE: labels[INSTANCE]}},
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": Noted("100%", "kubectl rollout restart asks all nodes at once.")},
        },
        "template": {"metadata": {"labels": labels}, "spec": _doctor_pod(task, settings)},
    }
    metadata = {"name": _name(task, DOCTOR), "labels": labels}
    return [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}]


def verify_objects(task: Task, settings: KubernetesSettings) -> list[Manifest]:
    """A Job that proves as many nodes as the job would use, each with its GPUs; with their claim where one is asked.

    Sources: https://kubernetes.io/docs/tasks/job/, backoffLimitPerIndex is stable since Kubernetes 1.33:
    https://kubernetes.io/blog/2025/05/13/kubernetes-v1-33-jobs-backoff-limit-per-index-goes-ga/
    """
    nodes = settings.verify_nodes or task.nodes
    labels = _labels(task, VERIFY)
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": Noted(nodes, "Nodes to prove: as many as the job has, unless --verify-nodes says otherwise."),
        "parallelism": nodes,
        "backoffLimitPerIndex": Noted(0, "A proof that failed is an answer, and the other nodes go on."),
        "ttlSecondsAfterFinished": Noted(KEPT_SECONDS, "A day, in which collect.sh reads the logs."),
        "template": {"metadata": {"labels": labels}, "spec": _verify_pod(task, settings)},
    }
    metadata: Manifest = {"name": _name(task, VERIFY), "labels": labels}
    if settings.queue:
        metadata["labels"] = labels | {QUEUE_LABEL: settings.queue}
        spec = {"suspend": Noted(True, "Kueue starts it: its quota counts these GPUs, too."), **spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return [_own_claim(task, settings), job] if settings.device_class else [job]


def instance_of(task: Task, component: str) -> str:
    """Whose the objects and pods are: not the job's, which finds its own pods by that."""
    return f"{task.name}-{component}"


def _labels(task: Task, component: str) -> dict[str, str]:
    return labels_of(task, component) | {INSTANCE: instance_of(task, component)}


def _name(task: Task, component: str) -> str:
    """The object's name, short enough for a pod's: the component, an index and five letters come behind.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    end = f"-{component}"
    return task.name[: LONGEST - len(f"{end}-9999")].rstrip("-") + end


def _doctor_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    nvidia = task.accelerator.vendor is Vendor.NVIDIA and task.accelerator.count > 0
    variables = [_node_name()]
    if nvidia:
        variables += [
            Noted(
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                "To look at all GPUs and take none. It works where pods get NVIDIA's runtime: by default, or "
                "by --runtime-class nvidia, which GPU Operator 25.10 and later ask for. Where clusters forbid it, the "
                "doctor sees no GPU, and the Job in checks/verify those it is given.",
            ),
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ]
    container = {
        **_container(task, doctor_script(), variables),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": Noted(
            {"exec": {"command": ["test", "-e", DONE]}, "periodSeconds": 5},
            "Ready means reported: kubectl rollout status waits for every node.",
        ),
    }
    runtime: Manifest = {"runtimeClassName": settings.runtime_class} if settings.runtime_class and nvidia else {}
    places = placement(task, settings)
    found: Manifest = {"nodeSelector": _gpu_nodes(task, settings), "tolerations": places["tolerations"]}
    return {**_pod(settings), **runtime, **found, "containers": [container], "volumes": [_reports()]}


def _verify_pod(task: Task, settings: KubernetesSettings) -> Manifest:
    count = task.accelerator.count
    container = _container(task, verify_script(is_quick=count < 2), [_node_name()])
    container["resources"] = _proof_resources(task, settings)
    container["volumeMounts"] += [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - inside the container
    places = placement(task, settings)
    places.pop("affinity", None)
    apart = {
        "labelSelector": {"matchLabels": {INSTANCE: instance_of(task, VERIFY)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": Noted(PROOF_SECONDS, "Of each pod, from when it has a node."),
        **_pod(settings),
        **places,
        "affinity": Noted(
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "A node each, however many of them would fit on one.",
        ),
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.device_class:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": _claim_name(task)}]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(task.shm_bytes)}}
    return {**spec, "containers": [container], "volumes": [_reports(), shm]}


def _proof_resources(task: Task, settings: KubernetesSettings) -> Manifest:
    """The GPUs of the job on one node; of memory what a proof takes, and not what the job would."""
    count = task.accelerator.count
    memory = quantity(_PROOF_BYTES + _PROOF_BYTES_PER_GPU * count + task.shm_bytes)
    found: Manifest = {
        "requests": {"cpu": min(task.cpus, _PROOF_CPUS), "memory": memory},
        "limits": {"memory": memory},
    }
    resource = resource_of(task, settings)
    if resource:
        found["limits"][resource] = count
    if settings.device_class:
        found["claims"] = [{"name": CLAIM}]
    return found


def _gpu_nodes(task: Task, settings: KubernetesSettings) -> Manifest | Noted:
    if settings.node_selector or task.accelerator.count == 0:
        return dict(selected(settings))
    label = GPU_NODES[task.accelerator.vendor]
    return Noted(dict([label]), "Nodes with a GPU, as their discovery labels them; --node-selector takes its place.")


def _claim_name(task: Task) -> str:
    return f"{_name(task, VERIFY)}-gpu"


def _own_claim(task: Task, settings: KubernetesSettings) -> Manifest:
    """A template of its own, so that removing the proof leaves the job's."""
    return claim_template(task, settings) | {"metadata": {"name": _claim_name(task)}}


def _pod(settings: KubernetesSettings) -> Manifest:
    """What the pods of both have: nothing of the cluster, nothing of the node, no rights."""
    found: Manifest = {
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": Noted(False, "It asks nothing of the cluster."),
        "enableServiceLinks": False,
        "securityContext": SECURE_POD,
    }
    if settings.service_account:
        found["serviceAccountName"] = settings.service_account
    if settings.pull_secret:
        found["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return found


def _container(task: Task, script: str, variables: list[Manifest | Noted]) -> Manifest:
    return {
        "name": "check",
        "image": task.image,
        "command": ["sh", "-c", literal(script)],
        "env": variables,
        "workingDir": REPORTS,
        "securityContext": SECURE_CONTAINER,
        "volumeMounts": [{"name": "reports", "mountPath": REPORTS}],
    }


def _node_name() -> Manifest | Noted:
    field = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    return Noted({"name": "NODE_NAME", "valueFrom": field}, "Reports name no machine: this says whose each is.")


def _reports() -> Manifest:
    return {"name": "reports", "emptyDir": {"sizeLimit": quantity(256 * _MIB)}}
