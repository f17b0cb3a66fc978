"""`devkit fleet`: machines diagnosed over an ssh that a program plays, compared, and the files by which others watch them."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from devkit.cli.fleet import _read_hosts
from devkit.errors import DevkitError
from tests.doctor.cluster import cluster, put
from tests.forked_commands import run_devkit
from tests.hosts import MACHINES as RECORDED
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
    # A report is somebody's text, and so are its commands.
    assert re.search(
        r"according to the report of gpu04: [^:]+\. Review that report's commands before you run them: ", said
    )
    assert "no answer from hangs: no answer within 5 s" in said
    assert {path.stem for path in saved.iterdir()} == set(MACHINES)
    compared = run_devkit("fleet", "compare", saved)
    assert compared.returncode == 1
    assert re.search(r"✗ gpu04\n +CTK001: ", compared.stdout)
    (saved / "gpu99.json").write_text("{}")
    again = run_devkit("fleet", "doctor", "--reports", saved)
    assert again.returncode == 1
    assert "DRV001 on gpu02 and gpu03: " in " ".join(again.stdout.split())
    assert "no answer from gpu99: the file does not contain a devkit doctor report" in " ".join(again.stdout.split())


def test_a_healthy_fleet_ends_with_0_and_saves_through_no_link(ssh, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/gpu01.json").symlink_to(tmp_path / "mine")
    done, _ = fleet(ssh, "gpu01", "--save", tmp_path / "saved")
    assert (done.returncode, (tmp_path / "mine").exists()) == (2, False), done.stderr
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


def test_the_timer_leaves_a_whole_file_where_node_exporter_reads_it(tmp_path):
    folder = tmp_path / "a" / "b"
    run_devkit("fleet", "files", folder, "--command", "play")
    script = re.search(r"ExecStart=/bin/sh -c '(.*)'", (folder / "devkit-textfile.service").read_text())[1]
    play = 'play() { while [ "$1" != --output ]; do shift; done; echo "$SAID" >"$2"; return "$ENDS"; }; '
    for said, ends, kept in (("healthy", 0, "healthy"), ("problems", 1, "problems"), ("half", 3, "problems")):
        variables = {"FOLDER": str(tmp_path), "SAID": said, "ENDS": str(ends), "PATH": "/usr/bin:/bin"}
        subprocess.run(["sh", "-c", play + script.replace("$$", "$")], env=variables, check=False)
        assert (tmp_path / "devkit.prom").read_text() == f"{kept}\n"
    assert "Unit=" not in (folder / "devkit-textfile.timer").read_text()  # it runs the service of its own name


LABEL = r'[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"(\w+)(\{{{LABEL}(?:,{LABEL})*\}})? -?\d+")


@pytest.mark.parametrize("machine", sorted(RECORDED)[::40])
def test_metrics_are_what_the_text_format_allows_and_the_report_says(machine):
    """https://prometheus.io/docs/instrumenting/exposition_formats/"""
    text = run_devkit("doctor", "--facts", facts_file(machine), "--format", "prometheus").stdout
    document = json.loads(run_devkit("doctor", "--facts", facts_file(machine), "--json").stdout)
    samples = []
    for family in text.removeprefix("# HELP ").split("# HELP "):
        described, typed, *rows = family.splitlines()
        name = described.split(" ", 1)[0]
        assert typed == f"# TYPE {name} gauge"
        assert {SAMPLE.fullmatch(row)[1] for row in rows} <= {name}
        samples += rows
    assert text.endswith("\n") and len(samples) == len({row.rpartition(" ")[0] for row in samples})
    assert [row for row in samples if row.startswith("devkit_doctor_verdict") and row.endswith(" 1")] == [
        f'devkit_doctor_verdict{{verdict="{document["verdict"]}"}} 1'
    ]
    found = {re.search('code="(.*?)"', row)[1] for row in samples if row.startswith("devkit_doctor_finding")}
    assert found == {row["code"] for row in document["outcomes"] if row["status"] == "found"}
    counts = Counter(row["status"] for row in document["outcomes"])
    assert {f'devkit_doctor_checks{{status="{status}"}} {number}' for status, number in counts.items()} <= set(samples)


@pytest.fixture
def facts(tmp_path):
    """A folder with the facts of six machines, one of which deviates."""
    folder = tmp_path / "facts"
    folder.mkdir()
    for name, document in cluster(6).items():
        if name == "node-0004":
            put(document, "driver.fabric_manager", "inactive")
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def test_the_deviating_machine_is_named_with_the_field_and_the_check(facts):
    for words in (["fleet", "compare"], ["compare"]):
        done = run_devkit(*words, facts)
        said = " ".join(done.stdout.split())
        assert done.returncode == 1, done.stderr
        assert said.startswith("6 machines compared, 1 with a difference from the majority")
        assert "✗ node-0004 GPU004: " in said
        assert "driver.fabric_manager: inactive instead of active as on 5 of 6; causes GPU004" in said
    two = run_devkit("fleet", "compare", facts / "node-0001.json", facts / "node-0004.json").stdout
    assert "inactive instead of active as on the other; causes GPU004" in " ".join(two.split())
    (facts / "node-0004.json").unlink()
    assert run_devkit("fleet", "compare", facts).returncode == 0


def test_the_document_has_the_outliers_and_what_was_not_read(facts):
    for name, text in {"empty": "", "deep": "[" * 100_000, "binary": "\xff", "other": "{}"}.items():
        (facts / f"{name}.json").write_bytes(text.encode("latin-1"))
    (facts / "gone.json").symlink_to("nowhere")
    done = run_devkit("fleet", "compare", facts, "--json")
    document = json.loads(done.stdout)
    (group,) = document["groups"]
    (odd,) = group["odd"]
    (difference,) = odd["differences"]
    assert done.returncode == 1
    assert {**difference, "field": odd["nodes"]} == {
        **{
            "field": ["node-0004"],
            "value": "inactive",
            "usual": "active",
            "agreeing": 5,
            "of": 6,
            "settles": ["GPU004"],
        }
    }
    assert (document["verdict"], document["nodes"], group["nodes"], odd["matters"]) == ("differ", 6, 6, "decides")
    assert [each["code"] for each in odd["findings"]] == ["GPU004"]
    assert {each["name"] for each in document["unreadable"]} == {"empty", "deep", "binary", "other", "gone"}
    assert "not compared: empty: not JSON" in run_devkit("fleet", "compare", facts).stdout


def test_files_of_the_same_name_go_by_their_folders(facts):
    for path in sorted(facts.iterdir()):
        (facts / path.stem).mkdir()
        path.rename(facts / path.stem / "facts.json")
    found = json.loads(run_devkit("fleet", "compare", facts, "--json").stdout)["groups"][0]["odd"][0]["nodes"]
    assert found == [str(facts / "node-0004/facts.json")]


def test_one_machine_or_no_file_is_refused(facts):
    for words in ([facts / "node-0001.json"], [facts / "none.json"], [facts / "node-0001.json", "/dev/null"]):
        done = run_devkit("fleet", "compare", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 2


def test_what_comes_from_files_reaches_no_terminal_as_it_is_and_lines_fit(facts):
    name, text = "node-\x1b[31m", "in\x1b]0;active\x07 " + "very " * 50
    document = json.loads((facts / "node-0004.json").read_text())
    put(document, "driver.fabric_manager", text)
    (facts / f"{name}.json").write_text(json.dumps(document))
    shown = run_devkit("fleet", "compare", facts, COLUMNS="50").stdout
    assert "\x1b" not in shown and "\x07" not in shown
    assert max(map(len, shown.splitlines())) <= 50


def test_an_inventory_and_a_host_file_name_hosts(tmp_path):
    (tmp_path / "hosts").write_text("[gpu]\nn1 ansible_host=10.0.0.1 ansible_user=me\nn2 slots=8\n# n3\nn4  # old\n")
    assert [*_read_hosts(tmp_path / "hosts")] == ["10.0.0.1", "n2", "n4"]
    (tmp_path / "hosts").write_text("[gpu:vars]\nansible_user=me\n")
    with pytest.raises(DevkitError, match=r"hosts:1: \[gpu:vars\] is not a host"):
        [*_read_hosts(tmp_path / "hosts")]
