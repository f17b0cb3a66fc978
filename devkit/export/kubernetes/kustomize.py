"""What is laid over the job: a queue, spot nodes. JSON patches, which every kind of object takes alike.

A strategic merge knows the lists of Kubernetes' own kinds alone: in a TrainJob it would put whole lists in the place of
others. Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/patches/
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit import __version__
from devkit.export.kubernetes.manifest import (
    Commented,
    JobManifests,
    Manifest,
    PatchTarget,
    render_yaml,
    strip_comments,
)
from devkit.export.kubernetes.pod import build_placement
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.task import Task
from devkit.render.files import Artifact

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Source: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""
TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-required-topology"
POD_GROUP_ANNOTATION = "kueue.x-k8s.io/podset-group-name"
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
class KustomizeOverlay:
    """A folder laid over another: its name, what it is for, and its patches by the object they are for."""

    name: str
    about: str
    patches: tuple[tuple[PatchTarget, list[Any]], ...]


def build_overlays(task: Task, settings: KubernetesSettings, workload: JobManifests) -> list[KustomizeOverlay]:
    """Those that the settings ask for, the lowest first."""
    found = []
    if settings.queue:
        found.append(_queue(task, settings, workload))
    if task.is_spot:
        found.append(_spot(task, settings, workload))
    return found


def _queue(task: Task, settings: KubernetesSettings, workload: JobManifests) -> KustomizeOverlay:
    admitted = Commented(
        [
            _add(f"{workload.owner.pointer}/metadata/labels/{_escaped(QUEUE_LABEL)}", settings.queue),
            _add(workload.suspend.pointer, True),
        ],
        "Kueue starts it once its quota has room for all nodes, and stops it, with SIGTERM, when others go first.",
    )
    patches: list[tuple[PatchTarget, Any]] = [(workload.owner, admitted)]
    if settings.topology and task.nodes > 1:
        is_group = len(workload.pods) > 1
        patches += [(place, _together(task, settings, place, is_group=is_group)) for place in workload.pods]
    about = f"Through the queue {settings.queue} of Kueue."
    return KustomizeOverlay("queue", about, tuple(patches))


def _together(task: Task, settings: KubernetesSettings, place: PatchTarget, *, is_group: bool) -> Commented:
    annotations = f"{place.pointer}/metadata/annotations"
    operations = [_add(f"{annotations}/{_escaped(TOPOLOGY_ANNOTATION)}", settings.topology)]
    if is_group:
        operations.append(_add(f"{annotations}/{_escaped(POD_GROUP_ANNOTATION)}", task.name))
    return Commented(operations, "All nodes within one of these: they talk at every step.")


def _spot(task: Task, settings: KubernetesSettings, workload: JobManifests) -> KustomizeOverlay:
    about = (
        "On nodes that may be taken back at any time. AWS tells two minutes before, Azure 30 s; Google gives pods 15 "
        "of its 30 s, more where the node pool says so. What a pod has is the least of that and its own "
        f"{task.grace_s} s."
    )
    return KustomizeOverlay(
        "spot", about, tuple((place, list(_on_spot(task, settings, place))) for place in workload.pods)
    )


def _on_spot(task: Task, settings: KubernetesSettings, place: PatchTarget) -> Iterator[Any]:
    for taint in SPOT_TAINTS:
        toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
        yield _add(f"{place.pointer}/spec/tolerations/-", toleration)
    if settings.node_selector:
        return
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in SPOT_LABELS]
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    has_affinity = "affinity" in build_placement(task, settings)
    where = "affinity/nodeAffinity" if has_affinity else "affinity"
    yield Commented(
        _add(f"{place.pointer}/spec/{where}", nodes if has_affinity else {"nodeAffinity": nodes}),
        "One of these labels, as GKE, EKS, AKS and Karpenter put them. Elsewhere give --node-selector, and it goes.",
    )


def _add(path: str, value: Any) -> Manifest:  # noqa: ANN401 - any value of a manifest
    return {"op": "add", "path": path, "value": value}


def _escaped(key: str) -> str:
    """A key within a JSON pointer. Source: RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")


# The folders: base with the job, overlays upon each other, storage and files apart; each for `kubectl apply -k`.

KUSTOMIZATION_FILE = "kustomization.yaml"
GENERATED_NOTICE = (
    f"Written by devkit {__version__}. To change it, edit [job] and [job.kubernetes] in devkit.toml and run "
    "`devkit export kubernetes` again."
)


def render_folder(
    folder: str, about: str, files: Mapping[str, Sequence[Manifest]], settings: KubernetesSettings
) -> list[Artifact]:
    """A folder of objects with its kustomization."""
    objects = [
        Artifact.from_text(f"{folder}/{name}", render_yaml(documents, heading=GENERATED_NOTICE))
        for name, documents in files.items()
    ]
    return [render_kustomization(folder, about, list(files), settings), *objects]


def render_overlay(overlay: KustomizeOverlay, below: str, settings: KubernetesSettings) -> Artifact:
    """One overlay, upon the folder `below`."""
    patches = []
    for place, operations in overlay.patches:
        target = {"kind": place.kind, "name": place.name}
        patches.append({"target": target, "patch": _patch_text(operations)})
    return render_kustomization(
        f"overlays/{overlay.name}", overlay.about, [f"../../{below}"], settings, patches=patches
    )


def render_kustomization(
    folder: str,
    about: str,
    resources: Sequence[str],
    settings: KubernetesSettings,
    *,
    patches: Sequence[Manifest] = (),
) -> Artifact:
    """kustomization.yaml of a folder, "" for the topmost."""
    content: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if settings.namespace:
        content["namespace"] = settings.namespace
    order = "As they stand here: a TrainJob whose runtime comes after it is refused."
    content["sortOptions"] = {"order": Commented("fifo", order)}
    content["resources"] = list(resources)
    if patches:
        content["patches"] = list(patches)
    path = f"{folder}/{KUSTOMIZATION_FILE}" if folder else KUSTOMIZATION_FILE
    return Artifact.from_text(path, render_yaml([content], heading=f"{GENERATED_NOTICE}\n{about}"))


def _patch_text(operations: object) -> str:
    """The operations as the text that kustomize wants, the reasons as comments within."""
    reason = ""
    if isinstance(operations, Commented):
        reason, operations = operations.because, operations.value
    lines = [f"# {reason}"] if reason else []
    for each in operations if isinstance(operations, list) else ():
        if isinstance(each, Commented):
            lines.append(f"# {each.because}")
        lines.append(f"- {json.dumps(strip_comments(each))}")
    return "\n".join(lines) + "\n"
