"""A newcomer's first command: it says in one line what the machine lacks."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OLD = """#!/bin/sh
case $2 in
*version_info*) exit 1 ;;
*platform*) echo 3.9.2 ;;
esac
"""
WITHOUT_VENV = """#!/bin/sh
case $2 in
*ensurepip*) exit 1 ;;
*version_info*print* | *print*version_info*) echo 3.12 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """What make needs, and nothing installed."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=checkout, capture_output=True, text=True, check=False, timeout=60)


def program(folder: Path, text: str) -> str:
    path = folder / "python-of-this-machine"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("target", ["demo", "test", "lint"])
@pytest.mark.parametrize(
    ("python", "says"),
    [(None, "there is no no-such-python here"), (OLD, "is 3.9.2"), (WITHOUT_VENV, "apt-get install python3.12-venv")],
    ids=["no Python", "a Python that is too old", "a Python without venv"],
)
def test_an_unfit_python_is_named_in_one_line(checkout, target, python, says):
    name = program(checkout, python) if python else "no-such-python"
    done = make(checkout, f"PYTHON={name}", target)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode == 2
    assert len(lines) == 1, done.stderr
    assert says in lines[0]
    assert not (checkout / ".venv").exists()


def test_make_alone_lists_what_it_can_do(checkout):
    said = make(checkout).stdout
    for target in ("demo", "test", "test-all", "lint", "lock", "clean"):
        assert f"make {target}" in said


@pytest.mark.full
def test_an_unfinished_environment_is_made_again(checkout):
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/half").touch()
    subprocess.run(["sh", ".ci/venv.sh"], cwd=checkout, check=True, timeout=120)
    assert not (checkout / ".venv/half").exists()
    subprocess.run([checkout / ".venv/bin/python", "-m", "pip", "--version"], check=True, capture_output=True)


def test_make_clean_leaves_what_git_knows(checkout):
    for name in (".venv", ".demo", ".cache", "dist"):
        (checkout / name).mkdir()
    assert make(checkout, "clean").returncode == 0
    assert sorted(path.name for path in checkout.iterdir()) == [".ci", "Makefile", "pyproject.toml"]
