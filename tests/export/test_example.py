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
CHECKER = Path(sys.executable).with_name("check-jsonschema")
OPERATORS = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "Kustomization"}
"""Kinds whose schemas are not here; their own tests know them."""


def of(*suffixes, under=""):
    found = [path for path in FILES if path.suffix in suffixes and str(path.relative_to(EXPECTED)).startswith(under)]
    assert found
    return [pytest.param(path, id=str(path.relative_to(EXPECTED))) for path in found]


def test_every_target_has_its_files():
    assert {path.name for path in EXPECTED.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("script", of(".sh", ".sbatch"))
def test_scripts_pass_shellcheck(script):
    done = subprocess.run([SHELLCHECK, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("manifest", of(".yaml", under="kubernetes/"))
def test_manifests_are_what_a_cluster_takes(manifest):
    for document in yaml.safe_load_all(manifest.read_text()):
        if document["kind"] not in OPERATORS:
            assert document["kind"] not in CUSTOM or document["spec"]
            assert problems(document) == []


@pytest.mark.parametrize("compose", of(".yml", under="docker/"))
def test_compose_files_keep_to_their_schema(compose):
    words = [CHECKER, "--builtin-schema", "vendor.compose-spec", compose]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", of(".yaml", ".yml"))
def test_everything_else_is_yaml(text):
    assert list(yaml.safe_load_all(text.read_text()))


@pytest.mark.parametrize("program", of(".py"))
def test_programs_can_be_read(program):
    assert ast.parse(program.read_text())
