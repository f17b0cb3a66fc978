"""Estimates as JSON, and back: what commands print, what the tracer in another process hands over."""

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from devkit.errors import DevkitError
from devkit.estimate.model import Interval, MemoryEstimate, Phase, Term
from devkit.estimate.settings import (
    Attention,
    CacheKind,
    InferenceSettings,
    Loss,
    Method,
    Optimizer,
    Precision,
    Quantisation,
    Sharding,
    Stack,
    TrainingSettings,
)
from devkit.estimate.shape import ModelShape

Settings = TypeVar("Settings", TrainingSettings, InferenceSettings)

_ENUMS: dict[str, type[StrEnum]] = {
    "method": Method,
    "precision": Precision,
    "adapter_precision": Precision,
    "cache_precision": Precision,
    "optimizer": Optimizer,
    "loss": Loss,
    "attention": Attention,
    "stack": Stack,
    "sharding": Sharding,
    "cache": CacheKind,
    "quantisation": Quantisation,
}
"""Fields of settings that are one of a few words."""


def settings_document(settings: TrainingSettings | InferenceSettings) -> dict[str, Any]:
    """Settings as plain values."""
    return {
        field.name: list(value) if isinstance(value := getattr(settings, field.name), tuple) else value
        for field in fields(settings)
    }


def settings_from_document(kind: type[Settings], document: Mapping[str, Any]) -> Settings:
    """The settings that `settings_document` wrote. Raises DevkitError for fields and words that are none of theirs."""
    known = {field.name for field in fields(kind)}
    unknown = sorted(document.keys() - known)
    if unknown:
        raise DevkitError(f"settings have no field {unknown[0]!r}", f"Known: {', '.join(sorted(known))}.")
    try:
        values = {name: _value(name, value) for name, value in document.items()}
    except ValueError as error:
        raise DevkitError(
            f"settings are not understood: {error}", "Write them as devkit estimate --json does."
        ) from None
    return kind(**values)


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, list):
        return tuple(value)
    return _ENUMS[name](value) if name in _ENUMS and value is not None else value


def estimate_document(estimate: MemoryEstimate) -> dict[str, Any]:
    """An estimate as plain values."""
    return {
        "method": estimate.method,
        "phase": estimate.phase,
        "terms": [vars(term) for term in estimate.terms],
        "overheads": [vars(term) for term in estimate.overheads],
        "phases": dict(estimate.phases),
        "allocated_peak_bytes": estimate.allocated_peak_bytes,
        "reserved_peak_bytes": vars(estimate.reserved_peak_bytes),
        "device_peak_bytes": vars(estimate.device_peak_bytes),
        "warnings": list(estimate.warnings),
    }


def estimate_from_document(document: Mapping[str, Any]) -> MemoryEstimate:
    """The estimate that `estimate_document` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    return MemoryEstimate(
        method=document["method"],
        phase=Phase(document["phase"]),
        terms=tuple(Term(**term) for term in document["terms"]),
        overheads=tuple(Term(**term) for term in document["overheads"]),
        phases=tuple((Phase(phase), size) for phase, size in document["phases"].items()),
        allocated_peak_bytes=document["allocated_peak_bytes"],
        reserved_peak_bytes=Interval(**document["reserved_peak_bytes"]),
        device_peak_bytes=Interval(**document["device_peak_bytes"]),
        warnings=tuple(document["warnings"]),
    )


def shape_document(shape: ModelShape) -> dict[str, Any]:
    """What is told of the model."""
    return {
        "name": shape.name,
        "architecture": shape.architecture,
        "parameters": shape.parameters,
        "active_parameters": shape.active_parameters,
        "quantisable_parameters": shape.packed_weights,
        "hidden": shape.hidden,
        "layers": shape.depth,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "vocabulary": shape.vocabulary,
        "tied_embeddings": shape.is_tied,
        "note": shape.note,
    }
