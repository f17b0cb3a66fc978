"""LoRA on a frozen base: attach, train, save, stop and resume."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from devkit.workload.settings import Precision, ProofSettings
from devkit.workload.tiny import Model
from devkit.workload.tuners import LoraConfig, PeftModel, get_peft_model

LOSS_SCALE = {Precision.FP32: 1.0, Precision.BF16: 1.0, Precision.FP16: 1024.0}
"""Fixed factor on the loss: gradients of a tiny model would underflow in fp16."""

ADAPTER_MARK = ".lora_"
"""What peft puts into the name of every LoRA parameter."""

STATE_FILE = "state.pt"
ADAPTER_FOLDER = "adapter"


def attach(base: Model, settings: ProofSettings, *, dropout: float = 0.0) -> Model:
    """A fresh trainable adapter, in fp32, on every linear layer but the output head. Changes `base` in place."""
    torch.manual_seed(settings.seed + 1)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, config)


def adamw(model: Model, settings: ProofSettings) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters."""
    return torch.optim.AdamW(trainable(model), lr=settings.learning_rate, weight_decay=0.0)


def trainable(model: Model) -> list[torch.nn.Parameter]:
    """The parameters that training may change, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def frozen(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything that training must not change: all but the adapter's, buffers included.

    By name and not by `requires_grad`, so that a weight which was left trainable by mistake is among them.
    """
    for name, parameter in model.named_parameters():
        if ADAPTER_MARK not in name:
            yield name, parameter.data
    yield from model.named_buffers()


def snapshot(model: Model) -> dict[str, torch.Tensor]:
    """A copy of every frozen tensor, as it is now."""
    return {name: tensor.detach().clone() for name, tensor in frozen(model)}


def digest(model: Model) -> str:
    """SHA-256 over the names and bytes of the trainable weights, in the order of their names."""
    total = hashlib.sha256()
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name in sorted(named):
        total.update(name.encode())
        total.update(named[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def train(
    model: Model, optimizer: torch.optim.Optimizer, ids: list[int], *, steps: int, precision: Precision
) -> list[float]:
    """Train on one sequence for `steps` optimizer steps; the loss before each step."""
    device = next(model.parameters()).device
    batch = torch.tensor([ids], device=device)
    scale = LOSS_SCALE[precision]
    losses = []
    model.train()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=batch, labels=batch).loss
        (loss * scale).backward()
        if scale != 1.0:
            for parameter in trainable(model):
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def save_adapter(model: Model, folder: Path) -> None:
    """Write the adapter alone, as safetensors."""
    model.save_pretrained(str(folder), save_embedding_layers=False)


def load_adapter(base: Model, folder: Path, *, is_trainable: bool = False) -> Model:
    """The adapter in `folder` on a fresh base. Changes `base` in place."""
    return PeftModel.from_pretrained(base, str(folder), is_trainable=is_trainable)


@dataclass(frozen=True)
class Checkpoint:
    """A training run restored from disk, ready for its next step."""

    model: Model
    optimizer: torch.optim.Optimizer


def save_checkpoint(folder: Path, model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Write all that the next step depends on: adapter, optimizer state, random number generators."""
    save_adapter(model, folder / ADAPTER_FOLDER)
    state = {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda_rng"] = torch.cuda.get_rng_state()
    torch.save(state, folder / STATE_FILE)


def load_checkpoint(
    folder: Path, base: Model, settings: ProofSettings, *, with_optimizer_state: bool = True
) -> Checkpoint:
    """Restore a run onto a fresh base. Without the optimizer state it is the negative control of a resume."""
    model = load_adapter(base, folder / ADAPTER_FOLDER, is_trainable=True)
    optimizer = adamw(model, settings)
    state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    if with_optimizer_state:
        optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    if "cuda_rng" in state:
        torch.cuda.set_rng_state(state["cuda_rng"])
    return Checkpoint(model, optimizer)
