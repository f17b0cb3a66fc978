"""The Grafana dashboard of the GPUs and the machine while a model trains.

Source of the JSON's shape: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

import re
from collections.abc import Iterable

from devkit.compat.version_tables import DashboardPanel

DATASOURCE_UID = "prometheus"
"""The uid of the data source that is provisioned beside it."""

_SCHEMA_VERSION = 39
_COLUMNS = 2
_WIDTH = 24 // _COLUMNS
_HEIGHT = 8


def build_dashboard(vendor: str, panels: Iterable[DashboardPanel]) -> dict[str, object]:
    """Build the dashboard for machines of this vendor: its GPUs' panels first, then those of every machine."""
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
        "panels": [_build_panel(number, panel) for number, panel in enumerate(shown)],
    }


def render_dcgm_counters(panels: Iterable[DashboardPanel]) -> str:
    """Render the list of counters for DCGM's exporter, as many as the dashboard uses.

    Source: https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgm-exporter.html
    """
    counters = {field: panel.title for panel in panels for field in re.findall(r"DCGM_FI_\w+", panel.query)}
    return "".join(f"{field}, gauge, {title}\n" for field, title in counters.items())


def _build_panel(number: int, panel: DashboardPanel) -> dict[str, object]:
    source = {"type": "prometheus", "uid": DATASOURCE_UID}
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
