"""The first screen at 80 columns: the root cause and its commands, what was seen of each layer, the verdict last."""

import re
from pathlib import Path

import pytest

from devkit.doctor.report.lines import UNICODE_MARKS, Tone
from devkit.doctor.report.report import Health
from devkit.doctor.report.stack import LAYER_READINGS, build_stack
from devkit.doctor.report.text import FIRST_LINES, format_report
from devkit.facts.engine import Endpoint, EngineEnd, EngineFailure, EngineKind
from devkit.facts.runs import Trials, Way
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, gpu, healthy, spec, without_gpu
from tests.doctor.running import build_full_report, report_of
from tests.doctor.test_danger import LENT, OTHERS_NODES
from tests.doctor.test_trials import NO_DRIVER, NO_TOOLKIT, PLAIN, refused, trial, tried
from tests.golden import assert_golden
from tests.hosts import MACHINES, facts_of

NO_ENGINE = Unknown("no container engine responds")
SOCKET = Endpoint("unix:///var/run/docker.sock", "default")
NO_DAEMON = EngineFailure(EngineEnd.NOT_RUNNING, SOCKET, f"nothing listens on {SOCKET.url}")
CRUN = 'Error: OCI runtime "crun" failed: exec: "crun": executable file not found in $PATH\n'
TWO = {"nvml.gpus": (gpu(0), gpu(1)), "cdi": (spec(devices=("0", "1", "all")),)}

PASSED = re.compile(r"\d+ checks passed")
"""Each new check would change their number."""

SCREENS = {
    "healthy": tried(trial(Way.RUNTIME, gpu_count=2), trial(Way.GPUS, gpu_count=2), trial(Way.CDI, gpu_count=2), **TWO),
    "no GPU": changed(without_gpu(), {"engine": healthy().engine, "trials": Trials((PLAIN,), ())}),
    "toolkit missing": tried(refused(Way.GPUS, NO_DRIVER), **NO_TOOLKIT),
    "dockerd does not start": changed(healthy(), {"engine": NO_DAEMON, "trials": NO_ENGINE}),
    "Podman broken": changed(
        healthy(),
        {
            "engine.kind": EngineKind.PODMAN,
            "engine.runtimes": (),
            "trials": Trials((refused(Way.PLAIN, CRUN, engine="podman"), refused(Way.CDI, CRUN, engine="podman")), ()),
        },
    ),
    "Slurm job": LENT,
    "Slurm job with a GPU too few": changed(LENT, {"driver.withheld_nodes": OTHERS_NODES[1:]}),
}

READ_IN_FULL = (
    *("amd-graphics-beside-4090", "wsl2-gpu-switched-off", "cpu-torch-on-grace-hopper", "podman-cdi-unreadable"),
    *("above-4g-decoding-off", "hgx-b200-fabric-manager-failed", "blackwell-closed-module"),
)


def format_screen(facts, **changes):
    report = build_full_report(facts)
    return format_report(report, build_stack(facts, report), width=80, marks=UNICODE_MARKS, **changes)


@pytest.mark.golden
def test_six_screens():
    lines: list[str] = []
    for name, facts in SCREENS.items():
        lines += [f"=== {name}", *(PASSED.sub("N checks passed", line.text) for line in format_screen(facts)), ""]
    for name in READ_IN_FULL:
        lines += [f"=== read on {name}"]
        for layer, read in LAYER_READINGS.items():
            said = "; ".join(f"{each.name} = {each.value} [{each.summary}]" for each in read(facts_of(name)))
            lines += [f"{layer}: {said}"] if f"{layer}: {said}" not in lines else []
    assert_golden(Path(__file__).with_name("screens.txt"), "\n".join(lines))


def judge_screen(name):
    """What is wrong with the screen of a recorded machine."""
    report, facts = report_of(name), facts_of(name)
    lines = format_report(report, build_stack(facts, report), width=80, marks=UNICODE_MARKS)
    texts = [line.text for line in lines]
    blank = texts.index("")
    wrapped = [line.text for line in lines if line.tone is not Tone.COMMAND]
    if any(len(text) > 80 and max(map(len, text.split())) < 60 for text in wrapped):
        yield "a line is too long"
    if any(not text.strip(" ✓✗!–?") for text in texts if text):  # noqa: RUF001 - the mark of what was skipped
        yield "a row is empty"
    if report.root_causes and report.health is not Health.INCOMPLETE:
        fix = report.roots[0].finding.fix
        if blank > max(FIRST_LINES, len(fix.commands) + 9) or not {*fix.commands} <= {
            text.strip() for text in texts[:blank]
        }:
            yield f"the cause takes {blank} lines, or commands of its fix are not among the first"
        if not any(f"devkit explain {report.root_causes[0]}" in text for text in texts[:blank]):
            yield "the first lines do not say where to read on"
    if not report.tried and "healthy" in texts[-1]:
        yield "nothing was tried, and it is called healthy"


def test_the_screen_of_every_recorded_machine():
    assert {name: wrong for name in MACHINES if (wrong := list(judge_screen(name)))} == {}


def test_a_layer_says_what_was_seen_and_which_check_is_not_content():
    screen = "\n".join(line.text for line in format_screen(SCREENS["toolkit missing"]))
    assert "toolkit not installed; problem CTK001" in screen
    assert "✗ Trial containers: started: docker run; did not start: docker run --gpus all;" in screen
    assert "skipped" not in screen
