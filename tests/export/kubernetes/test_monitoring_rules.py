"""Every alert, as Prometheus's own program for testing rules sees it: where it fires, and where it must not."""

import json
import re
import subprocess
from collections.abc import Iterator
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

    `labels` are those of the alert, besides its severity; those of the GPU where nothing else is said.
    """

    alert: str
    story: str
    minutes: int
    series: dict[str, str]
    says: str = ""
    value: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    vendor: Vendor = Vendor.NVIDIA


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
HEATED = f"GPU 1 of {POD} is slowed by heat"
REPORTS = f"GPU 1 of {POD} reports Xid"
LOST = f"GPU 1 of {POD} had {{}} memory errors that could not be corrected"
HBM = "gpu_violation_hbm_thermal_residency_percentage"


def on_nvidia() -> Iterator[Case]:
    unused, fault, program, full = "GpuUnderused", "GpuFault", "GpuProgramFault", "GpuMemoryNearlyFull"
    yield Case(unused, "waits for its data", 20, {of(UTIL): "40x40"}, f"{BUSY} 40 % of the time")
    yield Case(unused, "is just below", 20, {of(UTIL): "79x40"}, f"{BUSY} 79 % of the time")
    yield Case(unused, "is busy enough", 20, {of(UTIL): "80x40"})
    yield Case(unused, "has not waited for long", 14, {of(UTIL): "40x40"})
    yield Case(unused, "saves a checkpoint now and then", 30, {of(UTIL): "99x8 0 99x8 0 99x20"})
    for pod in ("tune-2-abcde", "tune-doctor-abcde", "tune-verify-0-abcde"):
        yield Case(unused, f"is that of {pod}", 20, {of(UTIL, pod=pod): "5x40"})
    yield Case(unused, "is of another namespace", 20, {of(UTIL, namespace="other"): "5x40"})
    yield Case(unused, "has no job", 20, {of(UTIL, pod="", namespace=""): "0x40"})
    yield Case(unused, "ended meanwhile", 30, {of(UTIL): "40x10 stale"})
    yield Case(fault, "fell off the bus", 5, {of(XID): "0x3 79x40"}, f"{REPORTS} 79", "79")
    yield Case(fault, "stays so", 50, {of(XID): "79x60"}, f"{REPORTS} 79", "79")
    for number in (0, 13, 63):
        yield Case(fault, f"has Xid {number}", 20, {of(XID): f"{number}x40"})
    coded = {of(XID, err_code="0"): "0x3 stale", of(XID, err_code="48"): "_x4 48x40"}
    yield Case(fault, "names it in a label", 10, coded, f"{REPORTS} 48", "48", OWN | {"err_code": "48"})
    yield Case(program, "went out of bounds", 22, {of(XID): "0x20 31x40"}, f"{REPORTS} 31", "31")
    yield Case(program, "breaks in another way than before", 25, {of(XID): "13x20 31x40"}, f"{REPORTS} 31", "31")
    yield Case(program, "went out of bounds long ago", 40, {of(XID): "31x60"})
    before = {of(XID, pod="", namespace=""): "31x20 stale", of(XID): "_x21 31x40"}
    yield Case(program, "was broken by the job before", 25, before)
    yield Case(program, "has a fault of its own", 22, {of(XID): "0x20 79x40"})
    lost = of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
    yield Case("GpuMemoryErrors", "lost two words", 5, {lost: "0x3 2x40"}, LOST.format(2), "2")
    yield Case("GpuMemoryErrors", "lost nothing", 20, {lost: "0x40"})
    pending, failed = of("DCGM_FI_DEV_ROW_REMAP_PENDING"), of("DCGM_FI_DEV_ROW_REMAP_FAILURE")
    waits, bad = (
        f"GPU 1 of {POD} has rows of memory to replace",
        f"GPU 1 of {POD} could not replace a bad row of memory",
    )
    yield Case("GpuRowsPending", "waits for a reset", 1, {pending: "1x40"}, waits)
    yield Case("GpuRowsPending", "waits for nothing", 20, {pending: "0x40"})
    yield Case("GpuRowsFailed", "has no spare row", 1, {failed: "1x40"}, bad)
    yield Case("GpuRowsFailed", "has spare rows", 20, {failed: "0x40"})
    used = {of(USED): "79000x40", of(FREE): "1000x40"}
    yield Case(full, "has little left", 15, used, f"GPU 1 of {POD} has 98.75% of its memory in use")
    yield Case(full, "has some left", 15, {of(USED): "77600x40", of(FREE): "2400x40"})
    yield Case(full, "had little left for a moment", 15, {of(USED): "79x9 1x40", of(FREE): "1x40"})
    for reason in (0x08, 0x20, 0x40, 0x80, 0x68, 0x24):
        yield Case("GpuThrottled", f"is slowed for {reason:#x}", 10, {of(CLOCKS): f"{reason}x40"}, SLOWED)
    for reason in (0x00, 0x01, 0x02, 0x04, 0x10, 0x100, 0x117):
        yield Case("GpuThrottled", f"has reason {reason:#x} only", 10, {of(CLOCKS): f"{reason}x40"})
    yield Case("GpuThrottled", "is slowed for a moment", 6, {of(CLOCKS): "8x3 0x40"})


def on_amd() -> Iterator[Case]:
    told = {"labels": AMD, "vendor": Vendor.ROCM}
    active, errors, hot = map(amd, ("gpu_gfx_activity", "gpu_ecc_uncorrect_total", HBM))
    yield Case("GpuUnderused", "waits for its data", 20, {active: "40x40"}, f"{BUSY} 40 % of the time", **told)
    yield Case("GpuUnderused", "is busy", 20, {active: "95x40"}, **told)
    yield Case("GpuMemoryErrors", "lost a word", 1, {errors: "1x40"}, LOST.format(1), **told)
    yield Case("GpuMemoryErrors", "lost nothing", 1, {errors: "0x40"}, **told)
    for percent, says in ((98, f"GPU 1 of {POD} has 98% of its memory in use"), (97, "")):
        series = {amd("gpu_used_vram"): f"{percent}x40", amd("gpu_total_vram"): "100x40"}
        yield Case("GpuMemoryNearlyFull", f"has {percent} % in use", 15, series, says, **told)
    yield Case("GpuThrottled", "is hot", 10, {hot: "25x40"}, f"{HEATED} 25 % of the time", **told)
    yield Case("GpuThrottled", "is warm", 10, {hot: "10x40"}, **told)


def on_both() -> Iterator[Case]:
    for vendor, metric in ((Vendor.NVIDIA, of(USED)), (Vendor.ROCM, amd("gpu_total_vram"))):
        told = {"labels": KSM, "vendor": vendor}
        missing = "GpuMetricsMissing"
        yield Case(missing, "has no exporter", 12, running(), MISSING, **told)
        yield Case(missing, "lost its exporter", 20, running() | {metric: "1x5 stale"}, MISSING, **told)
        yield Case(missing, "is watched", 30, running() | {metric: "1x60"}, **told)
        yield Case(missing, "has started just now", 9, running(), **told)
        yield Case(missing, "waits for a node", 30, running(phase="Pending") | running(value=0), **told)
        yield Case(missing, "is no job's", 30, running(pod="web-1"), **told)


CASES = [*on_nvidia(), *on_amd(), *on_both()]


def as_story(case: Case, rules: dict[str, dict], *, is_renamed: bool) -> dict[str, object]:
    """The case in promtool's words; where Prometheus renamed the exporter's labels, those of its series."""
    labels = case.labels or OWN
    series = case.series
    if is_renamed:
        series = {_renamed(name): values for name, values in series.items()}
        if labels is not KSM:
            labels = {f"exported_{name}" if name in ("pod", "namespace") else name: labels[name] for name in labels}
    rule = rules[f"Devkit{case.alert}"]
    description = rule["annotations"]["description"].replace("{{ $value }}", case.value)
    alert = {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {"summary": case.says, "description": description},
    }
    expected = {"alertname": rule["alert"], "exp_alerts": [alert] if case.says else []}
    return {
        "name": f"{case.alert}: the GPU {case.story}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{case.minutes}m", **expected}],
    }


def _renamed(series: str) -> str:
    return series if series.startswith("kube_") else re.sub(r"\b(pod|namespace)=", r"exported_\1=", series)


@pytest.mark.full
@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
@pytest.mark.parametrize("pods", [PODS, RENAMED], ids=["plain", "renamed"])
def test_promtool_agrees_with_every_case(vendor, pods, promtool, tmp_path):
    rules = build_alert_rules(vendor, pods)
    by_name = {str(rule["alert"]): rule for rule in rules}
    stories = [as_story(each, by_name, is_renamed=pods is RENAMED) for each in CASES if each.vendor is vendor]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "job", "rules": rules}]}))
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "30s", "tests": stories}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    argv = [promtool, "test", "rules", "test.yml"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_of_the_table_is_seen_to_fire_and_to_be_silent():
    alerts = {(alert.vendor, alert.name) for alert in load_tables().profiles.alerts}
    assert {(str(case.vendor), f"Devkit{case.alert}") for case in CASES if case.says} == alerts
    assert {(str(case.vendor), f"Devkit{case.alert}") for case in CASES if not case.says} == alerts


@pytest.mark.full
@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.ROCM], ids=str)
def test_prometheus_accepts_the_rules_and_every_query_of_the_dashboard(vendor, promtool, tmp_path):
    settings = KubernetesSettings(namespace="ml", exporter=Exporter.SCRAPED)
    *_, dashboard = build_monitoring_manifests(task(vendor), settings, context(vendor))
    (text,) = dashboard["data"].values()
    queries = [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    groups = {
        "dashboard": [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(queries)],
        "job": build_alert_rules(vendor, PodSelector("tune-[a-z0-9]{5}", "")),
    }
    listed = [{"name": name, "rules": rules} for name, rules in groups.items()]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": listed}))
    argv = [promtool, "check", "rules", "--lint-fatal", tmp_path / "rules.yml"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
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
