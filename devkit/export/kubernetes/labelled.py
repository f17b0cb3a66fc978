"""Labels that say what an object is part of, by which people and services find it."""

from devkit.export.task import Task

INSTANCE = "app.kubernetes.io/instance"
"""The job's own label. Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/"""


def labels_of(task: Task, component: str) -> dict[str, str]:
    """Labels of an object of the job."""
    return {
        "app.kubernetes.io/name": task.project,
        INSTANCE: task.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "devkit",
    }
