"""The request for a trace, and its JSON and that of the estimate between processes. Importable without torch."""

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

    With `keep_outputs` those of a step outlive it, as in a loop that is in no function; `empty_cache` means
    torch.cuda.empty_cache() after each step, and `expandable_segments` PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """

    document: Mapping[str, Any]
    settings: TracedSettings
    keep_outputs: bool = False
    empty_cache: bool = False
    expandable_segments: bool = False


def dump_request(request: TraceRequest) -> str:
    """Serialize a request as JSON."""
    kind = next(name for name, each in SETTINGS_KINDS.items() if type(request.settings) is each)
    return json.dumps(
        {**vars(request), "document": dict(request.document), "settings": vars(request.settings), "kind": kind}
    )


def parse_request(text: str) -> TraceRequest:
    """Parse a JSON text that `dump_request` wrote."""
    document = json.loads(text)
    kind = SETTINGS_KINDS[document.pop("kind")]
    return TraceRequest(**document | {"settings": decode_settings(kind, document["settings"])})


def dump_estimate(estimate: MemoryEstimate) -> str:
    """Serialize an estimate as JSON."""
    return json.dumps(vars(estimate), default=vars)


def parse_estimate(text: str) -> MemoryEstimate:
    """Parse a JSON text that `dump_estimate` wrote."""
    document = json.loads(text)
    return MemoryEstimate(
        **document
        | {
            "phase": MemoryPhase(document["phase"]),
            "terms": tuple(Term(**each) for each in document["terms"]),
            "overheads": tuple(Term(**each) for each in document["overheads"]),
            "phases": tuple((MemoryPhase(name), size) for name, size in document["phases"]),
            "reserved_peak_bytes": Interval(**document["reserved_peak_bytes"]),
            "device_peak_bytes": Interval(**document["device_peak_bytes"]),
            "warnings": tuple(document["warnings"]),
        }
    )
