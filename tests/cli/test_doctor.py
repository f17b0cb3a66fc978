import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from devkit.cli.doctor import doctor
from devkit.doctor.registry import CHECKS
from devkit.errors import DevkitError
from devkit.facts.store import format_facts, parse_facts
from devkit.facts.values import Unknown
from tests.doctor.machines import changed, healthy, r, without_gpu
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
    ("name", "root_causes"),
    [("snap-docker", ["ENG003"]), ("nouveau-holds-gpu", ["DRV001"]), ("ubuntu-4090-ok", [])],
)
def test_a_recorded_machine_is_judged_from_its_saved_facts(name, root_causes):
    result = CliRunner().invoke(doctor, ["--facts", str(facts_file(name)), "--json"])
    assert json.loads(result.stdout)["root_causes"] == root_causes


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


def test_json_is_one_document_with_every_check(ask):
    result = ask(MISMATCH, "--format", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "devkit.doctor/1"
    assert document["verdict"] == "problems"
    assert len(document["outcomes"]) == len(CHECKS)


def test_text_begins_with_the_true_cause(ask):
    layers, cause, *_ = ask(MISMATCH).stdout.split("\n\n")
    assert layers.startswith("✓ Hardware: NVIDIA GeForce RTX 4090, 24 GiB\n✓ Kernel driver: Ubuntu 24.04.3 LTS")
    assert cause.startswith("✗ problem: the loaded NVIDIA module is 580.95.05, but its libraries are\n")
    assert "1 finding follows from it: CUD003" in ask(MISMATCH).stdout


def test_only_some_checks_in_print_order_and_any_case(ask):
    document = json.loads(ask(healthy(), "--json", "--only", "sto001", "--only", "DRV001").stdout)
    assert [row["code"] for row in document["outcomes"]] == ["DRV001", "STO001"]


def test_the_list_needs_no_machine():
    result = CliRunner().invoke(doctor, ["--list"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == [check.code for check in CHECKS]
    document = json.loads(CliRunner().invoke(doctor, ["--list", "--json"]).stdout)
    assert document["schema"] == "devkit.checks/1"


def test_a_report_in_a_file_leaves_stdout_empty(ask, tmp_path):
    report = tmp_path / "report.json"
    result = ask(MISMATCH, "--json", "--output", str(report))
    assert result.stdout == ""
    assert result.exit_code == 1
    assert json.loads(report.read_text())["verdict"] == "problems"


def test_saved_facts_are_redacted_and_can_be_judged_again(ask, tmp_path):
    saved = tmp_path / "saved.json"
    assert ask(MISMATCH, "--save-facts", str(saved)).exit_code == 1
    text = saved.read_text()
    assert "/home/dev" not in text
    assert "444444444444" not in text
    assert ask(parse_facts(text)).exit_code == 1


def test_progress_goes_to_stderr_and_json_stays_whole(ask, tmp_path):
    result = ask(healthy(), "--json", "--save-facts", str(tmp_path / "saved.json"))
    assert json.loads(result.stdout)["verdict"] == "healthy"
    assert "Facts saved" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param(["--only", "DRV01"], "no check has the code 'DRV01'", "Did you mean DRV0", id="an unknown code"),
        pytest.param(["--only", "nonsense"], "'NONSENSE'", "--list", id="a code like no other"),
        pytest.param(["--facts", "nowhere.json"], "cannot read nowhere.json", "--save-facts", id="no such file"),
        pytest.param(["--facts", "."], "cannot read .", "--save-facts", id="a directory"),
        pytest.param(["--facts", "broken.json"], "holds no facts", "--save-facts", id="not JSON"),
        pytest.param(["--facts", "list.json"], "holds no facts", "--save-facts", id="another JSON"),
        pytest.param(["--facts", "binary.json"], "holds no facts", "--save-facts", id="not text"),
        pytest.param(
            ["--facts", "good.json", "--output", "no/such/x"], "cannot write no/such/x", "folder", id="output"
        ),
        pytest.param(
            ["--facts", "good.json", "--save-facts", "no/such/x"], "cannot write no/such/x", "folder", id="saved facts"
        ),
    ],
)
def test_bad_input_is_one_line_and_a_hint(tmp_path, monkeypatch, arguments, message, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "good.json").write_text(format_facts(healthy()))
    result = CliRunner().invoke(doctor, arguments)
    assert isinstance(result.exception, DevkitError)
    assert message in result.exception.message
    assert "\n" not in result.exception.message
    assert hint in result.exception.hint
    assert result.stdout == ""


def run_devkit(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "devkit", "doctor", *arguments],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )


def test_exit_2_reaches_the_shell_without_a_traceback():
    done = run_devkit("--facts", "/nowhere.json")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "Error: cannot read /nowhere.json: No such file or directory",
        "  Save facts on the machine in question: devkit doctor --save-facts FILE",
    ]


def test_a_terminal_without_unicode_gets_ascii():
    done = run_devkit("--facts", str(facts_file("driver-lib-mismatch")), "--verbose", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stdout.isascii()
    assert done.stdout.startswith(b"+ Hardware: ")
    assert b"\nx problem: " in done.stdout


def test_json_is_json_where_standard_output_has_no_degree_sign():
    done = run_devkit("--facts", str(facts_file("gpu-too-hot")), "--json", PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert "\N{DEGREE SIGN}C" in json.dumps(json.loads(done.stdout), ensure_ascii=False)


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_lines_fit_a_narrow_terminal(columns):
    done = run_devkit("--facts", str(facts_file("driver-lib-mismatch")), COLUMNS=columns)
    text = [line for line in done.stdout.decode().splitlines() if not line.startswith(("      ", "  more:"))]
    longest_word = max(len(word) for line in text for word in line.split())
    assert max(map(len, text)) <= max(40, int(columns), longest_word + 2)


def test_no_colour_when_it_is_not_a_terminal():
    done = run_devkit("--facts", str(facts_file("driver-lib-mismatch")))
    assert b"\x1b[" not in done.stdout


def test_a_closed_pipe_is_not_an_error(tmp_path):
    command = f"{sys.executable} -m devkit doctor --list | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
