"""`devkit verify` from the outside: exit codes, one document on stdout, progress on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_commands import run_devkit

DEVKIT = [sys.executable, "-m", "devkit", "verify"]


def verify(*words, **environment):
    return run_devkit("verify", *words, **environment)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--here", "--timeout", "0"], "timeout", id="no time at all"),
        pytest.param(["--here", "--timeout", "soon"], "timeout", id="a time that is no number"),
        pytest.param(
            ["--here", "--output", "/nowhere/report.json"], "the folder /nowhere does not exist", id="no such folder"
        ),
        pytest.param(["/nowhere"], "does not exist.\n  Check the path", id="a directory that does not exist"),
        pytest.param(["--hear"], "--here", id="a misspelled flag"),
        pytest.param(["--quick", "--full"], "--quick and --full exclude each other", id="two depths"),
    ],
)
def test_wrong_input_is_refused_at_once(words, said):
    done = verify(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_it_says_what_to_install(tmp_path):
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin/python"
    bare.write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.11.7;; *) echo 3.11.7;; esac\n")
    bare.chmod(0o755)
    text = "import sys; sys.executable = sys.argv.pop(1); sys.argv[0] = 'devkit'; from devkit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", text, str(bare), "verify", "--here"],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"Error: torch is not installed for {bare}",
        f"  devkit plan --pip | uv pip install --requirements - --python {bare}",
    ]


@pytest.mark.full
@pytest.mark.workload
def test_the_proof_here_prints_one_document_and_writes_the_same(tmp_path):
    file = tmp_path / "report.json"
    done = verify("--here", "--quick", "--json", "--output", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["verdict"], document["where"]) == ("devkit.verify/1", "passed", "here")
    assert json.loads(file.read_text()) == document
    assert "lora-memorizes passed" in done.stderr
    assert "Warning" not in done.stderr and "Loading weights" not in done.stderr


@pytest.mark.full
@pytest.mark.workload
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_report_that_cannot_be_written_is_shown_all_the_same():
    done = verify("--here", "--quick", "--json", "--timeout", "2", "--output", "/dev/full")
    assert done.returncode == 2
    assert json.loads(done.stdout)["schema"] == "devkit.verify/1"
    assert "Error: cannot write /dev/full: No space left on device" in done.stderr.splitlines()
