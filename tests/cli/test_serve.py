"""`devkit serve` with servers that only record how they were started, and without any."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.cli import devkit
from devkit.cli import estimate as estimate_command
from devkit.errors import DevkitError
from devkit.workload.finetune import files
from tests.estimate.test_serving import cards

RECORD = '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $0 $*"\n'


@pytest.fixture
def servers(tmp_path, monkeypatch):
    """vllm, llama-server and transformers in the active environment, and a small model's folder beside them."""
    (tmp_path / "bin").mkdir()
    for name in ("vllm", "llama-server", "transformers"):
        (tmp_path / "bin" / name).write_text(RECORD)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "model").mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 4096}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(*arguments):
    done = CliRunner().invoke(devkit, ["serve", "--dry-run", *arguments], catch_exceptions=False)
    return done.output.replace(f"{Path.cwd()}/bin/", "").strip()


@pytest.mark.parametrize(
    ("free_gib", "arguments", "command"),
    [
        pytest.param((), ["model"], "transformers serve model --host 127.0.0.1 --port 8000", id="no GPU"),
        pytest.param(
            (3, 20),
            ["model", "--port", "9000"],
            "CUDA_VISIBLE_DEVICES=GPU-1 vllm serve model --max-model-len 4096 --gpu-memory-utilization 0.83"
            " --host 127.0.0.1 --port 9000",
            id="vLLM on the free GPU",
        ),
        pytest.param(
            (20,),
            ["model", "--engine", "transformers", "--", "--log-level", "info"],
            "CUDA_VISIBLE_DEVICES=GPU-0 transformers serve model --host 127.0.0.1 --port 8000 --log-level info",
            id="arguments of the engine",
        ),
        pytest.param((), ["m.gguf", "--context", "512"], "llama-server -m m.gguf -c 512 --host 127.0.0.1 --port 8000", id="GGUF"),
    ],
)  # fmt: skip
def test_the_server_gets_what_fits(servers, monkeypatch, free_gib, arguments, command):
    monkeypatch.setattr(estimate_command, "read_local_gpus", lambda: cards(*free_gib))
    assert printed(*arguments) == command


@pytest.mark.parametrize(("name", "shown"), [("--host=0", "./--host=0"), ("m\n::error::x", "'m\n\\::error::x'")])
def test_a_folders_name_is_no_option_and_no_command_of_a_log(servers, monkeypatch, name, shown):
    monkeypatch.setattr(estimate_command, "read_local_gpus", lambda: ())
    (servers / "model").rename(servers / name)
    assert printed("--", name) == f"transformers serve {shown} --host 127.0.0.1 --port 8000"


def test_clients_name_a_fetched_model_as_the_user_did(servers, monkeypatch):
    monkeypatch.setattr(estimate_command, "read_local_gpus", lambda: ())
    monkeypatch.setattr(files, "find_packaged_model", lambda _: servers / "model")
    words = f"serve {servers}/model --served-model-name smollm2-135m"
    assert words in printed("smollm2-135m", "--engine", "vllm")


def test_devkit_becomes_the_server(servers):
    command = [sys.executable, "-m", "devkit", "serve", "m.gguf", "--", "--api-key", "a b"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{servers}/bin/llama-server -m m.gguf --host 127.0.0.1 --port 8000 --api-key a b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.gguf"], "the file nothing.gguf does not exist"),
        (["./nothing"], "the model ./nothing does not exist"),
        (["m.gguf", "--engine", "vllm"], "vllm serves no GGUF file here"),
        (["model", "--engine", "llama-cpp"], "llama-cpp serves no folder here"),
        (["model", "--engine", "vllm"], "vllm is not installed"),
        (["smollm2-135m"], "smollm2-135m is not on this machine yet"),
    ],
)
def test_what_is_missing_is_one_line_and_a_hint(servers, monkeypatch, arguments, message):
    (servers / "bin/vllm").unlink()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HF_HUB_CACHE", str(servers))
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)  # devkit's own environment has none
    with pytest.raises(DevkitError, match=message) as refused:
        printed(*arguments)
    assert refused.value.hint


def test_a_model_larger_than_the_free_memory_is_not_started(servers, monkeypatch):
    monkeypatch.setattr(estimate_command, "read_local_gpus", lambda: cards(0))
    with pytest.raises(DevkitError, match="model may not fit"):
        printed("model")
