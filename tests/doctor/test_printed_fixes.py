"""What a finding prints is run as it stands: afterwards the finding is gone."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.doctor.model import Found, Passed
from devkit.probe.host import LocalHost
from devkit.probe.machine.resources import read_storage
from tests.doctor.machines import changed, healthy, inside
from tests.doctor.running import find_only, run_check

pytestmark = pytest.mark.full
AS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux gives files to another user"
)
USER = 1000


@pytest.fixture
def run_fix(tmp_path, monkeypatch):
    """Run the commands of a finding in a folder, with a sudo that only hands on, and without restarts of services."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    for name in ("systemctl", "service"):
        (programs / name).write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def run(finding, folder: Path = tmp_path):
        for command in finding.fix.commands:
            subprocess.run(["sh", "-c", command], check=True, cwd=folder)

    return run


@AS_ROOT
def test_con013_a_workspace_of_root(tmp_path, run_fix):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    tmp_path.chmod(0o755)

    def facts():
        storage = read_storage(LocalHost(), project=str(project))
        owned = [
            replace(one, is_writable=(project / "train.py").stat().st_uid == USER)
            if one.purpose == "workspace"
            else one
            for one in storage.directories
        ]
        return changed(inside(), {"storage": replace(storage, uid=USER, directories=tuple(owned))})

    run_fix(find_only("CON013", facts()), project)
    assert isinstance(run_check("CON013", facts()), Passed)


@AS_ROOT
def test_sto001_a_hub_cache_that_is_not_there(tmp_path, run_fix, monkeypatch):
    cache = tmp_path / "a folder" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))

    def facts():
        storage = read_storage(LocalHost(), project="/")
        caches = [
            replace(one, is_writable=cache.is_dir()) if one.purpose == "hub cache" else one
            for one in storage.directories
        ]
        return changed(healthy(), {"storage": replace(storage, directories=tuple(caches))})

    assert isinstance(run_check("STO001", facts()), Found)
    run_fix(find_only("STO001", facts()))
    assert isinstance(run_check("STO001", facts()), Passed)
