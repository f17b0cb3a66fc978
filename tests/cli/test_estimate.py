"""`devkit estimate` from the outside: what it answers, what it ends with, what it refuses."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli.estimate import estimate as command
from devkit.errors import DevkitError, ExitCode
from devkit.probe.saved_facts import load_saved_facts
from tests.hosts.golden import facts_file
from tests.probe.hubs import hub

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_the_gpus_of_this_machine_are_read_where_their_driver_has_a_device(tmp_path, monkeypatch):
    answer = load_saved_facts([Path(facts_file("ubuntu-4090-ok"))]).nvml
    asked = []
    monkeypatch.setattr("devkit.probe.gpu.nvml.read_nvml", lambda *_, **__: asked.append(1) or answer)
    monkeypatch.setattr("devkit.cli.estimate._DEVICE_NODES", (str(tmp_path / "none"), str(tmp_path)))
    assert run("llama-3.1-8b")[1].startswith("fits: NVIDIA GeForce RTX 4090")
    monkeypatch.setattr("devkit.cli.estimate._DEVICE_NODES", (str(tmp_path / "none"),))
    assert "4090" not in run("llama-3.1-8b")[1].splitlines()[0]
    assert asked == [1]


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
    base = ["llama-3.1-8b", "--gpu", "RTX 4090"]
    _, found = document(*base, "--micro-batch", "8", "--no-checkpointing")
    assert found["gpus"][0]["verdict"] == "does-not-fit"
    words = " ".join(found["recommended"]["changes"]).split()
    assert {"--micro-batch", "--checkpointing"} <= {*words}
    _, again = document(*base, *words)
    assert again["gpus"][0]["verdict"] == found["recommended"]["verdict"]


def test_how_many_gpus_it_takes_is_said_where_one_is_too_small():
    code, text = run("llama-3.1-8b", "--method", "full", "--gpu", "RTX 4090")
    assert code == ExitCode.ANSWER_IS_NO
    assert "4 of them hold it with" in text or "8 of them hold it with" in text


def test_a_gpu_without_bf16_is_told_of():
    for words, dtype in ((), "fp16"), (("--method", "full"), "fp32"), (("--inference",), "fp16"):
        said = run("llama-3.2-1b", "--gpu", "T4", *words)[1]
        assert f", {dtype}, " in said and "bf16" not in said
    asked = run("llama-3.2-1b", "--gpu", "T4", "--dtype", "bf16")[1]
    assert asked.startswith("fits with --dtype fp16, because the GPU has no bf16 hardware: Tesla T4")
    assert "bf16:" not in run("llama-3.2-1b", "--gpu", "T4", "--dtype", "fp16")[1]
    assert "no units" not in run("llama-3.2-1b", "--gpu", "RTX 3090")[1]


def test_saved_machines_are_judged_by_what_their_gpus_really_have():
    code, found = document("llama-3.2-1b", "--facts", str(facts_file("h100-vm-fabric-in-progress")))
    assert code in {ExitCode.DONE, ExitCode.ANSWER_IS_NO}
    assert all(gpu["memory_is_measured"] for gpu in found["gpus"])


def test_the_command_that_trains_so_is_printed_and_has_the_judged_settings():
    words = ("--method", "qlora", "--max-length", "1024", "--micro-batch", "2", "--no-checkpointing", "--rank", "8")
    command = document("llama-3.1-8b", "--gpu", "RTX 4090", *words)[1]["command"]
    assert command == (
        "devkit finetune --model llama-3.1-8b --data DATA --method qlora --rank 8 --max-length 1024 --micro-batch 2"
        " --dtype bf16 --no-checkpointing"
    )
    assert command in run("llama-3.1-8b", "--gpu", "RTX 4090", *words)[1]
    assert document("llama-3.1-8b", "--stack", "trl")[1]["command"] is None
    sharded = document("llama-3.1-8b", "--world", "2", "--sharding", "zero3")[1]["command"]
    assert sharded.startswith("torchrun --nproc-per-node 2 -m devkit finetune") and sharded.endswith("--sharding zero3")


def test_settings_without_a_flag_change_the_peak_and_the_flags_of_the_last_release_do_too():
    peak = "allocated_peak_bytes"
    chunked = document("llama-3.1-8b", "--method", "qlora")[1][peak]
    standard = document("llama-3.1-8b", "--method", "qlora", "--set", "loss=standard", "--set", "upcast=true")[1][peak]
    assert standard > chunked
    assert document("llama-3.1-8b", "--method", "qlora", "--loss", "standard", "--kbit-upcast")[1][peak] == standard


def test_a_term_is_explained_with_its_formula_and_its_source():
    _, text = run("llama-3.1-8b", "--why", "checkpoints")
    assert "32 layers x 2,048 tokens x 4,096 x 2 B" in text and "https://" in text


def test_a_config_file_and_its_folder_are_read(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 128, "vocab_size": 100}))
    by_file, by_folder = document(str(tmp_path / "config.json")), document(str(tmp_path))
    assert by_file == by_folder
    shape = "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,intermediate_size=128,vocab_size=100"
    assert document("--shape", shape)[1]["allocated_peak_bytes"] == by_file[1]["allocated_peak_bytes"]


def test_a_repository_of_the_hub_is_read_without_its_library(tmp_path, monkeypatch):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = json.dumps({**config, "intermediate_size": 128, "vocab_size": 100})
    seen = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_of_another_hub")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = "/someone/small/resolve/main/config.json"
    with hub(texts={path: text}, answers={"/someone/gated/resolve/main/config.json": (401, "")}, seen=seen) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        _, by_hub = document("someone/small")
        assert "cannot query the hub for someone/gated: 401" in refusal("someone/gated")
    assert seen[0] == ("GET", path, "")
    # Nobody answers there any more: what the library keeps in its cache is as good.
    kept = tmp_path / "hub" / "models--someone--small"
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    (kept / "snapshots" / "abc" / "config.json").write_text(text)
    assert document("someone/small")[1] == by_hub
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert document("someone/small")[1] == by_hub
    assert "HF_HUB_OFFLINE switches the hub off" in refusal("someone/gated")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param((), "no model was given", id="nothing at all"),
        pytest.param(("lama-3-8b",), "the model 'lama-3-8b' is not known", id="a mistyped model"),
        pytest.param(
            ("nobody/nothing",),
            "cannot query the hub for nobody/nothing",
            id="a repository, offline",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("llama-3.1-8b", "--gpu", "H900"), "the GPU 'H900' is not in the tables", id="a GPU that does not exist"
        ),
        pytest.param(("llama-3.1-8b", "--gpu", "T4 MIG 1g.5gb"), "has no MIG slice", id="a slice of what has none"),
        pytest.param(("llama-3.1-8b", "--rank", "-4"), "--rank is -4", id="a negative rank"),
        pytest.param(("llama-3.1-8b", "--world", f"1{'0' * 400}"), "--world is 1000", id="a world without end"),
        pytest.param(("llama-3.1-8b", "--method", "full", "--rank", "8"), "--rank has no effect", id="a rank in full"),
        pytest.param(("llama-3.1-8b", "--set", "upcast=true"), "--set upcast has no effect", id="an upcast of LoRA"),
        pytest.param(
            ("llama-3.1-8b", "--set", "colour=red"), "'colour=red' is not a setting", id="a setting nobody has"
        ),
        pytest.param(("llama-3.1-8b", "--set", "loss=bad"), "loss must be", id="a value that is none"),
        pytest.param(
            ("llama-3.1-8b", "--set", "cache_precision=bf16"),
            "--set cache_precision has no effect",
            id="a cache's dtype",
        ),
        pytest.param(("llama-3.1-8b", "--inference", "--rank", "8"), "--rank has no effect", id="a rank for inference"),
        pytest.param(("llama-3.1-8b", "--cache", "static"), "--cache has no effect", id="a cache for training"),
        pytest.param(("llama-3.1-8b", "--shape", "hidden_size=64"), "different models", id="a model and another one"),
        pytest.param(("--shape", "hidden_size=064"), "--shape lacks num_hidden_layers", id="half a model"),
        pytest.param(("--shape", "hidden_size=big"), "expected KEY=N", id="a width that is no number"),
        pytest.param(("llama-3.1-8b", "--why", "magic"), "not have a term 'magic'", id="a term that does not exist"),
        pytest.param(("llama-3.1-8b", "--inference", "--world", "3"), "cannot be split across 3", id="heads by three"),
    ],
)
def test_wrong_input_gets_a_line_and_a_hint(words, says):
    assert says in refusal(*words)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("{", "is not JSON", id="half a file"),
        pytest.param("[]", "is not a JSON object", id="a list"),
        pytest.param('{"model_type": "rwkv"}', "'rwkv' is not known", id="another architecture"),
    ],
)
def test_a_config_file_that_is_none_is_refused(tmp_path, content, says):
    (tmp_path / "config.json").write_text(content)
    assert says in refusal(str(tmp_path / "config.json"))
