"""What the stages of one proof share. Everything is made on first use, so that a stage can run alone."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from devkit.workload import lora, quantized, tiny
from devkit.workload.device import Device
from devkit.workload.settings import ProofSettings
from devkit.workload.tiny import Model
from devkit.workload.tuners import prepare_model_for_kbit_training

EXTRA_TOKENS = 8
"""Tokens that generation may add beyond the sentence, so that one which does not stop is seen."""


@dataclass(frozen=True)
class Tuned:
    """A base with a trained adapter, and what was noted before training.

    `base_logits` has shape [tokens, vocabulary]; `frozen` and `packed` map names to copies from before training.
    `changed` names what training altered among them, noted before the first forward pass in evaluation mode.
    """

    model: Model
    losses: list[float]
    base_logits: torch.Tensor
    base_text: str
    frozen_tensors: int
    changed: list[str]


@dataclass(frozen=True)
class Continued:
    """Three ways to the same step: straight through, stopped and resumed, resumed without optimizer state."""

    straight: Model
    straight_losses: list[float]
    resumed: Model
    resumed_losses: list[float]
    dropped: Model


class Bench:
    """The models of one proof on one device. `folder` is scratch space that the caller removes."""

    def __init__(self, settings: ProofSettings, device: Device, folder: Path) -> None:
        self.settings = settings
        self.device = device
        self.folder = folder
        self.ids = tiny.encode(settings.sentence)

    def base(self) -> Model:
        """A fresh base model, equal each time."""
        return tiny.build_base(seed=self.settings.seed, device=self.device.torch_device, dtype=self.device.dtype)

    def generate(self, model: Model) -> str:
        """Greedy text from BOS, with room for the whole sentence."""
        return tiny.generate(model, tokens=len(self.ids) + EXTRA_TOKENS)

    def logits(self, model: Model) -> torch.Tensor:
        """Logits over the sentence. Shape: [tokens, vocabulary]."""
        return tiny.logits(model, self.ids)

    def train(self, model: Model, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        """Train on the sentence; the loss before each step."""
        return lora.train(model, optimizer, self.ids, steps=steps, precision=self.device.precision)

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        """The optimizer of every stage that does not bring its own."""
        return lora.adamw(model, self.settings)

    @cached_property
    def tuned(self) -> Tuned:
        """LoRA on the plain base, trained."""
        base = self.base()
        base_logits, base_text = self.logits(base), self.generate(base)
        return self._tune(lora.attach(base, self.settings), base_logits, base_text)

    @cached_property
    def base_folder(self) -> Path:
        """The base model on disk, for what loads it as users do."""
        folder = self.folder / "base"
        self.base().save_pretrained(str(folder))
        return folder

    @cached_property
    def quantized(self) -> Tuned:
        """QLoRA: LoRA on the base in 4-bit NormalFloat, trained with gradient checkpointing.

        The base's own text is taken from a second copy: the first forward pass in evaluation mode may repack it.
        """
        untouched = quantized.load_quantized(self.base_folder, quantized.nf4(self.device.dtype), self.device)
        base_logits, base_text = self.logits(untouched), self.generate(untouched)
        base = quantized.load_quantized(self.base_folder, quantized.nf4(self.device.dtype), self.device)
        return self._tune(lora.attach(for_training(base), self.settings), base_logits, base_text)

    def _tune(self, model: Model, base_logits: torch.Tensor, base_text: str) -> Tuned:
        before = lora.snapshot(model)
        losses = self.train(model, self.optimizer(model), self.settings.steps)
        after = dict(lora.frozen(model))
        changed = [name for name, tensor in before.items() if name not in after or not torch.equal(tensor, after[name])]
        return Tuned(model, losses, base_logits, base_text, len(before), changed)

    @cached_property
    def adapter_folder(self) -> Path:
        """The trained adapter on disk."""
        folder = self.folder / "adapter"
        lora.save_adapter(self.tuned.model, folder)
        return folder

    def reloaded(self) -> Model:
        """The saved adapter on a fresh base."""
        return lora.load_adapter(self.base(), self.adapter_folder)

    def merged(self) -> Model:
        """A fresh base with the saved adapter's weights added in."""
        return self.reloaded().merge_and_unload()

    @cached_property
    def checkpoint_folder(self) -> Path:
        """A run stopped half-way, on disk."""
        folder = self.folder / "checkpoint"
        folder.mkdir()
        model = self._resumable()
        optimizer = self.optimizer(model)
        self.train(model, optimizer, self.settings.resume_steps // 2)
        lora.save_checkpoint(folder, model, optimizer)
        return folder

    @cached_property
    def continued(self) -> Continued:
        """The same run straight and in two halves, with dropout so that random numbers matter."""
        half = self.settings.resume_steps // 2
        straight = self._resumable()
        straight_losses = self.train(straight, self.optimizer(straight), self.settings.resume_steps)
        resumed, resumed_losses = self._resume(half, with_optimizer_state=True)
        dropped, _ = self._resume(half, with_optimizer_state=False)
        return Continued(straight, straight_losses[half:], resumed, resumed_losses, dropped)

    def _resumable(self) -> Model:
        return lora.attach(self.base(), self.settings, dropout=self.settings.resume_dropout)

    def _resume(self, steps: int, *, with_optimizer_state: bool) -> tuple[Model, list[float]]:
        run = lora.load_checkpoint(
            self.checkpoint_folder, self.base(), self.settings, with_optimizer_state=with_optimizer_state
        )
        return run.model, self.train(run.model, run.optimizer, steps)


def for_training(base: Model) -> Model:
    """A quantised base made ready for adapters as peft advises: small layers in fp32, gradient checkpointing on."""
    return prepare_model_for_kbit_training(
        base, use_gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}
    )


def without_adapter(model: Model) -> AbstractContextManager[object]:
    """A context in which the adapter is off; no change for a model that has none."""
    if not hasattr(model, "disable_adapter"):
        return nullcontext()
    switched_off: AbstractContextManager[object] = model.disable_adapter()
    return switched_off
