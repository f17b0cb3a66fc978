"""`devkit fleet`: many machines diagnosed over an ssh that a program plays, and the files by which others watch them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import run_devkit
from tests.hosts.golden import facts_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script plays ssh")
MACHINES = {
    "gpu01": "ubuntu-4090-ok",
    "gpu02": "driver-not-installed",
    "gpu03": "driver-not-installed",
    "gpu04": "toolkit-missing",
}
SSH = """#!/bin/sh
for word; do host=$remote remote=$word; done
case "$remote" in *nosuchcommand*) echo "sh: nosuchcommand: not found" >&2; exit 127 ;; esac
[ "$host" != hangs ] || exec sleep 60
exec cat "{folder}/$host"
"""
"""What comes last is what runs there, and the host before it."""


@pytest.fixture
def ssh(tmp_path):
    """An ssh that reaches a machine for each file of a report in the folder `machines`."""
    folder = tmp_path / "machines"
    folder.mkdir()
    for host, machine in MACHINES.items():
        (folder / host).write_text(run_devkit("doctor", "--facts", facts_file(machine), "--json").stdout)
    program = tmp_path / "ssh"
    program.write_text(SSH.format(folder=folder))
    program.chmod(0o755)
    return program


def fleet(ssh, *words, text=""):
    done = run_devkit("fleet", "doctor", "--ssh", ssh, *words, text=text)
    return done, " ".join(done.stdout.split())


def test_faults_are_told_once_with_their_machines_and_a_hang_does_not_stop_the_others(ssh, tmp_path):
    saved = tmp_path / "saved"
    hosts = "\n".join([*MACHINES, "hangs"])
    done, said = fleet(ssh, "--timeout", "5", "--hosts-file", "-", "--save", saved, text=hosts)
    assert done.returncode == 1, done.stderr
    assert said.startswith("5 hosts: ") and ", 1 no answer, " in said
    assert "DRV001 on gpu02 and gpu03: " in said
    assert "CTK001 on gpu04: " in said
    assert "no answer from hangs: no answer within 5 s" in said
    assert {path.stem for path in saved.iterdir()} == set(MACHINES)
    (saved / "gpu99.json").write_text("{}")
    again = run_devkit("fleet", "doctor", "--reports", saved)
    assert again.returncode == 1
    assert "DRV001 on gpu02 and gpu03: " in " ".join(again.stdout.split())
    assert "no answer from gpu99: the file holds no report of devkit doctor" in " ".join(again.stdout.split())


def test_a_healthy_fleet_ends_with_0(ssh):
    assert fleet(ssh, "gpu01")[0].returncode == 0


def test_a_machine_without_devkit_or_with_a_report_of_something_else_is_named(ssh, tmp_path):
    assert "devkit is not installed there" in fleet(ssh, "gpu01", "--command", "nosuchcommand")[1]
    rows = [{"code": "DRV001", "status": "found", "findings": [{"severity": "error", "message": "m", "fix": []}]}]
    odd = {"schema": "devkit.doctor/1", "verdict": "problems", "outcomes": rows}
    for report in ("{}", json.dumps(odd)):
        (tmp_path / "machines/odd").write_text(report)
        done, said = fleet(ssh, "gpu02", "odd")
        assert done.returncode == 1, done.stderr
        assert "no answer from odd" in said and "DRV001 on gpu02: " in said


def test_a_host_that_looks_like_an_option_is_none(tmp_path):
    """By the real ssh, where there is one."""
    done, _ = fleet("ssh", "--json", "--", f"-oProxyCommand=touch {tmp_path}/made")
    assert (done.returncode, json.loads(done.stdout)["hosts"][0]["verdict"]) == (1, "no-answer")
    assert not list(tmp_path.iterdir())


def test_node_problem_detector_gets_the_line_and_its_own_exit_codes(tmp_path):
    ends = {
        "problems: DRV001 no driver": 1,
        "healthy: fine": 0,
        "warnings: STO001 slow": 0,
        "incomplete: lost": 2,
        "": 2,
    }
    for line, code in ends.items():
        done = run_devkit("fleet", "files", tmp_path, "--force", "--command", f"echo '{line}'; :")
        assert done.returncode == 0, done.stderr
        rule = json.loads((tmp_path / "devkit-npd.json").read_text())["rules"][0]
        ended = subprocess.run([tmp_path / Path(rule["path"]).name], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout.strip()) == (code, line)


def test_files_are_not_replaced_unasked(tmp_path):
    (tmp_path / "devkit-npd.sh").write_text("mine")
    assert run_devkit("fleet", "files", tmp_path).returncode == 2
    assert [each.name for each in tmp_path.iterdir()] == ["devkit-npd.sh"]
    assert run_devkit("fleet", "files", tmp_path, "--force").returncode == 0
