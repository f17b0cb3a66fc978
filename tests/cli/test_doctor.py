"""`devkit doctor` from the outside: forms of the report, logs, saved reports, and flags that contradict each other."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from devkit.cli.doctor import doctor
from devkit.doctor.registry import CHECKS
from devkit.errors import DevkitError
from devkit.facts.model import format_facts, parse_facts
from devkit.facts.values import Unknown
from devkit.probe.host import LocalHost
from devkit.probe.project.reader import read_project
from devkit.probe.saved_facts import load_saved_facts
from tests.cases import cases
from tests.doctor.machines import changed, healthy, inside, r, without_gpu
from tests.hosts.golden import facts_file

MISMATCH = changed(
    healthy(),
    {"driver.libnvidia_ml": r("580.105.08"), "driver.libcuda": r("580.105.08"), "driver.on_disk": r("580.105.08")},
)
LOST = changed(healthy(), {"driver": Unknown("driver: no answer within 4.7 s", is_lost=True)})
WARNED = changed(healthy(), {"compose": None})


@pytest.fixture
def ask(tmp_path):
    """Runs `devkit doctor` on facts; `lines` of output and the exit code come back."""

    def run(facts, *arguments):
        file = tmp_path / "facts.json"
        file.write_text(format_facts(facts), encoding="utf-8")
        return CliRunner().invoke(doctor, ["--facts", str(file), *arguments], standalone_mode=True)

    return run


@pytest.mark.parametrize(
    ("facts", "arguments", "code"),
    [
        pytest.param(healthy(), [], 0, id="healthy"),
        pytest.param(without_gpu(), ["--strict"], 0, id="a note is not a warning"),
        pytest.param(WARNED, [], 0, id="warnings are allowed"),
        pytest.param(WARNED, ["--strict"], 1, id="warnings are not, when strict"),
        pytest.param(LOST, [], 0, id="incomplete is allowed"),
        pytest.param(LOST, ["--strict"], 1, id="incomplete is not, when strict"),
        pytest.param(MISMATCH, [], 1, id="problems"),
        pytest.param(MISMATCH, ["--only", "STO001"], 0, id="problems outside of what was asked"),
    ],
)
@pytest.mark.parametrize("style", [[], ["--json"]], ids=["as text", "as JSON"])
def test_exit_codes_are_the_same_in_text_and_json(ask, facts, arguments, code, style):
    assert ask(facts, *arguments, *style).exit_code == code


@pytest.mark.parametrize(
    ("facts", "files", "arguments", "shows"),
    [
        pytest.param(healthy(), ["requirements.txt"], [], True, id="healthy"),
        pytest.param(WARNED, [".git"], [], True, id="warnings"),
        pytest.param(healthy(), [], [], False, id="no project"),
        pytest.param(healthy(), ["setup.py", ".devcontainer.json"], [], False, id="a dev container"),
        pytest.param(healthy(), ["setup.py"], ["--json"], False, id="JSON"),
        pytest.param(healthy(), ["setup.py"], ["--only", "DRV001"], False, id="one check"),
        pytest.param(MISMATCH, ["setup.py"], [], False, id="problems"),
        pytest.param(MISMATCH, ["setup.py"], ["--fix"], False, id="what a repair has left"),
    ],
)
def test_a_project_on_a_ready_machine_ends_with_the_next_command(tmp_path, monkeypatch, facts, files, arguments, shows):
    for name in files:
        (tmp_path / name).write_text("{}")
    read = replace(facts, project=read_project(LocalHost(), project=str(tmp_path)))
    monkeypatch.setattr("devkit.cli.doctor.read_this_machine", lambda *_, **__: read)
    said = CliRunner().invoke(doctor, ["--project", str(tmp_path), *arguments]).stdout
    assert said.endswith(f"Next:\n  devkit init {tmp_path}\n") is ("devkit init" in said) is shows
    assert said.endswith("Next:\n  devkit doctor --fix\n") is (facts is MISMATCH and not arguments)


def test_json_is_one_document_with_every_check(ask):
    result = ask(MISMATCH, "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "devkit.doctor/1"
    assert document["verdict"] == "problems"
    assert len(document["outcomes"]) == len(CHECKS)


def test_only_some_checks_in_print_order_and_any_case(ask):
    document = json.loads(ask(healthy(), "--json", "--only", "sto001", "--only", "DRV001").stdout)
    assert [row["code"] for row in document["outcomes"]] == ["DRV001", "STO001"]


def test_the_list_needs_no_machine():
    result = CliRunner().invoke(doctor, ["--list"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == [check.code for check in CHECKS]
    document = json.loads(CliRunner().invoke(doctor, ["--list", "--json"]).stdout)
    assert document["schema"] == "devkit.checks/1"


def test_saved_facts_are_redacted_and_can_be_judged_again(ask, tmp_path):
    saved = tmp_path / "saved.json"
    assert ask(MISMATCH, "--save-facts", str(saved)).exit_code == 1
    text = saved.read_text()
    assert "/home/dev" not in text
    assert "444444444444" not in text
    assert ask(parse_facts(text)).exit_code == 1
    saved.write_text(text, encoding="utf-16")  # as PowerShell redirects it
    assert load_saved_facts([saved]) == parse_facts(text)


@cases(
    "arguments, message, hint",
    {
        "an unknown code": (["--only", "DRV01"], "no check has the code 'DRV01'", "Did you mean DRV0"),
        "a code like no other": (["--only", "nonsense"], "'NONSENSE'", "--list"),
        "no such file": (["--facts", "nowhere.json"], "cannot read nowhere.json", "--save-facts"),
        "not JSON": (["--facts", "broken.json"], "does not contain the facts", "--save-facts"),
        "not text": (["--facts", "binary.json"], "does not contain the facts", "--save-facts"),
        "output": (["--facts", "good.json", "--output", "no/such/x"], "cannot write no/such/x: the folder", "mkdir -p"),
        "saved facts": (
            ["--facts", "good.json", "--save-facts", "no/such/x"],
            "cannot write no/such/x: the folder",
            "mkdir -p",
        ),
    },
)
def test_bad_input_is_one_line_and_a_hint(tmp_path, monkeypatch, arguments, message, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "good.json").write_text(format_facts(healthy()))
    result = CliRunner().invoke(doctor, arguments)
    assert isinstance(result.exception, DevkitError)
    assert message in result.exception.message
    assert "\n" not in result.exception.message
    assert hint in result.exception.hint
    assert result.stdout == ""


def in_ascii(machine, *words):
    """What the program prints where standard output takes ASCII alone, which Python decides as it starts."""
    argv = [sys.executable, "-m", "devkit", "doctor", "--facts", facts_file(machine), *words]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(argv, env=env, capture_output=True, check=False).stdout


def test_a_terminal_without_unicode_gets_ascii():
    shown = in_ascii("driver-lib-mismatch", "--verbose")
    assert shown.isascii()
    assert shown.startswith(b"x problem: ") and b"\n+ Hardware: " in shown


def test_json_is_json_where_standard_output_has_no_degree_sign():
    shown = in_ascii("gpu-too-hot", "--json")
    assert shown.isascii()
    assert "\N{DEGREE SIGN}C" in json.dumps(json.loads(shown), ensure_ascii=False)


# The forms of the report on the command line, the flags that contradict each other, and two sides at once.


@pytest.fixture
def saved(tmp_path):
    def write(name, facts):
        path = tmp_path / f"{name}.json"
        path.write_text(format_facts(facts), encoding="utf-8")
        return str(path)

    return write


def invoke(*arguments):
    return CliRunner().invoke(doctor, arguments)


@pytest.mark.parametrize(
    ("style", "start"),
    [
        ("text", "✗ problem: the loaded NVIDIA module is 580.95.05"),
        ("json", '{\n  "schema": "devkit.doctor/1"'),
        ("sarif", '{\n  "$schema": "https://docs.oasis-open.org/sarif/'),
        ("markdown", "### ❌ devkit doctor: problem"),
        ("html", "<!doctype html>"),
    ],
)
@pytest.mark.parametrize("to_file", [False, True], ids=["printed", "written"])
def test_every_form_is_printed_or_written_with_the_same_exit_code(saved, tmp_path, style, start, to_file):
    target = tmp_path / "report"
    result = invoke("--facts", saved("m", MISMATCH), "--format", style, *(["--output", str(target)] if to_file else []))
    assert result.exit_code == 1
    assert (target.read_text(encoding="utf-8") if to_file else result.stdout).startswith(start)
    assert not to_file or result.stdout == ""


def test_fewer_gpus_than_expected_are_a_problem(saved):
    verdicts = [invoke("--facts", saved("m", healthy()), "--expect-gpus", count).exit_code for count in ("1", "2")]
    assert verdicts == [0, 1]


def test_sarif_says_how_the_command_ended(saved):
    for arguments, code in [((), 0), (("--strict",), 1)]:
        result = invoke("--facts", saved("m", changed(healthy(), {"compose": None})), "--format", "sarif", *arguments)
        assert result.exit_code == code
        assert json.loads(result.stdout)["runs"][0]["invocations"][0]["exitCode"] == code


@pytest.mark.parametrize("order", [["host", "inside"], ["inside", "host"]], ids=["host first", "container first"])
def test_a_host_and_its_container_are_judged_as_one(saved, order):
    files = {
        "host": saved("host", MISMATCH),
        "inside": saved("inside", changed(inside(), {"container.shm_bytes": 1 << 26})),
    }
    result = invoke("--json", *(word for name in order for word in ("--facts", files[name])))
    document = json.loads(result.stdout)
    assert document["root_causes"] == ["DRV002"]
    seen = {finding["seen_in"] for row in document["outcomes"] for finding in row["findings"]}
    assert seen == {"", "dev container"}


@pytest.mark.parametrize("side", [healthy(), inside()], ids=["two hosts", "two containers"])
def test_two_of_the_same_side_are_refused(saved, side):
    result = invoke("--facts", saved("a", side), "--facts", saved("b", side))
    assert isinstance(result.exception, DevkitError)
    assert "a host and a container" in result.exception.message


@cases(
    "arguments, message",
    {
        "two forms": (["--json", "--format", "html"], "--json and --format html contradict"),
        "a list as SARIF": (["--list", "--format", "sarif"], "--list does not support sarif"),
        "a list that repairs": (["--list", "--fix"], "--list only lists"),
        "repairing a saved machine": (["--facts", "x", "--fix"], "--fix works only on this machine"),
        "a container on a saved machine": (["--facts", "x", "--trial"], "--trial works only on this machine"),
        "a saved machine's project": (["--facts", "x", "--project", "."], "--project works only on this machine"),
        "three machines": (["--facts", "a", "--facts", "b", "--facts", "c"], "--facts was given 3 times"),
        "yes to nothing": (["--yes"], "--yes answers the questions of --fix"),
        "two things in one file": (["--output", "x", "--save-facts", "x"], "are both x"),
    },
)
def test_flags_that_contradict_each_other_are_one_line_and_a_hint(arguments, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, DevkitError), result.output
    assert message in result.exception.message
    assert "\n" not in result.exception.message
    assert result.exception.hint
    assert result.stdout == ""


NAMED = replace(
    changed(healthy(), {"storage.directories.0.path": "/home/alice/.cache/huggingface/hub"}),
    container=None,
    wsl=Unknown("alice@example.com says hf_abcdefghijklmnopqrstuvwxyz at https://bob:pw12345@hub.example.com/"),
)


@pytest.mark.parametrize("style", ["json", "sarif", "markdown", "html"])
def test_what_is_passed_on_names_nobody(saved, style):
    shown = invoke("--facts", saved("m", NAMED), "--format", style).stdout
    assert not [word for word in ("alice", "hf_abc", "pw12345") if word in shown]


def test_who_sits_there_sees_true_paths_but_no_token(saved):
    named = changed(NAMED, {"storage.directories.0.is_writable": False, "storage.directories.0.owner_uid": 0})
    shown = invoke("--facts", saved("m", named), "--verbose").stdout
    assert "/home/alice/.cache/huggingface/hub" in shown
    assert "hf_abc" not in shown
