"""`devkit finetune` from the outside: flags, file, exit codes, and who prints where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.cli.finetune import load_finetune_settings
from devkit.estimate.settings import Method
from devkit.facts.settings import describe_settings, format_flag
from devkit.workload.finetune.settings import FinetuneSettings
from tests.forked_commands import run_devkit

ROOT = Path(__file__).parents[2]
DEVKIT = [sys.executable, "-m", "devkit", "finetune"]
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def finetune(*words, **environment):
    return run_devkit("finetune", *words, **{**QUIET, **environment})


def nothing_typed(**typed):
    return dict.fromkeys(describe_settings(FinetuneSettings)) | typed


def test_help_names_every_setting():
    shown = " ".join(finetune("--help").stdout.split())
    settings = describe_settings(FinetuneSettings)
    names = {name: format_flag(name) if info.has_flag else f" {name}" for name, (_, info) in settings.items()}
    assert [name for name, text in names.items() if text not in shown] == []


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        pytest.param("dropout", "expected KEY=VALUE", id="no value"),
        pytest.param("drop=1", "drop is not a setting", id="an unknown setting"),
        pytest.param("dropout=high", "invalid --set dropout=high", id="a word for a number"),
    ],
)
def test_a_wrong_setting_is_refused(assignment, says):
    done = finetune("--model", "m", "--data", "d", "--set", assignment)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_settings_without_a_flag_are_set_by_name():
    found = load_finetune_settings(None, nothing_typed(), ("dropout=0.1", "schedule=linear", "compile=true", "keep=3"))
    assert (found.dropout, found.schedule, found.compile, found.keep) == (0.1, "linear", True, 3)


def test_flags_override_the_file_and_unset_settings_keep_their_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = "base"\nrank = 8\nmethod = "qlora"\ndora = true\n')
    found = load_finetune_settings(file, nothing_typed(rank=32, method="lora", dora=False, data=("a.jsonl",)))
    assert (found.model, found.rank, found.method, found.dora) == ("base", 32, Method.LORA, False)
    assert (found.data, found.batch) == (("a.jsonl",), 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "--model and --data are missing", id="nothing"),
        pytest.param(["--model", "m"], "--data is missing", id="no data"),
        pytest.param(["--model", "m", "--data", "d", "--method", "lorra"], "lorra", id="a method that does not exist"),
        pytest.param(["--modle", "m"], "--model", id="a misspelled flag"),
        pytest.param(["--settings", "/nowhere.toml"], "cannot read /nowhere.toml", id="a file that is not there"),
    ],
)
def test_wrong_input_is_refused_at_once(words, said):
    done = finetune(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def run_factory(tmp_path_factory):
    from tests.workload.finetune.run_factory import RunFactory

    return RunFactory(tmp_path_factory.mktemp("run_factory"))


@pytest.mark.full
@pytest.mark.workload
def test_one_command_trains_and_json_has_standard_output_for_itself(run_factory):
    output = run_factory.folder / "result"
    done = finetune(
        "--model", str(run_factory.base), "--data", str(run_factory.texts), "--output", str(output), "--steps", "2",
        "--optimizer", "paged-adamw-8bit", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1] | {"event": "end", "how": "done", "step": 2} == events[-1]
    assert (output / "adapter" / "adapter_model.safetensors").is_file()
    assert done.stderr == ""


@pytest.mark.full
@pytest.mark.workload
def test_a_dry_run_as_text_prints_decisions_with_reasons(run_factory):
    done = finetune(
        "--model", str(run_factory.base), "--data", str(run_factory.texts), "--output", str(run_factory.folder / "never"),
        "--dry-run", COLUMNS="120",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "compile: no - on a CPU, it costs more time than it saves\n" in done.stdout
    assert "memory: about " in done.stdout and done.stdout.startswith("would train ")
    assert done.stdout.endswith(f"--output {run_factory.folder / 'never'}\n") and "--dry-run" not in done.stdout
    assert not (run_factory.folder / "never").exists()


@pytest.mark.workload
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"--data": "absent.jsonl"}, "no file or folder", id="no such data"),
        pytest.param({"--data": "wrong.jsonl"}, "wrong.jsonl:2", id="a record of another type"),
        pytest.param({"--model": "./absent"}, "does not exist", id="no such model"),
        pytest.param({"--output": "."}, "contains files that devkit did not write:", id="a folder of somebody else"),
    ],
)
def test_wrong_input_is_refused_before_torch_is_imported(tmp_path, changed, said):
    (tmp_path / "stub" / "torch").mkdir(parents=True)
    (tmp_path / "stub" / "torch" / "__init__.py").write_text("raise SystemError('torch was imported')")
    (tmp_path / "right.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "wrong.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    given = {"--model": "./model", "--data": "right.jsonl", "--output": "new"} | changed
    words = [word for pair in given.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-m", "devkit", "finetune", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "stub"), str(ROOT)])},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in done.stderr
