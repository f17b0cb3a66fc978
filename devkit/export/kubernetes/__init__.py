"""Kubernetes: manifests with a reason beside every choice, laid out for kubectl apply -k."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifests import (
    MIG_RESOURCE,
    SHARED_SUFFIX,
    build_labels,
    is_node_folder,
    render_manifests,
)
from devkit.export.kubernetes.settings import (
    JobKind,
    KubernetesSettings,
    validate_kubernetes_settings,
    validate_subdomain,
)
from devkit.export.targets import ExportTarget, TargetFiles
from devkit.export.task import Task
from devkit.export.values import MAX_JOB_NAME_LENGTH, MAX_LABEL_LENGTH, validate_dns_label
from devkit.solver.plan import Vendor
from devkit.text import join_words

_SELECTED = ("app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that together select the pods that train, and no others."""
_KIND_NOTES = {
    # Evicted pods are recreated (https://github.com/kubeflow/trainer/pull/1572), those of a node that is gone stay
    # (https://github.com/kubeflow/trainer/issues/2072).
    JobKind.PYTORCHJOB: (
        "a PyTorchJob counts every container exit as a failure, including 75, and waits forever for a node that is "
        "lost without notice: kubectl delete pod --force lets it continue. --kind trainjob handles both",
    ),
    JobKind.RAYJOB: (
        "the image must contain a Ray release that the operator supports: add Ray to the project's requirements",
        "Ray kills a command without a prior signal: a preempted RayJob resumes from its last checkpoint",
    ),
}


def render_kubernetes(task: Task, settings: KubernetesSettings, folder: str) -> TargetFiles:
    """Render the manifests. Raises DevkitError for what no cluster accepts."""
    kind = settings.kind or (JobKind.TRAINJOB if task.nodes > 1 else JobKind.JOB)
    validate_job(task, settings, kind)
    artifacts = render_manifests(task, settings, kind)
    steps = _list_next_steps(task, settings, folder)
    return TargetFiles(tuple(artifacts), steps, tuple(_list_notes(task, settings, kind)))


def validate_job(task: Task, settings: KubernetesSettings, kind: JobKind) -> None:
    """Raise DevkitError for what the API server, or a controller, would refuse.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#volumes-1 (mountPath)
    """
    validate_kubernetes_settings(settings)
    validate_dns_label(task.name, "--name", longest=_find_max_name_length(task, kind))
    # A Service is named after the job, and its name is a label by RFC 1035.
    if (kind is not JobKind.JOB or task.nodes > 1) and not re.match("[a-z]", task.name):
        raise DevkitError(f"--name {task.name!r} must begin with a letter", f"Such as --name job-{task.name}.")
    for volume in task.volumes:
        if volume.source and not is_node_folder(volume):
            validate_subdomain(volume.source, f"--set {volume.role}")
        if ":" in volume.path:
            raise DevkitError(
                f"cannot mount anything at {volume.path!r}: Kubernetes does not allow a colon in a path",
                "Choose another --output in the settings.",
            )
    path, times = Counter(volume.path.rstrip("/.") for volume in task.volumes).most_common(1)[0]
    if times > 1:
        raise DevkitError(
            f"{path} would contain both the project and the output, which are mounted separately",
            "Set output to its own folder, such as finetuned.",
        )


def _find_max_name_length(task: Task, kind: JobKind) -> int:
    """Return the maximum length of the job's name: its pods' names must be DNS labels, too.

    Sources: https://github.com/kubernetes-sigs/jobset/blob/v0.12.0/pkg/webhooks/jobset_webhook.go (JOBSET-node-0-INDEX-xxxxx);
    ray-operator/controllers/ray/utils/constant.go of KubeRay, whose pods add a suffix of 16.
    """
    if kind in (JobKind.TRAINJOB, JobKind.JOBSET):
        return MAX_LABEL_LENGTH - len(f"-node-0-{task.nodes - 1}-xxxxx")
    return MAX_LABEL_LENGTH - 16 if kind is JobKind.RAYJOB else MAX_JOB_NAME_LENGTH


def _list_next_steps(task: Task, settings: KubernetesSettings, folder: str) -> tuple[str, ...]:
    """List the commands to run next, in order."""
    kubectl = f"kubectl --namespace {settings.namespace}" if settings.namespace else "kubectl"
    where, pod = shlex.quote(folder), f"{task.name}-files"
    selector = ",".join(
        f"{name}={value}" for name, value in build_labels(task, "training").items() if name in _SELECTED
    )
    steps = []
    if task.needs_token:
        source = '--from-file=token="$HOME/.cache/huggingface/token"'
        steps.append(f"{kubectl} create secret generic {settings.token_secret} {source}")
    if not all(each.source for each in task.volumes):
        steps.append(f"kubectl apply -k {where}/storage")
    steps += [
        f"kubectl apply -k {where}/files && {kubectl} wait --for=condition=Ready --timeout=15m pod/{pod}",
        # Without the dot at the end kubectl would create a folder of that name in the other.
        f"{kubectl} cp ./. {pod}:{task.workspace}",
        f"kubectl delete -k {where}/files",
        f"kubectl apply -k {where}",
        f"{kubectl} logs --follow --selector {selector}",
    ]
    return tuple(steps)


def _list_notes(task: Task, settings: KubernetesSettings, kind: JobKind) -> Iterator[str]:
    """Yield notes on what is not known here: the kind's limits, the nodes, their devices, and the claims."""
    yield from _KIND_NOTES.get(kind, ())
    yield from _list_gpu_notes(task, settings)
    if folders := [volume.source for volume in task.volumes if is_node_folder(volume)]:
        yield f"{join_words(folders)} of the node, which clusters with the baseline Pod Security Standard reject"
        if any(each.startswith("/dev/") for each in folders):
            yield "only a privileged container can open the node's devices; --set rdma requests a device plugin's devices"
    if task.nodes > 1:
        named = [volume.source for volume in task.volumes if volume.source and not is_node_folder(volume)]
        if named:
            names = ", ".join(dict.fromkeys(named))
            yield f"{task.nodes} nodes mount {names}, which needs a ReadWriteMany claim"
        if not all(volume.source for volume in task.volumes) and not settings.storage_class:
            yield "new storage is ReadWriteMany, which the cluster's default class often does not support: --set storage_class"


def _list_gpu_notes(task: Task, settings: KubernetesSettings) -> Iterator[str]:
    """Yield notes on the GPUs of the nodes. Source: https://github.com/ROCm/k8s-device-plugin/issues/39 (the group)."""
    name, is_nvidia = task.accelerator.name, task.accelerator.vendor is Vendor.NVIDIA
    if mig := MIG_RESOURCE.fullmatch(settings.gpu_resource):
        yield f"the estimate does not cover MIG: that instance has {mig[2]} GB of {name or 'its GPU'}"
    elif settings.gpu_resource.endswith(SHARED_SUFFIX):
        gpu = name or "NAME"
        yield f'the GPU is shared, and its memory is not divided: estimate a share, such as --gpu "{gpu}/4" of four'
    elif name and not settings.node_selector:
        label = "nvidia.com/gpu.product=VALUE" if is_nvidia else "a label of its nodes"
        shown = ": see kubectl get nodes -L nvidia.com/gpu.product, then" if is_nvidia else ":"
        yield f"the pods are not pinned to {name}{shown} give --node-selector {label}"
    if task.accelerator.vendor is Vendor.ROCM and task.accelerator.count and settings.gpu_group is None:
        yield "on most nodes only one group can open /dev/kfd: --set gpu_group=NUMBER, which stat -c %g /dev/kfd prints"


TARGET = ExportTarget(
    "kubernetes", KubernetesSettings, render_kubernetes, validate=lambda own, _: validate_kubernetes_settings(own)
)
