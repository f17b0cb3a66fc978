"""What is laid over the job: a queue, spot nodes. JSON patches, which every kind of object takes alike.

A strategic merge knows the lists of Kubernetes' own kinds alone: in a TrainJob it would put whole lists in the place of
others. Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/patches/
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.pod import placement
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.kubernetes.workload import Place, Workload
from devkit.export.task import Task

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Source: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
GROUP = "kueue.x-k8s.io/podset-group-name"
"""Sources: https://kueue.sigs.k8s.io/docs/tasks/run/topology_aware_scheduling/ and …/run/leaderworkerset/"""

SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
)
"""How spot nodes are labelled by those who make them.
Sources: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/spot-vms,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html,
https://learn.microsoft.com/azure/aks/spot-node-pool, https://karpenter.sh/docs/concepts/scheduling/"""
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot")
"""Taints of spot nodes: the first by advice of GKE, the second by AKS itself, the third by hand in many clusters."""


@dataclass(frozen=True)
class Overlay:
    """A folder laid over another: its name, what it is for, and its patches by the object they are for."""

    name: str
    about: str
    patches: tuple[tuple[Place, list[Any]], ...]


def overlays_of(task: Task, settings: KubernetesSettings, workload: Workload) -> list[Overlay]:
    """Those that the settings ask for, the lowest first."""
    found = []
    if settings.queue:
        found.append(_queue(task, settings, workload))
    if task.is_spot:
        found.append(_spot(task, settings, workload))
    return found


def _queue(task: Task, settings: KubernetesSettings, workload: Workload) -> Overlay:
    admitted = Noted(
        [
            _add(f"{workload.owner.pointer}/metadata/labels/{_escaped(QUEUE_LABEL)}", settings.queue),
            _add(workload.suspend.pointer, True),
        ],
        "Kueue starts it once its quota has room for all nodes, and stops it, with SIGTERM, when others go first.",
    )
    patches: list[tuple[Place, Any]] = [(workload.owner, admitted)]
    if settings.topology and task.nodes > 1:
        is_group = len(workload.pods) > 1
        patches += [(place, _together(task, settings, place, is_group=is_group)) for place in workload.pods]
    about = f"Through the queue {settings.queue} of Kueue."
    return Overlay("queue", about, tuple(patches))


def _together(task: Task, settings: KubernetesSettings, place: Place, *, is_group: bool) -> Noted:
    annotations = f"{place.pointer}/metadata/annotations"
    operations = [_add(f"{annotations}/{_escaped(REQUIRED_TOPOLOGY)}", settings.topology)]
    if is_group:
        operations.append(_add(f"{annotations}/{_escaped(GROUP)}", task.name))
    return Noted(operations, "All nodes within one of these: they talk at every step.")


def _spot(task: Task, settings: KubernetesSettings, workload: Workload) -> Overlay:
    about = (
        "On nodes that may be taken back at any time. AWS tells two minutes before, Azure 30 s; Google gives pods 15 "
        "of its 30 s, more where the node pool says so. What a pod has is the least of that and its own "
        f"{task.grace_s} s."
    )
    return Overlay("spot", about, tuple((place, list(_on_spot(task, settings, place))) for place in workload.pods))


def _on_spot(task: Task, settings: KubernetesSettings, place: Place) -> Iterator[Any]:
    for taint in SPOT_TAINTS:
        toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
        yield _add(f"{place.pointer}/spec/tolerations/-", toleration)
    if settings.node_selector:
        return
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in SPOT_LABELS]
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    has_affinity = "affinity" in placement(task, settings)
    where = "affinity/nodeAffinity" if has_affinity else "affinity"
    yield Noted(
        _add(f"{place.pointer}/spec/{where}", nodes if has_affinity else {"nodeAffinity": nodes}),
        "One of these labels, as GKE, EKS, AKS and Karpenter put them. Elsewhere give --node-selector, and it goes.",
    )


def _add(path: str, value: Any) -> Manifest:  # noqa: ANN401 - any value of a manifest
    return {"op": "add", "path": path, "value": value}


def _escaped(key: str) -> str:
    """A key within a JSON pointer. Source: RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")
