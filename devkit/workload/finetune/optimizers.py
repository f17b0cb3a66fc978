"""Optimizers, the learning rate schedule, and gradient clipping.

Beside torch's AdamW there is one with master weights in fp32, and bitsandbytes' optimizers on shards of FSDP2.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim.adamw import adamw

from devkit.errors import DevkitError
from devkit.estimate.settings import Optimizer
from devkit.workload.environment import require_bitsandbytes
from devkit.workload.finetune.settings import Schedule
from devkit.workload.models import Model

QUANTIZATION_BLOCK = 256
"""Elements that share a scale in bitsandbytes' 8-bit states."""

MIN_8BIT_ELEMENTS = 4096
"""Parameters of fewer elements have states in 32 bits."""

_MASTER_STATES = ("master", "exp_avg", "exp_avg_sq")

_MOMENTS = (("state1", "absmax1", "qmap1"), ("state2", "absmax2", "qmap2"))
_STATES = tuple(moment for moment, _, _ in _MOMENTS)
_SCALES = tuple(scales for _, scales, _ in _MOMENTS)

ParameterState: TypeAlias = dict[str, Any]


def compute_learning_rate(step: int, *, steps: int, warmup: float, schedule: Schedule, peak: float) -> float:
    """Return the learning rate of step 0, 1, … `steps` - 1: a pure function, so that resuming needs no state of it.

    The warmup rises linearly and reaches `peak` at its last step; without it step 0 has `peak`.
    """
    warmup_steps = math.ceil(steps * warmup)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    match schedule:
        case Schedule.CONSTANT:
            return peak
        case Schedule.LINEAR:
            return peak * (1.0 - progress)
        case Schedule.COSINE:
            return peak * (0.5 * (1.0 + math.cos(math.pi * progress)))


def clip_gradients(parameters: Iterable[nn.Parameter], norm: torch.Tensor, *, max_norm: float) -> None:
    """Clip the gradient, whose norm over all ranks is `norm`, to `max_norm`; 0 leaves it."""
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


def build_parameter_groups(model: Model, *, weight_decay: float) -> list[dict[str, object]]:
    """Return the trainable parameters as parameter groups: matrices decay, norms and biases do not."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise DevkitError("nothing in the model can be trained", "Choose existing layers with --targets.")
    matrices = [each for each in trainable if each.ndim >= 2]
    others = [each for each in trainable if each.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: Model, kind: Optimizer, *, learning_rate: float, weight_decay: float, masters: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer over the trainable parameters. Raises DevkitError if its library is not installed.

    With `masters`, plain AdamW updates master weights in fp32 of weights that are in 16 bits; the others round.
    """
    groups = build_parameter_groups(model, weight_decay=weight_decay)
    match kind:
        case Optimizer.ADAMW if masters:
            return MasterWeightAdamW(groups, lr=learning_rate)
        case Optimizer.ADAMW:
            # One pass over memory, and no second copy of the parameters as `foreach` makes.
            return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        case Optimizer.ADAMW_FOREACH:
            return torch.optim.AdamW(groups, lr=learning_rate, foreach=True)
        case Optimizer.ADAMW_8BIT | Optimizer.PAGED_ADAMW | Optimizer.PAGED_ADAMW_8BIT:
            optimizer_class = _bitsandbytes_class(kind)
            if any(_is_sharded(each) for each in model.parameters() if each.requires_grad):
                optimizer_class = type(
                    f"{optimizer_class.__name__}OnLocalShards", (_OnLocalShards, optimizer_class), {}
                )
            optimizer: torch.optim.Optimizer = optimizer_class(groups, lr=learning_rate)
            return optimizer


def _bitsandbytes_class(kind: Optimizer) -> type:
    require_bitsandbytes(f"--optimizer {kind}", without="--optimizer adamw")
    import bitsandbytes

    classes: dict[Optimizer, type] = {
        Optimizer.ADAMW_8BIT: bitsandbytes.optim.AdamW8bit,
        Optimizer.PAGED_ADAMW: bitsandbytes.optim.PagedAdamW32bit,
        Optimizer.PAGED_ADAMW_8BIT: bitsandbytes.optim.PagedAdamW8bit,
    }
    return classes[kind]


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW for weights in 16 bits, computed on master weights in fp32; the weights are their rounded image.

    bf16 has 8 bits of precision. A running mean that keeps 0.999 of itself never falls in it: the thousandth that it
    should lose is rounded away. Nor does a weight change by less than a 256th of itself, as it should once the learning
    rate falls. In fp32 beside an adapter, master weights and both means take 12 bytes for each of its few elements,
    while the forward pass and its activations stay in 16 bits. See Micikevicius et al., Mixed Precision Training, 2017,
    section 3.1 (https://arxiv.org/abs/1710.03740).
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient. A closure is not supported: gradients are computed already."""
        if closure is not None:
            raise ValueError("this optimizer takes gradients as they are")
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if not weights:
                continue
            states = [self._state_of(each) for each in weights]
            masters, means, squares = ([_to_local(state[name]) for state in states] for name in _MASTER_STATES)
            adamw(
                masters,
                [_to_local(each.grad).to(torch.float32) for each in weights],
                means,
                squares,
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            torch._foreach_copy_([_to_local(each.detach()) for each in weights], masters)

    def _state_of(self, weight: nn.Parameter) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["master"] = weight.detach().to(torch.float32, copy=True)
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the states in fp32 as they are: torch's own method would round them to the weights' data type."""
        weights = [each for group in self.param_groups for each in group["params"]]
        self.state.clear()
        for place, stored in state_dict["state"].items():
            self.state[weights[place]] = {name: value.to(weights[place].device) for name, value in stored.items()}


def _to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, in the same memory; other tensors as they are."""
    shard: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "device_mesh")


class _OnLocalShards:
    """A mixin before bitsandbytes' optimizers for parameters that FSDP2 shards: each rank updates its own shard.

    Their kernels take pointers, and refuse DTensors: `state` is kept by parameter and holds plain tensors. 8-bit states
    have one scale for every 256 elements of a row, so that those of the shards together are those of the whole if a row
    of a weight has whole blocks. Otherwise, which is in small models only, the states of a shard are kept in 32 bits.
    Source: bitsandbytes 0.50, optim/optimizer.py, Optimizer2State.
    """

    param_groups: list[dict[str, Any]]
    state: dict[torch.Tensor, ParameterState]

    def get_config(self, group_index: int, index: int, group: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of the whole parameter: its shards must not be kept in different formats."""
        config: dict[str, Any] = super().get_config(group_index, index, group)  # type: ignore[misc]
        if config["optim_bits"] == 8:
            config["optim_bits"] = 8 if _has_whole_blocks(self.param_groups[group_index]["params"][index]) else 32
        return config | {"min_8bit_size": 0}

    def init_state(self, group: dict[str, Any], parameter: nn.Parameter, group_index: int, index: int) -> None:
        """Initialize the state of this rank's shard."""
        with self._local_shard(parameter) as shard:
            super().init_state(group, shard, group_index, index)  # type: ignore[misc]

    def update_step(self, group: dict[str, Any], parameter: nn.Parameter, group_index: int, index: int) -> None:
        """Update this rank's shard, if it has one: a weight may have fewer rows than there are ranks."""
        with self._local_shard(parameter) as shard:
            if shard.numel():
                super().update_step(group, shard, group_index, index)  # type: ignore[misc]
            else:
                self.state[shard]["step"] += 1

    @contextmanager
    def _local_shard(self, parameter: Any) -> Iterator[nn.Parameter]:  # noqa: ANN401 - a parameter that is a DTensor
        """Yield the shard as a parameter, in the same memory and with the same state."""
        shard = nn.Parameter(parameter.to_local(), requires_grad=parameter.requires_grad)
        shard.grad = parameter.grad.to_local()
        self.state[shard] = self.state[parameter]
        try:
            yield shard
        finally:
            del self.state[shard]


def to_global_state(parameter: Any, key: str, value: Any) -> Any:  # noqa: ANN401 - tensors and numbers
    """Return what a checkpoint keeps under `key`: a DTensor of which `value` is a shard, or `value` if it is whole."""
    if key not in _STATES + _SCALES or not _is_sharded(parameter):
        return value
    from torch.distributed.tensor import DTensor

    row = tuple(parameter.shape[1:]) if key in _STATES else (_row_elements(parameter) // QUANTIZATION_BLOCK,)
    shape = torch.Size((parameter.shape[0], *row))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        value.reshape(-1, *row) if row else value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=shape,
        stride=stride,
    )


def to_local_state(parameter: Any, state: ParameterState) -> ParameterState:  # noqa: ANN401 - may be a DTensor
    """Return the state of this rank's shard from the whole one of a checkpoint; other optimizers' as it is.

    `state` holds DTensors where it has the shape of a parameter that is sharded.
    """
    if _STATES[0] not in state:
        return state
    for moment, scales, code in _MOMENTS:
        if scales in state and not _is_sharded(parameter):
            state[scales] = state[scales].reshape(-1)
        elif scales in state and _has_whole_blocks(parameter):
            rows = state[scales].reshape(parameter.shape[0], -1)
            state[scales] = _distribute(rows, parameter).to_local().reshape(-1)
        elif scales in state:
            # Its blocks cross the shards: it was saved by a single process. Kept in 32 bits from here on.
            from bitsandbytes.functional import dequantize_blockwise

            absmax, quantiles = state.pop(scales).reshape(-1), state.pop(code)
            whole = state[moment].full_tensor()
            whole = dequantize_blockwise(whole, absmax=absmax, code=quantiles, blocksize=QUANTIZATION_BLOCK)
            state[moment] = _distribute(whole, parameter)
        state[moment] = _to_local(state[moment])
    return state


def _distribute(whole: torch.Tensor, parameter: Any) -> Any:  # noqa: ANN401 - a DTensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _has_whole_blocks(parameter: torch.Tensor) -> bool:
    return parameter.numel() >= MIN_8BIT_ELEMENTS and _row_elements(parameter) % QUANTIZATION_BLOCK == 0


def _row_elements(parameter: torch.Tensor) -> int:
    """Return the elements of a row, by shape alone: to index a DTensor is a collective, and not all ranks do."""
    return parameter.numel() // parameter.shape[0]
