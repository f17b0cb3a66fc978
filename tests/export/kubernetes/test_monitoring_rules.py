"""Every alert, as Prometheus's own program for testing rules sees it: where it fires, and where it must not."""

import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from devkit.compat.version_tables import load_tables
from devkit.doctor.error_codes import XidRemedy, load_xids
from devkit.export.kubernetes.monitoring import (
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

POD = "tune-abcde"
PODS = PodSelector(build_pod_pattern(task(), JobKind.JOB), "ml")
RENAMED = PodSelector(PODS.pattern, "ml", "exported_")
OWN = {"namespace": "ml", "pod": POD, "gpu": "1", "UUID": "GPU-1"}
AMD = {"namespace": "ml", "pod": POD, "gpu_id": "1"}
KSM = {"namespace": "ml", "pod": POD, "phase": "Running"}


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return prometheus.programs() / "promtool"
    except NoEngineError as error:
        left_out(str(error))
        raise


@dataclass(frozen=True)
class Case:
    """A story of some minutes: series as promtool writes them, one value a minute; what is said of it, "" for nothing.

    `labels` are those of the alert, besides its severity.
    """

    story: str
    alert: str
    series: dict[str, str]
    minutes: int
    says: str = ""
    labels: dict[str, str] = field(default_factory=lambda: OWN)
    value: str = ""
    vendor: Vendor = Vendor.NVIDIA

    def __str__(self) -> str:
        return f"{self.vendor} {self.alert} {self.story}"


def of(metric: str, **labels: str) -> str:
    """A series of the job's GPU; a label given as "" is left out."""
    shown = {name: value for name, value in (OWN | labels).items() if value}
    return f"{metric}{{{','.join(f'{name}={json.dumps(value)}' for name, value in shown.items())}}}"


def amd(metric: str, **labels: str) -> str:
    return of(metric, gpu="", UUID="", gpu_id="1", **labels)


def running(pod: str = POD, phase: str = "Running", value: int = 1) -> dict[str, str]:
    return {f'kube_pod_status_phase{{namespace="ml",pod="{pod}",phase="{phase}"}}': f"{value}x60"}


UTIL, XID = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS"
CLOCKS, USED, FREE = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
BUSY = f"GPU 1 of {POD} was busy"
MISSING = f"{POD} runs, and nothing is known of its GPU"
SLOWED = f"GPU 1 of {POD} is slowed by heat or by its power supply"

CASES = [
    Case("waits for its data", "DevkitGpuUnderused", {of(UTIL): "40x40"}, 20, f"{BUSY} 40 % of the time"),
    Case("is just below", "DevkitGpuUnderused", {of(UTIL): "79x40"}, 20, f"{BUSY} 79 % of the time"),
    Case("is busy enough", "DevkitGpuUnderused", {of(UTIL): "80x40"}, 20),
    Case("has not waited for long", "DevkitGpuUnderused", {of(UTIL): "40x40"}, 14),
    Case("saves a checkpoint now and then", "DevkitGpuUnderused", {of(UTIL): "99x8 0 99x8 0 99x20"}, 30),
    Case("is another job's", "DevkitGpuUnderused", {of(UTIL, pod="tune-2-abcde"): "5x40"}, 20),
    Case("is the doctor's", "DevkitGpuUnderused", {of(UTIL, pod="tune-doctor-abcde"): "5x40"}, 20),
    Case("is the proof's", "DevkitGpuUnderused", {of(UTIL, pod="tune-verify-0-abcde"): "5x40"}, 20),
    Case("is of another namespace", "DevkitGpuUnderused", {of(UTIL, namespace="other"): "5x40"}, 20),
    Case("has no job", "DevkitGpuUnderused", {of(UTIL, pod="", namespace=""): "0x40"}, 20),
    Case("ended meanwhile", "DevkitGpuUnderused", {of(UTIL): "40x10 stale"}, 30),
    Case("fell off the bus", "DevkitGpuFault", {of(XID): "0x3 79x40"}, 5, f"GPU 1 of {POD} reports Xid 79", value="79"),
    Case("stays so", "DevkitGpuFault", {of(XID): "79x60"}, 50, f"GPU 1 of {POD} reports Xid 79", value="79"),
    Case("is well", "DevkitGpuFault", {of(XID): "0x40"}, 20),
    Case("ran a broken program", "DevkitGpuFault", {of(XID): "13x40"}, 20),
    Case("dealt with it", "DevkitGpuFault", {of(XID): "63x40"}, 20),
    Case(
        "names its number in a label, too",
        "DevkitGpuFault",
        {of(XID, err_code="0"): "0x3 stale", of(XID, err_code="48"): "_x4 48x40"},
        10,
        f"GPU 1 of {POD} reports Xid 48",
        OWN | {"err_code": "48"},
        "48",
    ),
    Case(
        "went out of bounds",
        "DevkitGpuProgramFault",
        {of(XID): "0x20 31x40"},
        22,
        f"GPU 1 of {POD} reports Xid 31",
        value="31",
    ),
    Case("went out of bounds long ago", "DevkitGpuProgramFault", {of(XID): "31x60"}, 40),
    Case(
        "was broken by the job before",
        "DevkitGpuProgramFault",
        {of(XID, pod="", namespace=""): "31x20 stale", of(XID): "_x21 31x40"},
        25,
    ),
    Case(
        "breaks in another way than before",
        "DevkitGpuProgramFault",
        {of(XID): "13x20 31x40"},
        25,
        f"GPU 1 of {POD} reports Xid 31",
        value="31",
    ),
    Case("has a fault of its own", "DevkitGpuProgramFault", {of(XID): "0x20 79x40"}, 22),
    Case(
        "lost two words",
        "DevkitGpuMemoryErrors",
        {of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"): "0x3 2x40"},
        5,
        f"GPU 1 of {POD} had 2 memory errors that could not be corrected",
        value="2",
    ),
    Case("lost nothing", "DevkitGpuMemoryErrors", {of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"): "0x40"}, 20),
    Case(
        "waits for a reset",
        "DevkitGpuRowsPending",
        {of("DCGM_FI_DEV_ROW_REMAP_PENDING"): "1x40"},
        1,
        f"GPU 1 of {POD} has rows of memory to replace",
    ),
    Case("waits for nothing", "DevkitGpuRowsPending", {of("DCGM_FI_DEV_ROW_REMAP_PENDING"): "0x40"}, 20),
    Case(
        "has no spare row",
        "DevkitGpuRowsFailed",
        {of("DCGM_FI_DEV_ROW_REMAP_FAILURE"): "1x40"},
        1,
        f"GPU 1 of {POD} could not replace a bad row of memory",
    ),
    Case("has spare rows", "DevkitGpuRowsFailed", {of("DCGM_FI_DEV_ROW_REMAP_FAILURE"): "0x40"}, 20),
    Case(
        "has little left",
        "DevkitGpuMemoryNearlyFull",
        {of(USED): "79000x40", of(FREE): "1000x40"},
        15,
        f"GPU 1 of {POD} has 98.75% of its memory in use",
    ),
    Case("has some left", "DevkitGpuMemoryNearlyFull", {of(USED): "77600x40", of(FREE): "2400x40"}, 15),
    Case("had little left for a moment", "DevkitGpuMemoryNearlyFull", {of(USED): "79x9 1x40", of(FREE): "1x40"}, 15),
    *[
        Case(f"is slowed for reason {reason:#x}", "DevkitGpuThrottled", {of(CLOCKS): f"{reason}x40"}, 10, SLOWED)
        for reason in (0x08, 0x20, 0x40, 0x80, 0x68, 0x24)
    ],
    *[
        Case(f"has reason {reason:#x} only", "DevkitGpuThrottled", {of(CLOCKS): f"{reason}x40"}, 10)
        for reason in (0x00, 0x01, 0x02, 0x04, 0x10, 0x100, 0x117)
    ],
    Case("is slowed for a moment", "DevkitGpuThrottled", {of(CLOCKS): "8x3 0x40"}, 6),
    Case("has no exporter", "DevkitGpuMetricsMissing", running(), 12, MISSING, KSM),
    Case("lost its exporter", "DevkitGpuMetricsMissing", running() | {of(USED): "1x5 stale"}, 20, MISSING, KSM),
    Case("is watched", "DevkitGpuMetricsMissing", running() | {of(USED): "1x60"}, 30),
    Case("has started just now", "DevkitGpuMetricsMissing", running(), 9),
    Case("waits for a node", "DevkitGpuMetricsMissing", running(phase="Pending") | running(value=0), 30),
    Case("is no job's", "DevkitGpuMetricsMissing", running(pod="web-1"), 30),
    Case(
        "waits for its data",
        "DevkitGpuUnderused",
        {amd("gpu_gfx_activity"): "40x40"},
        20,
        f"{BUSY} 40 % of the time",
        AMD,
        vendor=Vendor.ROCM,
    ),
    Case("is busy", "DevkitGpuUnderused", {amd("gpu_gfx_activity"): "95x40"}, 20, vendor=Vendor.ROCM),
    Case(
        "lost a word",
        "DevkitGpuMemoryErrors",
        {amd("gpu_ecc_uncorrect_total"): "1x40"},
        1,
        f"GPU 1 of {POD} had 1 memory errors that could not be corrected",
        AMD,
        vendor=Vendor.ROCM,
    ),
    Case("lost nothing", "DevkitGpuMemoryErrors", {amd("gpu_ecc_uncorrect_total"): "0x40"}, 1, vendor=Vendor.ROCM),
    Case(
        "has little left",
        "DevkitGpuMemoryNearlyFull",
        {amd("gpu_used_vram"): "98x40", amd("gpu_total_vram"): "100x40"},
        15,
        f"GPU 1 of {POD} has 98% of its memory in use",
        AMD,
        vendor=Vendor.ROCM,
    ),
    Case(
        "has some left",
        "DevkitGpuMemoryNearlyFull",
        {amd("gpu_used_vram"): "97x40", amd("gpu_total_vram"): "100x40"},
        15,
        vendor=Vendor.ROCM,
    ),
    Case(
        "is hot",
        "DevkitGpuThrottled",
        {amd("gpu_violation_hbm_thermal_residency_percentage"): "25x40"},
        10,
        f"GPU 1 of {POD} is slowed by heat 25 % of the time",
        AMD,
        vendor=Vendor.ROCM,
    ),
    Case(
        "is warm",
        "DevkitGpuThrottled",
        {amd("gpu_violation_hbm_thermal_residency_percentage"): "10x40"},
        10,
        vendor=Vendor.ROCM,
    ),
    Case("has no exporter", "DevkitGpuMetricsMissing", running(), 12, MISSING, KSM, vendor=Vendor.ROCM),
    Case(
        "is watched",
        "DevkitGpuMetricsMissing",
        running() | {amd("gpu_total_vram"): "1x60"},
        30,
        vendor=Vendor.ROCM,
    ),
]


def tried(promtool: Path, folder: Path, rules: list[dict[str, object]], case: Case, labels: dict[str, str]) -> str:
    """What promtool says against the case; "" when it agrees."""
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "job", "rules": rules}]}))
    rule = next(rule for rule in rules if rule["alert"] == case.alert)
    advice = rule["annotations"]["description"].replace("{{ $value }}", case.value)
    found = {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {"summary": case.says, "description": advice},
    }
    asked = {"eval_time": f"{case.minutes}m", "alertname": case.alert, "exp_alerts": [found] if case.says else []}
    story = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [asked],
    }
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": [story]})
    )
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(6)
def test_promtool_agrees_that_the_gpu(case, promtool, tmp_path):
    assert tried(promtool, tmp_path, build_alert_rules(case.vendor, PODS), case, case.labels) == ""


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(9)
def test_the_same_holds_where_prometheus_renamed_the_exporters_labels(case, promtool, tmp_path):
    def renamed(series: str) -> str:
        of_pods = series.startswith("kube_")
        return series if of_pods else re.sub(r"\b(pod|namespace)=", r"exported_\1=", series)

    series = {renamed(name): values for name, values in case.series.items()}
    of_gpus = not any(name.startswith("kube_") for name in case.series)
    labels = {f"exported_{n}" if of_gpus and n in ("pod", "namespace") else n: v for n, v in case.labels.items()}
    story = Case(case.story, case.alert, series, case.minutes, case.says, labels, case.value, case.vendor)
    assert tried(promtool, tmp_path, build_alert_rules(case.vendor, RENAMED), story, labels) == ""


def test_every_alert_of_the_table_is_seen_to_fire_and_to_be_silent():
    alerts = {(alert.vendor, alert.name) for alert in load_tables().profiles.alerts}
    assert {(str(case.vendor), case.alert) for case in CASES if case.says} == alerts
    assert {(str(case.vendor), case.alert) for case in CASES if not case.says} == alerts


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
@pytest.mark.parametrize(
    "pods", [PODS, RENAMED, PodSelector("tune-[a-z0-9]{5}", "")], ids=["plain", "renamed", "anywhere"]
)
def test_prometheus_accepts_the_rules(vendor, pods, promtool, tmp_path):
    rules = build_alert_rules(vendor, pods)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "job", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", tmp_path / "rules.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
def test_prometheus_accepts_every_query_of_the_dashboard(vendor, promtool, tmp_path):
    settings = KubernetesSettings(namespace="ml", exporter=Exporter.SCRAPED)
    *_, dashboard = build_monitoring_manifests(task(vendor), settings, context(vendor))
    (text,) = dashboard["data"].values()
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_xid_that_asks_for_something_is_in_one_rule_and_in_one_alone():
    rules = {rule["alert"]: str(rule["expr"]) for rule in build_alert_rules(Vendor.NVIDIA, PODS)}
    machine, program = (
        {int(number) for number in re.findall(r"ERRORS == (\d+)", rules[name])}
        for name in ("DevkitGpuFault", "DevkitGpuProgramFault")
    )
    assert not machine & program
    assert machine | program == {n for n, meaning in load_xids().items() if meaning.remedy is not XidRemedy.NOTHING}


def test_a_job_without_a_gpu_has_no_rules_for_one():
    assert build_alert_rules(Vendor.CPU, PODS) == []
    assert list_counters(Vendor.CPU) == ""


def test_the_exporter_is_configured_for_counters_that_it_does_not_collect_by_default():
    """Its own list: https://github.com/NVIDIA/dcgm-exporter/blob/4.5.3-4.8.2/etc/default-counters.csv"""
    own = {UTIL, XID, USED, FREE, "DCGM_FI_DEV_ROW_REMAP_FAILURE"}
    asked = {
        found
        for rule in build_alert_rules(Vendor.NVIDIA, PODS)
        for found in re.findall(r"DCGM_FI_\w+", str(rule["expr"]))
    }
    lines = [line.split(", ") for line in list_counters(Vendor.NVIDIA).splitlines()]
    assert {line[0] for line in lines} == asked - own
    assert {line[1] for line in lines} <= {"gauge", "counter"}
    assert {len(line) for line in lines} == {3}
    assert list_counters(Vendor.ROCM) == ""


@pytest.mark.parametrize(
    ("kind", "nodes", "its_own", "others"),
    [
        (JobKind.JOB, 1, ["tune-abcde", "tune-01234"], ["tune-0-abcde", "tune-doctor-abcde", "tune-2-abcde"]),
        (JobKind.JOB, 3, ["tune-0-abcde", "tune-12-abcde"], ["tune-abcde", "tune-verify-0-abcde", "tune-x-0-abcde"]),
        (
            JobKind.TRAINJOB,
            3,
            ["tune-node-0-0-abcde", "tune-node-0-12-abcde"],
            ["tune-verify-0-abcde", "tune-node-0-abcde"],
        ),
        (JobKind.JOBSET, 3, ["tune-node-0-2-abcde"], ["tune-verify-0-abcde", "tuned-node-0-2-abcde"]),
        (JobKind.RAYJOB, 3, ["tune-abcde-head", "tune-abcde-node-worker-x7z9q"], ["tune-files", "tune-abcde"]),
        (JobKind.PYTORCHJOB, 3, ["tune-master-0", "tune-worker-11"], ["tune-worker-1-abcde", "tune-files"]),
    ],
    ids=["job", "indexed job", "trainjob", "jobset", "rayjob", "pytorchjob"],
)
def test_the_pods_of_a_job_are_matched_and_no_others(kind, nodes, its_own, others):
    pattern = re.compile(build_pod_pattern(task(nodes=nodes), kind))
    assert [name for name in (*its_own, *others) if pattern.fullmatch(name)] == its_own
