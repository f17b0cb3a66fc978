"""What watches a job in a cluster: a monitor for the GPUs' exporter, rules, and a dashboard.

All three are for the Prometheus operator and for Grafana's sidecar, as kube-prometheus-stack installs them.
Sources: https://prometheus-operator.dev/docs/api-reference/api/ (monitoring.coreos.com/v1);
https://github.com/grafana/helm-charts/tree/main/charts/grafana#sidecar-for-dashboards
"""

import hashlib
import json

from devkit.compat.load import tables
from devkit.errors import DevkitError
from devkit.export.kubernetes.labelled import labels_of
from devkit.export.kubernetes.manifest import Manifest, Noted
from devkit.export.kubernetes.monitoring_rules import INTERVAL, JobPods, kind_of_job, pod_pattern, rules_for
from devkit.export.kubernetes.names import label_of
from devkit.export.kubernetes.settings import Exporter, KubernetesSettings
from devkit.export.targets import Context
from devkit.export.task import Task
from devkit.render.dashboard import Pods, cluster_dashboard
from devkit.solver.model import Vendor

OPERATOR_API = "monitoring.coreos.com/v1"
MONITOR = "devkit-gpu-exporter"
"""One for all jobs of a namespace: two that ask the same exporter would give every sample twice."""
DASHBOARD_LABEL = ("grafana_dashboard", "1")
"""By which the sidecar of kube-prometheus-stack finds dashboards since chart 32.2."""
_SCRAPE_INTERVAL = "15s"


def monitoring_objects(task: Task, settings: KubernetesSettings, context: Context) -> list[Manifest]:
    """The manifests: ServiceMonitor, PrometheusRule, ConfigMap; the last alone for a job without a GPU.

    Raises DevkitError for a label that is none.
    """
    vendor = context.plan.vendor if task.accelerator.count else Vendor.CPU
    exporter = exporter_of(vendor, settings)
    prefix = "exported_" if exporter is Exporter.SCRAPED else ""
    pods = JobPods(pod_pattern(task, kind_of_job(task, settings)), settings.namespace, prefix)
    found: list[Manifest] = []
    service = tables().profiles.exporters.get((vendor.value, exporter.value))
    if service is not None:
        found.append(_monitor(task, settings, {service.label: service.value}, service.port))
    if rules := rules_for(vendor, pods):
        group = {"name": f"devkit.{task.name}", "interval": INTERVAL, "rules": rules}
        found.append(_custom(task, "PrometheusRule", f"{task.name}-gpu", settings, {"groups": [group]}))
    found.append(_dashboard(task, vendor, pods))
    return found


def exporter_of(vendor: Vendor, settings: KubernetesSettings) -> Exporter:
    """What asks the exporter. AMD's operator writes its own monitor, which keeps the exporter's labels.

    Source: https://github.com/ROCm/gpu-operator/blob/main/docs/metrics/prometheus.md
    """
    usual = Exporter.OPERATOR if vendor is Vendor.NVIDIA else Exporter.SCRAPED_HONORED
    chosen = settings.exporter or usual
    if vendor is Vendor.ROCM and chosen in (Exporter.OPERATOR, Exporter.CHART):
        raise DevkitError(
            f"--exporter {chosen} is NVIDIA's",
            "AMD's operator writes a monitor when its DeviceConfig says so: leave the flag out.",
        )
    return chosen


def _monitor(task: Task, settings: KubernetesSettings, labels: dict[str, str], port: str) -> Manifest:
    endpoint = {
        "port": port,
        "interval": _SCRAPE_INTERVAL,
        "honorLabels": Noted(True, "`pod` and `namespace` stay those of the job, and are not the exporter's own."),
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    }
    spec: Manifest = {"namespaceSelector": {"any": True}, "selector": {"matchLabels": labels}, "endpoints": [endpoint]}
    return _custom(task, "ServiceMonitor", MONITOR, settings, spec)


def _custom(task: Task, kind: str, name: str, settings: KubernetesSettings, spec: Manifest) -> Manifest:
    return {
        "apiVersion": OPERATOR_API,
        "kind": kind,
        "metadata": {"name": name, "labels": labels_of(task, "monitoring") | _picked(settings)},
        "spec": spec,
    }


def _dashboard(task: Task, vendor: Vendor, pods: JobPods) -> Manifest:
    profiles = tables().profiles
    shown = cluster_dashboard(
        vendor.value,
        profiles.panels,
        profiles.cluster_panels,
        # Grafana takes at most forty characters.
        uid=f"devkit-{hashlib.sha256(f'{pods.namespace}/{task.name}'.encode()).hexdigest()[:16]}",
        title=f"Training: {task.name}",
        pods=Pods(
            namespaces=pods.namespace or ".+",
            pods=pods.pattern,
            namespace_label=f"{pods.prefix}namespace",
            pod_label=f"{pods.prefix}pod",
        ),
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{task.name}-dashboard",
            "labels": labels_of(task, "monitoring") | dict([DASHBOARD_LABEL]),
        },
        "data": {f"{task.name}.json": json.dumps(shown, indent=2, ensure_ascii=False) + "\n"},
    }


def _picked(settings: KubernetesSettings) -> dict[str, str]:
    """The label that the operator's Prometheus looks for; none where it takes every rule and monitor."""
    text = settings.prometheus_label
    return dict([label_of(text, "--prometheus-label")]) if text else {}
