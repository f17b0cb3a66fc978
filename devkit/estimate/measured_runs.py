"""Measured runs of the user's, which calibrate the bounds of a GPU."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.gpus import CalibratedBounds
from devkit.facts.decode import InvalidValue, decode_fields, get_field_types

SCHEMA = "devkit.measured/1"
RUN_SCHEMA = "devkit.finetune/1"
PROOF_SCHEMA = "devkit.verify/1"
ENOUGH_RUNS = 3
"""Fewer runs show an error and move no bound."""
MARGIN = 0.05
"""Kept beyond the worst run, because the next one may be worse."""
_HINT = "Give run.json of a finished devkit finetune, or the report of devkit verify on a GPU."


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A run of the user's: its GPU, the measured bytes, and the estimate for its tensors; 0 where not measured."""

    gpu: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    estimated_bytes: int

    @property
    def error(self) -> float:
        """The relative error of the estimate of the tensors; positive where it was too high."""
        return self.estimated_bytes / self.allocated_bytes - 1

    @property
    def slack(self) -> float:
        """Memory that the allocator held beyond the tensors, as a share of them."""
        return self.reserved_bytes / self.allocated_bytes - 1


def parse_observed_runs(document: Mapping[str, Any], *, origin: str) -> tuple[ObservedRun, ...]:
    """Parse the runs in a document of one of the schemas above. Raises DevkitError where there are none."""
    schema = document.get("schema")
    if not isinstance(schema, str) or schema not in _ROWS:
        raise DevkitError(f"{origin} holds no measured run (schema {schema!r})", _HINT)
    try:
        rows = _ROWS[schema](document)
        known = get_field_types(ObservedRun)
        found = tuple(ObservedRun(**decode_fields({name: row[name] for name in known}, ObservedRun)) for row in rows)
    except InvalidValue as error:
        wrong = f"{error.path[0]} is {error.value!r}, not {error.expected}"
        raise DevkitError(f"in a run of {origin} {wrong}", _HINT) from None
    except (KeyError, TypeError) as error:
        raise DevkitError(f"{origin} has no {error} among its measurements", _HINT) from None
    if not found:
        raise DevkitError(f"{origin} holds no measured run", _HINT)
    for each in found:
        if min(each.allocated_bytes, each.estimated_bytes) <= 0 or each.reserved_bytes < each.allocated_bytes:
            raise DevkitError(f"a run in {origin} was measured on no GPU, or wrongly", _HINT)
    return found


_ESTIMATED = "estimated_allocated_peak_bytes"


def _list_proof_runs(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the stages of a proof that trained and measured memory."""
    found = (stage["measured"] for stage in document["stages"] if stage["status"] == "passed")
    counted = (measured for measured in found if _ESTIMATED in measured)
    return [_build_row(document["device"]["name"], measured, measured[_ESTIMATED]) for measured in counted]


def _build_row(gpu: str, measured: Mapping[str, Any], estimated_bytes: int) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "allocated_bytes": measured["allocated_peak_bytes"],
        "reserved_bytes": measured["reserved_peak_bytes"],
        "device_bytes": measured.get("device_peak_bytes", 0),
        "estimated_bytes": estimated_bytes,
    }


_ROWS: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    SCHEMA: lambda document: document["runs"],
    RUN_SCHEMA: lambda document: [
        _build_row(document["gpu"], document["measured"] or {}, (document["estimated"] or {})["allocated_peak_bytes"])
    ],
    PROOF_SCHEMA: _list_proof_runs,
}
"""Schema -> function that lists its runs."""


def serialize_observed_runs(found: Iterable[ObservedRun]) -> dict[str, Any]:
    """Serialize runs for the user's own file."""
    return {"schema": SCHEMA, "runs": [vars(each) for each in found]}


def calibrate_bounds(found: Iterable[ObservedRun], gpu: str) -> CalibratedBounds | None:
    """Calibrate the bounds for GPUs of that name; None where too few runs were measured."""
    here = [each for each in found if each.gpu == gpu]
    if len(here) < ENOUGH_RUNS:
        return None
    slacks = [each.slack for each in here]
    # Where tensors took more than estimated, the next estimate may be as far below.
    shortfall = max(0.0, *(1 / (1 + each.error) - 1 for each in here))
    contexts = [each.device_bytes - each.reserved_bytes for each in here if each.device_bytes]
    return CalibratedBounds(
        slack_point=sum(slacks) / len(slacks),
        slack_upper=(1 + max(slacks)) * (1 + shortfall) * (1 + MARGIN) - 1,
        context_point=round(sum(contexts) / len(contexts)) if contexts else None,
        context_upper=round(max(contexts) * (1 + MARGIN)) if contexts else None,
        runs=len(here),
    )
