"""The exit code, left where whoever started torchrun reads it."""

import os
import subprocess
import sys

import pytest

from devkit.workload.launch import EXIT_FILE_VARIABLE, write_exit_code


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
