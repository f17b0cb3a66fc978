"""`devkit estimate` from the outside: what it answers, what it ends with, what it refuses."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli.estimate import estimate as command
from devkit.errors import DevkitError, ExitCode
from tests.hosts.golden import facts_file

REPOSITORY = Path(__file__).resolve().parents[2]
PRICES = str(REPOSITORY / "examples/prices.toml")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "data"


def run(*words):
    """The command in this process: its exit code and what it printed."""
    result = CliRunner().invoke(command, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value if isinstance(result.return_value, int) else result.exit_code, result.stdout


def document(*words):
    code, text = run(*words, "--json")
    return code, json.loads(text)


def refusal(*words):
    with pytest.raises(DevkitError) as found:
        run(*words)
    assert found.value.hint
    return found.value.message


def test_the_verdict_comes_first_then_the_peak_then_its_three_largest_terms():
    _, text = run("llama-3.1-8b", "--gpu", "RTX 4090")
    lines = text.splitlines()
    assert lines[0].startswith("fits: NVIDIA GeForce RTX 4090")
    assert "LoRA at rank 16" in lines[2]
    peak = next(index for index, line in enumerate(lines) if line.startswith("Peak "))
    terms = [line for line in lines[peak:] if " GiB  " in line or " MiB  " in line]
    assert "weights" in terms[0] and len(terms) == 4 and "--why" in terms[3]


def test_it_ends_with_1_where_it_fits_on_none_of_the_gpus_and_says_what_would():
    code, text = run("llama-3.1-8b", "--gpu", "T4")
    assert code == ExitCode.ANSWER_IS_NO
    assert "does not fit: Tesla T4" in text and "--method qlora" in text


def test_json_keeps_the_contract():
    code, found = document("llama-3.1-8b", "--gpu", "T4", "--gpu", "H100 MIG 3g.40gb")
    assert code == ExitCode.DONE and found["schema"] == "devkit.estimate/1"
    assert found["model"]["parameters"] == 8030261248
    assert found["allocated_peak_bytes"] == sum(term["bytes"] for term in found["terms"])
    for peak in ("reserved_peak_bytes", "device_peak_bytes"):
        assert found["allocated_peak_bytes"] < found[peak]["point"] <= found[peak]["upper"]
    assert [gpu["verdict"] for gpu in found["gpus"]] == ["does-not-fit", "fits"]
    assert found["gpus"][1]["memory_bytes"] < 40 << 30
    assert found["recommended"]["changes"][0] == "--method qlora"
    assert found["settings"]["rank"] == 16 and found["smallest_gpu"]["name"]


def test_what_is_recommended_fits_when_it_is_asked_for():
    base = ["llama-3.1-8b", "--gpu", "RTX 4090", "--micro-batch", "8", "--no-checkpointing"]
    _, found = document(*base)
    assert found["gpus"][0]["verdict"] == "does-not-fit"
    words = " ".join(found["recommended"]["changes"]).split()
    _, again = document(*base, *words)
    assert again["gpus"][0]["verdict"] == found["recommended"]["verdict"]


def test_how_many_gpus_it_takes_is_said_where_one_is_too_small():
    code, text = run("llama-3.1-8b", "--method", "full", "--gpu", "RTX 4090")
    assert code == ExitCode.ANSWER_IS_NO
    assert "on 4 of them it does" in text or "on 8 of them it does" in text


def test_a_gpu_without_bf16_is_told_of():
    assert "no bf16 in hardware, so give --dtype fp16" in run("llama-3.2-1b", "--gpu", "T4")[1]
    assert "bf16:" not in run("llama-3.2-1b", "--gpu", "T4", "--dtype", "fp16")[1]
    assert "no units" not in run("llama-3.2-1b", "--gpu", "RTX 3090")[1]


def test_saved_machines_are_judged_by_what_their_gpus_really_have():
    code, found = document("llama-3.2-1b", "--facts", str(facts_file("h100-vm-fabric-in-progress")))
    assert code in {ExitCode.DONE, ExitCode.ANSWER_IS_NO}
    assert all(gpu["memory_is_measured"] for gpu in found["gpus"])


def test_time_and_money_come_with_what_they_rest_on():
    _, text = run("llama-3.1-8b", "--gpu", "A100 80GB", "--tokens", "10000000", "--prices", PRICES)
    assert "20% to 50%" in text and "EUR (some cloud, on demand), by prices of 2026-11-21" in " ".join(text.split())


def test_a_term_is_explained_with_its_formula_and_its_source():
    _, text = run("llama-3.1-8b", "--why", "checkpoints")
    assert "32 layers x 2,048 tokens x 4,096 x 2 B" in text and "https://" in text


def test_a_config_file_and_its_folder_are_read(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128, "vocab_size": 100}))
    by_file, by_folder = document(str(tmp_path / "config.json")), document(str(tmp_path))
    assert by_file == by_folder
    flags = ("--hidden", "64", "--layers", "2", "--heads", "4", "--intermediate", "128", "--vocabulary", "100")
    assert document(*flags)[1]["allocated_peak_bytes"] == by_file[1]["allocated_peak_bytes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param((), "no model is named", id="nothing at all"),
        pytest.param(("lama-3-8b",), "there is no model 'lama-3-8b'", id="a mistyped model"),
        pytest.param(
            ("nobody/nothing",),
            "cannot query the hub for nobody/nothing",
            id="a repository, offline",
            marks=pytest.mark.full,
        ),
        pytest.param(("llama-3.1-8b", "--gpu", "H900"), "there is no GPU 'H900'", id="a GPU that does not exist"),
        pytest.param(("llama-3.1-8b", "--gpu", "T4 MIG 1g.5gb"), "has no MIG slice", id="a slice of what has none"),
        pytest.param(("llama-3.1-8b", "--seq", "0"), "--seq is 0", id="no tokens"),
        pytest.param(("llama-3.1-8b", "--rank", "-4"), "--rank is -4", id="a negative rank"),
        pytest.param(("llama-3.1-8b", "--method", "full", "--rank", "8"), "--rank says nothing", id="a rank in full"),
        pytest.param(("llama-3.1-8b", "--kbit-upcast"), "--kbit-upcast says nothing", id="an upcast of LoRA"),
        pytest.param(("llama-3.1-8b", "--sharding", "zero3"), "among one process", id="sharing among one"),
        pytest.param(("llama-3.1-8b", "--inference", "--rank", "8"), "--rank says nothing", id="a rank for inference"),
        pytest.param(("llama-3.1-8b", "--cache", "static"), "--cache says nothing", id="a cache for training"),
        pytest.param(("llama-3.1-8b", "--hidden", "64"), "two models", id="a model and another one"),
        pytest.param(("--hidden", "64"), "--layers is missing", id="half a model"),
        pytest.param(("llama-3.1-8b", "--rule", "seed:9x"), "no rule 'seed:9x'", id="a rule that nobody has"),
        pytest.param(("llama-3.1-8b", "--why", "magic"), "no term 'magic'", id="a term that is not there"),
        pytest.param(("llama-3.1-8b", "--inference", "--world", "3"), "cannot be split across 3", id="heads by three"),
        pytest.param(("llama-3.1-8b", "--learn", "--reset"), "and no model", id="learning with a model"),
    ],
)
def test_wrong_input_gets_a_line_and_a_hint(words, says):
    assert says in refusal(*words)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("{", "is not JSON", id="half a file"),
        pytest.param("[]", "holds no object", id="a list"),
        pytest.param('{"model_type": "rwkv"}', "'rwkv' is not known", id="another architecture"),
    ],
)
def test_a_config_file_that_is_none_is_refused(tmp_path, content, says):
    (tmp_path / "config.json").write_text(content)
    assert says in refusal(str(tmp_path / "config.json"))


def measured(path, *, runs, reserved=10.4, gpu="NVIDIA H200"):
    row = {"gpu": gpu, "allocated_bytes": 10 << 30, "device_bytes": 0, "estimated_bytes": int(9.9 * 2**30)}
    rows = [{**row, "reserved_bytes": int((reserved + each / 100) * 2**30)} for each in range(runs)]
    path.write_text(json.dumps({"schema": "devkit.measured/1", "runs": rows}))
    return str(path)


def test_measured_runs_draw_the_bounds_in_and_every_answer_says_so(tmp_path, home):
    before = document("llama-3.1-8b", "--gpu", "H200")[1]
    assert before["learned_from"] is None
    code, told = run("--learn", measured(tmp_path / "runs.json", runs=4))
    assert code == ExitCode.DONE and "-1.0%" in told and str(home) in told
    after_text = run("llama-3.1-8b", "--gpu", "H200")[1]
    assert "measured.json" in after_text
    assert after_text.splitlines()[0] != run("llama-3.1-8b", "--gpu", "H100 SXM")[1].splitlines()[0]
    assert "measured.json" not in run("llama-3.1-8b", "--gpu", "T4")[1], "another GPU was not measured"
    assert "general ones again" in run("--learn", "--reset")[1]
    assert document("llama-3.1-8b", "--gpu", "H200")[1] == before


def proof(path, *, counted=True, status="passed"):
    figures = {
        "allocated_peak_bytes": 10 << 30,
        "reserved_peak_bytes": 11 << 30,
        "estimated_allocated_peak_bytes": 9 << 30,
    }
    stages = [
        {"name": "torch", "status": "passed", "measured": {"version": "2.13.0"}},
        {"name": "estimate", "status": status, "measured": figures if counted else {}},
    ]
    device = {"kind": "cuda", "name": "NVIDIA H200"}
    path.write_text(json.dumps({"schema": "devkit.verify/1", "device": device, "stages": stages}))
    return str(path)


def test_the_report_of_a_proof_teaches_what_its_training_stages_took(tmp_path):
    told = run("--learn", proof(tmp_path / "verify.json"))[1]
    assert "estimated 9 GiB, measured 10 GiB (-10.0%); the allocator held 10.0% more" in told
    assert "NVIDIA H200: 1 run, the bounds move from 3 on" in told


def test_a_learned_file_that_broke_is_said_and_not_used(home):
    (home / "devkit").mkdir(parents=True)
    (home / "devkit/measured.json").write_text("{")
    result = CliRunner().invoke(command, ["llama-3.1-8b", "--gpu", "H200"], standalone_mode=False)
    assert result.exception is None and "Warning" in result.stderr and "--reset" in result.stderr


@pytest.mark.full
@pytest.mark.workload
def test_an_exact_estimate_traces_the_real_program_and_names_its_versions():
    flags = ("--hidden", "64", "--layers", "2", "--heads", "4", "--intermediate", "128", "--vocabulary", "512")
    code, text = run(*flags, "--exact")
    assert code == ExitCode.DONE
    assert "traced with torch" in " ".join(text.split())


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for Python")
def test_an_exact_estimate_without_torch_says_how_to_get_it(monkeypatch, tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.12.1;; *) echo 3.12.1;; esac\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("DEVKIT_PYTHON", str(tmp_path / "python"))
    assert "the project's environment has no torch" in refusal("llama-3.1-8b", "--exact")
