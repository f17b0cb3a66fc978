"""Kubernetes: manifests with a reason beside every choice, laid out for kubectl apply -k."""

import re
import shlex
from collections import Counter

from devkit.errors import DevkitError
from devkit.export.kubernetes.kinds import build_job, find_max_name_length
from devkit.export.kubernetes.manifest import build_training_selector, render_folder
from devkit.export.kubernetes.node_checks import render_node_checks
from devkit.export.kubernetes.resources import find_gpu_resource, list_gpu_notes
from devkit.export.kubernetes.settings import (
    JobKind,
    KubernetesSettings,
    choose_job_kind,
    validate_kubernetes_settings,
    validate_subdomain,
)
from devkit.export.kubernetes.storage import TOKEN_KEY, build_files_pod, build_new_claims, is_node_folder
from devkit.export.targets import ExportContext, ExportTarget, TargetFiles
from devkit.export.task import Task
from devkit.export.values import validate_dns_label
from devkit.text import join_words


def render_kubernetes(task: Task, settings: KubernetesSettings, context: ExportContext) -> TargetFiles:
    """Render the manifests. Raises DevkitError for what no cluster accepts."""
    kind = choose_job_kind(task, settings)
    validate_job(task, settings, kind)
    job = build_job(task, settings, kind)
    namespace = settings.namespace
    artifacts = render_folder("", "The job. Its storage is in a folder of its own.", "job.yaml", job.objects, namespace)
    claims = build_new_claims(task, settings)
    if claims:
        about = "The job's storage. Apart from the job, so that `kubectl delete -k` of the job leaves the checkpoints."
        artifacts += render_folder("storage", about, "claims.yaml", claims, namespace)
    about = "A pod without a GPU that mounts the job's storage: to copy the project in, and the result out."
    artifacts += render_folder("files", about, "pod.yaml", [build_files_pod(task, settings)], namespace)
    notes = [*job.notes, *list_gpu_notes(task, settings), *_list_storage_notes(task, settings)]
    if settings.node_checks and task.is_foreign_image:
        notes.append("no checks of the nodes: the image has no devkit in it")
    elif settings.node_checks:
        checks, note = render_node_checks(task, settings, context.folder)
        artifacts += checks
        notes.append(note)
    steps = _list_next_steps(task, settings, context.folder, makes_storage=bool(claims))
    return TargetFiles(tuple(artifacts), steps, tuple(notes))


def validate_job(task: Task, settings: KubernetesSettings, kind: JobKind) -> None:
    """Raise DevkitError for what the API server, or a controller, would refuse.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#volumes-1 (mountPath)
    """
    validate_kubernetes_settings(settings)
    find_gpu_resource(task, settings)
    validate_dns_label(task.name, "--name", longest=find_max_name_length(task, kind))
    # A Service is named after the job, and its name is a label by RFC 1035.
    if (kind is not JobKind.JOB or task.nodes > 1) and not re.match("[a-z]", task.name):
        raise DevkitError(f"--name {task.name!r} must begin with a letter", f"Such as --name job-{task.name}.")
    for volume in task.volumes:
        if volume.source and not is_node_folder(volume):
            validate_subdomain(volume.source, f"--{volume.role}")
        if ":" in volume.path:
            raise DevkitError(
                f"nothing can be mounted at {volume.path!r}: Kubernetes takes no colon in a path",
                "Choose another --output in the settings.",
            )
    path, times = Counter(volume.path.rstrip("/.") for volume in task.volumes).most_common(1)[0]
    if times > 1:
        raise DevkitError(
            f"{path} would hold both the project and the output, which are mounted apart",
            "Give the output a folder of its own in the settings, such as finetuned.",
        )


def _list_next_steps(task: Task, settings: KubernetesSettings, folder: str, *, makes_storage: bool) -> tuple[str, ...]:
    """List the commands to run next, in order."""
    kubectl = f"kubectl --namespace {settings.namespace}" if settings.namespace else "kubectl"
    where, pod = shlex.quote(folder), f"{task.name}-files"
    selector = ",".join(f"{name}={value}" for name, value in build_training_selector(task).items())
    steps = []
    if task.needs_token:
        token = f'--from-file={TOKEN_KEY}="$HOME/.cache/huggingface/token"'
        steps.append(f"{kubectl} create secret generic {settings.token_secret} {token}")
    if makes_storage:
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


def _list_storage_notes(task: Task, settings: KubernetesSettings) -> tuple[str, ...]:
    """List the access modes that several nodes need, since those of claims are unknown here, and folders of nodes."""
    notes = []
    if folders := [volume.source for volume in task.volumes if is_node_folder(volume)]:
        notes.append(
            f"{join_words(folders)} of the node: clusters that keep the baseline Pod Security Standard refuse it"
        )
        if any(each.startswith("/dev/") for each in folders):
            notes.append(
                "only a privileged container opens the node's devices; --set rdma requests those of a device plugin"
            )
    if task.nodes == 1:
        return tuple(notes)
    named = [volume.source for volume in task.volumes if volume.source and not is_node_folder(volume)]
    if named:
        names = ", ".join(dict.fromkeys(named))
        notes.append(f"{task.nodes} nodes mount {names}: only a claim with ReadWriteMany lets them")
    if not all(volume.source for volume in task.volumes) and not settings.storage_class:
        notes.append("new storage is ReadWriteMany, which the cluster's default class often is not: --storage-class")
    return tuple(notes)


TARGET = ExportTarget("kubernetes", KubernetesSettings, render_kubernetes)
