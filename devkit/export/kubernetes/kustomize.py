"""Kustomize folders, each for `kubectl apply -k`: base with the job, overlays for a queue and spot nodes.

Overlays are JSON patches, which work on every kind of object. A strategic merge only knows the lists of Kubernetes' own
kinds: in a TrainJob it would replace whole lists. Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/patches/
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from devkit.release import __version__
from devkit.render.files import Artifact

KUSTOMIZATION_FILE = "kustomization.yaml"
GENERATED_NOTICE = (
    f"Written by devkit {__version__}. To change it, edit [job] and [job.kubernetes] in devkit.toml and run "
    "`devkit export kubernetes` again."
)

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Source: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/"""
TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-preferred-topology"
POD_GROUP_ANNOTATION = "kueue.x-k8s.io/podset-group-name"
"""Sources: https://kueue.sigs.k8s.io/docs/tasks/run/topology_aware_scheduling/ and …/run/leaderworkerset/"""

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
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority", "spot")
"""Taints of spot nodes: the first is GKE's advice, the second is set by AKS, the third by hand in many clusters."""


@dataclass(frozen=True)
class KustomizeOverlay:
    """A folder that patches another one: its name, its purpose, and its patches by object."""

    name: str
    about: str
    patches: tuple[tuple[PatchTarget, list[Any]], ...]


def build_overlays(task: Task, settings: KubernetesSettings, job: JobManifests) -> list[KustomizeOverlay]:
    """Build the overlays that the settings call for, the lowest first."""
    overlays = []
    if settings.queue:
        overlays.append(_build_queue(task, settings, job))
    if task.is_spot:
        about = (
            "On spot nodes, which may be reclaimed at any time. AWS warns two minutes before, Azure 30 s; Google leaves"
            " pods 15 of its 30 s, more where the node pool says so. A pod has the least of that and its own "
            f"{task.grace_s} s."
        )
        patches = tuple((target, list(_patch_for_spot(task, settings, target))) for target in job.pods)
        overlays.append(KustomizeOverlay("spot", about, patches))
    return overlays


def _build_queue(task: Task, settings: KubernetesSettings, job: JobManifests) -> KustomizeOverlay:
    admission = Commented(
        [
            _add(f"{job.owner.pointer}/metadata/labels/{_escape_key(QUEUE_LABEL)}", settings.queue),
            _add(job.suspend.pointer, True),
        ],
        "Kueue starts it once its quota covers all nodes, and stops it, with SIGTERM, to preempt it.",
    )
    patches: list[tuple[PatchTarget, Any]] = [(job.owner, admission)]
    if settings.topology and task.nodes > 1:
        for target in job.pods:
            annotations = f"{target.pointer}/metadata/annotations"
            name = PREFERRED_TOPOLOGY_ANNOTATION if settings.topology_preferred else TOPOLOGY_ANNOTATION
            operations = [_add(f"{annotations}/{_escape_key(name)}", settings.topology)]
            if len(job.pods) > 1:
                operations.append(_add(f"{annotations}/{_escape_key(POD_GROUP_ANNOTATION)}", task.name))
            reason = "All nodes in one topology domain: they communicate at every step."
            patches.append((target, Commented(operations, reason)))
    return KustomizeOverlay("queue", f"Through the queue {settings.queue} of Kueue.", tuple(patches))


def _patch_for_spot(task: Task, settings: KubernetesSettings, target: PatchTarget) -> Iterator[Any]:
    for taint in SPOT_TAINTS:
        toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
        yield _add(f"{target.pointer}/spec/tolerations/-", toleration)
    if settings.node_selector:
        return
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in SPOT_LABELS]
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    has_affinity = "affinity" in build_placement(task, settings)
    field = "affinity/nodeAffinity" if has_affinity else "affinity"
    yield Commented(
        _add(f"{target.pointer}/spec/{field}", nodes if has_affinity else {"nodeAffinity": nodes}),
        "One of these labels, set by GKE, EKS, AKS and Karpenter. Elsewhere give --node-selector, which replaces it.",
    )


def _add(path: str, value: Any) -> Manifest:  # noqa: ANN401 - any value of a manifest
    return {"op": "add", "path": path, "value": value}


def _escape_key(key: str) -> str:
    """Escape a key for a JSON pointer. Source: RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")


def render_folder(
    folder: str,
    about: str,
    files: Mapping[str, Sequence[Manifest]],
    settings: KubernetesSettings,
    *,
    keeps_order: bool = False,
) -> list[Artifact]:
    """Render a folder of objects with its kustomization."""
    objects = [
        Artifact.from_text(f"{folder}/{name}", render_yaml(documents, heading=GENERATED_NOTICE))
        for name, documents in files.items()
    ]
    return [render_kustomization(folder, about, list(files), settings, keeps_order=keeps_order), *objects]


def render_overlay(
    overlay: KustomizeOverlay, below: str, settings: KubernetesSettings, *, keeps_order: bool = False
) -> Artifact:
    """Render an overlay of the folder `below`."""
    patches = []
    for target, operations in overlay.patches:
        selector = {"kind": target.kind, "name": target.name}
        patches.append({"target": selector, "patch": _render_patch(operations)})
    return render_kustomization(
        f"overlays/{overlay.name}",
        overlay.about,
        [f"../../{below}"],
        settings,
        patches=patches,
        keeps_order=keeps_order,
    )


def render_kustomization(
    folder: str,
    about: str,
    resources: Sequence[str],
    settings: KubernetesSettings,
    *,
    patches: Sequence[Manifest] = (),
    keeps_order: bool = False,
) -> Artifact:
    """Render kustomization.yaml of a folder, "" for the topmost. Only with `keeps_order` does the order matter.

    kubectl warns of sortOptions at each `apply -k`, since it has a flag of its own for the same.
    """
    content: Manifest = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if settings.namespace:
        content["namespace"] = settings.namespace
    if keeps_order:
        order = "In this order: a TrainJob whose runtime comes after it is refused."
        content["sortOptions"] = {"order": Commented("fifo", order)}
    content["resources"] = list(resources)
    if patches:
        content["patches"] = list(patches)
    path = f"{folder}/{KUSTOMIZATION_FILE}" if folder else KUSTOMIZATION_FILE
    return Artifact.from_text(path, render_yaml([content], heading=f"{GENERATED_NOTICE}\n{about}"))


def _render_patch(operations: object) -> str:
    """Render JSON patch operations as text, with their reasons as comments."""
    reason = ""
    if isinstance(operations, Commented):
        reason, operations = operations.because, operations.value
    lines = [f"# {reason}"] if reason else []
    for each in operations if isinstance(operations, list) else ():
        if isinstance(each, Commented):
            lines.append(f"# {each.because}")
        lines.append(f"- {json.dumps(strip_comments(each))}")
    return "\n".join(lines) + "\n"
