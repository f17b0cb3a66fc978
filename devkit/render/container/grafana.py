"""Grafana dashboards of the GPUs and the machine while a model trains.

Source of the JSON's shape: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from devkit.compat.version_tables import DashboardPanel

DATASOURCE_UID = "prometheus"
"""The uid of the data source that is provisioned beside it."""

DATASOURCE_VARIABLE = "${datasource}"
"""The data source that the viewer chooses, because every cluster has its own name for it."""

_METRIC = re.compile(r"\b(?:DCGM_FI|gpu)_\w+")
"""The name of a GPU's metric, as in the vendors' exporters."""

_SCHEMA_VERSION = 39
_COLUMNS = 2
_WIDTH = 24 // _COLUMNS
_HEIGHT = 8


def build_dashboard(vendor: str, panels: Iterable[DashboardPanel]) -> dict[str, object]:
    """Build the dashboard for machines of this vendor: its GPUs' panels first, then those of every machine."""
    shown = [panel for panel in panels if panel.vendor in (vendor, "")]
    return _build_document("devkit-training", "Training", shown, source=DATASOURCE_UID)


@dataclass(frozen=True, kw_only=True)
class DashboardPods:
    """The pods of a job, as regular expressions, and the names of their two labels in the series of their GPUs."""

    namespaces: str
    pods: str
    namespace_label: str = "namespace"
    pod_label: str = "pod"


def build_cluster_dashboard(
    vendor: str,
    panels: Iterable[DashboardPanel],
    cluster_panels: Iterable[DashboardPanel],
    *,
    uid: str,
    title: str,
    pods: DashboardPods,
) -> dict[str, object]:
    """Build the dashboard for a job in a cluster: the panels of its vendor's GPUs, then `cluster_panels`.

    Source: https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/
    """
    of_gpus = f'{{{pods.namespace_label}=~"$namespace",{pods.pod_label}=~"$pod"}}'
    of_pods = 'namespace=~"$namespace",pod=~"$pod"'
    shown = [
        replace(
            panel, query=_METRIC.sub(rf"\g<0>{of_gpus}", panel.query), legend=f"{{{{{pods.pod_label}}}}} {panel.legend}"
        )
        for panel in panels
        if panel.vendor == vendor
    ]
    shown += [replace(panel, query=panel.query.replace("<pods>", of_pods)) for panel in cluster_panels]
    document = _build_document(uid, title, shown, source=DATASOURCE_VARIABLE)
    return document | {"templating": {"list": _build_variables(pods)}}


def _build_variables(pods: DashboardPods) -> list[dict[str, object]]:
    """Build the dashboard's variables; at first they select every pod of the job."""
    source: dict[str, object] = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Prometheus",
    }
    return [
        source,
        _build_variable("namespace", "label_values(kube_pod_info, namespace)", pods.namespaces),
        _build_variable(
            "pod", f'label_values(kube_pod_info{{namespace=~"$namespace",pod=~"{pods.pods}"}}, pod)', pods.pods
        ),
    ]


def _build_variable(name: str, query: str, everything: str) -> dict[str, object]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": DATASOURCE_VARIABLE},
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "allValue": everything,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def _build_document(uid: str, title: str, shown: Iterable[DashboardPanel], *, source: str) -> dict[str, object]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["devkit"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "panels": [_build_panel(number, panel, source) for number, panel in enumerate(shown)],
    }


def render_dcgm_counters(panels: Iterable[DashboardPanel]) -> str:
    """Render the list of counters for DCGM's exporter, as many as the dashboard uses.

    Source: https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgm-exporter.html
    """
    counters = {field: panel.title for panel in panels for field in re.findall(r"DCGM_FI_\w+", panel.query)}
    return "".join(f"{field}, gauge, {title}\n" for field, title in counters.items())


def _build_panel(number: int, panel: DashboardPanel, uid: str) -> dict[str, object]:
    source = {"type": "prometheus", "uid": uid}
    row, column = divmod(number, _COLUMNS)
    highest = {"max": 100} if panel.unit == "percent" else {}
    defaults = {"unit": panel.unit, "min": 0, **highest, "custom": {"drawStyle": "line", "fillOpacity": 10}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [{"refId": "A", "datasource": source, "expr": panel.query, "legendFormat": panel.legend}],
    }
