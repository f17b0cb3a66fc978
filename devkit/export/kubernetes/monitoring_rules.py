"""Rules for Prometheus: the alerts of the tables, held to the pods of one job."""

import re
from dataclasses import dataclass

from devkit.compat.load import tables
from devkit.compat.service_rows import Alert
from devkit.doctor.xids import XIDS, Remedy
from devkit.export.kubernetes.settings import Kind, KubernetesSettings
from devkit.export.task import Task
from devkit.solver.model import Vendor

INTERVAL = "30s"
"""How often rules are asked: twice the exporters' own interval."""
XID = "DCGM_FI_DEV_XID_ERRORS"
NEWLY = "15m"
"""An Xid stands until another comes. One that stood so long ago already, whoever had the GPU then, is old news."""

_PROGRAM, _MACHINE = "program", "machine"
_OF = re.compile(r"<of (\w+)>")


@dataclass(frozen=True)
class JobPods:
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


def pod_pattern(task: Task, kind: Kind) -> str:
    """The names of the job's pods, and of no other's: a regular expression for the whole name.

    Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (NAME-INDEX-RANDOM);
    https://jobset.sigs.k8s.io/docs/concepts/ (NAME-JOB-REPLICA-INDEX-RANDOM), of which a TrainJob is one;
    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/pytorch/ (NAME-master-0, NAME-worker-N)
    """
    random = "[a-z0-9]{5}"
    match kind:
        case Kind.JOB:
            return f"{task.name}-[0-9]+-{random}" if task.nodes > 1 else f"{task.name}-{random}"
        case Kind.PYTORCHJOB:
            return f"{task.name}-(master|worker)-[0-9]+"
        case Kind.TRAINJOB | Kind.JOBSET:
            return f"{task.name}-[a-z]+-[0-9]+-[0-9]+-{random}"


def kind_of_job(task: Task, settings: KubernetesSettings) -> Kind:
    """The kind asked for, or the usual one for so many nodes."""
    return settings.kind or (Kind.TRAINJOB if task.nodes > 1 else Kind.JOB)


def rules_for(vendor: Vendor, pods: JobPods) -> list[dict[str, object]]:
    """The alerting rules for GPUs of this vendor, as Prometheus reads them; none for a job without.

    Source: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
    """
    return [_rule(alert, pods) for alert in tables().profiles.alerts if alert.vendor == vendor.value]


def counters_for(vendor: Vendor) -> str:
    """Lines for the exporter's list of counters: those that the rules need and its own list has not; "" for none."""
    lines = [alert.counter for alert in tables().profiles.alerts if alert.vendor == vendor.value and alert.counter]
    return "".join(f"{line}\n" for line in lines)


def _rule(alert: Alert, pods: JobPods) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": _query(alert.query, pods),
        "for": alert.holds,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": _worded(alert.says, alert, pods), "description": alert.advice},
    }


def _query(query: str, pods: JobPods) -> str:
    query = query.replace("<xids machine>", _machine_xids()).replace("<xids program>", _program_xids())
    query = _OF.sub(lambda found: pods.relabelled(found[1]), query)
    return query.replace("<job>", f"{{{pods.matchers(pods.prefix)}}}").replace("<pods>", pods.matchers())


def _worded(text: str, alert: Alert, pods: JobPods) -> str:
    """The text with the label that has the pod's name: every series but those of kube-state-metrics may rename it."""
    return text if "<pods>" in alert.query else text.replace("$labels.pod", f"$labels.{pods.prefix}pod")


def _machine_xids() -> str:
    """Reports that blame the machine. They stand until the GPU is reset, and so does the alert."""
    return f"{XID}<job> and on (UUID) ({_any_of(_MACHINE)})"


def _program_xids() -> str:
    """Reports that blame the program, while they are new."""
    stood = f"max by (UUID) ({XID}<job>) == on (UUID) max by (UUID) ({XID} offset {NEWLY})"
    return f"({XID}<job> and on (UUID) ({_any_of(_PROGRAM)})) unless on (UUID) ({stood})"


def _any_of(kind: str) -> str:
    return " or ".join(f"{XID} == {number}" for number in _numbers(kind))


def _numbers(kind: str) -> list[int]:
    """Xids by whom they blame; those that ask for nothing are left out."""
    wanted = {Remedy.RESTART_PROGRAM} if kind == _PROGRAM else set(Remedy) - {Remedy.RESTART_PROGRAM, Remedy.NOTHING}
    return sorted(number for number, meaning in XIDS.items() if meaning.remedy in wanted)
