"""Estimates as JSON: what commands print."""

from typing import Any

from devkit.estimate.model import MemoryEstimate
from devkit.estimate.shape import ModelShape


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
