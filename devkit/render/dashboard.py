"""The Grafana dashboard: what the GPUs and the machine do while a model trains.

Source of the JSON's shape: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

import re
from collections.abc import Iterable

from devkit.compat.service_rows import Panel

DATASOURCE = "prometheus"
"""The uid of the data source that is provisioned beside it."""

_SCHEMA_VERSION = 39
_COLUMNS = 2
_WIDTH = 24 // _COLUMNS
_HEIGHT = 8


def dashboard(vendor: str, panels: Iterable[Panel]) -> dict[str, object]:
    """The dashboard for machines of this vendor: its GPUs' panels first, then those of every machine."""
    shown = [panel for panel in panels if panel.vendor in (vendor, "")]
    return {
        "uid": "devkit-training",
        "title": "Training",
        "tags": ["devkit"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "panels": [_panel(number, panel) for number, panel in enumerate(shown)],
    }


def dcgm_counters(panels: Iterable[Panel]) -> str:
    """The counters that the dashboard asks DCGM's exporter for, as the file that the exporter reads.

    Source: https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgm-exporter.html
    """
    counters = {field: panel.title for panel in panels for field in re.findall(r"DCGM_FI_\w+", panel.query)}
    return "".join(f"{field}, gauge, {title}\n" for field, title in counters.items())


def _panel(number: int, panel: Panel) -> dict[str, object]:
    source = {"type": "prometheus", "uid": DATASOURCE}
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [{"refId": "A", "datasource": source, "expr": panel.query, "legendFormat": panel.legend}],
    }


def _defaults(panel: Panel) -> dict[str, object]:
    highest = {"max": 100} if panel.unit == "percent" else {}
    return {"unit": panel.unit, "min": 0, **highest, "custom": {"drawStyle": "line", "fillOpacity": 10}}
