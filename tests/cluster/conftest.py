"""Fixtures: one cluster for all tests here, and a project whose model is made on the spot."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import slurm

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="session")
def cluster() -> Iterator[slurm.Cluster]:
    """A running cluster; in CI a missing one is a failure, elsewhere it is said and skipped."""
    reason = slurm.missing()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    with slurm.cluster() as running:
        yield running


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a dev container for machines without a GPU, and settings of a run."""
    folder = tmp_path_factory.mktemp("a project")
    (folder / "run.toml").write_text(
        'model = "model"\ndata = ["text.jsonl"]\noutput = "tuned"\nsteps = 20\nbatch = 144\n', encoding="ascii"
    )
    devkit("init", folder, "--vendor", "cpu", "--yes")
    return folder


@pytest.fixture(scope="session")
def trainable(project: Path) -> Path:
    """The same with a tiny model and a text."""
    example = ROOT / "examples/ask-about-a-text"
    subprocess.run([sys.executable, example / "make_model.py", project / "model"], check=True, capture_output=True)
    (project / "text.jsonl").write_bytes((example / "text.jsonl").read_bytes())
    return project


def devkit(*words: str | Path) -> str:
    """What devkit printed. Raises AssertionError when it fails."""
    done = subprocess.run([BIN / "devkit", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
