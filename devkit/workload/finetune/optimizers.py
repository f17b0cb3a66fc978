"""How weights are moved: optimizers, schedules and the limit on the gradient."""

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

# AdamW for weights in 16 bits, computed on copies of them in fp32.
#
# bf16 has 8 bits of precision. A running mean that keeps 0.999 of itself never falls in it: the thousandth that it should
# lose is rounded away. Nor does a weight move by less than a 256th of itself, as it should once the learning rate falls.
# Kept in fp32 beside an adapter, a copy and both means take 12 bytes for each of its few numbers, while the forward pass
# and what it keeps stay in 16 bits. See Micikevicius et al., Mixed Precision Training, 2017, section 3.1
# (https://arxiv.org/abs/1710.03740).

_KEPT = ("master", "exp_avg", "exp_avg_sq")


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW whose state holds a master copy of each weight; the weights are its rounded image."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient. There is no closure: gradients are there already."""
        if closure is not None:
            raise ValueError("this optimizer takes gradients as they are")
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if weights:
                self._move(weights, group)

    def _move(self, weights: list[torch.nn.Parameter], group: Mapping[str, Any]) -> None:
        states = [self._state_of(each) for each in weights]
        masters, means, squares = ([_local(state[name]) for state in states] for name in _KEPT)
        adamw(
            masters,
            [_local(each.grad).to(torch.float32) for each in weights if each.grad is not None],
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
        torch._foreach_copy_([_local(each.detach()) for each in weights], masters)

    def _state_of(self, weight: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["master"] = weight.detach().to(torch.float32, copy=True)
            state["exp_avg"] = torch.zeros_like(state["master"])
            state["exp_avg_sq"] = torch.zeros_like(state["master"])
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the states, in fp32 as they are: torch's own way would round them to the weights' data type."""
        weights = [each for group in self.param_groups for each in group["params"]]
        self.state.clear()
        for place, stored in state_dict["state"].items():
            self.state[weights[place]] = {name: value.to(weights[place].device) for name, value in stored.items()}


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor that FSDP2 shares out, in the same memory; other tensors as they are."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


# bitsandbytes' optimizers on parameters that FSDP2 shares out: each process moves its part, and keeps its state.
#
# Their kernels take pointers, and refuse DTensors. 8-bit states have one scale for every 256 numbers in a row, so that
# those of the parts together are those of the whole where a row of a weight has whole blocks. Elsewhere, and that is
# small models alone, the states of a part are kept in 32 bits. Source: bitsandbytes 0.50, optim/optimizer.py,
# Optimizer2State.

QUANTIZATION_BLOCK = 256
"""Numbers that share a scale."""
MIN_8BIT_ELEMENTS = 4096
"""Parameters of fewer numbers have states in 32 bits."""

_MOMENTS = (("state1", "absmax1", "qmap1"), ("state2", "absmax2", "qmap2"))
_STATES = tuple(moment for moment, _, _ in _MOMENTS)
_SCALES = tuple(scales for _, scales, _ in _MOMENTS)

ParameterState: TypeAlias = dict[str, Any]


def on_local_shards(kind: type) -> type:
    """The optimizer `kind` of bitsandbytes, for parameters of which each process has a part."""
    return type(f"{kind.__name__}OnParts", (_OnParts, kind), {})


class _OnParts:
    """What stands before the class of an optimizer. `state` is kept by parameter, and holds plain tensors: parts."""

    param_groups: list[dict[str, Any]]
    state: dict[torch.Tensor, ParameterState]

    def get_config(self, group_index: int, index: int, group: dict[str, Any]) -> dict[str, Any]:
        """As for the whole parameter: the parts of one must not be kept in different ways."""
        config: dict[str, Any] = super().get_config(group_index, index, group)  # type: ignore[misc]
        if config["optim_bits"] == 8:
            config["optim_bits"] = 8 if _has_rows_of_blocks(self.param_groups[group_index]["params"][index]) else 32
        return config | {"min_8bit_size": 0}

    def init_state(self, group: dict[str, Any], parameter: nn.Parameter, group_index: int, index: int) -> None:
        """Make the state of this process's part."""
        with self._part_of(parameter) as part:
            super().init_state(group, part, group_index, index)  # type: ignore[misc]

    def update_step(self, group: dict[str, Any], parameter: nn.Parameter, group_index: int, index: int) -> None:
        """Move this process's part, if it has one: a weight may have fewer rows than there are processes."""
        with self._part_of(parameter) as part:
            if part.numel():
                super().update_step(group, part, group_index, index)  # type: ignore[misc]
            else:
                self.state[part]["step"] += 1

    @contextmanager
    def _part_of(self, parameter: Any) -> Iterator[nn.Parameter]:  # noqa: ANN401 - a parameter that is a DTensor
        """The part as a parameter, in the same memory and with the same state."""
        part = nn.Parameter(parameter.to_local(), requires_grad=parameter.requires_grad)
        part.grad = parameter.grad.to_local()
        self.state[part] = self.state[parameter]
        try:
            yield part
        finally:
            del self.state[part]


def to_global_state(parameter: Any, key: str, value: Any) -> Any:  # noqa: ANN401 - tensors and numbers
    """What a checkpoint keeps under `key`: a DTensor of which `value` is a part, or `value` where it is whole."""
    if key not in _STATES + _SCALES or not _is_parted(parameter):
        return value
    from torch.distributed.tensor import DTensor

    row = tuple(parameter.shape[1:]) if key in _STATES else (_row_numbers(parameter) // QUANTIZATION_BLOCK,)
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


def to_local_state(parameter: Any, state: ParameterState) -> ParameterState:  # noqa: ANN401 - a parameter that may be a DTensor
    """The state of this process's part, of one that a checkpoint keeps as a whole; other optimizers' as it is.

    `state` holds DTensors where it has the shape of a parameter that is shared out.
    """
    if _STATES[0] not in state:
        return state
    for moment, scales, book in _MOMENTS:
        if scales in state and _is_parted(parameter):
            if _has_rows_of_blocks(parameter):
                state[scales] = _rows_of(parameter, state[scales])
            else:
                state[moment] = _unpacked(parameter, state[moment], state.pop(scales), state.pop(book))
        elif scales in state:
            state[scales] = state[scales].reshape(-1)
        if hasattr(state[moment], "to_local"):
            state[moment] = state[moment].to_local()
    return state


def _rows_of(parameter: Any, scales: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
    from torch.distributed.tensor import distribute_tensor

    rows = scales.reshape(parameter.shape[0], -1)
    parted = distribute_tensor(rows, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return parted.to_local().reshape(-1)


def _unpacked(parameter: Any, moment: Any, scales: torch.Tensor, book: torch.Tensor) -> Any:  # noqa: ANN401 - as above
    """In 32 bits, of a state whose blocks lie across the parts: one process alone kept it so."""
    from bitsandbytes.functional import dequantize_blockwise
    from torch.distributed.tensor import distribute_tensor

    whole = dequantize_blockwise(
        moment.full_tensor(), absmax=scales.reshape(-1), code=book, blocksize=QUANTIZATION_BLOCK
    )
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _has_rows_of_blocks(parameter: torch.Tensor) -> bool:
    return parameter.numel() >= MIN_8BIT_ELEMENTS and _row_numbers(parameter) % QUANTIZATION_BLOCK == 0


def _row_numbers(parameter: torch.Tensor) -> int:
    """By its shape alone: to look at a row of a DTensor, all processes gather it, and not all of them look."""
    return parameter.numel() // parameter.shape[0]


def _is_parted(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "device_mesh")


def compute_learning_rate(step: int, *, steps: int, warmup: float, schedule: Schedule, highest: float) -> float:
    """The learning rate of step 0, 1, … `steps` - 1: a pure function, so that a resumed run needs no state of it.

    The warm-up rises in equal strides and reaches `highest` at its last step; without it step 0 has `highest`.
    """
    rising = math.ceil(steps * warmup)
    if step < rising:
        return highest * (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    match schedule:
        case Schedule.CONSTANT:
            return highest
        case Schedule.LINEAR:
            return highest * (1.0 - progress)
        case Schedule.COSINE:
            return highest * (0.5 * (1.0 + math.cos(math.pi * progress)))


def build_parameter_groups(model: Model, *, weight_decay: float) -> list[dict[str, object]]:
    """The trainable parameters for an optimizer: matrices decay, norms and biases do not."""
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not chosen:
        raise DevkitError("nothing in the model can be trained", "Name layers that exist with --targets.")
    matrices = [each for each in chosen if each.ndim >= 2]
    others = [each for each in chosen if each.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    model: Model, kind: Optimizer, *, learning_rate: float, weight_decay: float, masters: bool = False
) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters. Raises DevkitError when its library is not there.

    With `masters`, plain AdamW moves copies in fp32 of weights that are in 16 bits; the others round as they go.
    """
    groups = build_parameter_groups(model, weight_decay=weight_decay)
    is_parted = any(hasattr(each, "device_mesh") for each in model.parameters() if each.requires_grad)
    match kind:
        case Optimizer.ADAMW if masters:
            return MasterWeightAdamW(groups, lr=learning_rate)
        case Optimizer.ADAMW:
            # One pass over memory, and no second copy of the parameters as `foreach` makes.
            return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        case Optimizer.ADAMW_FOREACH:
            return torch.optim.AdamW(groups, lr=learning_rate, foreach=True)
        case Optimizer.ADAMW_8BIT | Optimizer.PAGED_ADAMW | Optimizer.PAGED_ADAMW_8BIT:
            return _bitsandbytes(kind, is_parted=is_parted)(groups, lr=learning_rate)


def _bitsandbytes(kind: Optimizer, *, is_parted: bool) -> Callable[..., torch.optim.Optimizer]:
    require_bitsandbytes(f"--optimizer {kind}", without="--optimizer adamw")
    import bitsandbytes

    found: type = {
        Optimizer.ADAMW_8BIT: bitsandbytes.optim.AdamW8bit,
        Optimizer.PAGED_ADAMW: bitsandbytes.optim.PagedAdamW32bit,
        Optimizer.PAGED_ADAMW_8BIT: bitsandbytes.optim.PagedAdamW8bit,
    }[kind]
    return on_local_shards(found) if is_parted else found


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group this rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Iterable[torch.nn.Parameter], norm: torch.Tensor, *, limit: float) -> None:
    """Shorten the gradient, of length `norm` over all processes, to `limit`; 0 leaves it."""
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
