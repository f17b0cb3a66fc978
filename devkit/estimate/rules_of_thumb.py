"""Rules of thumb that are passed around, to compare with an estimate."""

from collections.abc import Callable

from devkit.errors import DevkitError
from devkit.estimate.settings import InferenceSettings, Method, Precision, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.facts.values import record

_GB = 10**9


@record
class RuleOfThumb:
    """A rule of thumb in words, its source, and its result in bytes; None where it does not apply."""

    name: str
    says: str
    source: str
    apply: Callable[[ModelShape, TrainingSettings | InferenceSettings], int | None]


def _collabnix(shape: ModelShape, settings: TrainingSettings | InferenceSettings) -> int | None:
    if not isinstance(settings, TrainingSettings):
        return None
    each = 4 if settings.precision is Precision.FP32 else 2
    times = 4 if settings.method is Method.FULL else 1.2
    billions = shape.parameters / 1e9
    return round((billions * each * times + billions * 0.5) * _GB)


def _fifth_more(shape: ModelShape, settings: TrainingSettings | InferenceSettings) -> int | None:
    if isinstance(settings, TrainingSettings):
        return None
    return round(1.2 * shape.parameters * settings.precision.bytes)


def _four_times(shape: ModelShape, settings: TrainingSettings | InferenceSettings) -> int | None:
    if not isinstance(settings, TrainingSettings):
        return None
    return 4 * shape.parameters * settings.precision.bytes


RULES_OF_THUMB: dict[str, RuleOfThumb] = {
    "seed:collabnix": RuleOfThumb(
        "seed:collabnix",
        "weights x 1.2 for LoRA or x 4 in full, and 0.5 GB for each billion parameters",
        "Collabnix, Fine-Tuning Open Source LLMs: Complete Infrastructure Guide 2024",
        _collabnix,
    ),
    "seed:1.2x": RuleOfThumb(
        "seed:1.2x", "weights x 1.2, for inference", "https://blog.eleuther.ai/transformer-math/", _fifth_more
    ),
    "seed:4x": RuleOfThumb(
        "seed:4x",
        "weights x 4, for training with Adam",
        "https://huggingface.co/spaces/hf-accelerate/model-memory-usage",
        _four_times,
    ),
}
"""By name. None looks at the length of texts, the vocabulary, checkpointing or the optimizer."""


def find_rule_of_thumb(name: str) -> RuleOfThumb:
    """Find a rule by name. Raises DevkitError for an unknown one."""
    if name not in RULES_OF_THUMB:
        raise DevkitError(f"there is no rule {name!r}", f"Known: {', '.join(RULES_OF_THUMB)}.")
    return RULES_OF_THUMB[name]
