"""From the task to the files, the commands that come next, and what is to be known."""

import shlex
from collections.abc import Callable

from devkit.export.kubernetes.batch_job import batch_job
from devkit.export.kubernetes.checking import check_job
from devkit.export.kubernetes.checks_files import check_files, check_notes
from devkit.export.kubernetes.gpus import claim_template, gpu_notes
from devkit.export.kubernetes.jobset import jobset
from devkit.export.kubernetes.labelled import training_of
from devkit.export.kubernetes.layout import folder_files, kustomization, overlay_files
from devkit.export.kubernetes.monitoring_files import monitoring_files, monitoring_notes
from devkit.export.kubernetes.overlays import overlays_of
from devkit.export.kubernetes.pytorchjob import pytorchjob
from devkit.export.kubernetes.settings import Kind, KubernetesSettings
from devkit.export.kubernetes.storage import TOKEN_KEY, files_pod, new_claims
from devkit.export.kubernetes.trainjob import trainjob
from devkit.export.kubernetes.workload import Workload
from devkit.export.places import project_from
from devkit.export.targets import Context, Rendered
from devkit.export.task import Task
from devkit.render.artifact import Artifact

_MAKERS: dict[Kind, Callable[[Task, KubernetesSettings], Workload]] = {
    Kind.JOB: batch_job,
    Kind.TRAINJOB: trainjob,
    Kind.PYTORCHJOB: pytorchjob,
    Kind.JOBSET: jobset,
}


def render(task: Task, settings: KubernetesSettings, context: Context) -> Rendered:
    """The manifests. Raises DevkitError for what no cluster takes."""
    kind = settings.kind or (Kind.JOB if task.nodes == 1 else Kind.TRAINJOB)
    check_job(task, settings, kind)
    workload = _MAKERS[kind](task, settings)
    artifacts = _job_files(task, settings, workload)
    claims = new_claims(task, settings)
    if claims:
        about = "The job's storage. Apart from the job, so that `kubectl delete -k` of the job leaves the checkpoints."
        artifacts += folder_files("storage", about, {"claims.yaml": claims}, settings)
    about = "A pod without a GPU that has the job's storage: to copy the project in, and the result out."
    artifacts += folder_files("files", about, {"pod.yaml": [files_pod(task, settings)]}, settings)
    steps = _next_steps(task, settings, workload, context.folder, makes_storage=bool(claims))
    notes = [*workload.notes, *gpu_notes(task, settings), *_storage_notes(task, settings)]
    if settings.node_checks:
        artifacts += check_files(task, settings, context.folder)
        notes += check_notes(context.folder)
    if settings.monitoring:
        artifacts += monitoring_files(task, settings, context)
        notes += monitoring_notes(task, context)
    return Rendered(tuple(artifacts), steps, tuple(notes))


def _job_files(task: Task, settings: KubernetesSettings, workload: Workload) -> list[Artifact]:
    """base, what is laid over it, and the topmost folder, which is the last of them."""
    files = dict(workload.files)
    if settings.device_class:
        files["gpu.yaml"] = [claim_template(task, settings)]
    artifacts = folder_files("base", f"The {workload.kind} alone.", files, settings)
    below = "base"
    for overlay in overlays_of(task, settings, workload):
        artifacts.append(overlay_files(overlay, below, settings))
        below = f"overlays/{overlay.name}"
    about = "The job as it was asked for. Every folder below can be applied by itself, too."
    artifacts.insert(0, kustomization("", about, [below], settings))
    return artifacts


def _next_steps(
    task: Task, settings: KubernetesSettings, workload: Workload, folder: str, *, makes_storage: bool
) -> tuple[str, ...]:
    """What to type, in order."""
    kubectl = f"kubectl --namespace {settings.namespace}" if settings.namespace else "kubectl"
    project, _ = project_from(folder, "kubernetes")
    # The dot at the end: without it kubectl makes a folder of that name within the other.
    here, where, pod = shlex.quote(f"{project or '.'}/."), shlex.quote(folder), f"{task.name}-files"
    selector = ",".join(f"{name}={value}" for name, value in training_of(task).items())
    steps = []
    if task.needs_token:
        token = f'--from-file={TOKEN_KEY}="$HOME/.cache/huggingface/token"'
        steps.append(f"{kubectl} create secret generic {settings.token_secret} {token}")
    if makes_storage:
        steps.append(f"kubectl apply -k {where}/storage")
    steps += [
        f"kubectl apply -k {where}/files && {kubectl} wait --for=condition=Ready --timeout=15m pod/{pod}",
        f"{kubectl} cp {here} {pod}:{task.workspace}",
        f"kubectl delete -k {where}/files",
        f"kubectl apply -k {where}",
        f"{kubectl} logs --follow --selector {selector}",
    ]
    return tuple(steps)


def _storage_notes(task: Task, settings: KubernetesSettings) -> tuple[str, ...]:
    """What claims must offer for several nodes, which nobody can see from here."""
    if task.nodes == 1:
        return ()
    theirs = [volume.source for volume in task.volumes if volume.source]
    notes = []
    if theirs:
        names = ", ".join(dict.fromkeys(theirs))
        notes.append(f"{task.nodes} nodes mount {names}: only a claim with ReadWriteMany lets them")
    if len(theirs) < len(task.volumes) and not settings.storage_class:
        notes.append("new storage is ReadWriteMany, which the cluster's default class often is not: --storage-class")
    return tuple(notes)
