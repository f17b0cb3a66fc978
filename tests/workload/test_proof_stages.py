"""Every claim of the proof, and a fault for each that turns its stage red."""

import copy

import pytest
import torch

from devkit.estimate.settings import Precision
from devkit.workload.proof import models as proof_models
from devkit.workload.proof import standalone
from devkit.workload.proof.stages import StageStatus, run_stage
from tests.workload.conftest import make_models

pytestmark = [
    pytest.mark.workload,
    # transformers and peft deprecate from release to release; what they compute is what counts here.
    pytest.mark.filterwarnings("ignore"),
]

LORA_STAGES = (
    standalone.prove_lora_memorizes,
    proof_models.prove_base_frozen,
    proof_models.prove_adapter_disabled,
    standalone.prove_adapter_reload,
    proof_models.prove_adapter_merged,
    proof_models.prove_resume,
)
QUANTIZED_STAGES = (
    proof_models.prove_qlora_memorizes,
    proof_models.prove_qlora_frozen,
    proof_models.prove_int8_base,
)


@pytest.fixture
def trained(models, healthy):
    """The models of a proof whose adapter is trained already, and which no other test has touched."""
    models.tuned = copy.deepcopy(healthy.tuned)
    return models


def outcome(stage, models):
    """The stage's result; an exception counts as one."""
    return run_stage(stage.__name__, lambda: stage(models))[0]


def assert_red(stage, models, reading):
    """The stage fails, and by this reading."""
    result = outcome(stage, models)
    assert result.status is StageStatus.FAILED, result
    assert reading in result.reason


@pytest.mark.parametrize(
    "stage",
    [*LORA_STAGES, *(pytest.param(stage, marks=pytest.mark.full) for stage in QUANTIZED_STAGES)],
    ids=lambda stage: stage.__name__,
)
def test_the_stage_passes_on_a_healthy_environment(stage, healthy):
    result = outcome(stage, healthy)
    assert result.status is StageStatus.PASSED, result.reason


@pytest.mark.full
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16], ids=str)
def test_the_proof_holds_in_half_precision_too(tmp_path, precision):
    models = make_models(tmp_path, precision=precision)
    for stage in LORA_STAGES[:6]:
        assert outcome(stage, models).status is StageStatus.PASSED, outcome(stage, models).reason


@pytest.mark.full
def test_an_untrained_adapter_has_not_memorized(tmp_path):
    assert_red(standalone.prove_lora_memorizes, make_models(tmp_path, steps=0), "generated")


def test_a_base_that_knows_the_sentence_already_fails(trained):
    assert trained.tuned.base_text != standalone.SENTENCE
    trained.tuned = trained.tuned._replace(base_text=standalone.SENTENCE)
    assert_red(standalone.prove_lora_memorizes, trained, "base_says_it_too")


def touching_each_step(models, chosen, touch):
    """The models, but each optimizer step also touches the first weight that is `chosen`."""
    plain = models.build_optimizer

    def meddling(model):
        weight = next(weight for name, weight in model.named_parameters() if chosen(name, weight))
        optimizer = plain(model)
        step = optimizer.step

        def step_and_touch():
            step()
            touch(weight.data)

        optimizer.step = step_and_touch
        return optimizer

    models.build_optimizer = meddling
    return models


@pytest.mark.full
def test_a_changed_base_weight_fails(models):
    touching_each_step(models, lambda name, _: "embed_tokens" in name, lambda weight: weight[0, :1].add_(1e-3))
    assert_red(proof_models.prove_base_frozen, models, "changed_tensors is 1")


def test_an_adapter_that_cannot_be_disabled_fails(trained):
    trained.tuned.model.base_model.merge_adapter()
    weight = next(w for name, w in trained.tuned.model.named_parameters() if "base_layer.weight" in name)
    weight.data += 1e-3
    assert_red(proof_models.prove_adapter_disabled, trained, "difference_off")


def test_an_adapter_without_effect_fails(trained):
    for weight in standalone.list_trainable(trained.tuned.model):
        weight.data.zero_()
    assert_red(proof_models.prove_adapter_disabled, trained, "difference_on")
    assert_red(proof_models.prove_base_frozen, trained, "adapters_changed")


def test_a_saved_adapter_with_one_wrong_number_fails(trained):
    from safetensors.torch import load_file, save_file

    file = trained.adapter_folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(tensor for name, tensor in tensors.items() if "lora_B" in name)[0, 0] += 1e-3
    save_file(tensors, file)
    assert_red(standalone.prove_adapter_reload, trained, "largest_difference")


def test_an_adapter_merged_at_the_wrong_scale_fails(trained):
    load = trained.reload_adapter

    def rescaled():
        model = load()
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data *= 1.001
        return model

    trained.reload_adapter = rescaled
    assert_red(proof_models.prove_adapter_merged, trained, "relative_difference")


def test_a_checkpoint_without_optimizer_state_fails(models):
    file = models.checkpoint_folder / proof_models.STATE_FILE
    state = torch.load(file, weights_only=True)
    state["optimizer"]["state"] = {}
    torch.save(state, file)
    assert_red(proof_models.prove_resume, models, "different_tensors")


def test_a_checkpoint_without_random_state_fails(models):
    file = models.checkpoint_folder / proof_models.STATE_FILE
    state = torch.load(file, weights_only=True)
    state["rng"] = torch.Generator().manual_seed(1).get_state()
    torch.save(state, file)
    assert_red(proof_models.prove_resume, models, "losses_equal")


@pytest.mark.full
def test_a_base_that_was_not_quantized_fails(trained):
    trained.__dict__["tuned_4bit"] = trained.tuned
    assert_red(proof_models.prove_qlora_memorizes, trained, "linear4bit_layers is 0")
    assert_red(proof_models.prove_qlora_frozen, trained, "packed_tensors is 0")


@pytest.mark.full
def test_a_changed_packed_weight_fails(models):
    touching_each_step(
        models, lambda _, weight: type(weight).__name__ == "Params4bit", lambda packed: packed[0].add_(1)
    )
    assert_red(proof_models.prove_qlora_frozen, models, "changed_tensors is 1")
