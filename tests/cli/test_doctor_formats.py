"""The forms of the report on the command line, the flags that contradict each other, and two sides at once."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from devkit.cli.doctor import doctor
from devkit.errors import DevkitError
from devkit.facts.store import format_facts
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, inside, r

MISMATCH = changed(
    healthy(),
    {"driver.libnvidia_ml": r("580.105.08"), "driver.libcuda": r("580.105.08"), "driver.on_disk": r("580.105.08")},
)


@pytest.fixture
def saved(tmp_path):
    def write(name, facts):
        path = tmp_path / f"{name}.json"
        path.write_text(format_facts(facts), encoding="utf-8")
        return str(path)

    return write


def ask(*arguments):
    return CliRunner().invoke(doctor, arguments)


@pytest.mark.parametrize(
    ("style", "start"),
    [
        ("text", "✓ Hardware: NVIDIA GeForce RTX 4090, 24 GiB"),
        ("json", '{\n  "schema": "devkit.doctor/1"'),
        ("sarif", '{\n  "$schema": "https://docs.oasis-open.org/sarif/'),
        ("markdown", "### ❌ devkit doctor: problem"),
        ("html", "<!doctype html>"),
    ],
)
@pytest.mark.parametrize("to_file", [False, True], ids=["printed", "written"])
def test_every_form_is_printed_or_written_with_the_same_exit_code(saved, tmp_path, style, start, to_file):
    target = tmp_path / "report"
    result = ask("--facts", saved("m", MISMATCH), "--format", style, *(["--output", str(target)] if to_file else []))
    assert result.exit_code == 1
    assert (target.read_text(encoding="utf-8") if to_file else result.stdout).startswith(start)
    assert not to_file or result.stdout == ""


def test_sarif_says_how_the_command_ended(saved):
    for arguments, code in [((), 0), (("--strict",), 1)]:
        result = ask("--facts", saved("m", changed(healthy(), {"compose": None})), "--format", "sarif", *arguments)
        assert result.exit_code == code
        assert json.loads(result.stdout)["runs"][0]["invocations"][0]["exitCode"] == code


@pytest.mark.parametrize("order", [["host", "inside"], ["inside", "host"]], ids=["host first", "container first"])
def test_a_host_and_its_container_are_judged_as_one(saved, order):
    files = {
        "host": saved("host", MISMATCH),
        "inside": saved("inside", changed(inside(), {"container.shm_bytes": 1 << 26})),
    }
    result = ask("--json", *(word for name in order for word in ("--facts", files[name])))
    document = json.loads(result.stdout)
    assert document["root_causes"] == ["DRV002"]
    seen = {finding["seen_in"] for row in document["outcomes"] for finding in row["findings"]}
    assert seen == {"", "dev container"}


@pytest.mark.parametrize("side", [healthy(), inside()], ids=["two hosts", "two containers"])
def test_two_of_the_same_side_are_refused(saved, side):
    result = ask("--facts", saved("a", side), "--facts", saved("b", side))
    assert isinstance(result.exception, DevkitError)
    assert "a host and of a container" in result.exception.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--json", "--format", "html"], "--json and --format html contradict", id="two forms"),
        pytest.param(["--list", "--format", "sarif"], "--list has no sarif form", id="a list as SARIF"),
        pytest.param(["--list", "--fix"], "--list only lists", id="a list that repairs"),
        pytest.param(["--facts", "x", "--fix"], "--fix works on this machine", id="repairing a saved machine"),
        pytest.param(["--facts", "x", "--deep"], "--deep works on this machine", id="the deep tier of a saved machine"),
        pytest.param(["--facts", "x", "--smoke"], "--smoke works on this machine", id="a container on a saved machine"),
        pytest.param(
            ["--facts", "x", "--project", "."], "--project works on this machine", id="a saved machine's project"
        ),
        pytest.param(
            ["--facts", "a", "--facts", "b", "--facts", "c"], "--facts was given 3 times", id="three machines"
        ),
        pytest.param(["--yes"], "--yes answers the questions of --fix", id="yes to nothing"),
        pytest.param(["--project", "nowhere"], "nowhere is no directory", id="no such project"),
        pytest.param(["--output", "x", "--save-facts", "x"], "both name x", id="two things in one file"),
    ],
)
def test_flags_that_contradict_each_other_are_one_line_and_a_hint(arguments, message):
    result = ask(*arguments)
    assert isinstance(result.exception, DevkitError), result.output
    assert message in result.exception.message
    assert "\n" not in result.exception.message
    assert result.exception.hint
    assert result.stdout == ""


def test_json_twice_is_no_contradiction(saved):
    assert ask("--json", "--format", "json", "--facts", saved("m", healthy())).exit_code == 0


NAMED = replace(
    changed(healthy(), {"storage.directories.0.path": "/home/alice/.cache/huggingface/hub"}),
    container=None,
    wsl=Unknown("alice@example.com says hf_abcdefghijklmnopqrstuvwxyz at https://bob:pw12345@hub.example.com/"),
)


@pytest.mark.parametrize("style", ["json", "sarif", "markdown", "html"])
def test_what_is_passed_on_names_nobody(saved, style):
    shown = ask("--facts", saved("m", NAMED), "--format", style).stdout
    assert not [word for word in ("alice", "hf_abc", "pw12345") if word in shown]


def test_who_sits_there_sees_true_paths_but_no_token(saved):
    named = changed(NAMED, {"storage.directories.0.is_writable": False, "storage.directories.0.owner_uid": 0})
    shown = ask("--facts", saved("m", named), "--verbose").stdout
    assert "/home/alice/.cache/huggingface/hub" in shown
    assert "hf_abc" not in shown
