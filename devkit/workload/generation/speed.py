"""How fast answers came, and how near that is to what the GPU's memory allows."""

from dataclasses import dataclass
from typing import Any

import torch

from devkit.compat.rates import rates_of
from devkit.text import human_bytes, human_number
from devkit.workload.finetune.model import Model
from devkit.workload.generation.decoding import Speaker


@dataclass(frozen=True)
class Speed:
    """Figures of one generation. `rows` were generated side by side; `bandwidth` is the data sheet's, bytes per second.

    Each step reads every weight once, so steps cannot come faster than bandwidth through bytes. The cache of keys and
    values is left out and the prompt's time is not, so the share of that roofline is a lower bound.
    """

    tokens: int
    seconds: float
    rows: int
    bytes_a_step: int
    bandwidth: float | None

    @property
    def tokens_per_s(self) -> float:
        """Over all rows side by side."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def roofline(self) -> float | None:
        """The share of the fastest possible decoding; None where no data sheet is known."""
        if not self.bandwidth:
            return None
        return self.tokens_per_s / max(1, self.rows) * self.bytes_a_step / self.bandwidth

    def to_document(self) -> dict[str, Any]:
        """As it stands in devkit.generate/1."""
        share = {} if self.roofline is None else {"roofline": round(self.roofline, 4)}
        return {
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "tokens_per_s": round(self.tokens_per_s, 2),
            "bytes_per_step": self.bytes_a_step,
            **share,
        }

    def __str__(self) -> str:
        shown = f"{self.tokens} tokens in {self.seconds:.1f} s: {human_number(self.tokens_per_s)} tokens/s"
        if self.roofline is None:
            return f"{shown}; {human_bytes(self.bytes_a_step)} of weights a step"
        return f"{shown}, {self.roofline:.0%} of what the GPU's memory allows"


def speed_of(speaker: Speaker, *, tokens: int, seconds: float, rows: int) -> Speed:
    """The figures of a generation on the speaker's device."""
    name = torch.cuda.get_device_name(speaker.device) if speaker.device.type == "cuda" else ""
    rates = rates_of(name) if name else None
    bandwidth = rates.bandwidth_gb_per_s * 1e9 if rates else None
    return Speed(tokens, seconds, rows, bytes_read(speaker.plain), bandwidth)


def bytes_read(model: Model) -> int:
    """The bytes that one step reads: all weights but the table of input embeddings, of which it takes single rows."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is table
    total = sum(each.numel() * each.element_size() for each in model.parameters())
    return int(total if is_tied else total - table.numel() * table.element_size())
