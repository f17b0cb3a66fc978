"""Settings of `devkit generate`. Importable without torch."""

import math
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.model.files import BaseQuantization

MIN_TEMPERATURE = 1e-4
"""Logits are divided by it: below, fp32 overflows, and the likeliest token has been certain long before."""

MAX_SEED = 2**63 - 1
"""torch takes 64 bits, one of them for the sign."""


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Settings of sampling. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave no token out.

    `tokens` is the most that an answer has. An answer ends before a text of `stops`. `static_cache` None means: for a
    file of prompts if compiling is worthwhile, see `is_compiling_worthwhile`; else a dynamic KV cache.
    """

    tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stops: tuple[str, ...] = ()
    static_cache: bool | None = None
    batch: int = 8


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """A model, an adapter for it or None, and the settings of decoding. `precision` None: chosen for the device.

    `raw` passes prompts to the model without its chat template.
    """

    model: str
    adapter: Path | None = None
    any_base: bool = False
    quantisation: BaseQuantization = BaseQuantization.NONE
    precision: Precision | None = None
    raw: bool = False
    decoding: DecodingSettings = DecodingSettings()


def validate_decoding(decoding: DecodingSettings) -> DecodingSettings:
    """Return `decoding`. Raises DevkitError for values that mean nothing together."""
    if math.isnan(decoding.top_p) or not math.isfinite(decoding.temperature):
        raise DevkitError("--temperature and --top-p must be finite numbers", "Such as --temperature 0.7 --top-p 0.9.")
    if 0 < decoding.temperature < MIN_TEMPERATURE:
        raise DevkitError(
            f"--temperature {decoding.temperature:g} is too small to divide by",
            f"Give 0, which always takes the likeliest token, or {MIN_TEMPERATURE:g} and more.",
        )
    if decoding.seed > MAX_SEED:
        raise DevkitError(f"--seed {decoding.seed} is too large", f"Give one of up to {MAX_SEED}.")
    if decoding.temperature == 0 and (decoding.top_p < 1 or decoding.top_k):
        raise DevkitError(
            "--top-p and --top-k choose among tokens, and at temperature 0 there is no choice",
            "Add --temperature, such as 0.7.",
        )
    if "" in decoding.stops:
        raise DevkitError("--stop is empty, so every answer would be", "Give the text that an answer ends before.")
    return decoding
