"""The trace of a training step, or of a generation.

A training step is build, load, forward, loss, backward, optimizer, whose state and step are known to the byte, so that
none has to run. A generation is the prompt at once, then the last token, when the KV cache is longest.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache, StaticCache

from benchmarks.tracing.emulation import (
    FP32_BYTES,
    EmulatedFusedLoss,
    EmulatedTiledLoss,
    emulate_gpu,
    refuse_mixed_precision_experts,
)
from benchmarks.tracing.model import (
    AllocationRecorder,
    ConfigDocument,
    build_config,
    build_on_meta,
    materialize_parameters,
    record_loading,
    register_phase_hooks,
    replace_linear_layers,
)
from benchmarks.tracing.stream import Allocation, Deallocation, EventStream, MemoryEvent, Section, StepPhase, TensorKind
from devkit.errors import DevkitError
from devkit.estimate.settings import (
    ALL_LINEAR,
    Attention,
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Quantization,
    Sharding,
    Stack,
    TrainingSettings,
)
from devkit.workload.device import TORCH_DTYPES
from devkit.workload.finetune.model import resolve_targets
from devkit.workload.models import LoraConfig, Model, adapter_injection, get_peft_model
from devkit.workload.patches import compute_loss, get_output_head, use_fused_lora_forward, use_lean_forward

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
    """A trainable parameter: its number of elements and the bytes of one."""

    numbers: int
    item_bytes: int


def trace_training(document: ConfigDocument, settings: TrainingSettings, *, keep_outputs: bool = False) -> EventStream:
    """Trace loading and a training step.

    The optimizer's state is there from the start, as from the second step on. With `keep_outputs` those of a step live
    until the next forward pass has made new ones, as in a loop that is in no function: two steps are traced then.
    """
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        raise DevkitError("the trace follows one process, which holds all of the model", "Compare without the trace.")
    model = build_traced_model(document, settings)
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
                recorder.section = Section(StepPhase.OPTIMIZER)
                model.zero_grad(set_to_none=True)
            kept.clear()
    # A copy: the model is freed after this, which the recorder would record, too.
    return list(recorder.stream)


def build_traced_model(document: ConfigDocument, settings: TrainingSettings) -> Model:
    """Build the model with its packed layers and adapters, on the meta device."""
    model = build_on_meta(build_config(document, attention=settings.attention), settings.precision)
    model.config.use_cache = False
    if settings.method in {Method.QLORA, Method.INT8_LORA}:
        is_int8 = settings.method is Method.INT8_LORA
        replace_linear_layers(model, is_int8=is_int8, double_quantization=settings.double_quantization)
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
    if settings.is_lean:
        use_fused_lora_forward(adapted)
        use_lean_forward(adapted)
    return adapted


def _list_trainable(model: Model) -> list[TrainableParameter]:
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return [TrainableParameter(each.numel(), each.element_size()) for each in trained]


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
    head, targets = get_output_head(base), labels.reshape(-1)
    if kind is Loss.STANDARD:
        return torch.nn.functional.cross_entropy(head.logits(states), targets, reduction="sum")
    return compute_loss(head, states, targets)


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
    for parameter in parameters:
        for size in count_state_bytes(parameter, optimizer, masters=masters):
            yield Allocation(Section(StepPhase.LOAD), size, TensorKind.OPTIMIZER_STATE)


def allocate_ddp_buckets(parameters: Sequence[TrainableParameter]) -> Iterator[MemoryEvent]:
    """Yield the allocations of DDP's buckets, through which gradients are all-reduced.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/distributed.py
    """
    for parameter in parameters:
        size_bytes = parameter.numbers * parameter.item_bytes
        yield Allocation(Section(StepPhase.LOAD), size_bytes, TensorKind.GRADIENTS)


def trace_optimizer_step(parameters: Sequence[TrainableParameter], optimizer: Optimizer) -> Iterator[MemoryEvent]:
    """Yield what one optimizer step allocates and frees.

    torch's foreach AdamW, its default on GPUs, holds the square roots of all second moments at once; its fused one
    and bitsandbytes' allocate nothing. Source: _multi_tensor_adamw and _fused_adamw in
    https://github.com/pytorch/pytorch/blob/main/torch/optim/adam.py
    """
    if optimizer is not Optimizer.ADAMW_FOREACH:
        return
    section = Section(StepPhase.OPTIMIZER)
    temporaries = [Allocation(section, each.numbers * each.item_bytes) for each in parameters]
    yield from temporaries
    yield from (Deallocation(section, each) for each in temporaries)


def trace_inference(document: ConfigDocument, settings: InferenceSettings) -> EventStream:
    """Trace loading, the prompt and the last new token."""
    if settings.cache is CacheKind.PAGED or settings.cache_precision is not None or settings.world > 1:
        raise DevkitError(
            "the trace follows transformers' own generation on one GPU: no pages, no cache of another precision",
            "Compare without the trace.",
        )
    model = build_on_meta(build_config(document, attention=settings.attention), settings.precision)
    if settings.quantization is not Quantization.NONE:
        is_double = settings.quantization is Quantization.NF4_DOUBLE
        is_int8 = settings.quantization is Quantization.INT8
        replace_linear_layers(model, is_int8=is_int8, double_quantization=is_double)
    recorder = AllocationRecorder()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        materialize_parameters(model.eval())
        record_loading(recorder, model, is_upcast=False)
        register_phase_hooks(recorder, model)
        cache: Any = DynamicCache(config=model.config)
        if settings.cache is CacheKind.STATIC:
            cache = StaticCache(config=model.config, max_cache_len=settings.prompt + settings.new)
        with recorder, emulate_gpu(), refuse_mixed_precision_experts():
            _forward(recorder, model, cache, StepPhase.PREFILL, (settings.sequences, settings.prompt))
            if settings.new > 1 and settings.cache is CacheKind.DYNAMIC:
                _lengthen(recorder, cache, settings.new - 1)
            if settings.new > 0:
                _forward(recorder, model, cache, StepPhase.DECODE, (settings.sequences, 1))
            del cache
            recorder.section = Section(StepPhase.DECODE)
    return list(recorder.stream)


def _forward(recorder: AllocationRecorder, model: Model, cache: Any, phase: StepPhase, shape: tuple[int, int]) -> None:  # noqa: ANN401 - any cache
    recorder.current_pass, recorder.section = phase, Section(phase)
    ids = torch.empty(shape, dtype=torch.int64)
    # transformers 5 renames the argument, model by model, and warns of the earlier name.
    argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    model(input_ids=ids, use_cache=True, logits_to_keep=1, **{argument: cache})
    recorder.relabel((each for layer in cache.layers for each in (layer.keys, layer.values)), TensorKind.CACHE)


def _lengthen(recorder: AllocationRecorder, cache: Any, tokens: int) -> None:  # noqa: ANN401 - any cache
    """Lengthen the KV cache by `tokens`; layers with a sliding window keep no more than its length."""
    for number, layer in enumerate(cache.layers):
        recorder.section = Section(StepPhase.DECODE, number)
        window = getattr(layer, "sliding_window", None)
        length = layer.keys.shape[-2] + tokens
        length = min(length, window - 1) if window else length
        for name in ("keys", "values"):
            kept = getattr(layer, name)
            with recorder.label_new(TensorKind.CACHE):
                setattr(layer, name, kept.new_empty((*kept.shape[:-2], length, kept.shape[-1])))
