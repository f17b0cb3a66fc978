"""The exit code, left where whoever started torchrun reads it, and the one word for all of its processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.workload.launch import EXIT_FILE_VARIABLE, write_exit_code

LATE = """
import os, time
if os.environ.get("LOCAL_RANK") == {late!r}:
    time.sleep(2)
"""
"""Runs while Python starts: one process comes later than the others."""


def test_each_process_adds_a_line(tmp_path, monkeypatch):
    (tmp_path / "codes").touch()
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(tmp_path / "codes"))
    write_exit_code(75)
    write_exit_code(0)
    assert (tmp_path / "codes").read_text() == "75\n0\n"


@pytest.mark.parametrize("value", ["", None, "/nowhere/codes", "/"])
def test_without_a_writable_exit_file_nothing_happens(monkeypatch, value):
    monkeypatch.delenv(EXIT_FILE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(EXIT_FILE_VARIABLE, value)
    write_exit_code(75)


@pytest.mark.full
def test_wrong_input_is_left_too(tmp_path):
    (tmp_path / "codes").touch()
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "finetune", "--batch", "0"],
        env={**os.environ, EXIT_FILE_VARIABLE: str(tmp_path / "codes")},
        capture_output=True,
    )
    assert (done.returncode, (tmp_path / "codes").read_text()) == (2, "2\n")


@pytest.fixture
def torchrun(tmp_path):
    """Starts two processes of `devkit finetune`, one of which may be late; the errors that they told."""
    pytest.importorskip("torch", reason="the workload extra is not installed")

    def run(*words, late="", **environment):
        (tmp_path / "sitecustomize.py").write_text(LATE.format(late=late))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "devkit", "finetune"]
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
        done = subprocess.run([*launcher, *words], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1, "whatever its processes' exit codes are"
        return [line for line in done.stderr.splitlines() if line.startswith("Error: ")]

    return run


@pytest.mark.full
@pytest.mark.workload
@pytest.mark.parametrize(
    ("words", "late", "said"),
    [
        pytest.param(["--modle", "m"], "0", "No such option '--modle'", id="a misspelled flag, the first is late"),
        pytest.param(["--batch", "0"], "0", "--batch is 0", id="a setting, the first is late"),
        pytest.param(["--modle", "m"], "1", "No such option '--modle'", id="a misspelled flag, the other is late"),
    ],
)
def test_under_torchrun_wrong_options_are_reported_once_by_local_rank0_even_when_it_is_late(
    torchrun, tmp_path, words, late, said
):
    (tmp_path / "codes").touch()
    told = torchrun(*words, late=late, **{EXIT_FILE_VARIABLE: str(tmp_path / "codes")})
    assert len(told) == 1
    assert said in told[0]
    assert set((tmp_path / "codes").read_text().split()) == {"2"}
