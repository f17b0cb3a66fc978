"""The proof that needs torch alone: in other environments than devkit's, and when something in them is broken."""

import ast
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

import devkit
from devkit.facts.values import Release
from devkit.verify.here import choose_program
from devkit.workload.interpreter import WORKLOAD_PACKAGES, Interpreter
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import STANDALONE_STAGES, Depth

SOURCE = Path(standalone.__file__).read_text(encoding="utf-8")


def test_it_is_python_3_9_of_the_standard_library():
    tree = ast.parse(SOURCE, feature_version=(3, 9))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert imported[0] == "__future__", "annotations are not evaluated: Python 3.9 has no X | Y"


@pytest.mark.parametrize(
    ("version", "packages", "because"),
    [
        pytest.param("3.11.7", WORKLOAD_PACKAGES, "", id="all that the full proof needs"),
        pytest.param(
            "3.10.14", WORKLOAD_PACKAGES, "Python is 3.10.14, and the full proof needs 3.11", id="Python 3.10"
        ),
        pytest.param("3.12.1", ("torch", "transformers", "accelerate"), "has no peft", id="no peft"),
    ],
)
def test_it_runs_where_the_full_proof_cannot(version, packages, because):
    interpreter = Interpreter("/opt/venv/bin/python", Release.parse(version), packages, is_own=False)
    program = choose_program(interpreter, Depth.QUICK)
    assert because in program.not_full_because and bool(because) == bool(program.not_full_because)
    assert (program.stages == STANDALONE_STAGES) == bool(because)
    assert (standalone.__file__ in program.words) == bool(because)


@pytest.fixture
def environment(tmp_path):
    """Makes an environment that has this one's packages, except for `hidden`; `broken` ones do not import."""
    import torch

    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python3.*/site-packages"))

    def make(*, hidden=(), broken=()):
        hide = "; ".join(f"sys.modules[{name!r}] = None" for name in hidden) or "pass"
        (site / "packages.pth").write_text(
            f"import sys; sys.path.append({str(Path(torch.__file__).parents[1])!r}); {hide}\n"
        )
        for name in broken:
            (site / f"{name}.py").write_text("raise ImportError('libtorch_cuda.so: undefined symbol: _ZN2at')")
        env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv"), "PYTHONPATH": str(Path(devkit.__file__).parents[1])}
        env.pop("DEVKIT_PYTHON", None)

        def verify(*words):
            command = [sys.executable, "-m", "devkit", "verify", *words]
            return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)

        return verify

    return make


def statuses(document):
    return {stage["name"]: stage["status"] for stage in document["stages"]}


@pytest.mark.full
@pytest.mark.workload
def test_an_environment_with_torch_alone_is_proved_and_the_report_says_by_what(environment, tmp_path):
    verify = environment(hidden=("transformers", "peft"))
    done = verify("--here", "--json", "--output", "report.json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert statuses(document) == {
        **dict.fromkeys(("torch", "torch-build", "device", "kernel", "training"), "passed"),
        **dict.fromkeys(("memory", "libraries", "inference", "lora-memorizes", "adapter-reload"), "skipped"),
    } | ({"memory": "passed"} if document["device"]["kind"] == "cuda" else {})
    assert document["environment"]["executable"] == str(tmp_path / "venv/bin/python")
    assert document["inputs"]["proof"] == "standalone"
    assert document["inputs"]["proof_because"] == "the project's environment has no transformers and peft"
    assert "a network in plain torch memorizes a sentence" in document["conclusion"]
    assert (
        "(not proved: inference, lora-memorizes, adapter-reload; the project's environment has no transformers)"
        in document["conclusion"]
    )


@pytest.mark.full
@pytest.mark.workload
def test_a_library_that_does_not_import_fails_its_stage_and_torch_is_proved_all_the_same(environment):
    done = environment(hidden=("accelerate",), broken=("peft",))("--here", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (1, "failed")
    found = statuses(document)
    assert (found["libraries"], found["lora-memorizes"], found["training"]) == ("failed", "skipped", "passed")
    assert "undefined symbol" in next(each["reason"] for each in document["stages"] if each["name"] == "libraries")


def test_a_proof_without_torch_reports_that_and_runs_nothing_else(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    argv = [sys.executable, standalone.__file__, "--stages=torch,kernel,device"]
    done = subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["stage"]["status"] for each in events if each["event"] == "finished"] == [
        "failed",
        "skipped",
        "skipped",
    ]
    assert "libcudart.so.12" in done.stdout and events[-1] == {"event": "done"}


@pytest.mark.workload
def test_the_stages_after_a_crash_run_in_a_fresh_process():
    done = subprocess.run(
        [sys.executable, standalone.__file__, "--stages=memory,training,libraries", "--failed=kernel"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    stages = {each["stage"]["name"]: each["stage"] for each in events if each["event"] == "finished"}
    assert stages["training"]["reason"] == "kernel did not pass"
    assert stages["libraries"]["status"] == "passed", stages["libraries"]
    assert sum(each["event"] == "device" for each in events) == 1


def prove(name, torch, monkeypatch):
    """The readings of one stage with a stand-in for torch."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    return standalone.run_stage(name, lambda: make_proof(Path("unused")).prove(name))


def make_proof(folder):
    """The stages that need torch alone."""
    return standalone.Proof(SimpleNamespace(depth="quick", stages=[]), folder, lambda **event: None)


@pytest.mark.parametrize(
    ("node", "count", "status"),
    [
        pytest.param("nvidia0", 0, "failed", id="a GPU that torch does not see"),
        pytest.param("nvidia0", 1, "passed", id="a GPU that it sees"),
        pytest.param("nvidia-uvm", 0, "passed", id="no GPU"),
    ],
)
def test_torch_sees_the_gpu_that_is_there(monkeypatch, tmp_path, node, count, status):
    (tmp_path / node).touch()
    monkeypatch.setattr(standalone, "DEVICE_FOLDER", tmp_path)
    cuda = SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
    version = SimpleNamespace(cuda="12.8", hip=None)
    torch = SimpleNamespace(__version__="2.8.0", version=version, cuda=cuda, set_num_threads=lambda _: None)
    assert prove("torch-build", torch, monkeypatch)[0]["status"] == status


@pytest.mark.workload
def test_an_optimizer_that_does_not_move_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(standalone, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(standalone, "STEPS", 2)
    document, _ = standalone.run_stage("training", lambda: make_proof(tmp_path).prove("training"))
    assert document["status"] == "failed"
    assert "last_loss" in document["reason"] and "generated" in document["reason"]
