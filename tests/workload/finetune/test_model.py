"""Models loaded as asked for, and every folder refused that is no whole causal language model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from devkit.errors import DevkitError
from devkit.estimate.settings import Method, Precision
from devkit.workload.finetune.files import BaseQuantization, LoadSettings, inspect_model
from devkit.workload.finetune.model import (
    build_meta_model,
    find_fused_experts,
    load_base,
    load_base_and_tokenizer,
    prepare_for_training,
)
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.proof.models import count_linear_layers
from tests.workload.small_models import save_model

pytestmark = pytest.mark.workload

IDS = torch.arange(40, 60)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small Llama in a folder."""
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        (Method.LORA, {"Linear": 14}),
        (Method.FULL, {"Linear": 14}),
        (Method.QLORA, {"Linear4bit": 14}),
        (Method.INT8_LORA, {"Linear8bitLt": 14}),
    ],
)
def test_each_method_keeps_its_base_in_the_form_it_trains_on(base, method, kinds):
    loaded = load_base_and_tokenizer(
        f"{base}", LoadSettings(precision=Precision.BF16, quantization=BaseQuantization.from_method(method))
    )
    assert count_linear_layers(loaded.model) == kinds
    assert loaded.model.get_input_embeddings().weight.dtype is torch.bfloat16
    assert not loaded.model.training
    assert loaded.tokenizer("a")["input_ids"] == [256, loaded.tokenizer.convert_tokens_to_ids("a")]


def test_checkpointing_changes_no_gradient_of_an_adapter_although_no_input_needs_one(base):
    from devkit.workload.finetune import model as adapters

    gradients = []
    for checkpointing in (False, True):
        model = load_base_and_tokenizer(f"{base}", LoadSettings()).model
        settings = FinetuneSettings(model="", data=(), output=Path())
        model = adapters.attach_adapter(model, settings, precision=Precision.FP32)
        prepare_for_training(model, checkpointing=checkpointing)
        model.train()(input_ids=IDS, labels=IDS).loss.backward()
        gradients.append([parameter.grad for parameter in adapters.trainable_parameters(model)])
        assert model.config.use_cache
    assert all(map(torch.equal, *gradients))


def folder_with(tmp_path, base, **contents):
    """A copy of the model with some files replaced, or taken away where None."""
    copy = shutil.copytree(base, tmp_path / "model")
    for name, text in contents.items():
        file = copy / name.replace("__", ".")
        if text is None:
            file.unlink()
        else:
            file.write_text(text if isinstance(text, str) else json.dumps(text))
    return copy


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("contents", "message", "hint"),
    [
        ({"config__json": None}, "has no config.json", "Name a model's folder"),
        (
            {"config__json": None, "adapter_config__json": "{}"},
            "is an adapter, not a model",
            "the adapter with --adapter.",
        ),
        ({"config__json": "{"}, "is not JSON", "Fetch it again"),
        ({"config__json": "[]"}, "is not a JSON object", "Fetch it again"),
        ({"config__json": {"architectures": []}}, "does not set model_type", "transformers can read"),
        ({"config__json": CONFIG | {"quantization_config": {"quant_method": "awq"}}}, "quantized with awq", "16-bit"),
        ({"config__json": CONFIG | {"quantization_config": {"quant_method": "gptq"}}}, "with gptq", "--method qlora"),
        ({"config__json": {"model_type": "t5", "is_encoder_decoder": True}}, "an encoder-decoder (t5)", "causal"),
        (
            {"config__json": {"model_type": "bert", "architectures": ["BertForMaskedLM"]}},
            "is BertForMaskedLM, which cannot generate text",
            "causal language model",
        ),
        ({"model__safetensors": None}, "has a config.json but no weights", "Also fetch model.safetensors"),
        ({"model__safetensors": ""}, "is not a complete safetensors file", "cut short"),
        ({"model__safetensors": "<html>not found</html>"}, "is not a complete safetensors file", "cut short"),
        (
            {"model__safetensors": "version https://git-lfs.github.com/spec/v1\noid"},
            "Git LFS pointer",
            "lfs pull --include",
        ),
        ({"tokenizer__json": None}, "has no tokenizer", "Copy tokenizer.json"),
        (
            {"model__safetensors__index__json": {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}},
            "2 of 2 weight files are missing from",
            "cut short",
        ),
        ({"model__safetensors__index__json": {"weight_map": []}}, "index.json is damaged", "cut short"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_folder_that_cannot_be_tuned_is_refused_before_torch_has_anything_to_do(
    tmp_path, base, contents, message, hint
):
    folder = folder_with(tmp_path, base, **contents)
    with pytest.raises(DevkitError) as refused:
        inspect_model(folder)
    assert message in refused.value.message
    assert hint in refused.value.hint


def cut_to(file, size_bytes):
    """Shorten a file."""
    with file.open("rb+") as stream:
        stream.truncate(size_bytes)


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.9999])
def test_weights_that_were_cut_short_anywhere_are_refused(tmp_path, base, share):
    folder = folder_with(tmp_path, base)
    file = folder / "model.safetensors"
    cut_to(file, round(file.stat().st_size * share))
    with pytest.raises(
        DevkitError, match=r"is not a complete safetensors file|damaged header|ends after .* of "
    ) as refused:
        inspect_model(folder)
    assert "\n" not in refused.value.message


def refusal_of_loading(folder, **choices):
    """Why a folder that looks well cannot be loaded."""
    with pytest.raises(DevkitError) as refused:
        load_base_and_tokenizer(f"{folder}", LoadSettings(**choices))
    return refused.value


@pytest.mark.parametrize("quantization", [BaseQuantization.NONE, BaseQuantization.NF4])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama9"}, "does not know the architecture of"),
        ({"model_type": "vit"}, "is not a model that generates text"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
            "contains custom code, which devkit does not run",
        ),
    ],
    ids=["newer than transformers", "an image model", "with code of its own"],
)
def test_a_model_that_transformers_cannot_make_is_refused_with_the_reason(
    tmp_path, base, config, message, quantization
):
    folder = folder_with(tmp_path, base, config__json=config)
    assert message in refusal_of_loading(folder, quantization=quantization).message


def test_a_weight_that_no_file_holds_is_never_drawn_at_random(tmp_path, base):
    folder = folder_with(tmp_path, base)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    refused = refusal_of_loading(folder)
    assert "lacks 1 weight of LlamaForCausalLM, such as model.layers.1.mlp.up_proj.weight" in refused.message


def test_a_model_saved_in_4_bits_is_trained_as_such_and_as_nothing_else(tmp_path, base):
    folder = tmp_path / "packed"
    loaded = load_base_and_tokenizer(f"{base}", LoadSettings(quantization=BaseQuantization.NF4))
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    assert inspect_model(folder).quantized is BaseQuantization.NF4
    again = load_base(inspect_model(folder), LoadSettings(precision=Precision.BF16, quantization=BaseQuantization.NF4))
    assert count_linear_layers(again) == {"Linear4bit": 14}
    assert again.model.layers[0].mlp.up_proj.compute_dtype is torch.bfloat16
    assert "already quantized to nf4" in refusal_of_loading(folder).message


def test_fused_experts_are_counted_and_their_memory_is_noted(tmp_path):
    folder = save_model(tmp_path, "qwen3_moe")
    experts = find_fused_experts(build_meta_model(folder))
    # Two layers, each gate with up [4, 2 * 16, 32] and down [4, 32, 16].
    assert (experts.tensors, experts.parameters) == (4, 2 * 4 * (2 * 16 * 32 + 32 * 16))
    loaded = load_base_and_tokenizer(
        f"{folder}", LoadSettings(precision=Precision.BF16, quantization=BaseQuantization.NF4)
    )
    assert experts.describe(Precision.BF16) == (
        "4 expert weights with 12,288 parameters are fused: they get no adapter, and stay in bf16, which takes 24 KiB"
    )
    kept = [each for name, each in loaded.model.named_parameters() if ".experts." in name]
    assert {each.dtype for each in kept} == {torch.bfloat16}
    assert sum(each.numel() for each in kept) == experts.parameters


@pytest.mark.parametrize(("method", "notes"), [(Method.QLORA, 1), (Method.LORA, 1), (Method.FULL, 0)])
def test_a_run_says_what_fused_experts_mean_for_it_before_it_trains(tmp_path, method, notes):
    from devkit.workload.finetune.program import run_finetuning

    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "one line"}\n')
    told = []
    folder = save_model(tmp_path / "base", "qwen3_moe")
    settings = FinetuneSettings(
        model=f"{folder}", data=(f"{text}",), output=tmp_path / "run", method=method, sequence=64
    )
    assert run_finetuning(settings, listeners=(told.append,), dry_run=True) == 0
    said = [each["text"] for each in told if each["event"] == "note" and "expert" in each["text"]]
    assert len(said) == notes
    assert all("get no adapter, and stay in " in text for text in said)


@pytest.mark.parametrize(
    ("hidden", "between", "led_past"),
    [
        pytest.param(64, 128, 0, id="whole blocks"),
        pytest.param(32, 64, 12, id="inputs of half a block, but for the last product"),
        pytest.param(64, 80, 6, id="outputs that are no multiple of 32, and inputs of them"),
    ],
)
def test_a_4_bit_model_of_any_width_is_computed_outside_of_training(tmp_path, hidden, between, led_past):
    """On a CPU with AVX512-BF16 bitsandbytes's kernel refuses what is not whole blocks; elsewhere it is never asked."""
    folder = save_model(tmp_path / "base", hidden_size=hidden, intermediate_size=between)
    choices = LoadSettings(precision=Precision.BF16, quantization=BaseQuantization.NF4)
    model = load_base_and_tokenizer(f"{folder}", choices).model
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        outside = model(input_ids=ids).logits.float()
        # A fresh one: the first has its weights laid out anew.
        inside = load_base_and_tokenizer(f"{folder}", choices).model.train()(input_ids=ids).logits.float()
    assert float((outside - inside).abs().max() / inside.abs().max()) < 0.05
    from bitsandbytes.functional import has_avx512bf16

    flags = [each.support_avx512bf16_for_cpu for each in model.modules() if type(each).__name__ == "Linear4bit"]
    assert flags.count(False) == (led_past if has_avx512bf16() else len(flags))
