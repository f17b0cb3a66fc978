"""Monitoring of a job in a cluster: a monitor for the GPU exporter, alerting rules, and a dashboard.

All three are for the Prometheus operator and for Grafana's sidecar, as kube-prometheus-stack installs them.
Sources: https://prometheus-operator.dev/docs/api-reference/api/ (monitoring.coreos.com/v1);
https://github.com/grafana/helm-charts/tree/main/charts/grafana#sidecar-for-dashboards
"""

import hashlib
import json
import re
import shlex
from dataclasses import dataclass

from devkit.compat.version_tables import AlertRule, load_tables
from devkit.doctor.error_codes import XidRemedy, load_xids
from devkit.errors import DevkitError
from devkit.export.kubernetes.kustomize import render_folder
from devkit.export.kubernetes.manifest import Commented, Manifest, build_labels
from devkit.export.kubernetes.settings import Exporter, JobKind, KubernetesSettings, choose_job_kind, parse_label
from devkit.export.targets import ExportContext
from devkit.export.task import Task
from devkit.render.container.grafana import DashboardPods, build_cluster_dashboard
from devkit.render.files import Artifact
from devkit.solver.plan import Vendor

MONITORING_FOLDER = "monitoring"
COUNTERS_FILE = f"{MONITORING_FOLDER}/dcgm-counters.csv"
_FILES = {"ServiceMonitor": "exporter.yaml", "PrometheusRule": "alerts.yaml", "ConfigMap": "dashboard.yaml"}

OPERATOR_API = "monitoring.coreos.com/v1"
MONITOR_NAME = "devkit-gpu-exporter"
"""One for all jobs of a namespace: two that scrape the same exporter would give every sample twice."""
DASHBOARD_LABEL = ("grafana_dashboard", "1")
"""The label by which the sidecar of kube-prometheus-stack finds dashboards since chart 32.2."""
_SCRAPE_INTERVAL = "15s"

RULE_INTERVAL = "30s"
"""The interval of rule evaluation: twice that of the exporters."""
XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"
XID_WINDOW = "15m"
"""The metric keeps an Xid until another one comes. One that is older than this may be from another job."""
_METRIC_PLACEHOLDER = re.compile(r"<of (\w+)>")


def render_monitoring(task: Task, settings: KubernetesSettings, context: ExportContext) -> list[Artifact]:
    """Render the files. Raises DevkitError for settings that no Prometheus accepts."""
    files = {_FILES[each["kind"]]: [each] for each in build_monitoring_manifests(task, settings, context)}
    about = "Monitoring of the job. For clusters with the Prometheus operator: others refuse the kinds."
    artifacts = render_folder(MONITORING_FOLDER, about, files, settings)
    counters = list_counters(_find_vendor(task, context))
    return [*artifacts, Artifact.from_text(COUNTERS_FILE, counters)] if counters else artifacts


def list_monitoring_notes(task: Task, context: ExportContext) -> tuple[str, ...]:
    """List notes on what no manifest can do: configure the counters of a cluster's exporter."""
    lines = list_counters(_find_vendor(task, context)).splitlines()
    if not lines:
        return ()
    file = shlex.quote(f"{context.folder}/{COUNTERS_FILE}")
    return (f"{len(lines)} alerts need counters that NVIDIA's exporter does not collect by default: those of {file}",)


def _find_vendor(task: Task, context: ExportContext) -> Vendor:
    return context.plan.vendor if task.accelerator.count else Vendor.CPU


def build_monitoring_manifests(task: Task, settings: KubernetesSettings, context: ExportContext) -> list[Manifest]:
    """Build ServiceMonitor, PrometheusRule and ConfigMap; the last alone for a job without a GPU.

    Raises DevkitError for an invalid label.
    """
    vendor = _find_vendor(task, context)
    exporter = choose_exporter(vendor, settings)
    prefix = "exported_" if exporter is Exporter.SCRAPED else ""
    pods = PodSelector(build_pod_pattern(task, choose_job_kind(task, settings)), settings.namespace, prefix)
    # The label by which the operator's Prometheus selects; "" where it takes every rule and monitor.
    text = settings.prometheus_label
    labels = build_labels(task, "monitoring") | (dict([parse_label(text, "--prometheus-label")]) if text else {})

    def build(kind: str, name: str, spec: Manifest) -> Manifest:
        return {"apiVersion": OPERATOR_API, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}

    manifests: list[Manifest] = []
    service = load_tables().profiles.exporters.get((vendor.value, exporter.value))
    if service is not None:
        endpoint = {
            "port": service.port,
            "interval": _SCRAPE_INTERVAL,
            "honorLabels": Commented(True, "`pod` and `namespace` stay those of the job, not the exporter's own."),
            "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
        }
        selector = {"matchLabels": {service.label: service.value}}
        spec = {"namespaceSelector": {"any": True}, "selector": selector, "endpoints": [endpoint]}
        manifests.append(build("ServiceMonitor", MONITOR_NAME, spec))
    if rules := build_alert_rules(vendor, pods):
        group = {"name": f"devkit.{task.name}", "interval": RULE_INTERVAL, "rules": rules}
        manifests.append(build("PrometheusRule", f"{task.name}-gpu", {"groups": [group]}))
    manifests.append(_build_dashboard(task, vendor, pods))
    return manifests


def choose_exporter(vendor: Vendor, settings: KubernetesSettings) -> Exporter:
    """Return the exporter's kind. AMD's operator writes its own monitor, which keeps the exporter's labels.

    Source: https://github.com/ROCm/gpu-operator/blob/main/docs/metrics/prometheus.md
    """
    default = Exporter.OPERATOR if vendor is Vendor.NVIDIA else Exporter.SCRAPED_HONORED
    exporter = settings.exporter or default
    if vendor is Vendor.ROCM and exporter in (Exporter.OPERATOR, Exporter.CHART):
        raise DevkitError(
            f"--exporter {exporter} is NVIDIA's",
            "AMD's operator writes a monitor when its DeviceConfig says so: leave the flag out.",
        )
    return exporter


@dataclass(frozen=True)
class PodSelector:
    """The pods of a job: a regular expression for their names, their namespace ("" if unknown), and a label prefix.

    `prefix` is "exported_" where Prometheus has the exporter's own pod in the label `pod`.
    """

    pattern: str
    namespace: str
    prefix: str = ""

    def build_matchers(self, prefix: str = "") -> str:
        """Build the label matchers of the pods, without braces."""
        own = f'{prefix}namespace="{self.namespace}",' if self.namespace else ""
        return f'{own}{prefix}pod=~"{self.pattern}"'

    def relabel(self, metric: str) -> str:
        """Build a query of the job's GPUs with its pods in the labels `namespace` and `pod`."""
        query = f"{metric}{{{self.build_matchers(self.prefix)}}}"
        for label in ("namespace", "pod") if self.prefix else ():
            query = f'label_replace({query}, "{label}", "$1", "{self.prefix}{label}", "(.*)")'
        return query


def build_pod_pattern(task: Task, kind: JobKind) -> str:
    """Build a regular expression for the whole names of the job's pods, and of no others.

    Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (NAME-INDEX-RANDOM);
    https://jobset.sigs.k8s.io/docs/concepts/ (NAME-JOB-REPLICA-INDEX-RANDOM), of which a TrainJob is one;
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/ (NAME-master-0, NAME-worker-N);
    GenerateRayClusterName and PodName of KubeRay's ray-operator/controllers/ray/utils/util.go
    """
    random = "[a-z0-9]{5}"
    match kind:
        case JobKind.JOB:
            return f"{task.name}-[0-9]+-{random}" if task.nodes > 1 else f"{task.name}-{random}"
        case JobKind.PYTORCHJOB:
            return f"{task.name}-(master|worker)-[0-9]+"
        case JobKind.RAYJOB:
            return f"{task.name}-{random}-(head(-{random})?|node-worker-{random})"
        case JobKind.TRAINJOB | JobKind.JOBSET:
            return f"{task.name}-[a-z]+-[0-9]+-[0-9]+-{random}"


def build_alert_rules(vendor: Vendor, pods: PodSelector) -> list[dict[str, object]]:
    """Build the alerting rules for GPUs of this vendor; none for a job without GPUs.

    Source: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
    """
    return [_build_rule(alert, pods) for alert in load_tables().profiles.alerts if alert.vendor == vendor.value]


def list_counters(vendor: Vendor) -> str:
    """Return lines for the exporter's list of counters: those that rules need and the default list lacks."""
    alerts = load_tables().profiles.alerts
    return "".join(f"{alert.counter}\n" for alert in alerts if alert.vendor == vendor.value and alert.counter)


def _build_rule(alert: AlertRule, pods: PodSelector) -> dict[str, object]:
    program_faults = {XidRemedy.RESTART_PROGRAM}
    machine_faults = set(XidRemedy) - {XidRemedy.RESTART_PROGRAM, XidRemedy.NOTHING}
    # Faults of the machine hold until the GPU is reset, and so does the alert; those of the program while they are new.
    old = f"max by (UUID) ({XID_METRIC}<job>) == on (UUID) max by (UUID) ({XID_METRIC} offset {XID_WINDOW})"
    program = f"({XID_METRIC}<job> and on (UUID) ({_match_xids(program_faults)})) unless on (UUID) ({old})"
    machine = f"{XID_METRIC}<job> and on (UUID) ({_match_xids(machine_faults)})"
    query = alert.query.replace("<xids machine>", machine).replace("<xids program>", program)
    query = _METRIC_PLACEHOLDER.sub(lambda metric: pods.relabel(metric[1]), query)
    query = query.replace("<job>", f"{{{pods.build_matchers(pods.prefix)}}}").replace("<pods>", pods.build_matchers())
    # All series but those of kube-state-metrics may have the pod's name in another label.
    is_kube_state = "<pods>" in alert.query
    summary = alert.says if is_kube_state else alert.says.replace("$labels.pod", f"$labels.{pods.prefix}pod")
    return {
        "alert": alert.name,
        "expr": query,
        "for": alert.holds,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": summary, "description": alert.advice},
    }


def _match_xids(remedies: set[XidRemedy]) -> str:
    numbers = sorted(number for number, meaning in load_xids().items() if meaning.remedy in remedies)
    return " or ".join(f"{XID_METRIC} == {number}" for number in numbers)


def _build_dashboard(task: Task, vendor: Vendor, pods: PodSelector) -> Manifest:
    profiles = load_tables().profiles
    dashboard = build_cluster_dashboard(
        vendor.value,
        profiles.panels,
        profiles.cluster_panels,
        # Grafana takes at most forty characters.
        uid=f"devkit-{hashlib.sha256(f'{pods.namespace}/{task.name}'.encode()).hexdigest()[:16]}",
        title=f"Training: {task.name}",
        pods=DashboardPods(
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
            "labels": build_labels(task, "monitoring") | dict([DASHBOARD_LABEL]),
        },
        "data": {f"{task.name}.json": json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"},
    }
