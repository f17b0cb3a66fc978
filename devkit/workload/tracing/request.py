"""What to trace, and how the question and its answer travel between processes. Importable without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devkit.estimate.model import Interval, MemoryEstimate, Phase, Term
from devkit.estimate.settings import InferenceSettings, TrainingSettings
from devkit.estimate.spelled import settings_from

Settings = TrainingSettings | InferenceSettings

KINDS: dict[str, type[Settings]] = {"training": TrainingSettings, "inference": InferenceSettings}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A model's config.json and the settings of a run.

    `whole` runs every layer instead of repeating one of five. `lingering` outputs outlive their step, as in a loop that
    stands in no function; one that is `emptied` calls torch.cuda.empty_cache() after each step. `expandable` is
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """

    document: Mapping[str, Any]
    settings: Settings
    whole: bool = False
    lingering: bool = False
    emptied: bool = False
    expandable: bool = False


def request_text(request: Request) -> str:
    """A request as JSON."""
    kind = next(name for name, each in KINDS.items() if type(request.settings) is each)
    return json.dumps(
        {**vars(request), "document": dict(request.document), "settings": vars(request.settings), "kind": kind}
    )


def read_request(text: str) -> Request:
    """The request in a JSON text that `request_text` wrote."""
    said = json.loads(text)
    kind = KINDS[said.pop("kind")]
    return Request(**said | {"settings": settings_from(kind, said["settings"])})


def estimate_text(estimate: MemoryEstimate) -> str:
    """An estimate as JSON."""
    return json.dumps(vars(estimate), default=vars)


def read_estimate(text: str) -> MemoryEstimate:
    """The estimate in a JSON text that `estimate_text` wrote."""
    said = json.loads(text)
    return MemoryEstimate(
        **said
        | {
            "phase": Phase(said["phase"]),
            "terms": tuple(Term(**each) for each in said["terms"]),
            "overheads": tuple(Term(**each) for each in said["overheads"]),
            "phases": tuple((Phase(name), size) for name, size in said["phases"]),
            "reserved_peak_bytes": Interval(**said["reserved_peak_bytes"]),
            "device_peak_bytes": Interval(**said["device_peak_bytes"]),
            "warnings": tuple(said["warnings"]),
        }
    )
