"""What onboarding says is lacking, and where it stops."""

import json
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from devkit.cli import facts as facts_command
from devkit.cli.onboard import Steps, go_through, onboard
from devkit.devcontainer.onboarding import list_needs
from devkit.doctor.registry import CHECKS
from devkit.doctor.report.report import build_report
from devkit.doctor.runner import run_checks
from devkit.facts.runs import Trials, Way
from devkit.probe.gather import gather_facts
from tests.doctor.test_trials import trial
from tests.forked_commands import run_devkit
from tests.hosts import machine


def needs_of(name):
    facts = gather_facts(machine(name))
    return list(list_needs(build_report(facts, run_checks(CHECKS, facts, clock=time.monotonic), devkit="0")))


def test_a_machine_without_an_engine_gets_it_first_and_cannot_start():
    first, *_ = needs_of("docker-stopped")
    assert (first.topic, first.code, first.stops) == ("container engine", "ENG001", True)
    assert first.commands


def test_what_does_not_stop_the_start_comes_after_what_does():
    needs = needs_of("toolkit-missing")
    assert [need.code for need in needs][:1] == ["CTK001"]
    assert not any(need.stops for need in needs)


def test_a_healthy_machine_lacks_nothing():
    assert needs_of("ubuntu-4090-ok") == []


@pytest.mark.parametrize(
    ("files", "steps", "follow"),
    [
        pytest.param({}, {"machine": "done", "init": "stopped"}, "devkit init", id="no dev container yet"),
        pytest.param(
            {".devcontainer.json": '{"image": "debian"}'},
            {"machine": "done", "init": "skipped", "up": "failed"},
            "npm install -g @devcontainers/cli",
            id="a dev container of others without the dev container CLI",
        ),
    ],
)
def test_the_list_ends_at_the_first_step_that_fails(tmp_path, monkeypatch, files, steps, follow):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    seen = Steps()
    seen.begin("machine", "")
    following = go_through(tmp_path, [], seen)
    assert {step["name"]: step["status"] for step in seen.done} == steps
    assert [line for line in following if follow in line]


def test_without_an_engine_it_says_so_and_starts_nothing(tmp_path):
    (tmp_path / ".devcontainer.json").write_text('{"image": "debian"}')
    env = {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    done = run_devkit("onboard", ".", "--json", cwd=tmp_path, **env)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "stopped"
    assert document["next"]
    assert "done" not in {step["status"] for step in document["steps"] if step["name"] == "up"}


def test_an_engine_that_starts_nothing_stops_it(tmp_path, monkeypatch):
    """The machine is read with the trial of the doctor: an engine that answers may start no container."""
    refused = trial(Way.PLAIN, code=125, err="docker: Error response from daemon: no space left on device")

    def read(*_, with_trial, **__):
        facts = gather_facts(machine("ubuntu-4090-ok"))
        return replace(facts, trials=Trials((refused,), ())) if with_trial else facts

    monkeypatch.setattr(facts_command, "read_this_machine", read)
    done = CliRunner().invoke(onboard, [str(tmp_path), "--json"])
    document = json.loads(done.stdout)
    assert [need["code"] for need in document["needs"] if need["stops"]] == ["ENG017"]
    assert [step["status"] for step in document["steps"]] == ["stopped"]
