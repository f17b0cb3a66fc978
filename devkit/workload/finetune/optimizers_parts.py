"""bitsandbytes' optimizers on parameters that FSDP2 shares out: each process moves its part, and keeps its state.

Their kernels take pointers, and refuse DTensors. 8-bit states have one scale for every 256 numbers in a row, so that
those of the parts together are those of the whole where a row of a weight has whole blocks. Elsewhere, and that is
small models alone, the states of a part are kept in 32 bits. Source: bitsandbytes 0.50, optim/optimizer.py,
Optimizer2State.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

BLOCK = 256
"""Numbers that share a scale."""
FEWEST = 4096
"""Parameters of fewer numbers have states in 32 bits."""

_MOMENTS = (("state1", "absmax1", "qmap1"), ("state2", "absmax2", "qmap2"))
_STATES = tuple(moment for moment, _, _ in _MOMENTS)
_SCALES = tuple(scales for _, scales, _ in _MOMENTS)

State: TypeAlias = dict[str, Any]


def on_parts(kind: type) -> type:
    """The optimizer `kind` of bitsandbytes, for parameters of which each process has a part."""
    return type(f"{kind.__name__}OnParts", (_OnParts, kind), {})


class _OnParts:
    """What stands before the class of an optimizer. `state` is kept by parameter, and holds plain tensors: parts."""

    param_groups: list[dict[str, Any]]
    state: dict[torch.Tensor, State]

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


def whole_of(parameter: Any, key: str, value: Any) -> Any:  # noqa: ANN401 - tensors and numbers
    """What a checkpoint keeps under `key`: a DTensor of which `value` is a part, or `value` where it is whole."""
    if key not in _STATES + _SCALES or not _is_parted(parameter):
        return value
    from torch.distributed.tensor import DTensor

    row = tuple(parameter.shape[1:]) if key in _STATES else (_row_numbers(parameter) // BLOCK,)
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


def part_of(parameter: Any, state: State) -> State:  # noqa: ANN401 - a parameter that may be a DTensor
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

    whole = dequantize_blockwise(moment.full_tensor(), absmax=scales.reshape(-1), code=book, blocksize=BLOCK)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _has_rows_of_blocks(parameter: torch.Tensor) -> bool:
    return parameter.numel() >= FEWEST and _row_numbers(parameter) % BLOCK == 0


def _row_numbers(parameter: torch.Tensor) -> int:
    """By its shape alone: to look at a row of a DTensor, all processes gather it, and not all of them look."""
    return parameter.numel() // parameter.shape[0]


def _is_parted(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "device_mesh")
