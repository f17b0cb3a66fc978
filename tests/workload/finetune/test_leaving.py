"""The exit code, left where whoever started torchrun reads it."""

import os
import subprocess
import sys

import pytest

from devkit.workload.finetune.leaving import EXIT_FILE, leave_word


def test_each_process_adds_a_line(tmp_path, monkeypatch):
    (tmp_path / "codes").touch()
    monkeypatch.setenv(EXIT_FILE, str(tmp_path / "codes"))
    leave_word(75)
    leave_word(0)
    assert (tmp_path / "codes").read_text() == "75\n0\n"


@pytest.mark.parametrize("value", ["", None, "/nowhere/codes", "/"])
def test_where_nobody_asked_or_nothing_can_be_written_nothing_happens(monkeypatch, value):
    monkeypatch.delenv(EXIT_FILE, raising=False)
    if value is not None:
        monkeypatch.setenv(EXIT_FILE, value)
    leave_word(75)


def test_no_file_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv(EXIT_FILE, str(tmp_path / "codes"))
    leave_word(75)
    assert list(tmp_path.iterdir()) == []


def test_wrong_input_is_left_too(tmp_path):
    (tmp_path / "codes").touch()
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "finetune", "--batch", "0"],
        env={**os.environ, EXIT_FILE: str(tmp_path / "codes")},
        capture_output=True,
    )
    assert (done.returncode, (tmp_path / "codes").read_text()) == (2, "2\n")
