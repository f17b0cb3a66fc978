"""The profile `monitoring`, as Prometheus itself reads it, and what its dashboard would show of this machine."""

import json
from pathlib import Path

import pytest
import yaml

from tests.render.test_artifacts import texts
from tests.render.test_profiles import BOTH, PLANS

from . import prometheus
from .binaries import NoEngineError
from .commands import run
from .conftest import left_out


@pytest.fixture(scope="module")
def programs() -> Path:
    """Where Prometheus's programs are."""
    try:
        return prometheus.programs()
    except NoEngineError as error:
        left_out(str(error))
        raise


def queries(vendor: str) -> dict[str, str]:
    """Panel -> what it asks Prometheus."""
    panels = json.loads(texts(PLANS[vendor], BOTH)["monitoring/grafana/dashboards/training.json"])["panels"]
    return {panel["title"]: target["expr"] for panel in panels for target in panel["targets"]}


@pytest.mark.parametrize("vendor", PLANS)
def test_prometheus_accepts_its_configuration_and_every_query_of_the_dashboard(programs, vendor, tmp_path):
    (tmp_path / "prometheus.yml").write_text(texts(PLANS[vendor], BOTH)["monitoring/prometheus.yml"])
    assert "SUCCESS" in run([programs / "promtool", "check", "config", tmp_path / "prometheus.yml"]).stdout
    rules = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(queries(vendor).values())]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run([programs / "promtool", "check", "rules", tmp_path / "rules.yml"]).stdout
