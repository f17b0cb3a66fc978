"""Every claim of the proof, and a fault for each that turns its stage red."""

import pytest

from devkit.estimate.settings import Precision
from devkit.workload.proof.stages import StageStatus, run_stage
from tests.workload.conftest import make_bench

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from devkit.workload.proof import model_stages, training
from devkit.workload.proof.training import ProofModels

pytestmark = [
    pytest.mark.workload,
    # transformers and peft deprecate from release to release; what they compute is what counts here.
    pytest.mark.filterwarnings("ignore"),
]

LORA_STAGES = (
    model_stages.prove_lora_memorizes,
    model_stages.prove_base_frozen,
    model_stages.prove_adapter_disabled,
    model_stages.prove_adapter_reload,
    model_stages.prove_adapter_merge,
    model_stages.prove_resume,
    model_stages.prove_checkpointing,
)
QUANTIZED_STAGES = (
    model_stages.prove_qlora_memorizes,
    model_stages.prove_qlora_frozen,
    model_stages.prove_8bit_optimizer,
    model_stages.prove_int8_base,
)


def outcome(stage, bench):
    """The stage's result; an exception counts as one."""
    return run_stage(stage.__name__, lambda: stage(bench))[0]


def assert_red(stage, bench, reading):
    """The stage fails, and by this reading."""
    result = outcome(stage, bench)
    assert result.status is StageStatus.FAILED, result
    assert reading in result.reason


@pytest.mark.parametrize("stage", [*LORA_STAGES, *QUANTIZED_STAGES], ids=lambda stage: stage.__name__)
def test_the_stage_passes_on_a_healthy_environment(stage, healthy):
    result = outcome(stage, healthy)
    assert result.status is StageStatus.PASSED, result.reason


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16], ids=str)
def test_the_proof_holds_in_half_precision_too(tmp_path, precision):
    bench = make_bench(tmp_path, precision=precision)
    for stage in LORA_STAGES[:6]:
        assert outcome(stage, bench).status is StageStatus.PASSED, outcome(stage, bench).reason


def test_an_untrained_adapter_does_not_count_as_memorised(tmp_path):
    assert_red(model_stages.prove_lora_memorizes, make_bench(tmp_path, steps=0), "generated")


def test_a_loss_that_only_falls_does_not_count_as_memorised(tmp_path):
    bench = make_bench(tmp_path, steps=5)
    assert bench.tuned.losses[-1] < bench.tuned.losses[0]
    assert_red(model_stages.prove_lora_memorizes, bench, "generated")


def test_a_base_that_knows_the_sentence_already_proves_nothing(bench):
    knowing = bench.tuned.base_text
    object.__setattr__(bench.tuned, "base_text", bench.settings.sentence)
    assert knowing != bench.settings.sentence
    assert_red(model_stages.prove_lora_memorizes, bench, "base_says_it_too")


def touching_each_step(bench, chosen, touch):
    """The bench, but each optimizer step also touches the first weight that is `chosen`."""
    plain = bench.build_optimizer

    def meddling(model):
        weight = next(weight for name, weight in model.named_parameters() if chosen(name, weight))
        optimizer = plain(model)
        step = optimizer.step

        def step_and_touch():
            step()
            touch(weight.data)

        optimizer.step = step_and_touch
        return optimizer

    bench.build_optimizer = meddling
    return bench


def test_a_base_weight_that_moves_is_seen(bench):
    touching_each_step(bench, lambda name, _: "embed_tokens" in name, lambda weight: weight[0, :1].add_(1e-3))
    assert_red(model_stages.prove_base_frozen, bench, "changed_tensors is 1")


def test_a_base_weight_left_trainable_is_seen(tmp_path):
    class Careless(ProofModels):
        def _tune(self, model, base_logits, base_text):
            next(weight for name, weight in model.named_parameters() if "lm_head" in name).requires_grad_()
            return super()._tune(model, base_logits, base_text)

    healthy = make_bench(tmp_path)
    assert_red(
        model_stages.prove_base_frozen, Careless(healthy.settings, healthy.device, tmp_path), "changed_tensors is 1"
    )


def test_an_adapter_that_cannot_be_switched_off_is_seen(bench):
    bench.tuned.model.base_model.merge_adapter()
    weight = next(w for name, w in bench.tuned.model.named_parameters() if "base_layer.weight" in name)
    weight.data += 1e-3
    assert_red(model_stages.prove_adapter_disabled, bench, "difference_off")


def test_an_adapter_that_does_nothing_is_seen(bench):
    for weight in training.list_trainable(bench.tuned.model):
        weight.data.zero_()
    assert_red(model_stages.prove_adapter_disabled, bench, "difference_on")
    assert_red(model_stages.prove_base_frozen, bench, "adapters_changed")


def test_a_saved_adapter_with_one_wrong_number_is_seen(bench):
    from safetensors.torch import load_file, save_file

    file = bench.adapter_folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(tensor for name, tensor in tensors.items() if "lora_B" in name)[0, 0] += 1e-3
    save_file(tensors, file)
    assert_red(model_stages.prove_adapter_reload, bench, "largest_difference")


def test_a_saved_adapter_cut_short_is_seen(bench):
    file = bench.adapter_folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert outcome(model_stages.prove_adapter_reload, bench).status is StageStatus.FAILED


def test_an_adapter_merged_at_the_wrong_scale_is_seen(bench):
    load = bench.reload_adapter

    def rescaled():
        model = load()
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data *= 1.001
        return model

    bench.reload_adapter = rescaled
    assert_red(model_stages.prove_adapter_merge, bench, "relative_difference")


def test_a_checkpoint_that_lost_its_optimizer_state_is_seen(bench):
    file = bench.checkpoint_folder / training.STATE_FILE
    state = torch.load(file, weights_only=True)
    state["optimizer"]["state"] = {}
    torch.save(state, file)
    assert_red(model_stages.prove_resume, bench, "different_tensors")


def test_a_checkpoint_that_lost_its_random_numbers_is_seen(bench):
    file = bench.checkpoint_folder / training.STATE_FILE
    state = torch.load(file, weights_only=True)
    state["rng"] = torch.Generator().manual_seed(1).get_state()
    torch.save(state, file)
    assert_red(model_stages.prove_resume, bench, "losses_equal")


def test_a_resume_whose_negative_control_sees_nothing_does_not_pass(bench):
    bench.resume_runs.__dict__["without_optimizer_state"] = bench.resume_runs.straight
    assert_red(model_stages.prove_resume, bench, "different_without_optimizer_state")


def test_a_base_that_was_never_quantised_is_seen(bench):
    bench.__dict__["tuned_4bit"] = bench.tuned
    assert_red(model_stages.prove_qlora_memorizes, bench, "linear4bit_layers is 0")
    assert_red(model_stages.prove_qlora_frozen, bench, "packed_tensors is 0")


def test_a_packed_weight_that_moves_is_seen(bench):
    touching_each_step(bench, lambda _, weight: type(weight).__name__ == "Params4bit", lambda packed: packed[0].add_(1))
    assert_red(model_stages.prove_qlora_frozen, bench, "changed_tensors is 1")
