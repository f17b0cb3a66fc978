import codecs
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from devkit.cli.explain import explain, read_log
from devkit.doctor.explain import find_symptom
from devkit.doctor.problems import group_problems
from devkit.doctor.registry import CHECKS
from devkit.doctor.signatures.log_text import HEAD, MIDDLE, TAIL
from devkit.errors import DevkitError
from devkit.release import DOCUMENTATION_URL
from tests.hosts.golden import facts_file

NO_DRIVER = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
CPU_TORCH = "AssertionError: Torch not compiled with CUDA enabled"
LOG = f"Collecting torch\n{CPU_TORCH}\nRuntimeError: CUDA Setup failed despite GPU being available.\n"


def ask(*arguments, text=None):
    """Runs `devkit explain`; what stands on standard input is `text`."""
    return CliRunner().invoke(explain, arguments, input=text)


def run(*arguments, data=b""):
    """Runs the whole program, as a user does."""
    argv = [sys.executable, "-m", "devkit", "explain", *arguments]
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "80"}
    return subprocess.run(argv, input=data, capture_output=True, env=env, timeout=60)


def test_an_error_text_is_explained_with_its_fix():
    result = ask(NO_DRIVER)
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert "the engine cannot expose a GPU to a container" in first
    assert "CTK001" in result.stdout
    assert "sudo nvidia-ctk runtime configure --runtime=docker" in result.stdout
    assert "devkit doctor" in result.stdout


def test_the_document_has_the_fields_of_the_contract():
    document = json.loads(ask("--json", NO_DRIVER).stdout)
    assert document["schema"] == "devkit.explain/1"
    match = document["matches"][0]
    assert {"code", "title", "severity", "cause", "confidence", "matched", "fix"} <= set(match)
    assert (match["code"], match["severity"], match["confidence"]) == ("CTK001", "error", "likely")
    assert match["title"] == "The NVIDIA Container Toolkit is installed where the engine looks"
    assert match["matched"] == 'could not select device driver "" with capabilities: [[gpu]]'
    assert {"summary", "commands", "where", "root", "restart", "docs"} <= set(match["fix"])


def test_consequences_stand_behind_their_cause_and_name_it():
    matches = json.loads(ask("--json", "-", text=LOG).stdout)["matches"]
    assert [(match["code"], match["follows_from"]) for match in matches] == [("PYT001", None), ("PYT003", "PYT001")]
    assert "follows from PYT001: PYT003" in ask("-", text=LOG).stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param([NO_DRIVER], None, id="one argument"),
        pytest.param(NO_DRIVER.split(), None, id="words without quotes"),
        pytest.param(["-"], NO_DRIVER, id="a dash"),
        pytest.param([], NO_DRIVER, id="a pipe alone"),
        pytest.param(["unknown", "flag:", "--gpus"], None, id="words that look like options"),
    ],
)
def test_the_text_may_come_in_any_way(arguments, text):
    assert ask(*arguments, text=text).exit_code == 0


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["as text", "as JSON"])
def test_an_unknown_text_ends_with_1(arguments):
    result = ask(*arguments, "KeyError: 'labels'")
    assert result.exit_code == 1
    if arguments:
        document = json.loads(result.stdout)
        assert (document["matches"], document["nearest"]) == ([], [])
        assert document["unknown"]["first_error"] == {"line": 1, "text": "KeyError: 'labels'"}
    else:
        assert result.stdout.startswith("KeyError: 'labels' (line 1)\n")
        assert "no known error in this text" in result.stdout
        assert "devkit explain --new" in result.stdout


def test_a_file_is_read_as_standard_input_is(tmp_path):
    file = tmp_path / "build.log"
    file.write_text(NO_DRIVER)
    assert ask(str(file)).stdout == ask("-", text=NO_DRIVER).stdout


def test_a_code_is_a_code_where_a_file_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CTK001").write_text(NO_DRIVER)
    assert ask("CTK001").stdout.startswith("CTK001 ")


def test_a_log_that_is_not_there_is_no_text(tmp_path):
    file = tmp_path / "gone.log"
    result = ask(str(file))
    assert result.exception.message == f"cannot read {file}: No such file or directory"
    assert ask("no such file: gone.log").exit_code == 1


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    file = tmp_path / "build.log"
    file.write_text(NO_DRIVER)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("devkit.reading.os.open", refuse)
    assert ask(str(file)).exception.message == f"cannot read {file}: Permission denied"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(["-"], " \n\t\n", id="blanks on standard input"),
        pytest.param([""], None, id="an empty word"),
    ],
)
def test_nothing_to_explain_is_the_users_mistake(arguments, text):
    result = ask(*arguments, text=text)
    assert isinstance(result.exception, DevkitError)
    assert "nothing to explain" in result.exception.message
    assert ("standard input is empty" in result.exception.message) == (text is not None)


def test_every_code_is_explained_in_both_forms():
    for check in CHECKS:
        text = ask(check.code)
        assert text.exit_code == 0, check.code
        assert text.stdout.startswith(f"{check.code} {find_symptom(check)}"[:60])
        said = " ".join(text.stdout.split())
        assert f"Healthy: {check.title}." in said
        assert all(
            " ".join(message.split()) in said for group in group_problems(check.code) for message in group.messages
        )
        assert "Why it matters:" in text.stdout, check.code
        assert f"more: {DOCUMENTATION_URL}/checks/{check.code}/" in text.stdout
        row = json.loads(ask("--json", check.code).stdout)["check"]
        assert (row["code"], row["title"], row["causes"]) == (check.code, check.title, list(check.causes))
        assert set(row["explanation"]) == {"", "Why it matters", "How devkit checks it", "Source"}, check.code


@pytest.mark.parametrize("code", ["drv002", "DRV-002", " DRV002 "])
def test_a_code_may_be_written_carelessly(code):
    assert "DRV002" in ask(code).stdout


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        pytest.param("CTK099", "CTK009", id="a number that no check has"),
        pytest.param("DVR002", "DRV002", id="letters in another order"),
        pytest.param("ZZZ999", "--list", id="nothing like it"),
    ],
)
def test_an_unknown_code_is_the_users_mistake(code, hint):
    result = ask(code)
    assert isinstance(result.exception, DevkitError)
    assert code in result.exception.message
    assert hint in result.exception.hint


def test_what_powershell_saved_is_read():
    assert b"PYT001" in run("-", data=codecs.BOM_UTF16_LE + CPU_TORCH.encode("utf-16-le")).stdout


def test_the_look_at_this_machine_may_be_left_out_or_be_at_another(tmp_path):
    gpu = "RuntimeError: No CUDA GPUs are available"
    assert "on this machine" not in ask("--no-facts", gpu).stdout
    saved = facts_file("in-container-no-gpu-injected")
    assert "for it: CON001 finds: " in ask("--facts", str(saved), gpu).stdout
    for arguments in (["--facts", str(saved), "--no-facts"], ["--facts", str(tmp_path / "none.json")]):
        assert run(*arguments, gpu).returncode == 2


def test_a_case_for_an_issue_has_text_and_facts_without_names(tmp_path):
    token, file = "hf_" + "a1B2" * 9, tmp_path / "case.json"
    text = f"/home/somebody/train.py: {CPU_TORCH} {token} somebody@example.org"
    saved = str(facts_file("ubuntu-4090-ok"))
    result = ask("--new", str(file), "--facts", saved, "-", text=text)
    assert result.exit_code == 0
    case = json.loads(file.read_text())
    assert case["text"] == f"/home/user/train.py: {CPU_TORCH} redacted mail"
    assert (case["cause"], case["fix"]) == ("", "")
    assert case["facts"]["driver"]["loaded"]
    assert ask("--new", str(file), "--no-facts", "-", text=text).exit_code == 0
    assert json.loads(file.read_text())["facts"] is None
    assert isinstance(ask("--new", str(tmp_path / "none" / "x"), "--no-facts", text).exception, DevkitError)


def test_no_secret_of_the_text_is_printed():
    token = "hf_" + "a1B2" * 9
    text = f"Repository Not Found for url: https://huggingface.co/api?token={token}. RepositoryNotFoundError {token}"
    for arguments in ([text], ["--json", text]):
        assert token not in ask(*arguments).stdout


def test_of_a_long_log_beginning_end_and_errors_between_are_kept_and_it_says_so(capsys):
    parts = [b"first\n", *([b"a line of a log\n" * 65536] * 64), b"last\n"]
    parts.insert(30, f"{CPU_TORCH}\n".encode() * 5000)
    excerpts = read_log(iter(parts))
    assert excerpts[0].text.startswith("first\n")
    assert excerpts[-1].text.endswith("last\n")
    assert excerpts[-1].line + excerpts[-1].text.count("\n") - 1 == 1 + 64 * 65536 + 5000 + 1
    error = next(excerpt for excerpt in excerpts if CPU_TORCH in excerpt.text)
    assert error.line + error.text[: error.text.index(CPU_TORCH)].count("\n") == 1 + 29 * 65536 + 1
    assert sum(len(excerpt.text) for excerpt in excerpts) <= HEAD + MIDDLE + TAIL + 2**17
    assert "the error lines between them" in capsys.readouterr().err


def test_what_is_shown_cannot_command_the_terminal():
    out = run("-", data=f"\x1b]0;evil\x07{NO_DRIVER}\x1b[2J".encode()).stdout
    assert b"\x1b" not in out


# A log and the saved facts of its machine.


ERROR_35 = "CUDA driver version is insufficient for CUDA runtime version"
NO_DEVICE_DRIVER = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
NO_GPU = "RuntimeError: No CUDA GPUs are available"
NVML = "Failed to initialize NVML: Driver/library version mismatch"


@pytest.mark.parametrize(
    ("machine", "log", "code", "evidence"),
    [
        pytest.param("toolkit-missing", NO_DEVICE_DRIVER, "CTK001", "CTK001 finds", id="no toolkit"),
        pytest.param("driver-lib-mismatch", NVML, "DRV002", "DRV002 finds", id="an update without a reboot"),
        pytest.param("in-container-no-gpu-injected", NO_GPU, "CON001", "CON001 finds", id="no GPU was given"),
        pytest.param(
            "in-container-no-gpu-injected", ERROR_35, "CON001", "CON001 finds", id="error 35 without a driver"
        ),
        pytest.param("in-container-ok", NO_GPU, "PYT006", "", id="a GPU was given"),
    ],
)
def test_a_log_is_explained_by_the_diagnosis_of_its_machine(tmp_path, machine, log, code, evidence):
    file = tmp_path / "train.log"
    file.write_text(f"start\n{log}\n")
    words = ["--facts", str(facts_file(machine)), str(file)]
    assert "seen in line 2: " in ask(*words).stdout
    match = json.loads(ask(*words, "--json").stdout)["matches"][0]
    assert match["code"] == code
    assert evidence in " ".join(match["speaks_for"])


@pytest.mark.skipif(sys.platform == "win32", reason="makes a named pipe")
def test_a_log_through_a_pipe_is_read_and_one_that_nobody_writes_to_is_given_up(tmp_path, monkeypatch):
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'echo "$1" >"$2"', "sh", NVML, pipe]):
        assert json.loads(ask("--json", str(pipe)).stdout)["matches"][0]["code"] == "DRV002"
    monkeypatch.setattr("devkit.reading.PIPE_TIMEOUT_S", 0.1)
    result = ask(str(pipe))
    assert isinstance(result.exception, DevkitError)
    assert "no data" in result.exception.message


def test_a_code_without_its_zeros_is_proposed_with_them():
    refused = ask("CTK01").exception
    assert isinstance(refused, DevkitError) and refused.hint.startswith("Did you mean CTK001 ")
