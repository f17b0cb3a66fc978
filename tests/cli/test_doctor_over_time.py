"""`devkit doctor --since-last` and `--watch`: what changed on this machine."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from devkit.cli import devkit
from devkit.cli.watch import KEPT, compare_with_last, describe_change, draw_screen
from devkit.facts.model import Gpu
from tests.doctor.machines import changed, r
from tests.hosts.golden import expected_facts

HEALTHY = expected_facts("ubuntu-4090-ok")
GPUS = expected_facts("dgx-h100-ok")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "devkit/facts"


def changes_of(facts):
    """The changes since the facts that were kept last, in words."""
    return list(map(describe_change, compare_with_last(facts).differences))


def at(facts, minute, changes=()):
    return dataclasses.replace(changed(facts, dict(changes)), taken_at=f"2026-11-23T10:{minute:02}:00+00:00")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param(
            {"driver.loaded": r("580.105.08")}, "driver.loaded: 580.95.05 before, now 580.105.08", id="driver"
        ),
        pytest.param({"python.torch.version": "2.10.0+cu130"}, "python.torch.version: 2.9.1+cu130 before", id="torch"),
        pytest.param(
            {"engine.hook_on_path": False}, "engine.hook_on_path: yes before, now no (causes CTK001)", id="hook"
        ),
    ],
)
def test_what_changed_is_named(changes, named):
    assert compare_with_last(at(HEALTHY, 1)) is None
    assert any(line.startswith(named) for line in changes_of(at(HEALTHY, 2, changes)))
    assert compare_with_last(at(HEALTHY, 3)).since == "2026-11-23T10:02:00+00:00"


def test_a_gpu_that_is_gone_is_named():
    lost = GPUS.nvml.gpus[:-1]
    assert all(isinstance(gpu, Gpu) for gpu in lost)
    compare_with_last(at(GPUS, 1))
    lines = changes_of(at(GPUS, 2, {"nvml.gpus": lost}))
    assert "nvml.gpus: lost 7" in [line.partition(" (")[0] for line in lines]


def test_nothing_changed():
    compare_with_last(at(HEALTHY, 1))
    assert changes_of(at(HEALTHY, 2)) == []


def test_few_facts_are_kept_and_a_damaged_file_is_passed_over(folder):
    for minute in range(KEPT + 3):
        compare_with_last(at(HEALTHY, minute))
    files = sorted(folder.rglob("*.json"))
    assert len(files) == KEPT
    files[-1].write_text("{")
    assert compare_with_last(at(HEALTHY, 59)).since == at(HEALTHY, KEPT + 1).taken_at


@pytest.mark.parametrize(
    "options",
    [
        ("--since-last", "--facts", "x"),
        ("--since-last", "--format", "html"),
        ("--watch", "--json"),
        ("--watch", "--since-last"),
        ("--every", "3"),
    ],
    ids=" ".join,
)
def test_options_that_contradict_each_other_are_refused(options):
    assert CliRunner().invoke(devkit, ["doctor", *options]).exit_code != 0


def test_a_screen_shows_as_many_lines_as_it_has(capsys, monkeypatch):
    monkeypatch.setenv("LINES", "4")
    draw_screen([str(number) for number in range(6)])
    assert capsys.readouterr().out == "\x1b[2J\x1b[H0\n1\n… 4 more lines\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_watching_without_a_terminal_prints_a_line_for_each_change(tmp_path):
    project = tmp_path / "project"
    (project / ".devcontainer").mkdir(parents=True)
    words = [sys.executable, "-m", "devkit", "doctor", "--watch", "--every", "0.1", "--project", str(project)]
    variables = {**os.environ, "DOCKER_HOST": "unix:///none"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables) as watching:
        assert "verdict: " in watching.stdout.readline()
        lines = iter(watching.stdout.readline, "")
        file = project / ".devcontainer/devcontainer.json"
        file.write_text("{")
        assert next(line for line in lines if "found PRJ001" in line)
        file.unlink()
        assert next(line for line in lines if "gone PRJ001" in line)
        watching.send_signal(signal.SIGINT)
        # The engine that was named is not there: the last diagnosis has a problem.
        assert watching.wait(timeout=30) == 1
