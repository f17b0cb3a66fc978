"""What a run does with each kind of machine, and what is refused, for the shape of Llama-3.1-8B. Without torch."""

from dataclasses import replace
from functools import partial

import pytest

from devkit.errors import DevkitError
from devkit.estimate.config import build_model_shape
from devkit.estimate.settings import Attention, Method, Objective, Optimizer, Precision, Sharding
from devkit.estimate.training import estimate_training
from devkit.facts.values import ComputeCapability
from devkit.workload.finetune.decisions import USER_CHOICE, AttentionTraits, DeviceKind, Hardware, decide
from devkit.workload.finetune.settings import FinetuneSettings
from tests.cases import cases

GIB = 1024**3
LLAMA_8B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
TRAITS = AttentionTraits(name="llama", head=128, value_head=128)
MANY_TEXTS = [300] * 10_000
NEED = partial(estimate_training, build_model_shape(LLAMA_8B))


def gpu(capability, gib, **changed):
    given = {
        "kind": DeviceKind.CUDA,
        "name": "a GPU",
        "free_bytes": round(gib * GIB),
        "capability": ComputeCapability.parse(capability),
        "can_compile": True,
        "has_varlen": True,
        "packages": frozenset({"bitsandbytes"}),
    }
    return Hardware(**given | changed)


T4, RTX_3090, RTX_4090 = gpu("7.5", 14.4), gpu("8.6", 23.2), gpu("8.9", 23.2)
A100, H100, H200, B200 = gpu("8.0", 78.5), gpu("9.0", 78.7), gpu("9.0", 139), gpu("10.0", 178)
LAPTOP = gpu("8.9", 7.4)
MI300X = Hardware(kind=DeviceKind.ROCM, name="MI300X", free_bytes=190 * GIB)
APPLE = Hardware(kind=DeviceKind.MPS, name="Apple GPU", free_bytes=100 * GIB, has_bf16=True)
OLD_APPLE = Hardware(kind=DeviceKind.MPS, name="Apple GPU", free_bytes=100 * GIB)
CPU = Hardware(kind=DeviceKind.CPU, name="a CPU", free_bytes=64 * GIB, packages=frozenset({"bitsandbytes"}))


def decided(hardware, *, lengths=MANY_TEXTS, estimator=NEED, traits=TRAITS, **wishes):
    settings = FinetuneSettings(model="m", data=("d",), **wishes)
    return decide(settings, hardware, traits=traits, lengths=lengths, estimator=estimator)


@cases(
    "hardware, method, precision, adapter, attention, checkpointing, micro_batch, compiles",
    {
        "T4: fp16, and no flash kernel": (T4, "qlora", "fp16", "fp32", "sdpa", True, 16, False),
        "3090: LoRA with checkpointing": (RTX_3090, "lora", "bf16", "bf16", "varlen", True, 2, True),
        "4090: QLoRA without it": (RTX_4090, "qlora", "bf16", "bf16", "varlen", False, 1, False),
        "A100": (A100, "lora", "bf16", "bf16", "varlen", False, 4, True),
        "H200: as large as is useful": (H200, "lora", "bf16", "bf16", "varlen", False, 8, True),
        "B200: a whole 8B model": (B200, "full", "bf16", "bf16", "varlen", False, 4, True),
        "ROCm: bf16 and sdpa": (MI300X, "lora", "bf16", "bf16", "sdpa", False, 16, False),
        "Apple before macOS 14": (OLD_APPLE, "lora", "fp32", "fp32", "sdpa", False, 16, False),
        "CPU: fp32, never compiled": (CPU, "lora", "fp32", "fp32", "varlen", False, 1, False),
    },
)
def test_each_machine_gets_what_suits_it(
    hardware, method, precision, adapter, attention, checkpointing, micro_batch, compiles
):
    found = decided(hardware, method=Method(method))
    assert (found.precision, found.adapter_precision, found.attention) == (precision, adapter, attention)
    assert (found.checkpointing, found.micro_batch, found.compile) == (checkpointing, micro_batch, compiles)
    assert found.estimate.reserved_peak_bytes.upper <= hardware.free_bytes
    assert found.micro_batch * found.accumulation == 16
    assert found.warnings == ()


@pytest.mark.parametrize("hardware", [T4, RTX_3090, A100, LAPTOP, MI300X, APPLE, CPU])
def test_everything_has_its_reason(hardware):
    found = decided(hardware)
    names = [each.name for each in found.reasons]
    assert len(names) == len(set(names)) == 10
    assert all(each.because and each.because != USER_CHOICE for each in found.reasons)


def test_settings_of_the_user_are_kept_and_say_so():
    wishes = {
        "precision": Precision.FP32,
        "adapter_precision": Precision.FP32,
        "attention": Attention.SDPA,
        "packing": False,
        "compile": False,
        "optimizer": Optimizer.ADAMW_8BIT,
        "checkpointing": True,
        "micro_batch": 3,
        "learning_rate": 1e-5,
    }
    found = decided(B200, **wishes)
    assert {name: getattr(found, name) for name in wishes} == wishes
    assert {each.name for each in found.reasons if each.because == USER_CHOICE} == set(wishes)
    assert found.accumulation == 6


@cases(
    "hardware, wishes, said",
    {
        "QLoRA without it": (gpu("9.0", 80, packages=frozenset()), {"method": Method.QLORA}, "needs bitsandbytes"),
        "int8 on a V100": (gpu("7.0", 32), {"method": Method.INT8_LORA}, "compute capability 7.5"),
        "varlen on a T4": (T4, {"attention": Attention.VARLEN}, "varlen is not possible"),
        "a whole model in fp16": (T4, {"method": Method.FULL, "precision": Precision.FP16}, "fp16"),
        "compiling without compiler": (gpu("9.0", 80, can_compile=False), {"compile": True}, "compiler"),
        "sharing with nobody": (H100, {"sharding": Sharding.ZERO3}, "single process"),
        "fewer rows than processes": (gpu("9.0", 80, world_size=32), {"batch": 16}, "32 processes"),
        "DPO in two processes": (gpu("9.0", 80, world_size=2), {"objective": Objective.DPO}, "in one process"),
        "unequal means": (H100, {"objective": Objective.DPO, "micro_batch": 3}, "does not divide"),
    },
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_reason(hardware, wishes, said):
    with pytest.raises(DevkitError, match=said) as refused:
        decided(hardware, **wishes)
    assert refused.value.hint


def test_a_cpu_that_multiplies_in_bf16_trains_adapters_in_it_and_nothing_else():
    able = replace(CPU, has_bf16=True)
    found = decided(able)
    assert (found.precision, found.adapter_precision) == (Precision.BF16, Precision.BF16)
    assert found.to_training_settings(FinetuneSettings(model="m", data=("d",)), world=1).has_masters
    assert decided(CPU).precision is Precision.FP32
    assert decided(able, method=Method.FULL).precision is Precision.FP32
    assert decided(able, method=Method.QLORA).precision is Precision.FP32


def test_bf16_on_a_gpu_that_emulates_it_is_done_with_a_warning():
    found = decided(T4, method=Method.QLORA, precision=Precision.BF16)
    assert found.precision is Precision.BF16
    assert "only emulates" in found.warnings[0]


def test_what_will_not_fit_is_said_before_anything_is_loaded_and_tried_in_its_smallest_form():
    found = decided(LAPTOP)
    assert (found.checkpointing, found.micro_batch) == (True, 1)
    assert "will probably not fit" in found.warnings[0] and "--method qlora" in found.warnings[0]


def test_a_whole_model_gets_smaller_optimizer_states_only_where_it_must():
    assert decided(A100, method=Method.FULL).optimizer is Optimizer.ADAMW
    assert decided(gpu("8.0", 39), method=Method.FULL).optimizer is Optimizer.PAGED_ADAMW_8BIT
    assert decided(gpu("8.0", 39, packages=frozenset()), method=Method.FULL).optimizer is Optimizer.ADAMW


def test_processes_share_a_batch_and_each_has_its_own_passes():
    found = decided(gpu("9.0", 139, world_size=4), batch=128)
    assert (found.micro_batch, found.accumulation, found.sharding) == (32, 1, Sharding.DDP)


def test_memory_is_that_of_the_datas_lengths_and_not_of_the_longest_possible_row():
    short = decided(CPU, lengths=[52] * 240)
    assert (short.checkpointing, short.micro_batch, short.accumulation) == (False, 16, 1)
    long = decided(CPU, lengths=[2048] * 16)
    assert short.estimate.allocated_peak_bytes < 0.9 * long.estimate.allocated_peak_bytes
    assert decided(CPU, lengths=[52] * 240, sequence=4096).estimate == short.estimate


def test_one_long_text_counts_once_where_nothing_is_padded_and_for_all_rows_where_they_are():
    lengths = [2048] + [52] * 239
    flat, padded = (
        decided(H200, lengths=lengths, attention=attention, micro_batch=16, checkpointing=False)
        for attention in (Attention.VARLEN, Attention.SDPA)
    )
    assert flat.estimate.allocated_peak_bytes < 0.3 * padded.estimate.allocated_peak_bytes


def test_what_trl_does_is_decided_with_its_reason():
    old = decided(T4, objective=Objective.DPO, method=Method.QLORA)
    new = decided(H100, objective=Objective.REWARD, method=Method.FULL)
    assert (old.precision, old.learning_rate) == (Precision.BF16, 1e-5)
    assert (new.attention, new.packing, new.compile, new.learning_rate) == (Attention.SDPA, False, False, 1e-4)
    assert decided(T4, objective=Objective.GRPO).precision is Precision.FP32
    assert {each.name: each.because for each in new.reasons}[
        "packing"
    ] == "TRL keeps each row of a pair or a group apart"


def test_without_an_estimate_a_gpu_begins_with_the_least():
    found = decided(H200, estimator=None)
    assert (found.micro_batch, found.checkpointing, found.estimate) == (1, True, None)


def test_a_given_number_of_steps_is_packed_unless_the_same_rows_repeat():
    """24 steps a run, however long; an epoch of 8 rows has as many steps as its full rows make."""
    enough, too_few = ([64] * (steps * 8 * 32) for steps in (4, 3))
    assert decided(H100, lengths=enough, batch=8, sequence=2048, steps=24).packing
    assert not decided(H100, lengths=too_few, batch=8, sequence=2048, steps=24).packing
    assert not decided(H100, lengths=enough, batch=8, sequence=2048, epochs=6).packing


def test_a_model_whose_texts_must_not_share_a_row_is_not_packed():
    recurrent = AttentionTraits(name="mamba", recurrent=True)
    assert not decided(H100, traits=recurrent).packing
    with pytest.raises(DevkitError, match="recurrent"):
        decided(H100, traits=recurrent, packing=True)
    with pytest.raises(DevkitError, match="sdpa attention would compute the whole row"):
        decided(H100, attention=Attention.SDPA, packing=True)


def test_on_a_cpu_nothing_is_estimated_that_only_a_gpu_has():
    on_gpu, on_cpu = decided(H100).estimate, decided(CPU).estimate
    assert "cuBLAS workspace" in {term.name for term in on_gpu.terms}
    assert "cuBLAS workspace" not in {term.name for term in on_cpu.terms}
    assert {term.name for term in on_cpu.overheads} == {"allocator slack"}
    assert sum(term.bytes for term in on_cpu.terms) == on_cpu.allocated_peak_bytes == dict(on_cpu.phases)[on_cpu.phase]
    assert on_cpu.device_peak_bytes == on_cpu.reserved_peak_bytes
