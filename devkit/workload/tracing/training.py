"""One training step, traced: build, load, forward, loss, backward, optimizer."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Loss, Method, Optimizer, Sharding, Stack, TrainingSettings
from devkit.workload.finetune.model.adapters import resolve_targets
from devkit.workload.finetune.model.loading import TORCH_DTYPES
from devkit.workload.finetune.model.loss import compute_loss, get_output_head
from devkit.workload.peft_import import LoraConfig, adapter_injection, get_peft_model
from devkit.workload.tracing.emulation import EmulatedFusedLoss, emulate_gpu, refuse_mixed_precision_experts
from devkit.workload.tracing.model import (
    ConfigDocument,
    Model,
    build_config,
    build_layer_lookup,
    build_on_meta,
    materialize_parameters,
    record_loading,
    register_phase_hooks,
    replace_linear_layers,
    upcast_to_fp32,
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

# What an optimizer keeps and makes, as allocations: its step is known to the byte, so none has to run.

STATE_BLOCK = 256
"""Numbers of an 8-bit state that share one fp32 scale.

Source: https://github.com/bitsandbytes-foundation/bitsandbytes/blob/main/bitsandbytes/optim/optimizer.py
"""
MIN_8BIT_SIZE = 4096
"""Parameters with fewer numbers keep their state in fp32 (min_8bit_size). Source: as above."""

ADAM_MOMENTS = 2
"""Adam keeps a running mean of gradients and one of their squares."""


@dataclass(frozen=True)
class TrainableParameter:
    """A trainable parameter: its layer, how many numbers it has and the bytes of one."""

    layer: int | None
    numbers: int
    item_bytes: int


def count_state_bytes(parameter: TrainableParameter, optimizer: Optimizer, *, masters: bool = False) -> list[int]:
    """The tensors of state on the GPU, in bytes. A paged state counts in full: it leaves only under pressure.

    With `masters` there is a copy of the weight among them, and all are in fp32.
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
    """The state, as its first step leaves it."""
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(StepPhase.LOAD, parameter.layer, part="state")
        for size in count_state_bytes(parameter, optimizer, masters=masters):
            counts[section] = counts.get(section, -1) + 1
            yield Allocation(section, counts[section], size, TensorKind.OPTIMIZER_STATE)


def allocate_ddp_buckets(parameters: Sequence[TrainableParameter]) -> Iterator[MemoryEvent]:
    """DDP's copy of the gradients, through which they reach the other processes.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/distributed.py
    """
    counts: dict[Section, int] = {}
    for parameter in parameters:
        section = Section(StepPhase.LOAD, parameter.layer, part="buckets")
        counts[section] = counts.get(section, -1) + 1
        yield Allocation(section, counts[section], parameter.numbers * parameter.item_bytes, TensorKind.GRADIENTS)


def trace_optimizer_step(parameters: Sequence[TrainableParameter], optimizer: Optimizer) -> Iterator[MemoryEvent]:
    """What one step makes and drops.

    torch's foreach AdamW, its default on GPUs, holds one square root of every second moment at once; its fused one
    and bitsandbytes' make nothing. Source: _multi_tensor_adamw and _fused_adamw in
    https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py
    """
    if optimizer is not Optimizer.ADAMW_FOREACH:
        return
    counts: dict[Section, int] = {}
    made = []
    for parameter in parameters:
        section = Section(StepPhase.OPTIMIZER, parameter.layer)
        counts[section] = counts.get(section, -1) + 1
        made.append(Allocation(section, counts[section], parameter.numbers * parameter.item_bytes))
    yield from made
    for each in made:
        yield Deallocation(each.section, each.name)


def trace_training(
    document: ConfigDocument, settings: TrainingSettings, *, depth: int | None, lingering: bool = False
) -> EventStream:
    """What loading and a training step do with memory, on a model cut to `depth` layers (None: all).

    The optimizer's state is there from the start, as from the second step on. `lingering` outputs are held until the
    next forward pass made new ones, as in a loop that stands in no function of its own: two steps are traced then.
    """
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        raise DevkitError("the trace follows one process, which holds all of the model", "Estimate without --exact.")
    model = build_traced_model(document, settings, depth)
    ledger = AllocationRecorder()
    with FakeTensorMode(allow_non_fake_inputs=True):
        materialize_parameters(model)
        record_loading(ledger, model, is_upcast=settings.upcast)
        trained = _trained(model)
        ledger.stream.extend(allocate_optimizer_state(trained, settings.optimizer, masters=settings.has_masters))
        if settings.world > 1:
            ledger.stream.extend(allocate_ddp_buckets(trained))
        register_phase_hooks(ledger, model)
        if settings.checkpointing:
            _checkpoint(ledger, model)
        with ledger, emulate_gpu(), refuse_mixed_precision_experts():
            kept: list[object] = []
            for _ in range(2 if lingering else 1):
                # From the second pass on, gradients of the first are there.
                for _ in range(min(2, settings.accumulation)):
                    _pass(ledger, model, settings, kept)
                    if not lingering:
                        kept.clear()
                ledger.stream.extend(trace_optimizer_step(trained, settings.optimizer))
                ledger.section = Section(StepPhase.OPTIMIZER, part="end")
                model.zero_grad(set_to_none=True)
            kept.clear()
    # A copy: the model is dropped after this, and the ledger would note that too.
    return list(ledger.stream)


def build_traced_model(document: ConfigDocument, settings: TrainingSettings, depth: int | None) -> Model:
    """The model with its packed layers and adapters, on meta."""
    model = build_on_meta(build_config(document, depth=depth, attention=settings.attention), settings.precision)
    model.config.use_cache = False
    if settings.method in {Method.QLORA, Method.INT8_LORA}:
        replace_linear_layers(model, settings)
    if settings.method is not Method.FULL:
        model.requires_grad_(requires_grad=False)
        if settings.upcast:
            upcast_to_fp32(model)
        model = _with_adapters(model, settings)
    return model.train()


def _with_adapters(model: Model, settings: TrainingSettings) -> Model:
    # The other loops leave the choice to peft, which takes all-linear to mean fused experts, too.
    with_peft = ALL_LINEAR[0] if settings.targets == ALL_LINEAR else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        target_modules=resolve_targets(model, settings.targets) if settings.stack is Stack.DEVKIT else with_peft,
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


def _trained(model: Model) -> list[TrainableParameter]:
    number = build_layer_lookup(model)
    return [
        TrainableParameter(number(name), parameter.numel(), parameter.element_size())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


def _checkpoint(ledger: AllocationRecorder, model: Model) -> None:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), ledger.label_new(TensorKind.RECOMPUTED)

    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False, "context_fn": contexts})


def _pass(ledger: AllocationRecorder, model: Model, settings: TrainingSettings, kept: list[object]) -> None:
    ledger.section = Section(StepPhase.FORWARD)
    ids = torch.empty((settings.micro_batch, settings.sequence), dtype=torch.int64)
    labels = torch.empty_like(ids)
    if settings.stack is Stack.DEVKIT or settings.loss is not Loss.STANDARD:
        loss, outputs = _loss_on_states(model, ids, labels, settings.loss), None
    else:
        outputs = model(input_ids=ids, labels=labels, use_cache=False)
        loss = outputs.loss
        if settings.keeps_outputs:
            kept[:] = [outputs]
        del outputs
    loss.backward()  # type: ignore[no-untyped-call]
    ledger.relabel((each.grad for each in model.parameters() if each.grad is not None), TensorKind.GRADIENTS)


def _loss_on_states(model: Model, ids: torch.Tensor, labels: torch.Tensor, how: Loss) -> torch.Tensor:
    """As devkit's own loop: the decoder alone, then the loss on its hidden states."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    # Every position counts; choosing them copies the states, as in a real step.
    every = torch.arange(ids.numel())
    states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, every)
    if how is Loss.FUSED:
        fused: torch.Tensor = EmulatedFusedLoss.apply(states, base.get_output_embeddings().weight)  # type: ignore[no-untyped-call]
        return fused
    return compute_loss(get_output_head(base), states, labels.reshape(-1), how)
