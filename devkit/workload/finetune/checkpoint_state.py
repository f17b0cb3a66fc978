"""Which tensors a run's future depends on, under names that files keep: trained weights and optimizer state.

Nothing here is pickled: whoever can write a checkpoint cannot make its reader run code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from devkit.errors import DevkitError
from devkit.workload.finetune.optimizers_parts import part_of, whole_of

ADAPTER_FILE = "adapter_model.safetensors"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True)
class RunState:
    """What training changes. `model` is the peft or transformers model itself, not what DDP makes of it.

    `scaler` is the GradScaler of fp16, else None.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None

    @property
    def weights_file(self) -> str:
        """The name under which peft and transformers look for the weights."""
        return ADAPTER_FILE if hasattr(self.model, "peft_config") else MODEL_FILE


def weights(model: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - peft and transformers promise less than they hold
    """The trained tensors by the names that peft and transformers give them in files; the live ones, not copies."""
    if hasattr(model, "peft_config"):
        from devkit.workload.tuners import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model, save_embedding_layers=False))
    return dict(model.named_parameters())


def optimizer_state(state: RunState) -> dict[str, torch.Tensor]:
    """Everything the optimizer remembers, as "parameter.key". Its plain numbers become tensors without dimensions."""
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    return {
        f"{names[id(parameter)]}.{key}": _as_tensor(whole_of(parameter, key, value))
        for parameter, remembered in state.optimizer.state.items()
        for key, value in remembered.items()
    }


def restore(state: RunState, folder: Path) -> None:
    """Bring model and optimizer to what the files in `folder` hold, one tensor at a time and over the CPU.

    Loaded onto the GPU, a checkpoint would lie beside the live model: a run that just fitted would not fit again.
    Raises DevkitError when model and files do not hold the same tensors.
    """
    _restore_weights(weights(state.model), folder / state.weights_file)
    _restore_optimizer(state, folder / OPTIMIZER_FILE)


@torch.no_grad()
def _restore_weights(live: Mapping[str, torch.Tensor], path: Path) -> None:
    with safe_open(path, framework="pt", device="cpu") as file:
        stored = set(file.keys())
        if stored != live.keys():
            raise _other_model(path, sorted(stored ^ live.keys())[0])
        for name, tensor in live.items():
            value = file.get_tensor(name)
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise _other_model(path, name)
            tensor.copy_(_placed_like(tensor, value))


def _restore_optimizer(state: RunState, path: Path) -> None:
    parameters = dict(state.model.named_parameters())
    states: dict[str, dict[str, object]] = {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for stored in file.keys():  # noqa: SIM118 - a safetensors file, not a dictionary
            name, _, key = stored.rpartition(".")
            if name not in parameters:
                raise _other_model(path, name)
            states.setdefault(name, {})[key] = _as_state(parameters[name], file.get_tensor(stored))
    optimizer = state.optimizer
    names = {id(parameter): name for name, parameter in parameters.items()}
    ordered = [names[id(each)] for group in optimizer.param_groups for each in group["params"]]
    # Rates and decay are not taken from the file: they follow from the settings and the step.
    optimizer.load_state_dict(
        {
            "state": {
                place: part_of(parameters[name], states[name]) for place, name in enumerate(ordered) if name in states
            },
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )
    _page_again(optimizer)


def _page_again(optimizer: Any) -> None:  # noqa: ANN401 - bitsandbytes has no types
    """Put the states of a paged optimizer back where the GPU may move them out; loading leaves them in its memory."""
    if not getattr(optimizer, "is_paged", False):
        return
    for state in optimizer.state.values():
        for key in ("state1", "state2"):
            if key in state:
                paged = optimizer.get_state_buffer(state[key], dtype=state[key].dtype)
                state[key] = paged.copy_(state[key])


def _placed_like(live: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """This process's part of `value` where `live` is sharded by FSDP2; every process reads the file by itself."""
    if not hasattr(live, "device_mesh"):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(live, DTensor)  # noqa: S101 - nothing else has a mesh
    return distribute_tensor(value, live.device_mesh, live.placements, src_data_rank=None)


def _as_state(parameter: torch.Tensor, value: torch.Tensor) -> object:
    if value.dim() == 0 and value.dtype in (torch.int64, torch.float64):
        return value.item()
    return _placed_like(parameter, value) if value.shape == parameter.shape else value


def _as_tensor(value: torch.Tensor | float) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _other_model(path: Path, name: str) -> DevkitError:
    return DevkitError(
        f"{path} does not fit this model: {name} differs or is on one side alone",
        "Go on with the versions of peft and transformers that its manifest names, or begin anew with --no-resume.",
    )
