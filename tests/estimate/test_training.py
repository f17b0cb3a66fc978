"""The closed form for training: worked examples, what every estimate must hold to, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devkit.errors import DevkitError
from devkit.estimate.activations import compute_int8_input_bytes, compute_loss_terms
from devkit.estimate.config import build_model_shape
from devkit.estimate.memory import ALLOCATOR_SOURCE, CUBLAS_WORKSPACE, MemoryPhase, drop_gpu_overhead
from devkit.estimate.settings import (
    Attention,
    Loss,
    Method,
    Objective,
    Optimizer,
    Precision,
    Sharding,
    Stack,
    TrainingSettings,
)
from devkit.estimate.shape import find_model
from devkit.estimate.training import compute_gathered_terms, estimate_training
from tests.cases import cases

GIB = 1 << 30
PLAIN = TrainingSettings(adapter_precision=Precision.FP32, loss=Loss.STANDARD, stack=Stack.TRAINER)
"""transformers' Trainer with peft's defaults, on 2,048 tokens with rank 16 on all linears."""
WAYS = {
    "LoRA": PLAIN,
    "LoRA, no checkpointing": replace(PLAIN, checkpointing=False),
    "QLoRA": replace(PLAIN, method=Method.QLORA),
    "QLoRA, upcast": replace(PLAIN, method=Method.QLORA, upcast=True, masked=True),
    "full": replace(PLAIN, method=Method.FULL, optimizer=Optimizer.ADAMW_FOREACH),
    "full, fused": replace(PLAIN, method=Method.FULL),
}
TRACED_GIB = {
    "llama-2-7b": {
        "LoRA": 14.27,
        "LoRA, no checkpointing": 30.74,
        "QLoRA": 5.32,
        "QLoRA, upcast": 6.36,
        "full": 62.8,
        "full, fused": 50.7,
    },
    "llama-3.1-8b": {
        "LoRA": 18.90,
        "LoRA, no checkpointing": 37.40,
        "QLoRA": 9.25,
        "QLoRA, upcast": 11.71,
        "full": 74.8,
    },
    "qwen2.5-7b": {"LoRA": 18.53, "LoRA, no checkpointing": 36.14, "QLoRA": 9.51, "QLoRA, upcast": 11.93, "full": 70.9},
    "mistral-7b-v0.1": {
        "LoRA": 15.26,
        "LoRA, no checkpointing": 33.73,
        "QLoRA": 5.61,
        "QLoRA, upcast": 6.78,
        "full": 67.4,
    },
}
"""Peaks of tensors in traces of transformers 5.23 and peft 0.21; without checkpointing these traces repeat keys and
values for every head, which GPUs do not."""
EXAMPLES = [(model, way, gib) for model, traced in TRACED_GIB.items() for way, gib in traced.items()]


def shape(name):
    found = find_model(name)
    return build_model_shape(found.config, name=found.id)


LLAMA = shape("llama-3.1-8b")
MOE = shape("qwen3-30b-a3b")


def peak(model, wanted):
    return estimate_training(model, wanted).allocated_peak_bytes


@pytest.mark.parametrize(("model", "way", "gib"), EXAMPLES, ids=lambda value: str(value))
def test_a_worked_example_is_met_within_3_percent(model, way, gib):
    assert peak(shape(model), WAYS[way]) / GIB == pytest.approx(gib, rel=0.03)


@pytest.mark.parametrize(
    ("model", "packed", "upcast"),
    [
        ("llama-2-7b", 3.60, 4.09),
        ("llama-3.1-8b", 5.31, 7.27),
        ("qwen2.5-7b", 5.17, 7.20),
        ("mistral-7b-v0.1", 3.84, 4.33),
    ],
)
def test_packed_weights_take_what_loading_them_showed(model, packed, upcast):
    for is_upcast, gib in ((False, packed), (True, upcast)):
        found = estimate_training(shape(model), replace(WAYS["QLoRA"], upcast=is_upcast))
        weights = sum(term.bytes for term in found.terms if "weights" in term.name or "scales" in term.name)
        assert weights / GIB == pytest.approx(gib, rel=0.01)


def test_the_experts_of_a_mixture_are_not_packed_and_the_answer_says_so():
    found = estimate_training(MOE, TrainingSettings(method=Method.QLORA))
    weights = {term.name: term.bytes / GIB for term in found.terms}
    assert weights["unquantized weights"] > 50
    assert any("experts" in warning for warning in found.warnings)


settings_of_runs = st.builds(
    TrainingSettings,
    method=st.sampled_from(Method),
    sequence=st.integers(1, 8192),
    micro_batch=st.integers(1, 16),
    rank=st.integers(1, 256),
    checkpointing=st.booleans(),
    optimizer=st.sampled_from(Optimizer),
    loss=st.sampled_from(Loss),
    attention=st.sampled_from(Attention),
    adapter_precision=st.sampled_from([Precision.BF16, Precision.FP32]),
    accumulation=st.integers(1, 4),
    keeps_outputs=st.booleans(),
)


@given(settings_of_runs)
@settings(deadline=None, max_examples=25)
def test_every_estimate_adds_up_and_grows_from_tensors_to_the_device(run):
    found = estimate_training(LLAMA, run)
    assert (
        sum(term.bytes for term in found.terms) == found.allocated_peak_bytes == max(size for _, size in found.phases)
    )
    assert found.allocated_peak_bytes < found.reserved_peak_bytes.point < found.device_peak_bytes.point
    assert found.reserved_peak_bytes.point <= found.reserved_peak_bytes.upper
    assert found.device_peak_bytes.point <= found.device_peak_bytes.upper
    assert all(term.formula and term.source.startswith("http") for term in (*found.terms, *found.overheads))


@given(settings_of_runs, st.sampled_from(["sequence", "micro_batch", "rank"]))
@settings(deadline=None, max_examples=25)
def test_more_never_takes_less(run, what):
    assert peak(LLAMA, replace(run, **{what: 2 * getattr(run, what)})) >= peak(LLAMA, run)


@given(settings_of_runs)
@settings(deadline=None, max_examples=25)
def test_a_smaller_base_and_sharing_out_never_take_more(run):
    # Without checkpointing, copies that fp32 adapters make may outweigh a paged optimizer's state.
    short = replace(run, rank=min(run.rank, 64), checkpointing=True, optimizer=Optimizer.ADAMW)
    by_method = [peak(LLAMA, replace(short, method=each)) for each in (Method.QLORA, Method.LORA, Method.FULL)]
    assert by_method == sorted(by_method)
    together = [
        estimate_training(LLAMA, replace(run, method=Method.FULL, world=8, sharding=each)).allocated_peak_bytes
        for each in (Sharding.ZERO3, Sharding.ZERO2, Sharding.ZERO1, Sharding.DDP)
    ]
    assert together == sorted(together)


def test_a_layer_is_gathered_in_the_bytes_in_which_its_method_keeps_it():
    sharded = replace(PLAIN, world=8, sharding=Sharding.ZERO3)
    sizes = {each: compute_gathered_terms(LLAMA, replace(sharded, method=each))[0].bytes for each in Method}
    outside = (LLAMA.embedding_parameters + LLAMA.head_parameters) * PLAIN.precision.bytes
    whole = sizes[Method.LORA] - outside
    assert sizes[Method.INT8_LORA] - outside == pytest.approx(whole / 2)
    assert sizes[Method.QLORA] - outside == pytest.approx(whole / 4)


@cases(
    "less, more",
    {
        "checkpointing": ({}, {"checkpointing": False}),
        "a loss in chunks": ({}, {"loss": Loss.STANDARD}),
        "bf16 adapters": ({"checkpointing": False}, {"checkpointing": False, "adapter_precision": Precision.FP32}),
        "fused attention": ({"attention": Attention.SDPA}, {"attention": Attention.EAGER}),
        "8-bit state": ({"method": Method.FULL, "optimizer": Optimizer.ADAMW_8BIT}, {"method": Method.FULL}),
        "dropped outputs": ({"loss": Loss.STANDARD}, {"loss": Loss.STANDARD, "keeps_outputs": True}),
        "no DoRA": ({}, {"dora": True}),
    },
)
def test_what_is_said_to_save_memory_does(less, more):
    wanted = TrainingSettings(sequence=4096)
    assert peak(LLAMA, replace(wanted, **less)) < peak(LLAMA, replace(wanted, **more))


def test_the_loss_is_the_fullest_moment_of_a_plain_lora():
    found = estimate_training(LLAMA, PLAIN)
    assert found.phase is MemoryPhase.LOSS
    assert next(term for term in found.terms if term.name == "loss").bytes == 12 * 2048 * 128256


@cases(
    "wrong, says",
    {
        "no tokens": ({"sequence": 0}, "--max-length is 0"),
        "fewer than no rows": ({"micro_batch": -1}, "--micro-batch is -1"),
        "a target of another model": ({"targets": ("c_attn",)}, "does not have a linear module 'c_attn'"),
        "an upcast of what is not packed": ({"upcast": True}, "nothing is quantized"),
        "DoRA without adapters": ({"method": Method.FULL, "dora": True}, "--dora"),
        "sharing among one": ({"sharding": Sharding.ZERO3}, "needs more than one process"),
    },
)
def test_settings_that_contradict_each_other_are_refused(wrong, says):
    with pytest.raises(DevkitError) as refusal:
        estimate_training(LLAMA, TrainingSettings(**wrong))
    assert says in refusal.value.message and refusal.value.hint


def test_a_chunk_is_as_long_as_the_one_that_training_uses():
    from devkit.estimate.settings import CHUNK_TOKENS
    from devkit.workload import patches

    assert patches.CHUNK_TOKENS == CHUNK_TOKENS


@pytest.mark.parametrize("loss", [Loss.CHUNKED, Loss.FUSED, Loss.STANDARD])
def test_an_adapter_on_the_head_takes_more_than_one_inside(loss):
    plain = estimate_training(LLAMA, TrainingSettings(loss=loss, targets=("q_proj",)))
    with_head = estimate_training(LLAMA, TrainingSettings(loss=loss, targets=("q_proj", "lm_head")))
    trained = 16 * (4096 + 128256)
    assert with_head.allocated_peak_bytes > plain.allocated_peak_bytes + 2 * trained


@pytest.mark.parametrize(
    ("model", "given", "traced_gib"),
    [
        ("llama-3.1-8b", {"sequence": 8192}, 20.14),
        ("llama-3.1-8b", {"sequence": 8192, "method": Method.QLORA, "adapter_precision": Precision.BF16}, 9.47),
        ("llama-3.2-3b", {"method": Method.FULL, "precision": Precision.FP32}, 50.82),
        ("llama-3.2-3b", {"precision": Precision.FP32, "checkpointing": False}, 25.36),
        ("llama-3.2-3b", {"checkpointing": False}, 14.14),
    ],
)
def test_trl_never_makes_whole_logits_and_computes_under_autocast(model, given, traced_gib):
    plain = TrainingSettings(stack=Stack.TRL, autocast=True, adapter_precision=Precision.FP32)
    estimate = estimate_training(build_model_shape(find_model(model).config), replace(plain, **given))
    assert estimate.allocated_peak_bytes / GIB == pytest.approx(traced_gib, rel=0.03)


def test_an_objective_takes_what_its_rows_its_reference_and_its_generations_take():
    shape = build_model_shape(find_model("llama-3.2-3b").config)

    def terms(**given):
        estimate = estimate_training(shape, replace(TrainingSettings(checkpointing=False), **given))
        return estimate, {term.name: term.bytes for term in estimate.terms}

    (one, single), (two, pairs) = terms(micro_batch=4), terms(micro_batch=2, objective=Objective.DPO)
    assert (one.allocated_peak_bytes, single) == (two.allocated_peak_bytes, pairs)
    # With an adapter, the reference is the base; a whole model has a copy.
    _, whole = terms(method=Method.FULL, objective=Objective.DPO)
    assert whole["reference model"] == whole["weights"]
    # A reward model makes one number of a text: the tied head is no matrix of its own.
    scored = terms(micro_batch=2, objective=Objective.REWARD)[1]
    assert scored["weights"] == single["weights"] + 2 * shape.hidden
    few, many = (terms(objective=Objective.GRPO, checkpointing=True, completions=each)[1] for each in (1, 512))
    assert "key-value cache" not in few
    assert many["key-value cache"] == 512 * 2048 * shape.depth * shape.cache_width * 2


def test_in_fp32_grouped_heads_have_no_fused_kernel_on_cuda_unless_a_mask_repeats_them():
    """9,565 MiB were measured on an RTX 4080 (run rtx4080-05 of benchmarks/measured_runs.toml)."""
    shape = build_model_shape(find_model("Qwen/Qwen2.5-1.5B-Instruct").config)
    run = replace(
        PLAIN,
        method=Method.QLORA,
        upcast=True,
        checkpointing=False,
        sequence=1024,
        targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        optimizer=Optimizer.PAGED_ADAMW_8BIT,
        keeps_outputs=True,
    )
    estimate = estimate_training(shape, run)
    assert estimate.allocated_peak_bytes / 2**20 == pytest.approx(9565, rel=0.03)
    assert "attention scores" in {term.name for term in estimate.terms}
    for fused in ({"autocast": True}, {"masked": True}, {"attention": Attention.FLASH}, {"upcast": False}):
        assert "attention scores" not in {term.name for term in estimate_training(shape, replace(run, **fused)).terms}


def test_chunked_loss_in_fp32_has_one_copy_of_a_chunk():
    shape = build_model_shape(find_model("llama-3.2-3b").config)
    fp32 = TrainingSettings(precision=Precision.FP32, adapter_precision=Precision.FP32, attention=Attention.FLASH)
    loss = compute_loss_terms(shape, fp32, 2048)[0]
    assert loss.bytes == 512 * shape.vocabulary * 4


def test_on_a_cpu_only_the_workspace_of_cublas_and_the_context_are_gone():
    found = estimate_training(shape("llama-3.1-8b"), PLAIN)
    cpu = drop_gpu_overhead(found)
    assert set(found.terms) - set(cpu.terms) == {CUBLAS_WORKSPACE}
    assert found.allocated_peak_bytes - cpu.allocated_peak_bytes == CUBLAS_WORKSPACE.bytes
    assert cpu.device_peak_bytes == cpu.reserved_peak_bytes
    assert cpu.overheads and {term.source for term in cpu.overheads} == {ALLOCATOR_SOURCE}


def test_an_int8_base_holds_the_input_of_each_linear_once():
    llama = shape("llama-3.1-8b")
    inputs = 4096 + 4096 + 4096 + 14336  # of the projections, of their output, of the MLP, and of its output
    assert compute_int8_input_bytes(llama.layers[0], llama, PLAIN) == PLAIN.residual_bytes * inputs


def test_the_lean_forward_is_for_silu_alone():
    assert shape("llama-3.1-8b").can_be_lean
    other = {**find_model("llama-3.1-8b").config, "hidden_act": "gelu"}
    assert not build_model_shape(other, name="other").can_be_lean


def test_grpo_holds_four_copies_of_the_logits_of_answers():
    """Run probe-3070-1 of benchmarks/measured_runs.toml took 9.155 GiB."""
    shape = build_model_shape(find_model("Qwen/Qwen3-8B").config)
    run = TrainingSettings(
        **{"method": Method.QLORA, "objective": Objective.GRPO, "completions": 32, "micro_batch": 8, "rank": 8},
        **{"sequence": 172, "prompt": 12, "loss": Loss.STANDARD, "stack": Stack.TRL, "accumulation": 4},
    )

    def loss(**given):
        return next(each for each in compute_loss_terms(shape, replace(run, **given), 8 * 172) if each.name == "loss")

    answers = 8 * 161 * shape.vocabulary
    assert loss(autocast=True).bytes == 4 * 4 * answers
    assert loss().bytes == 4 * 2 * answers
    assert loss(prompt=0).bytes == 4 * 2 * 8 * 172 * shape.vocabulary
    assert loss(objective=Objective.SFT).bytes == 3 * 4 * 8 * 172 * shape.vocabulary
    assert loss(objective=Objective.DPO, micro_batch=4).bytes == 3 * 4 * answers
    assert peak(shape, replace(run, autocast=True)) / GIB == pytest.approx(9.155, rel=0.005)


def test_hidden_states_of_all_layers_fill_the_pass_of_the_reference():
    """Run dpo-pilot-1 of benchmarks/measured_runs.toml took 33.67 GiB."""
    shape = build_model_shape(find_model("Qwen/Qwen3-8B").config)
    run = TrainingSettings(
        **{"objective": Objective.DPO, "adapter_precision": Precision.FP32, "optimizer": Optimizer.ADAMW_FOREACH},
        **{"sequence": 7519, "prompt": 7331, "loss": Loss.STANDARD, "stack": Stack.TRL, "autocast": True},
    )
    shown = replace(run, hidden_states=True)
    terms = {term.name: term.bytes for term in estimate_training(shape, shown).terms}
    assert terms["hidden states of the reference"] == 37 * 2 * 7519 * 4096 * (2 + 4)
    assert peak(shape, shown) / GIB == pytest.approx(33.67, rel=0.01)
    assert peak(shape, run) < peak(shape, shown)
    assert peak(shape, replace(shown, objective=Objective.SFT)) == peak(shape, replace(run, objective=Objective.SFT))


def test_a_prompt_leaves_something_to_learn():
    for prompt in (-1, 2048):
        with pytest.raises(DevkitError, match=f"prompt={prompt} leaves nothing"):
            estimate_training(LLAMA, replace(PLAIN, sequence=2048, prompt=prompt))
