"""Labels that say what an object is part of, by which people and services find it."""

from devkit.export.task import Task

INSTANCE = "app.kubernetes.io/instance"
"""The job's own label. Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/"""

PART = "app.kubernetes.io/component"
TRAINING = "training"
"""What the pods that train are of the job: the pod of files and the checks are others."""


def training_of(task: Task) -> dict[str, str]:
    """The labels by which the pods that train are found, and no others."""
    return {INSTANCE: task.name, PART: TRAINING}


def labels_of(task: Task, component: str) -> dict[str, str]:
    """Labels of an object of the job."""
    return {
        "app.kubernetes.io/name": task.project,
        INSTANCE: task.name,
        PART: component,
        "app.kubernetes.io/managed-by": "devkit",
    }
