"""What to trace, and how the question and its answer travel between processes. Importable without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devkit.estimate.memory import Interval, MemoryEstimate, MemoryPhase, Term
from devkit.estimate.settings import InferenceSettings, TrainingSettings, decode_settings

TracedSettings = TrainingSettings | InferenceSettings

SETTINGS_KINDS: dict[str, type[TracedSettings]] = {"training": TrainingSettings, "inference": InferenceSettings}


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """A model's config.json and the settings of a run.

    `whole` runs every layer instead of repeating one of five. `lingering` outputs outlive their step, as in a loop that
    stands in no function; one that is `emptied` calls torch.cuda.empty_cache() after each step. `expandable` is
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """

    document: Mapping[str, Any]
    settings: TracedSettings
    trace_every_layer: bool = False
    keep_outputs: bool = False
    empty_cache: bool = False
    expandable_segments: bool = False


def dump_request(request: TraceRequest) -> str:
    """A request as JSON."""
    kind = next(name for name, each in SETTINGS_KINDS.items() if type(request.settings) is each)
    return json.dumps(
        {**vars(request), "document": dict(request.document), "settings": vars(request.settings), "kind": kind}
    )


def parse_request(text: str) -> TraceRequest:
    """The request in a JSON text that `request_text` wrote."""
    said = json.loads(text)
    kind = SETTINGS_KINDS[said.pop("kind")]
    return TraceRequest(**said | {"settings": decode_settings(kind, said["settings"])})


def dump_estimate(estimate: MemoryEstimate) -> str:
    """An estimate as JSON."""
    return json.dumps(vars(estimate), default=vars)


def parse_estimate(text: str) -> MemoryEstimate:
    """The estimate in a JSON text that `estimate_text` wrote."""
    said = json.loads(text)
    return MemoryEstimate(
        **said
        | {
            "phase": MemoryPhase(said["phase"]),
            "terms": tuple(Term(**each) for each in said["terms"]),
            "overheads": tuple(Term(**each) for each in said["overheads"]),
            "phases": tuple((MemoryPhase(name), size) for name, size in said["phases"]),
            "reserved_peak_bytes": Interval(**said["reserved_peak_bytes"]),
            "device_peak_bytes": Interval(**said["device_peak_bytes"]),
            "warnings": tuple(said["warnings"]),
        }
    )
