"""The profile `monitoring`, as Prometheus itself reads it, and what its dashboard would show of this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.render.test_artifacts import texts
from tests.render.test_profiles import BOTH, PLANS

from . import prometheus
from .binaries import NoEngineError
from .commands import run
from .conftest import left_out

SCRAPE = "1s"


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


@pytest.fixture
def watched(programs: Path, tmp_path: Path) -> Iterator[int]:
    """Prometheus and the node exporter as the profile runs them, but on this machine; gives Prometheus's port."""
    made = texts(PLANS["cpu"], BOTH)
    node = yaml.safe_load(made["docker-compose.yml"])["services"]["machine-metrics"]
    config = yaml.safe_load(made["monitoring/prometheus.yml"])
    port, node_port = prometheus.free_port(), prometheus.free_port()
    config["global"]["scrape_interval"] = SCRAPE
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{node_port}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    listen = f"--web.listen-address=127.0.0.1:{node_port}"
    with (
        prometheus.started(programs / "prometheus-node-exporter", *node["command"], listen),
        prometheus.started(
            programs / "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ),
    ):
        yield port


def test_the_machines_panels_have_something_to_show(watched):
    for title, query in queries("cpu").items():
        shown = prometheus.answer(watched, query, deadline_s=60)
        assert len(shown) == 1, title
        assert float(shown[0]["value"][1]) > 0, title
