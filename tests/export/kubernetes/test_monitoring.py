"""The monitor, the rules and the dashboard as objects of a cluster.

The Prometheus operator's schemas are not among those of the tests. What is checked instead is written down here from
its documentation: https://prometheus-operator.dev/docs/api-reference/api/
"""

import json
import re

import pytest
import yaml

from devkit.errors import DevkitError
from devkit.export.kubernetes.manifest import render_yaml, strip_comments
from devkit.export.kubernetes.monitoring import MONITOR_NAME, build_monitoring_manifests
from devkit.export.kubernetes.settings import Exporter, JobKind, KubernetesSettings
from devkit.solver.plan import Vendor

from .sample_jobs import context, task

ENDPOINT = {"port", "interval", "honorLabels", "relabelings"}
"""Those of an endpoint's many fields that are used here."""
RULE = {"alert", "expr", "for", "labels", "annotations"}
DURATION = re.compile(r"(0|([0-9]+)(s|m|h))+")
every_vendor = pytest.mark.parametrize("vendor", list(Vendor), ids=str)


def objects(vendor: Vendor = Vendor.NVIDIA, *, nodes: int = 1, **settings: object) -> dict[str, dict]:
    """The manifests by kind, as a cluster gets them: written as YAML and read again."""
    made = build_monitoring_manifests(task(vendor, nodes=nodes), KubernetesSettings(**settings), context(vendor))
    documents = list(yaml.safe_load_all(render_yaml(made, heading="monitoring")))
    assert documents == [strip_comments(each) for each in made]
    return {each["kind"]: each for each in documents}


def dashboard(vendor: Vendor = Vendor.NVIDIA, **settings: object) -> dict:
    (text,) = objects(vendor, **settings)["ConfigMap"]["data"].values()
    return json.loads(text)


def test_there_is_what_the_cluster_has_not_yet():
    kinds = ["ServiceMonitor", "PrometheusRule", "ConfigMap"]
    assert list(objects()) == list(objects(exporter=Exporter.CHART)) == kinds
    assert list(objects(exporter=Exporter.SCRAPED)) == list(objects(Vendor.ROCM)) == kinds[1:]
    assert list(objects(Vendor.CPU)) == kinds[2:]


def test_the_monitor_asks_the_operators_exporter_and_keeps_the_jobs_labels():
    found = objects(prometheus_label="release=monitoring")["ServiceMonitor"]
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    assert found["metadata"]["name"] == MONITOR_NAME
    assert found["metadata"]["labels"]["release"] == "monitoring"
    assert set(found["spec"]) == {"namespaceSelector", "selector", "endpoints"}
    assert found["spec"]["selector"] == {"matchLabels": {"app": "nvidia-dcgm-exporter"}}
    (endpoint,) = found["spec"]["endpoints"]
    assert set(endpoint) == ENDPOINT
    assert (endpoint["port"], endpoint["honorLabels"]) == ("gpu-metrics", True)
    assert DURATION.fullmatch(endpoint["interval"])


def test_the_monitor_of_the_exporters_own_chart_looks_for_its_label_and_port():
    spec = objects(exporter=Exporter.CHART)["ServiceMonitor"]["spec"]
    assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": "dcgm-exporter"}}
    assert spec["endpoints"][0]["port"] == "metrics"


@pytest.mark.parametrize("exporter", [Exporter.OPERATOR, Exporter.CHART], ids=str)
def test_nvidias_exporter_is_no_choice_for_amds_gpus(exporter):
    with pytest.raises(DevkitError, match="is NVIDIA's") as refused:
        objects(Vendor.ROCM, exporter=exporter)
    assert "DeviceConfig" in refused.value.hint


def test_a_label_that_is_none_is_refused():
    for label in ("release", "=stack", "a b=c", 'a="x"', "a=b\nc"):
        with pytest.raises(DevkitError, match="--prometheus-label"):
            objects(prometheus_label=label)
    assert "release" not in objects(prometheus_label="")["PrometheusRule"]["metadata"]["labels"]


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
def test_the_rules_have_the_fields_that_the_operator_takes(vendor):
    found = objects(vendor)["PrometheusRule"]
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    (group,) = found["spec"]["groups"]
    assert set(group) == {"name", "interval", "rules"}
    assert DURATION.fullmatch(group["interval"])
    for rule in group["rules"]:
        assert set(rule) == RULE
        assert DURATION.fullmatch(rule["for"])
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])


def test_rules_select_the_namespace_where_one_is_given_and_the_kinds_pods():
    def queries(**settings: object) -> set[str]:
        rules = objects(**settings)["PrometheusRule"]["spec"]["groups"][0]["rules"]
        return {rule["expr"] for rule in rules}

    assert all('namespace="ml"' in query for query in queries(namespace="ml"))
    assert not any("namespace=" in query for query in queries())
    assert all("tune-(master|worker)-[0-9]+" in query for query in queries(kind=JobKind.PYTORCHJOB))
    assert all("tune-[a-z]+-[0-9]+-[0-9]+-[a-z0-9]{5}" in query for query in queries(nodes=2))


@every_vendor
def test_the_dashboard_is_found_by_grafanas_sidecar(vendor):
    metadata = objects(vendor)["ConfigMap"]["metadata"]
    assert metadata["labels"]["grafana_dashboard"] == "1"
    assert len(dashboard(vendor)["uid"]) <= 40


def test_dashboards_of_two_jobs_have_identities_of_their_own_and_keep_them():
    first, again, other = (dashboard(namespace=name)["uid"] for name in "aab")
    assert first == again != other


@pytest.mark.full
@every_vendor
def test_grafanas_own_model_reads_the_dashboard_and_loses_nothing_of_it(vendor):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    shown = dashboard(vendor)
    read = json.loads(json.dumps(Dashboard.from_json(shown), cls=JSONEncoder))
    assert [panel["targets"] for panel in read["panels"]] == [panel["targets"] for panel in shown["panels"]]
    for written, found in zip(shown["templating"]["list"], read["templating"]["list"], strict=True):
        assert written.items() <= found.items()


@every_vendor
def test_every_query_selects_the_pods_that_the_viewer_chose(vendor):
    panels = dashboard(vendor)["panels"]
    for panel in panels:
        (target,) = panel["targets"]
        metrics = re.findall(r"\b(?:DCGM_FI|gpu|container|kube)_\w+", target["expr"])
        assert metrics
        assert target["expr"].count('namespace=~"$namespace",pod=~"$pod"') == len(metrics)
        assert "<" not in target["expr"]
        assert "{{pod}}" in target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"
    assert [panel["title"] for panel in panels][-3:] == ["CPU in use", "Memory used", "Restarts"]
    assert not [panel for panel in panels if "node_" in panel["targets"][0]["expr"]]


def test_the_dashboard_asks_for_the_renamed_labels_where_prometheus_renamed_them():
    shown = dashboard(exporter=Exporter.SCRAPED)["panels"]
    gpu, cpu = shown[0]["targets"][0], shown[-3]["targets"][0]
    assert gpu["expr"] == 'DCGM_FI_DEV_GPU_UTIL{exported_namespace=~"$namespace",exported_pod=~"$pod"}'
    assert gpu["legendFormat"] == "{{exported_pod}} GPU {{gpu}}"
    assert '{namespace=~"$namespace",pod=~"$pod",container!=""}' in cpu["expr"]


def test_all_pods_means_those_of_the_job():
    everything = {each["name"]: each.get("allValue") for each in dashboard(namespace="ml")["templating"]["list"]}
    assert everything == {"datasource": None, "namespace": "ml", "pod": "tune-[a-z0-9]{5}"}
    assert dashboard()["templating"]["list"][1]["allValue"] == ".+"
