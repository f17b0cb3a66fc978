"""What a task and wishes that are fine elsewhere cannot be in a cluster."""

import re
from collections import Counter

from devkit.errors import DevkitError
from devkit.export.kubernetes.gpus import resource_of
from devkit.export.kubernetes.jobset import longest_name
from devkit.export.kubernetes.names import checked_subdomain
from devkit.export.kubernetes.settings import Kind, KubernetesSettings, checked
from devkit.export.labels import checked_label
from devkit.export.task import Task


def check_job(task: Task, settings: KubernetesSettings, kind: Kind) -> None:
    """Raises DevkitError for what the API server, or a controller, would refuse."""
    checked(settings)
    resource_of(task, settings)
    if settings.runtime and kind is not Kind.TRAINJOB:
        raise DevkitError(f"--runtime is for a TrainJob, and this is a {kind}", "Give --kind trainjob.")
    _check_name(task, kind)
    _check_volumes(task)


def _check_name(task: Task, kind: Kind) -> None:
    if kind in (Kind.TRAINJOB, Kind.JOBSET):
        checked_label(task.name, "--name", longest=longest_name(task))
    # A Service is named after the job, and its name is a label by RFC 1035.
    if (kind is not Kind.JOB or task.nodes > 1) and not re.match("[a-z]", task.name):
        raise DevkitError(f"--name {task.name!r} must begin with a letter", f"Such as --name job-{task.name}.")


def _check_volumes(task: Task) -> None:
    """Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#volumes-1 (mountPath)."""
    for volume in task.volumes:
        if volume.source:
            checked_subdomain(volume.source, f"--{volume.role}")
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
