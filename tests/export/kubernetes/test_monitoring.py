"""The monitor, the rules and the dashboard as objects of a cluster; each alert, as Prometheus itself sees it.

The Prometheus operator's schemas are not among those of the tests. What is checked instead is written down here from
its documentation: https://prometheus-operator.dev/docs/api-reference/api/
"""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from devkit.compat.version_tables import load_tables
from devkit.doctor.error_codes import XidRemedy, load_xids
from devkit.errors import DevkitError
from devkit.export.kubernetes.manifest import render_yaml, strip_comments
from devkit.export.kubernetes.monitoring import (
    MONITOR_NAME,
    PodSelector,
    build_alert_rules,
    build_monitoring_manifests,
    build_pod_pattern,
    list_counters,
)
from devkit.export.kubernetes.settings import Exporter, JobKind, KubernetesSettings
from devkit.solver.plan import Vendor
from tests.engine import prometheus
from tests.engine.binaries import NoEngineError
from tests.engine.conftest import left_out

from .sample_jobs import context, task

RULE = {"alert", "expr", "for", "labels", "annotations"}
DURATION = re.compile(r"(0|([0-9]+)(s|m|h))+")


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
    for exporter in (Exporter.OPERATOR, Exporter.CHART):
        with pytest.raises(DevkitError, match="is NVIDIA's"):
            objects(Vendor.ROCM, exporter=exporter)


def test_the_monitor_finds_the_exporter_and_keeps_the_jobs_labels():
    found = objects(prometheus_label="release=monitoring")["ServiceMonitor"]
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    assert found["metadata"]["name"] == MONITOR_NAME
    assert found["metadata"]["labels"]["release"] == "monitoring"
    assert found["spec"]["selector"] == {"matchLabels": {"app": "nvidia-dcgm-exporter"}}
    (endpoint,) = found["spec"]["endpoints"]
    assert set(endpoint) == {"port", "interval", "honorLabels", "relabelings"}
    assert (endpoint["port"], endpoint["honorLabels"]) == ("gpu-metrics", True)
    assert DURATION.fullmatch(endpoint["interval"])
    of_chart = objects(exporter=Exporter.CHART)["ServiceMonitor"]["spec"]
    assert of_chart["selector"] == {"matchLabels": {"app.kubernetes.io/name": "dcgm-exporter"}}
    for label in ("release", "=stack", "a b=c", 'a="x"', "a=b\nc"):
        with pytest.raises(DevkitError, match="--prometheus-label"):
            objects(prometheus_label=label)


def test_the_rules_have_the_operators_fields_and_select_the_jobs_pods():
    for vendor in (Vendor.NVIDIA, Vendor.ROCM):
        (group,) = objects(vendor, namespace="ml")["PrometheusRule"]["spec"]["groups"]
        assert set(group) == {"name", "interval", "rules"}
        for rule in group["rules"]:
            assert set(rule) == RULE
            assert DURATION.fullmatch(rule["for"])
            assert rule["labels"]["severity"] in {"critical", "warning", "info"}
            assert 'namespace="ml"' in rule["expr"]
    assert "namespace=" not in str(objects()["PrometheusRule"]["spec"])
    assert build_alert_rules(Vendor.CPU, PODS) == []
    for pods, label in ((PODS, "pod"), (RENAMED, "exported_pod")):
        said = {rule["alert"]: rule["annotations"]["summary"] for rule in build_alert_rules(Vendor.NVIDIA, pods)}
        assert f"{{{{ $labels.{label} }}}}" in said["DevkitGpuFault"]
        assert "{{ $labels.pod }}" in said["DevkitGpuMetricsMissing"]


PODS_OF = {
    (JobKind.JOB, 1): ("tune-abcde tune-01234", "tune-0-abcde tune-doctor-abcde tune-2-abcde"),
    (JobKind.JOB, 3): ("tune-0-abcde tune-12-abcde", "tune-abcde tune-verify-0-abcde tune-x-0-abcde"),
    (JobKind.TRAINJOB, 3): ("tune-node-0-0-abcde tune-node-0-12-abcde", "tune-verify-0-abcde tune-node-0-abcde"),
    (JobKind.JOBSET, 3): ("tune-node-0-2-abcde", "tune-verify-0-abcde tuned-node-0-2-abcde"),
    (JobKind.RAYJOB, 3): ("tune-abcde-head tune-abcde-node-worker-x7z9q", "tune-files tune-abcde"),
    (JobKind.PYTORCHJOB, 3): ("tune-master-0 tune-worker-11", "tune-worker-1-abcde tune-files"),
}


def test_the_pods_of_a_job_are_matched_and_no_others():
    for (kind, nodes), (its_own, others) in PODS_OF.items():
        pattern = re.compile(build_pod_pattern(task(nodes=nodes), kind))
        assert [name for name in f"{its_own} {others}".split() if pattern.fullmatch(name)] == its_own.split(), kind
        assert pattern.pattern in str(objects(nodes=nodes, kind=kind)["PrometheusRule"])


def test_every_query_of_the_dashboard_selects_the_pods_that_the_viewer_chose():
    for vendor in Vendor:
        assert objects(vendor)["ConfigMap"]["metadata"]["labels"]["grafana_dashboard"] == "1"
        panels = dashboard(vendor)["panels"]
        assert panels
        for panel in panels:
            (target,) = panel["targets"]
            metrics = re.findall(r"\b(?:DCGM_FI|gpu|container|kube)_\w+", target["expr"])
            assert metrics and "<" not in target["expr"]
            assert target["expr"].count('namespace=~"$namespace",pod=~"$pod"') == len(metrics)
            assert target["datasource"]["uid"] == "${datasource}"
    gpu, *_, cpu = (panel["targets"][0] for panel in dashboard(exporter=Exporter.SCRAPED)["panels"][:-2])
    assert gpu["expr"] == 'DCGM_FI_DEV_GPU_UTIL{exported_namespace=~"$namespace",exported_pod=~"$pod"}'
    assert gpu["legendFormat"] == "{{exported_pod}} GPU {{gpu}}"
    assert '{namespace=~"$namespace",pod=~"$pod",container!=""}' in cpu["expr"]


def test_a_dashboard_has_its_own_identity_and_all_pods_means_those_of_the_job():
    first, again, other = (dashboard(namespace=name) for name in "aab")
    assert first["uid"] == again["uid"] != other["uid"]
    assert len(first["uid"]) <= 40
    everything = {each["name"]: each.get("allValue") for each in first["templating"]["list"]}
    assert everything == {"datasource": None, "namespace": "a", "pod": "tune-[a-z0-9]{5}"}
    assert dashboard()["templating"]["list"][1]["allValue"] == ".+"


def test_every_xid_that_asks_for_something_is_in_one_rule_and_in_one_alone():
    rules = {rule["alert"]: str(rule["expr"]) for rule in build_alert_rules(Vendor.NVIDIA, PODS)}
    machine, program = (
        {int(number) for number in re.findall(r"ERRORS == (\d+)", rules[name])}
        for name in ("DevkitGpuFault", "DevkitGpuProgramFault")
    )
    assert not machine & program
    assert machine | program == {n for n, meaning in load_xids().items() if meaning.remedy is not XidRemedy.NOTHING}
    assert {79, 48} <= machine and 31 in program


def test_the_exporter_is_configured_for_counters_that_it_does_not_collect_by_default():
    """Its own list: https://github.com/NVIDIA/dcgm-exporter/blob/4.5.3-4.8.2/etc/default-counters.csv"""
    own = {UTIL, XID, USED, FREE, "DCGM_FI_DEV_ROW_REMAP_FAILURE"}
    rules = str(build_alert_rules(Vendor.NVIDIA, PODS))
    lines = [line.split(", ") for line in list_counters(Vendor.NVIDIA).splitlines()]
    assert {line[0] for line in lines} == set(re.findall(r"DCGM_FI_\w+", rules)) - own
    assert {(len(line), line[1]) for line in lines} <= {(3, "gauge"), (3, "counter")}
    assert list_counters(Vendor.ROCM) == list_counters(Vendor.CPU) == ""


POD = "tune-abcde"
PODS = PodSelector(build_pod_pattern(task(), JobKind.JOB), "ml")
RENAMED = PodSelector(PODS.pattern, "ml", "exported_")
OWN = {"namespace": "ml", "pod": POD, "gpu": "1", "UUID": "GPU-1"}
AMD = {"namespace": "ml", "pod": POD, "gpu_id": "1"}
UTIL, XID = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS"
CLOCKS, USED, FREE = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"


@dataclass(frozen=True)
class Case:
    """Some minutes of series, in promtool's notation with one value a minute, and whether the alert fires then."""

    alert: str
    minutes: int
    series: dict[str, str]
    fires: bool
    vendor: Vendor = Vendor.NVIDIA


def of(metric: str, labels: dict[str, str] = OWN, **changed: str) -> str:
    """A series of the job's GPU; a label given as "" is left out."""
    shown = {name: value for name, value in (labels | changed).items() if value}
    return f"{metric}{{{','.join(f'{name}={json.dumps(value)}' for name, value in shown.items())}}}"


def on_nvidia() -> list[Case]:
    unused, fault, program, full = "GpuUnderused", "GpuFault", "GpuProgramFault", "GpuMemoryNearlyFull"
    others = ({"pod": "tune-2-abcde"}, {"pod": "tune-doctor-abcde"}, {"namespace": "other"}, {"pod": "", "UUID": ""})
    lost, pending = of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), of("DCGM_FI_DEV_ROW_REMAP_PENDING")
    failed = of("DCGM_FI_DEV_ROW_REMAP_FAILURE")
    before = {of(XID, pod="", namespace=""): "31x20 stale", of(XID): "_x21 31x40"}
    return [
        Case(unused, 20, {of(UTIL): "79x40"}, fires=True),
        Case(unused, 20, {of(UTIL): "80x40"}, fires=False),
        Case(unused, 14, {of(UTIL): "40x40"}, fires=False),
        Case(unused, 30, {of(UTIL): "99x8 0 99x8 0 99x20"}, fires=False),
        Case(unused, 30, {of(UTIL): "40x10 stale"}, fires=False),
        *(Case(unused, 20, {of(UTIL, **other): "5x40"}, fires=False) for other in others),
        Case(fault, 5, {of(XID): "0x3 79x40"}, fires=True),
        Case(fault, 50, {of(XID): "79x60"}, fires=True),
        *(Case(fault, 20, {of(XID): f"{number}x40"}, fires=False) for number in (0, 13, 63)),
        Case(fault, 10, {of(XID, err_code="0"): "0x3 stale", of(XID, err_code="48"): "_x4 48x40"}, fires=True),
        Case(program, 22, {of(XID): "0x20 31x40"}, fires=True),
        Case(program, 25, {of(XID): "13x20 31x40"}, fires=True),
        Case(program, 40, {of(XID): "31x60"}, fires=False),
        Case(program, 25, before, fires=False),
        Case(program, 22, {of(XID): "0x20 79x40"}, fires=False),
        Case("GpuMemoryErrors", 5, {lost: "0x3 2x40"}, fires=True),
        Case("GpuMemoryErrors", 20, {lost: "0x40"}, fires=False),
        *(Case("GpuRowsPending", 1, {pending: f"{value}x40"}, fires=value > 0) for value in (0, 1)),
        *(Case("GpuRowsFailed", 1, {failed: f"{value}x40"}, fires=value > 0) for value in (0, 1)),
        Case(full, 15, {of(USED): "79000x40", of(FREE): "1000x40"}, fires=True),
        Case(full, 15, {of(USED): "77600x40", of(FREE): "2400x40"}, fires=False),
        Case(full, 15, {of(USED): "79x9 1x40", of(FREE): "1x40"}, fires=False),
        *(Case("GpuThrottled", 10, {of(CLOCKS): f"{bit}x40"}, fires=True) for bit in (8, 32, 64, 128, 0x24)),
        *(Case("GpuThrottled", 10, {of(CLOCKS): f"{bit}x40"}, fires=False) for bit in (0, 1, 2, 4, 16, 256, 0x117)),
        Case("GpuThrottled", 6, {of(CLOCKS): "8x3 0x40"}, fires=False),
    ]


def on_amd() -> list[Case]:
    hbm = "gpu_violation_hbm_thermal_residency_percentage"
    values = {
        ("GpuUnderused", 20, "gpu_gfx_activity"): (40, 95),
        ("GpuMemoryErrors", 1, "gpu_ecc_uncorrect_total"): (1, 0),
        ("GpuMemoryNearlyFull", 15, "gpu_used_vram"): (98, 97),
        ("GpuThrottled", 10, hbm): (25, 10),
    }
    whole = {of("gpu_total_vram", AMD): "100x40"}
    return [
        Case(alert, minutes, whole | {of(metric, AMD): f"{value}x40"}, fires=value == bad, vendor=Vendor.ROCM)
        for (alert, minutes, metric), (bad, good) in values.items()
        for value in (bad, good)
    ]


def without_metrics(vendor: Vendor, metric: str) -> list[Case]:
    phases = of("kube_pod_status_phase", {"namespace": "ml", "pod": POD, "phase": "Running"})
    stories = (
        (12, {phases: "1x60"}, True),
        (20, {phases: "1x60", metric: "1x5 stale"}, True),
        (30, {phases: "1x60", metric: "1x60"}, False),
        (9, {phases: "1x60"}, False),
        (30, {phases: "0x60", phases.replace("Running", "Pending"): "1x60"}, False),
        (30, {phases.replace(POD, "web-1"): "1x60"}, False),
    )
    return [Case("GpuMetricsMissing", *story, vendor) for story in stories]


CASES = [
    *(*on_nvidia(), *without_metrics(Vendor.NVIDIA, of(USED))),
    *(*on_amd(), *without_metrics(Vendor.ROCM, of("gpu_total_vram", AMD))),
]


def test_every_alert_of_the_table_is_seen_to_fire_and_to_be_silent():
    alerts = {(alert.vendor, alert.name) for alert in load_tables().profiles.alerts}
    for fires in (True, False):
        assert {(str(case.vendor), f"Devkit{case.alert}") for case in CASES if case.fires is fires} == alerts


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return prometheus.programs() / "promtool"
    except NoEngineError as error:
        left_out(str(error))
        raise


def as_story(case: Case, pods: PodSelector) -> dict[str, object]:
    """The case in promtool's words: how many series the alert has. The exporter's labels may be renamed."""

    def shown(series: str) -> str:
        return series if series.startswith("kube_") else re.sub(r"\b(pod|namespace)=", rf"{pods.prefix}\1=", series)

    firing = f'count(ALERTS{{alertname="Devkit{case.alert}",alertstate="firing"}}) or vector(0)'
    samples = [{"labels": "{}", "value": int(case.fires)}]
    return {
        "name": str(case),
        "interval": "1m",
        "input_series": [{"series": shown(name), "values": values} for name, values in case.series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": f"{case.minutes}m", "exp_samples": samples}],
    }


@pytest.mark.full
@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
@pytest.mark.parametrize("pods", [PODS, RENAMED], ids=["plain", "renamed"])
def test_promtool_agrees_with_every_case_and_takes_every_query_of_the_dashboard(vendor, pods, promtool, tmp_path):
    queries = [target["expr"] for panel in dashboard(vendor)["panels"] for target in panel["targets"]]
    shown = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(queries)]
    groups = [{"name": "job", "rules": build_alert_rules(vendor, pods)}, {"name": "dashboard", "rules": shown}]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    stories = [as_story(each, pods) for each in CASES if each.vendor is vendor]
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": stories}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    for words in (("test", "rules", "test.yml"), ("check", "rules", "--lint-fatal", "rules.yml")):
        done = subprocess.run([promtool, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
