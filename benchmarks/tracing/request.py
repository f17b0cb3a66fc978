"""The request for a trace. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devkit.estimate.settings import InferenceSettings, TrainingSettings

TracedSettings = TrainingSettings | InferenceSettings


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A model's config.json and the settings of a run.

    With `keep_outputs` those of a step outlive it, as in a loop that is in no function; `empty_cache` means
    torch.cuda.empty_cache() after each step, and `expandable_segments` PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """

    document: Mapping[str, Any]
    settings: TracedSettings
    keep_outputs: bool = False
    empty_cache: bool = False
    expandable_segments: bool = False
