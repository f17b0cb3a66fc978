"""What watches a job in a cluster: a monitor for the GPUs' exporter, rules, and a dashboard.

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
from devkit.doctor.error_codes import XID_MEANINGS, XidRemedy
from devkit.errors import DevkitError
from devkit.export.kubernetes.kustomize import render_folder
from devkit.export.kubernetes.manifest import Commented, Manifest, build_labels
from devkit.export.kubernetes.settings import Exporter, JobKind, KubernetesSettings, parse_label
from devkit.export.targets import ExportContext
from devkit.export.task import Task
from devkit.render.container.grafana import DashboardPods, build_cluster_dashboard
from devkit.render.files import Artifact
from devkit.solver.plan import Vendor

# Rules for Prometheus: the alerts of the tables, held to the pods of one job.

RULE_INTERVAL = "30s"
"""How often rules are asked: twice the exporters' own interval."""
XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"
XID_WINDOW = "15m"
"""An Xid stands until another comes. One that stood so long ago already, whoever had the GPU then, is old news."""

_PROGRAM, _MACHINE = "program", "machine"
_OF = re.compile(r"<of (\w+)>")


@dataclass(frozen=True)
class PodSelector:
    """The pods of a job: a regular expression, their namespace ("" where nobody said), and the labels of GPU series.

    `prefix` is "exported_" where Prometheus keeps the exporter's own pod in `pod`.
    """

    pattern: str
    namespace: str
    prefix: str = ""

    def matchers(self, prefix: str = "") -> str:
        """What picks the pods, without braces."""
        own = f'{prefix}namespace="{self.namespace}",' if self.namespace else ""
        return f'{own}{prefix}pod=~"{self.pattern}"'

    def relabelled(self, metric: str) -> str:
        """A metric of the job's GPUs with its pods in `namespace` and `pod`, whatever Prometheus calls them."""
        found = f"{metric}{{{self.matchers(self.prefix)}}}"
        for label in ("namespace", "pod") if self.prefix else ():
            found = f'label_replace({found}, "{label}", "$1", "{self.prefix}{label}", "(.*)")'
        return found


def build_pod_pattern(task: Task, kind: JobKind) -> str:
    """The names of the job's pods, and of no other's: a regular expression for the whole name.

    Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (NAME-INDEX-RANDOM);
    https://jobset.sigs.k8s.io/docs/concepts/ (NAME-JOB-REPLICA-INDEX-RANDOM), of which a TrainJob is one;
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/ (NAME-master-0, NAME-worker-N)
    """
    random = "[a-z0-9]{5}"
    match kind:
        case JobKind.JOB:
            return f"{task.name}-[0-9]+-{random}" if task.nodes > 1 else f"{task.name}-{random}"
        case JobKind.PYTORCHJOB:
            return f"{task.name}-(master|worker)-[0-9]+"
        case JobKind.TRAINJOB | JobKind.JOBSET:
            return f"{task.name}-[a-z]+-[0-9]+-[0-9]+-{random}"


def choose_job_kind(task: Task, settings: KubernetesSettings) -> JobKind:
    """The kind asked for, or the usual one for so many nodes."""
    return settings.kind or (JobKind.TRAINJOB if task.nodes > 1 else JobKind.JOB)


def build_alert_rules(vendor: Vendor, pods: PodSelector) -> list[dict[str, object]]:
    """The alerting rules for GPUs of this vendor, as Prometheus reads them; none for a job without.

    Source: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
    """
    return [_rule(alert, pods) for alert in load_tables().profiles.alerts if alert.vendor == vendor.value]


def list_counters(vendor: Vendor) -> str:
    """Lines for the exporter's list of counters: those that the rules need and its own list has not; "" for none."""
    lines = [alert.counter for alert in load_tables().profiles.alerts if alert.vendor == vendor.value and alert.counter]
    return "".join(f"{line}\n" for line in lines)


def _rule(alert: AlertRule, pods: PodSelector) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": _query(alert.query, pods),
        "for": alert.holds,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": _worded(alert.says, alert, pods), "description": alert.advice},
    }


def _query(query: str, pods: PodSelector) -> str:
    query = query.replace("<xids machine>", _machine_xids()).replace("<xids program>", _program_xids())
    query = _OF.sub(lambda found: pods.relabelled(found[1]), query)
    return query.replace("<job>", f"{{{pods.matchers(pods.prefix)}}}").replace("<pods>", pods.matchers())


def _worded(text: str, alert: AlertRule, pods: PodSelector) -> str:
    """The text with the label that has the pod's name: every series but those of kube-state-metrics may rename it."""
    return text if "<pods>" in alert.query else text.replace("$labels.pod", f"$labels.{pods.prefix}pod")


def _machine_xids() -> str:
    """Reports that blame the machine. They stand until the GPU is reset, and so does the alert."""
    return f"{XID_METRIC}<job> and on (UUID) ({_any_of(_MACHINE)})"


def _program_xids() -> str:
    """Reports that blame the program, while they are new."""
    stood = f"max by (UUID) ({XID_METRIC}<job>) == on (UUID) max by (UUID) ({XID_METRIC} offset {XID_WINDOW})"
    return f"({XID_METRIC}<job> and on (UUID) ({_any_of(_PROGRAM)})) unless on (UUID) ({stood})"


def _any_of(kind: str) -> str:
    return " or ".join(f"{XID_METRIC} == {number}" for number in _numbers(kind))


def _numbers(kind: str) -> list[int]:
    """Xids by whom they blame; those that ask for nothing are left out."""
    wanted = (
        {XidRemedy.RESTART_PROGRAM}
        if kind == _PROGRAM
        else set(XidRemedy) - {XidRemedy.RESTART_PROGRAM, XidRemedy.NOTHING}
    )
    return sorted(number for number, meaning in XID_MEANINGS.items() if meaning.remedy in wanted)


OPERATOR_API = "monitoring.coreos.com/v1"
MONITOR_NAME = "devkit-gpu-exporter"
"""One for all jobs of a namespace: two that ask the same exporter would give every sample twice."""
DASHBOARD_LABEL = ("grafana_dashboard", "1")
"""By which the sidecar of kube-prometheus-stack finds dashboards since chart 32.2."""
_SCRAPE_INTERVAL = "15s"


def build_monitoring_manifests(task: Task, settings: KubernetesSettings, context: ExportContext) -> list[Manifest]:
    """The manifests: ServiceMonitor, PrometheusRule, ConfigMap; the last alone for a job without a GPU.

    Raises DevkitError for a label that is none.
    """
    vendor = context.plan.vendor if task.accelerator.count else Vendor.CPU
    exporter = choose_exporter(vendor, settings)
    prefix = "exported_" if exporter is Exporter.SCRAPED else ""
    pods = PodSelector(build_pod_pattern(task, choose_job_kind(task, settings)), settings.namespace, prefix)
    found: list[Manifest] = []
    service = load_tables().profiles.exporters.get((vendor.value, exporter.value))
    if service is not None:
        found.append(_monitor(task, settings, {service.label: service.value}, service.port))
    if rules := build_alert_rules(vendor, pods):
        group = {"name": f"devkit.{task.name}", "interval": RULE_INTERVAL, "rules": rules}
        found.append(_custom(task, "PrometheusRule", f"{task.name}-gpu", settings, {"groups": [group]}))
    found.append(_dashboard(task, vendor, pods))
    return found


def choose_exporter(vendor: Vendor, settings: KubernetesSettings) -> Exporter:
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
        "honorLabels": Commented(True, "`pod` and `namespace` stay those of the job, and are not the exporter's own."),
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    }
    spec: Manifest = {"namespaceSelector": {"any": True}, "selector": {"matchLabels": labels}, "endpoints": [endpoint]}
    return _custom(task, "ServiceMonitor", MONITOR_NAME, settings, spec)


def _custom(task: Task, kind: str, name: str, settings: KubernetesSettings, spec: Manifest) -> Manifest:
    return {
        "apiVersion": OPERATOR_API,
        "kind": kind,
        "metadata": {"name": name, "labels": build_labels(task, "monitoring") | _picked(settings)},
        "spec": spec,
    }


def _dashboard(task: Task, vendor: Vendor, pods: PodSelector) -> Manifest:
    profiles = load_tables().profiles
    shown = build_cluster_dashboard(
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
        "data": {f"{task.name}.json": json.dumps(shown, indent=2, ensure_ascii=False) + "\n"},
    }


def _picked(settings: KubernetesSettings) -> dict[str, str]:
    """The label that the operator's Prometheus looks for; none where it takes every rule and monitor."""
    text = settings.prometheus_label
    return dict([parse_label(text, "--prometheus-label")]) if text else {}


# The folder monitoring: manifests for the Prometheus operator and Grafana, and counters for NVIDIA's exporter.

MONITORING_FOLDER = "monitoring"
COUNTERS_FILE = f"{MONITORING_FOLDER}/dcgm-counters.csv"
_NAMES = {"ServiceMonitor": "exporter.yaml", "PrometheusRule": "alerts.yaml", "ConfigMap": "dashboard.yaml"}


def render_monitoring(task: Task, settings: KubernetesSettings, context: ExportContext) -> list[Artifact]:
    """The files. Raises DevkitError for settings that no Prometheus takes."""
    files = {_NAMES[each["kind"]]: [each] for each in build_monitoring_manifests(task, settings, context)}
    about = "What watches the job. For clusters with the Prometheus operator: others refuse the kinds."
    made = render_folder(MONITORING_FOLDER, about, files, settings)
    counters = list_counters(_vendor(task, context))
    return [*made, Artifact.from_text(COUNTERS_FILE, counters)] if counters else made


def list_monitoring_notes(task: Task, context: ExportContext) -> tuple[str, ...]:
    """What no manifest can do: tell the exporter of a cluster what to collect."""
    lines = list_counters(_vendor(task, context)).splitlines()
    if not lines:
        return ()
    where = shlex.quote(f"{context.folder}/{COUNTERS_FILE}")
    return (f"{len(lines)} alerts need counters that NVIDIA's exporter does not collect by itself: those of {where}",)


def _vendor(task: Task, context: ExportContext) -> Vendor:
    return context.plan.vendor if task.accelerator.count else Vendor.CPU
