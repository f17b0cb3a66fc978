"""Adapters attached, saved, put back, and refused on bases that are not theirs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import Method, Precision, TrainingSettings
from devkit.estimate.shape import count_adapter_parameters
from devkit.workload.finetune import model as adapters
from devkit.workload.finetune.files import (
    ADAPTER_WEIGHTS_FILE,
    BaseQuantization,
    LoadSettings,
    inspect_adapter,
    inspect_model,
)
from devkit.workload.finetune.model import (
    apply_adapter,
    build_meta_model,
    load_base_and_tokenizer,
    require_adapter_fits,
    resolve_targets,
)
from devkit.workload.finetune.settings import FinetuneSettings
from tests.workload.small_models import save_model, save_trained_adapter

pytestmark = pytest.mark.workload

IDS = torch.arange(40, 60)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small Llama in a folder."""
    return save_model(tmp_path_factory.mktemp("base"))


def settings_for(folder, **more):
    """The wishes that concern adapters."""
    return FinetuneSettings(**{"model": f"{folder}", "data": (), "output": Path(), "rank": 4, "alpha": 8, **more})


def with_adapter(folder, choices=None, *, precision=Precision.FP32, moved=0.05, **more):
    """A loaded base and it with an adapter whose weights were moved from zero, as training does."""
    loaded = load_base_and_tokenizer(f"{folder}", choices or LoadSettings())
    model = adapters.attach_adapter(loaded.model, settings_for(folder, **more), precision=precision)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.add_(torch.randn_like(parameter), alpha=moved)
    return loaded, model.eval()


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory):
    """The folder of an adapter, and the logits that it gives on its base."""
    folder = tmp_path_factory.mktemp("adapter")
    loaded, model = with_adapter(base)
    save_trained_adapter(model, folder, loaded)
    return folder, logits(model)


def logits(model):
    """What the model says of a fixed line."""
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("method", [Method.LORA, Method.QLORA, Method.INT8_LORA])
def test_an_adapter_has_the_given_precision_on_every_base(base, method, precision):
    choices = LoadSettings(precision=precision, quantization=BaseQuantization.from_method(method))
    _, model = with_adapter(base, choices, precision=precision)
    assert {parameter.dtype for parameter in adapters.trainable_parameters(model)} == {adapters.TORCH_DTYPES[precision]}
    assert all("lora_" in name for name, each in model.named_parameters() if each.requires_grad)


def test_experts_of_a_mixture_get_no_adapter_and_it_loads_again(tmp_path):
    folder = save_model(tmp_path / "mixture", "qwen3_moe")
    loaded, model = with_adapter(folder)
    named = (name.partition(".lora_") for name, _ in model.named_parameters())
    adapted = {before.rpartition(".")[2] for before, found, _ in named if found}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}
    save_trained_adapter(model, tmp_path / "adapter", loaded)
    fresh = load_base_and_tokenizer(f"{folder}", LoadSettings())
    again = apply_adapter(fresh.model, inspect_adapter(tmp_path / "adapter"), precision=Precision.FP32)
    assert torch.equal(logits(again), logits(model))


def test_nothing_of_a_quantized_base_is_turned_into_fp32(base):
    choices = LoadSettings(precision=Precision.BF16, quantization=BaseQuantization.NF4)
    _, model = with_adapter(base, choices, precision=Precision.BF16)
    assert torch.float32 not in {parameter.dtype for parameter in model.parameters()}


def test_adapters_of_one_seed_are_equal_and_leave_the_random_numbers_alone(base):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    models = [
        adapters.attach_adapter(
            load_base_and_tokenizer(f"{base}", LoadSettings()).model, settings_for(base), precision=Precision.FP32
        )
    ]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    models += [
        adapters.attach_adapter(
            load_base_and_tokenizer(f"{base}", LoadSettings()).model,
            settings_for(base, seed=seed),
            precision=Precision.FP32,
        )
        for seed in (0, 1)
    ]
    first, same, other = ([*map(torch.clone, adapters.trainable_parameters(model))] for model in models)
    assert all(map(torch.equal, first, same))
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("llama", "q_porj", "Did you mean q_proj"),
        ("llama", "query_key_value", "Use one of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"),
        ("llama", "layers.7.self_attn.q_proj", "Did you mean q_proj"),
        ("llama", "q_proj,v_proj", "Repeat the flag"),
        ("llama", "nothing", "Use one of q_proj"),
        ("gpt2", "q_proj", "c_attn, c_proj, c_fc"),
    ],
)
def test_an_unknown_target_is_refused_with_the_names_that_exist(tmp_path, kind, name, hint):
    loaded = load_base_and_tokenizer(f"{save_model(tmp_path, kind)}", LoadSettings())
    with pytest.raises(DevkitError, match=f"the model does not have a layer called {name}") as refused:
        adapters.attach_adapter(loaded.model, settings_for(tmp_path, targets=(name,)), precision=Precision.FP32)
    assert hint in refused.value.hint


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_a_saved_adapter_put_back_gives_the_same_logits_bit_for_bit(base, tmp_path, dora):
    loaded, model = with_adapter(base, dora=dora)
    save_trained_adapter(model, tmp_path, loaded)
    fresh = load_base_and_tokenizer(f"{base}", LoadSettings())
    adapter = inspect_adapter(tmp_path)
    require_adapter_fits(adapter, build_meta_model(base), fresh.files)
    bare = logits(fresh.model)
    back = logits(apply_adapter(fresh.model, adapter, precision=Precision.FP32))
    assert torch.equal(back, logits(model))
    assert not torch.allclose(back, bare, atol=1e-2)


def test_a_target_may_be_the_end_of_a_layers_name(base):
    shape = build_meta_model(base)
    for name in ("q_proj", "self_attn.q_proj", "model.layers.1.self_attn.q_proj", "lm_head"):
        assert resolve_targets(shape, (name,)) == [name]


def refusal_of(adapter_folder, base_folder, **more):
    """Why the adapter may not be put on the base, judged without its weights."""
    files = inspect_model(base_folder)
    with pytest.raises(DevkitError) as refused:
        require_adapter_fits(inspect_adapter(adapter_folder), build_meta_model(base_folder), files, **more)
    return refused.value


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        (
            "llama",
            {"num_hidden_layers": 1},
            "has 14 weights for layers that the model does not have, such as base_model.model.model.layers.1.mlp.down_proj",
        ),
        ("llama", {"intermediate_size": 64}, "mlp.gate_proj.lora_B.default.weight: copying a param with shape"),
        ("llama", {"num_key_value_heads": 4}, "the shape in current model is torch.Size([32, 4])"),
        ("gpt2", {}, "not found in the base model"),
    ],
    ids=["fewer layers", "a wider MLP", "more heads", "another architecture"],
)
def test_an_adapter_is_refused_on_a_model_of_another_shape(saved, tmp_path, base, kind, more, reason):
    refused = refusal_of(saved[0], save_model(tmp_path, kind, **more))
    assert reason in refused.message
    assert f"{base}" in refused.hint


def test_an_adapter_is_refused_on_other_weights_of_the_same_shape_without_any_base(saved, tmp_path):
    other = save_model(tmp_path, seed=1)
    refused = refusal_of(saved[0], other)
    assert "was trained on other weights" in refused.message
    assert "--any-base" in refused.hint
    require_adapter_fits(inspect_adapter(saved[0]), build_meta_model(other), inspect_model(other), any_base=True)


def changed(folder, into, change):
    """A copy of an adapter's folder with its tensors passed through `change`."""
    copy = shutil.copytree(folder, into)
    save_file(change(load_file(copy / ADAPTER_WEIGHTS_FILE)), copy / ADAPTER_WEIGHTS_FILE)
    return copy


def test_an_adapter_whose_rank_is_not_the_configured_one_is_refused(saved, base, tmp_path):
    adapter = shutil.copytree(saved[0], tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"r": 8}))
    assert "the shape in current model is torch.Size([8, " in refusal_of(adapter, base).message


def test_an_adapter_that_lost_one_matrix_is_refused(saved, base, tmp_path):
    def without_one(tensors):
        del tensors[next(name for name in tensors if "lora_B" in name)]
        return tensors

    adapter = changed(saved[0], tmp_path / "adapter", without_one)
    assert "lacks 1 weight, such as" in refusal_of(adapter, base).message


def test_an_adapter_that_lost_a_whole_layer_is_refused(saved, base, tmp_path):
    adapter = changed(
        saved[0],
        tmp_path / "adapter",
        lambda tensors: {k: v for k, v in tensors.items() if ".layers.1.mlp.up" not in k},
    )
    message = refusal_of(adapter, base).message
    assert "lacks 2 weights, such as" in message and "layers.1.mlp.up_proj" in message


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "so it is not an adapter"),
        ({"config.json": "{}"}, "is a whole model, not an adapter"),
        ({"adapter_config.json": "{"}, "is not JSON"),
        ({"adapter_config.json": "[]"}, "is not a JSON object"),
        ({"adapter_config.json": '{"peft_type": "PREFIX_TUNING"}'}, "is an adapter of type PREFIX_TUNING"),
        ({"adapter_config.json": '{"peft_type": "LORA"}'}, "names no rank"),
        ({"adapter_config.json": '{"peft_type": "LORA", "r": 4}'}, "has no adapter_model.safetensors"),
        (
            {"adapter_config.json": '{"peft_type": "LORA", "r": 4}', ADAPTER_WEIGHTS_FILE: "short"},
            "is not a complete safetensors file",
        ),
        (
            {"adapter_config.json": '{"peft_type": "LORA", "r": 4}', ADAPTER_WEIGHTS_FILE: "version https://git-lfs.github.com/spec"},
            "is a Git LFS pointer",
        ),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_whole_adapter_is_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DevkitError, match=message):
        inspect_adapter(tmp_path)


def test_a_runs_output_folder_leads_to_the_adapter_in_it(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "run" / "adapter")
    with pytest.raises(DevkitError) as refused:
        inspect_adapter(tmp_path / "run")
    assert f"{tmp_path}/run/adapter" in refused.value.hint


def test_trained_weights_have_another_fingerprint(base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "copy")
    before = inspect_model(copy).fingerprint
    assert before == inspect_model(base).fingerprint
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1.001
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert inspect_model(copy).fingerprint != before


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_head_that_is_the_embedding_too_is_refused_with_the_reason_and_not_listed(tmp_path, kind):
    shape = build_meta_model(save_model(tmp_path, kind, tie_word_embeddings=True))
    with pytest.raises(
        DevkitError, match="lm_head cannot get an adapter: in this model, it shares its weight with the embedding"
    ):
        resolve_targets(shape, ("lm_head",))
    with pytest.raises(DevkitError, match="the model does not have a layer called nothing") as refused:
        resolve_targets(shape, ("nothing",))
    assert "lm_head" not in refused.value.hint


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("targets", [("lm_head",), ("q_proj", "lm_head"), ("all-linear",)], ids=" ".join)
def test_the_estimate_counts_what_an_adapter_on_the_head_trains(base, targets, dora):
    loaded, model = with_adapter(base, targets=targets, dora=dora, rank=4)
    wanted = TrainingSettings(rank=4, targets=targets, dora=dora)
    assert count_adapter_parameters(build_model_shape(loaded.files.config), wanted) == sum(
        each.numel() for each in adapters.trainable_parameters(model)
    )
