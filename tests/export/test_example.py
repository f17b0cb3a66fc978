"""The files of examples/cluster by their engines' rules; that they are fresh is tested with the other examples."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devkit.export.targets import TARGETS
from tests.export.kubernetes.api import CUSTOM, problems

EXPECTED = Path(__file__).resolve().parents[2] / "examples/cluster/expected"
FILES = sorted(path for path in EXPECTED.rglob("*") if path.is_file())
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def of(*suffixes, under=""):
    found = [path for path in FILES if path.suffix in suffixes and str(path.relative_to(EXPECTED)).startswith(under)]
    assert found
    return found


def test_every_target_has_its_files_and_they_can_be_read():
    assert {path.name for path in EXPECTED.iterdir()} == set(TARGETS)
    for path in of(".yaml", ".yml"):
        assert list(yaml.safe_load_all(path.read_text())), path
    for path in of(".py"):
        assert ast.parse(path.read_text()), path


def test_scripts_pass_shellcheck():
    done = subprocess.run([SHELLCHECK, *of(".sh", ".sbatch")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "is_custom", [pytest.param(False, id="core"), pytest.param(True, id="custom", marks=pytest.mark.full)]
)
def test_manifests_are_what_a_cluster_takes(is_custom):
    for path in of(".yaml", under="kubernetes/"):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] != "Kustomization" and (document["kind"] in CUSTOM) is is_custom:
                assert problems(document) == [], path
