"""The folder monitoring: manifests for the Prometheus operator and Grafana, and counters for NVIDIA's exporter."""

import shlex

from devkit.export.kubernetes.layout import folder_files
from devkit.export.kubernetes.monitoring import monitoring_objects
from devkit.export.kubernetes.monitoring_rules import counters_for
from devkit.export.kubernetes.settings import KubernetesSettings
from devkit.export.targets import Context
from devkit.export.task import Task
from devkit.render.artifact import Artifact
from devkit.solver.model import Vendor

FOLDER = "monitoring"
COUNTERS = f"{FOLDER}/dcgm-counters.csv"
_NAMES = {"ServiceMonitor": "exporter.yaml", "PrometheusRule": "alerts.yaml", "ConfigMap": "dashboard.yaml"}


def monitoring_files(task: Task, settings: KubernetesSettings, context: Context) -> list[Artifact]:
    """The files. Raises DevkitError for settings that no Prometheus takes."""
    files = {_NAMES[each["kind"]]: [each] for each in monitoring_objects(task, settings, context)}
    about = "What watches the job. For clusters with the Prometheus operator: others refuse the kinds."
    made = folder_files(FOLDER, about, files, settings)
    counters = counters_for(_vendor(task, context))
    return [*made, Artifact.text(COUNTERS, counters)] if counters else made


def monitoring_notes(task: Task, context: Context) -> tuple[str, ...]:
    """What no manifest can do: tell the exporter of a cluster what to collect."""
    lines = counters_for(_vendor(task, context)).splitlines()
    if not lines:
        return ()
    where = shlex.quote(f"{context.folder}/{COUNTERS}")
    return (f"{len(lines)} alerts need counters that NVIDIA's exporter does not collect by itself: those of {where}",)


def _vendor(task: Task, context: Context) -> Vendor:
    return context.plan.vendor if task.accelerator.count else Vendor.CPU
