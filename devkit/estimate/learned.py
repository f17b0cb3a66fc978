"""What measured runs say about one kind of GPU: how far the bounds can be drawn in there."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.cards import Bounds
from devkit.facts.record import keyword_record

SCHEMA = "devkit.measured/1"
RUN_SCHEMA = "devkit.finetune/1"
PROOF_SCHEMA = "devkit.verify/1"
ENOUGH_RUNS = 3
"""Fewer runs show an error and move no bound."""
MARGIN = 0.05
"""Kept beyond the worst run, because the next one may be worse."""
_HINT = "Give run.json of a finished devkit finetune, or the report of devkit verify on a GPU."


@keyword_record
class Observation:
    """One run: the GPU, what was measured, and what had been estimated for its tensors. Bytes; 0 where not measured."""

    gpu: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    estimated_bytes: int

    @property
    def error(self) -> float:
        """By how much the estimate of the tensors was too high, as a share of what they took."""
        return self.estimated_bytes / self.allocated_bytes - 1

    @property
    def slack(self) -> float:
        """What the allocator held beyond the tensors, as a share of them."""
        return self.reserved_bytes / self.allocated_bytes - 1


def observations_of(document: Mapping[str, Any], *, origin: str) -> tuple[Observation, ...]:
    """The runs in a parsed file. Raises DevkitError where there are none to learn from."""
    schema = document.get("schema")
    if not isinstance(schema, str) or schema not in _ROWS:
        raise DevkitError(f"{origin} holds no measured run (schema {schema!r})", _HINT)
    try:
        rows = _ROWS[schema](document)
        found = tuple(Observation(**{name: row[name] for name in _FIELDS}) for row in rows)
    except (KeyError, TypeError) as error:
        raise DevkitError(f"{origin} tells no {error} of what was measured", _HINT) from None
    if not found:
        raise DevkitError(f"{origin} holds no measured run", _HINT)
    for each in found:
        if min(each.allocated_bytes, each.estimated_bytes) <= 0 or each.reserved_bytes < each.allocated_bytes:
            raise DevkitError(f"a run in {origin} was measured on no GPU, or wrongly", _HINT)
    return found


_ESTIMATED = "estimated_allocated_peak_bytes"
_FIELDS = ("gpu", "allocated_bytes", "reserved_bytes", "device_bytes", "estimated_bytes")


def _run(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One run of finetune as a row."""
    measured, estimated = document["measured"] or {}, document["estimated"] or {}
    return [_row(document["gpu"], measured, estimated["allocated_peak_bytes"])]


def _proof(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The stages of a proof that trained and counted memory, a row each."""
    found = (stage["measured"] for stage in document["stages"] if stage["status"] == "passed")
    counted = (measured for measured in found if _ESTIMATED in measured)
    return [_row(document["device"]["name"], measured, measured[_ESTIMATED]) for measured in counted]


def _row(gpu: str, measured: Mapping[str, Any], estimated_bytes: int) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "allocated_bytes": measured["allocated_peak_bytes"],
        "reserved_bytes": measured["reserved_peak_bytes"],
        "device_bytes": measured.get("device_peak_bytes", 0),
        "estimated_bytes": estimated_bytes,
    }


_ROWS: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    SCHEMA: lambda document: document["runs"],
    RUN_SCHEMA: _run,
    PROOF_SCHEMA: _proof,
}
"""Schema -> how its runs are found."""


def learned_document(found: Iterable[Observation]) -> dict[str, Any]:
    """The runs as the user's own file keeps them."""
    return {"schema": SCHEMA, "runs": [vars(each) for each in found]}


def bounds_of(found: Iterable[Observation], gpu: str) -> Bounds | None:
    """How far the bounds can be drawn in on GPUs of that name; None where too few runs were measured."""
    here = [each for each in found if each.gpu == gpu]
    if len(here) < ENOUGH_RUNS:
        return None
    slacks = [each.slack for each in here]
    # Where tensors took more than estimated, the next estimate may be as far below.
    shortfall = max(0.0, *(1 / (1 + each.error) - 1 for each in here))
    contexts = [each.device_bytes - each.reserved_bytes for each in here if each.device_bytes]
    return Bounds(
        slack_point=sum(slacks) / len(slacks),
        slack_upper=(1 + max(slacks)) * (1 + shortfall) * (1 + MARGIN) - 1,
        context_point=round(sum(contexts) / len(contexts)) if contexts else None,
        context_upper=round(max(contexts) * (1 + MARGIN)) if contexts else None,
        runs=len(here),
    )
