"""AdamW for weights in 16 bits, computed on copies of them in fp32.

bf16 has 8 bits of precision. A running mean that keeps 0.999 of itself never falls in it: the thousandth that it should
lose is rounded away. Nor does a weight move by less than a 256th of itself, as it should once the learning rate falls.
Kept in fp32 beside an adapter, a copy and both means take 12 bytes for each of its few numbers, while the forward pass
and what it keeps stay in 16 bits. See Micikevicius et al., Mixed Precision Training, 2017, section 3.1
(https://arxiv.org/abs/1710.03740).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.adamw import adamw

_KEPT = ("master", "exp_avg", "exp_avg_sq")


class AdamWOnMasters(torch.optim.Optimizer):
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
