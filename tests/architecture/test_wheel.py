"""The wheel: everything the program needs and nothing else, and it works where no checkout is."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from devkit.formats.documents import load

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
NOT_SHIPPED = ("tests/", "docs/", "benchmarks/", "examples/", ".ci/", ".devcontainer/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A clean venv elsewhere with the wheel in it; the folder of its programs."""
    venv = tmp_path_factory.mktemp("venv") / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return venv / "bin"


def run(*words, cwd=None, expect=(0,)):
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode in expect, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked(*patterns: str) -> set[str]:
    return set(run("git", "ls-files", *patterns, cwd=ROOT).split())


def test_every_module_and_table_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for name in tracked("devkit") if not name.endswith((".keep", ".toml"))}
    tables = {name.removesuffix(".toml") + ".json" for name in tracked("devkit/**/*.toml")}
    assert tables and (wanted | tables) - names == set()
    assert not [name for name in names if name.startswith("devkit/compat") and name.endswith(".toml")]
    (table,) = {name for name in tables if name.endswith("tables/gpus.json")}
    assert json.loads(zipfile.ZipFile(wheel).read(table)) == load("devkit.compat", "tables/gpus")


def test_every_template_is_in_the_wheel_under_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"devkit/{name}" for name in tracked("templates") if not name.endswith(".keep")}
    assert wanted
    assert wanted - names == set()


def test_nothing_else_is_in_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith(NOT_SHIPPED) or name.endswith((".pyc", ".whl"))]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"devkit", "devkit_gpu"}


def test_the_installed_wheel_finds_what_is_wrong_here(installed, tmp_path):
    report = json.loads(run(installed / "devkit", "doctor", "--json", cwd=tmp_path, expect=(0, 1)))
    assert report["schema"] == "devkit.doctor/1"
    assert report["outcomes"]


def test_the_installed_wheel_plans(installed, tmp_path):
    words = ["plan", "--gpu", "RTX 4090", "--driver", "580.65.06", "--json"]
    plan = json.loads(run(installed / "devkit", *words, cwd=tmp_path))
    assert plan["verdict"] == "plan"


def test_the_installed_wheel_writes_a_dev_container(installed, tmp_path):
    run(installed / "devkit", "init", "project", "--vendor", "cpu", "--yes", cwd=tmp_path)
    folder = tmp_path / "project/.devcontainer"
    assert (folder / "Dockerfile").is_file()
    assert json.loads((folder / "devcontainer.json").read_text())["service"] == "dev"


def test_the_installed_wheel_says_how_to_get_the_training_libraries(installed, tmp_path):
    done = subprocess.run(
        [installed / "devkit", "verify", "--here"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "devkit plan --pip | uv pip install" in done.stderr
    assert "Traceback" not in done.stderr
