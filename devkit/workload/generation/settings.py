"""What a generation is asked to do. Importable without torch."""

from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.estimate.settings import Precision
from devkit.workload.finetune.model_choices import Quantisation


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How tokens are chosen. `temperature` 0 always takes the likeliest; `top_k` 0 and `top_p` 1 leave none out.

    `tokens` is the most that an answer has. An answer ends before a text of `stops`. `static_cache` None means: for a
    file of prompts where compiling pays, see `compiling`; else a cache that grows.
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
    """A model, an adapter on it or None, and how to generate with them. `precision` None: chosen for the device.

    `raw` gives prompts to the model as they stand, without its chat template.
    """

    model: str
    adapter: Path | None = None
    any_base: bool = False
    quantisation: Quantisation = Quantisation.NONE
    precision: Precision | None = None
    raw: bool = False
    decoding: Decoding = Decoding()


def checked(decoding: Decoding) -> Decoding:
    """`decoding`, or a DevkitError where its numbers mean nothing together."""
    if decoding.temperature == 0 and (decoding.top_p < 1 or decoding.top_k):
        raise DevkitError(
            "--top-p and --top-k choose among tokens, and at temperature 0 there is no choice",
            "Add --temperature, such as 0.7.",
        )
    if "" in decoding.stops:
        raise DevkitError("--stop is empty, so every answer would be", "Give the text that an answer ends before.")
    return decoding
