"""The trace of a training step: build, load, forward, loss, backward, optimizer.

The optimizer's state and step are known to the byte, so that none has to run.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Attention, Loss, Method, Optimizer, Sharding, Stack, TrainingSettings
from devkit.workload.finetune.model.adapters import resolve_targets
from devkit.workload.finetune.model.loading import TORCH_DTYPES
from devkit.workload.finetune.model.loss import compute_loss, get_output_head
from devkit.workload.models import Model
from devkit.workload.peft_import import LoraConfig, adapter_injection, get_peft_model
from devkit.workload.tracing.emulation import (
    FP32_BYTES,
    EmulatedFusedLoss,
    EmulatedTiledLoss,
    emulate_gpu,
    refuse_mixed_precision_experts,
)
from devkit.workload.tracing.model import (
    ConfigDocument,
    build_config,
    build_layer_lookup,
    build_on_meta,
    materialize_parameters,
    record_loading,
    register_phase_hooks,
    replace_linear_layers,
)
from devkit.workload.tracing.recorder import AllocationRecorder
from devkit.workload.tracing.stream import (
    Allocation,
    Deallocation,
    EventStream,
    MemoryEvent,
    Section,
    StepPhase,
    TensorKind,
)

STATE_BLOCK = 256
"""Numbers of an 8-bit state that share one fp32 scale.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/optim/optimizer.py
"""
MIN_8BIT_SIZE = 4096
"""Parameters with fewer numbers keep their state in fp32 (min_8bit_size). Source: as above."""

ADAM_MOMENTS = 2
"""Adam keeps running means of the gradients and of their squares."""


@dataclass(frozen=True)
class TrainableParameter:
    """A trainable parameter: its layer, its number of elements and the bytes of one."""

    layer: int | None
    numbers: int
    item_bytes: int


def trace_training(
    document: ConfigDocument, settings: TrainingSettings, *, depth: int | None, keep_outputs: bool = False
) -> EventStream:
    """Trace loading and a training step, on a model cut to `depth` layers (None: all).

    The optimizer's state is there from the start, as from the second step on. With `keep_outputs` those of a step live
    until the next forward pass has made new ones, as in a loop that is in no function: two steps are traced then.
    """
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        raise DevkitError("the trace follows one process, which holds all of the model", "Estimate without --exact.")
    model = build_traced_model(document, settings, depth)
    recorder = AllocationRecorder()
    with FakeTensorMode(allow_non_fake_inputs=True):
        materialize_parameters(model)
        record_loading(recorder, model, is_upcast=settings.upcast)
        parameters = _list_trainable(model)
        recorder.stream.extend(allocate_optimizer_state(parameters, settings.optimizer, masters=settings.has_masters))
        if settings.world > 1:
            recorder.stream.extend(allocate_ddp_buckets(parameters))
        register_phase_hooks(recorder, model)
        if settings.checkpointing:

            def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return nullcontext(), recorder.label_new(TensorKind.RECOMPUTED)

            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False, "context_fn": contexts})
        with recorder, emulate_gpu(), choose_kernels(model, settings), refuse_mixed_precision_experts():
            kept: list[object] = []
            for _ in range(2 if keep_outputs else 1):
                # From the second pass on, gradients of the first are there.
                for _ in range(min(2, settings.accumulation)):
                    _run_micro_batch(recorder, model, settings, kept)
                    if not keep_outputs:
                        kept.clear()
                recorder.stream.extend(trace_optimizer_step(parameters, settings.optimizer))
                recorder.section = Section(StepPhase.OPTIMIZER, part="end")
                model.zero_grad(set_to_none=True)
            kept.clear()
    # A copy: the model is freed after this, which the recorder would record, too.
    return list(recorder.stream)


def build_traced_model(document: ConfigDocument, settings: TrainingSettings, depth: int | None) -> Model:
    """Build the model with its packed layers and adapters, on the meta device."""
    model = build_on_meta(build_config(document, depth=depth, attention=settings.attention), settings.precision)
    model.config.use_cache = False
    if settings.method in {Method.QLORA, Method.INT8_LORA}:
        is_int8 = settings.method is Method.INT8_LORA
        replace_linear_layers(model, is_int8=is_int8, double_quantization=settings.double_quantisation)
    if settings.method is not Method.FULL:
        model.requires_grad_(requires_grad=False)
        if settings.upcast:
            # As peft's prepare_model_for_kbit_training: whatever is not packed becomes fp32.
            for parameter in model.parameters():
                parameter.data = parameter.data.float()
        model = _add_adapters(model, settings)
    return model.train()


def _add_adapters(model: Model, settings: TrainingSettings) -> Model:
    # Other trainers leave the choice to peft, whose all-linear includes fused experts.
    peft_targets = ALL_LINEAR[0] if settings.targets == ALL_LINEAR else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        target_modules=resolve_targets(model, settings.targets) if settings.stack is Stack.DEVKIT else peft_targets,
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    with adapter_injection(model):
        adapted = get_peft_model(model, config, autocast_adapter_dtype=False, low_cpu_mem_usage=True)
    dtype = TORCH_DTYPES[settings.adapter_precision]
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return adapted


def _list_trainable(model: Model) -> list[TrainableParameter]:
    number = build_layer_lookup(model)
    return [
        TrainableParameter(number(name), parameter.numel(), parameter.element_size())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


@contextmanager
def choose_kernels(model: Model, settings: TrainingSettings) -> Iterator[None]:
    """Compute attention as CUDA does: its sdpa has no fused kernel for grouped heads in fp32."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    is_grouped = (getattr(config, "num_key_value_heads", None) or heads) < heads
    is_fp32 = settings.compute_bytes == FP32_BYTES and settings.attention is Attention.SDPA and not settings.masked
    with sdpa_kernel(SDPBackend.MATH) if is_grouped and is_fp32 else nullcontext():
        yield


def _run_micro_batch(
    recorder: AllocationRecorder, model: Model, settings: TrainingSettings, kept: list[object]
) -> None:
    recorder.section = Section(StepPhase.FORWARD)
    ids = torch.empty((settings.micro_batch, settings.sequence), dtype=torch.int64)
    labels = torch.empty_like(ids)
    # accelerate wraps the forward pass alone, and so ends the cache of cast weights there.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.autocast):
        if settings.stack is Stack.DEVKIT or settings.loss is not Loss.STANDARD:
            loss, outputs = _compute_loss_on_states(model, ids, labels, settings), None
        else:
            outputs = model(input_ids=ids, labels=labels, use_cache=False)
            loss = outputs.loss
            if settings.keeps_outputs:
                kept[:] = [outputs]
            del outputs
    loss.backward()  # type: ignore[no-untyped-call]
    recorder.relabel((each.grad for each in model.parameters() if each.grad is not None), TensorKind.GRADIENTS)


def _compute_loss_on_states(
    model: Model, ids: torch.Tensor, labels: torch.Tensor, settings: TrainingSettings
) -> torch.Tensor:
    """Compute the loss as devkit's own training loop does, or as TRL: the decoder alone, then the loss on its hidden states."""
    kind, stack = settings.loss, settings.stack
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    if stack is Stack.TRL and kind is Loss.CHUNKED:
        tiled: torch.Tensor = EmulatedTiledLoss.apply(  # type: ignore[no-untyped-call]
            hidden.reshape(-1, hidden.shape[-1]), base.get_output_embeddings().weight
        )
        return tiled
    # Every position counts; selecting them copies the states, as in a real step.
    every = torch.arange(ids.numel())
    states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, every)
    if kind is Loss.FUSED:
        fused: torch.Tensor = EmulatedFusedLoss.apply(states, base.get_output_embeddings().weight)  # type: ignore[no-untyped-call]
        return fused
    return compute_loss(get_output_head(base), states, labels.reshape(-1), kind)


def count_state_bytes(parameter: TrainableParameter, optimizer: Optimizer, *, masters: bool = False) -> list[int]:
    """Return the bytes of each tensor of state on the GPU. A paged state counts in full: it leaves only under pressure.

    With `masters` there are master weights among them, and all are in fp32.
    """
    if masters:
        return [4 * parameter.numbers] * (ADAM_MOMENTS + 1)
    if optimizer in {Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT}:
        if parameter.numbers < MIN_8BIT_SIZE:
            return [4 * parameter.numbers] * ADAM_MOMENTS
        scales = 4 * -(-parameter.numbers // STATE_BLOCK)
        return [parameter.numbers, scales] * ADAM_MOMENTS
    item = 4 if optimizer is Optimizer.PAGED_ADAMW else parameter.item_bytes
    return [item * parameter.numbers] * ADAM_MOMENTS


def allocate_optimizer_state(
    parameters: Sequence[TrainableParameter], optimizer: Optimizer, *, masters: bool = False
) -> Iterator[MemoryEvent]:
    """Yield the allocations of the optimizer's state, as its first step leaves it."""
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(StepPhase.LOAD, parameter.layer, part="state")
        for size in count_state_bytes(parameter, optimizer, masters=masters):
            counts[section] = counts.get(section, -1) + 1
            yield Allocation(section, counts[section], size, TensorKind.OPTIMIZER_STATE)


def allocate_ddp_buckets(parameters: Sequence[TrainableParameter]) -> Iterator[MemoryEvent]:
    """Yield the allocations of DDP's buckets, through which gradients are all-reduced.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/distributed.py
    """
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(StepPhase.LOAD, parameter.layer, part="buckets")
        counts[section] = counts.get(section, -1) + 1
        yield Allocation(section, counts[section], parameter.numbers * parameter.item_bytes, TensorKind.GRADIENTS)


def trace_optimizer_step(parameters: Sequence[TrainableParameter], optimizer: Optimizer) -> Iterator[MemoryEvent]:
    """Yield what one optimizer step allocates and frees.

    torch's foreach AdamW, its default on GPUs, holds the square roots of all second moments at once; its fused one
    and bitsandbytes' allocate nothing. Source: _multi_tensor_adamw and _fused_adamw in
    https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py
    """
    if optimizer is not Optimizer.ADAMW_FOREACH:
        return
    counts: dict[Section, int] = {}
    temporaries = []
    for parameter in parameters:
        section = Section(StepPhase.OPTIMIZER, parameter.layer)
        counts[section] = counts.get(section, -1) + 1
        temporaries.append(Allocation(section, counts[section], parameter.numbers * parameter.item_bytes))
    yield from temporaries
    for each in temporaries:
        yield Deallocation(each.section, each.name)
