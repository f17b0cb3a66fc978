"""Questions of public threads: which release of vLLM, SGLang, JAX or TensorFlow goes with a driver, GPU, torch, CUDA or Python.

uv resolves them in an index of empty wheels that have the requirements of the real ones.
"""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

from devkit.cli import devkit
from tests.wheels import make_index, make_wheel

ASKED = tomllib.loads(Path(__file__).with_name("stack_questions.toml").read_text(encoding="utf-8"))
ANYWHERE = "py3-none-any"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacks")
    releases = [
        (each["name"], each["version"], each.get("requires", ()), each.get("tag", ANYWHERE))
        for each in ASKED["release"]
    ]
    releases += [("torch", version, (), ANYWHERE) for version in ASKED["torch"]]
    wheels = [
        make_wheel(folder, name, version, requires=requires, tag=tag) for name, version, requires, tag in releases
    ]
    return make_index(folder / "simple", wheels)


@pytest.mark.full
@pytest.mark.parametrize(
    "asked", ASKED["question"], ids=lambda asked: asked["source"].removeprefix("https://github.com/")
)
def test_the_answer_agrees_with_the_thread(asked, index, tmp_path, monkeypatch, request):
    if "wrong" in asked:
        request.applymarker(pytest.mark.xfail(reason=asked["wrong"], strict=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_OFFLINE")
    for name, value in {"UV_DEFAULT_INDEX": index, "UV_CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(devkit, ["plan", *shlex.split(asked["args"]), "--json"])
    document = json.loads(done.stdout)
    if "conflict" in asked:
        assert document["verdict"] == "conflict", document["plan"]
        assert asked["conflict"] in document["conflict"]["blockers"][0]["says"]
        return
    assert document["verdict"] == "plan", document["conflict"]
    plan = document["plan"]
    versions = {each["field"]: each["value"] for each in plan["reasons"]} | {
        name: plan[name] for name in ("torch", "python")
    }
    wrong = {
        name: versions.get(name)
        for name, specifier in asked["versions"].items()
        if not SpecifierSet(specifier).contains(versions.get(name, "0"))
    }
    assert not wrong, versions
