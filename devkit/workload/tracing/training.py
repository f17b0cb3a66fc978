"""One training step, traced: build, load, forward, loss, backward, optimizer."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from devkit.errors import DevkitError
from devkit.estimate.settings import ALL_LINEAR, Loss, Method, Sharding, Stack, TrainingSettings
from devkit.workload.finetune.adapters_targets import targets_of
from devkit.workload.finetune.loss import head_of, loss_of
from devkit.workload.finetune.model import DTYPES
from devkit.workload.tracing import optimizer
from devkit.workload.tracing.fused import FusedLoss
from devkit.workload.tracing.ledger import Ledger
from devkit.workload.tracing.likeness import as_on_a_gpu, experts_in_bf16
from devkit.workload.tracing.loading import load
from devkit.workload.tracing.packing import pack, upcast
from devkit.workload.tracing.program import (
    Document,
    Model,
    config_of,
    layer_number,
    materialise,
    on_meta,
    watch,
)
from devkit.workload.tracing.stream import Kind, Phase, Section, Stream
from devkit.workload.tuners import LoraConfig, attaching, get_peft_model


def trace(document: Document, settings: TrainingSettings, *, depth: int | None, lingering: bool = False) -> Stream:
    """What loading and a training step do with memory, on a model cut to `depth` layers (None: all).

    The optimizer's state is there from the start, as from the second step on. `lingering` outputs are held until the
    next forward pass made new ones, as in a loop that stands in no function of its own: two steps are traced then.
    """
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        raise DevkitError("the trace follows one process, which holds all of the model", "Estimate without --exact.")
    model = prepared(document, settings, depth)
    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True):
        materialise(model)
        load(ledger, model, is_upcast=settings.upcast)
        trained = _trained(model)
        ledger.stream.extend(optimizer.states(trained, settings.optimizer, masters=settings.has_masters))
        if settings.world > 1:
            ledger.stream.extend(optimizer.buckets(trained))
        watch(ledger, model)
        if settings.checkpointing:
            _checkpoint(ledger, model)
        with ledger, as_on_a_gpu(), experts_in_bf16():
            kept: list[object] = []
            for _ in range(2 if lingering else 1):
                # From the second pass on, gradients of the first are there.
                for _ in range(min(2, settings.accumulation)):
                    _pass(ledger, model, settings, kept)
                    if not lingering:
                        kept.clear()
                ledger.stream.extend(optimizer.step(trained, settings.optimizer))
                ledger.section = Section(Phase.OPTIMIZER, part="end")
                model.zero_grad(set_to_none=True)
            kept.clear()
    # A copy: the model is dropped after this, and the ledger would note that too.
    return list(ledger.stream)


def prepared(document: Document, settings: TrainingSettings, depth: int | None) -> Model:
    """The model with its packed layers and adapters, on meta."""
    model = on_meta(config_of(document, depth=depth, attention=settings.attention), settings.precision)
    model.config.use_cache = False
    if settings.method in {Method.QLORA, Method.INT8_LORA}:
        pack(model, settings)
    if settings.method is not Method.FULL:
        model.requires_grad_(requires_grad=False)
        if settings.upcast:
            upcast(model)
        model = _with_adapters(model, settings)
    return model.train()


def _with_adapters(model: Model, settings: TrainingSettings) -> Model:
    # The other loops leave the choice to peft, which takes all-linear to mean fused experts, too.
    with_peft = ALL_LINEAR[0] if settings.targets == ALL_LINEAR else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        target_modules=targets_of(model, settings.targets) if settings.stack is Stack.DEVKIT else with_peft,
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    with attaching(model):
        adapted = get_peft_model(model, config, autocast_adapter_dtype=False, low_cpu_mem_usage=True)
    dtype = DTYPES[settings.adapter_precision]
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return adapted


def _trained(model: Model) -> list[optimizer.Trained]:
    number = layer_number(model)
    return [
        optimizer.Trained(number(name), parameter.numel(), parameter.element_size())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]


def _checkpoint(ledger: Ledger, model: Model) -> None:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), ledger.holding(Kind.RECOMPUTED)

    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False, "context_fn": contexts})


def _pass(ledger: Ledger, model: Model, settings: TrainingSettings, kept: list[object]) -> None:
    ledger.section = Section(Phase.FORWARD)
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
    ledger.mark((each.grad for each in model.parameters() if each.grad is not None), Kind.GRADIENTS)


def _loss_on_states(model: Model, ids: torch.Tensor, labels: torch.Tensor, how: Loss) -> torch.Tensor:
    """As devkit's own loop: the decoder alone, then the loss on its hidden states."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = base.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    # Every position counts; choosing them copies the states, as in a real step.
    every = torch.arange(ids.numel())
    states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, every)
    if how is Loss.FUSED:
        fused: torch.Tensor = FusedLoss.apply(states, base.get_output_embeddings().weight)  # type: ignore[no-untyped-call]
        return fused
    return loss_of(head_of(base), states, labels.reshape(-1), how)
