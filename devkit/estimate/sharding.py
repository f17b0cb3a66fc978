"""Several processes: what each of them holds of weights, gradients and optimizer state."""

from collections.abc import Iterable

from devkit.estimate.model import Term
from devkit.estimate.settings import Method, Sharding, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.terms import FSDP, ZERO

_SHARED: dict[Sharding, frozenset[str]] = {
    Sharding.DDP: frozenset(),
    Sharding.ZERO1: frozenset({"optimizer state", "optimizer temporaries"}),
    Sharding.ZERO2: frozenset({"optimizer state", "optimizer temporaries", "gradients"}),
    Sharding.ZERO3: frozenset(
        {
            "optimizer state",
            "optimizer temporaries",
            "gradients",
            "adapters",
            "weights",
            "unquantised weights",
            "packed weights",
        }
    ),
}
"""Terms of which every process holds its share. Source: section 5 of the ZeRO paper.

The scales of packed weights are no parameters: they stay whole beside each part. Source: bitsandbytes 0.50,
nn/modules.py, Params4bit.quant_state.
"""

GATHERED_LAYERS = 2
"""The layer at work and the one fetched meanwhile. Source: section 3.3 of the FSDP paper."""


def sharded(terms: Iterable[Term], settings: TrainingSettings) -> tuple[Term, ...]:
    """The share of one process in each term."""
    shared = _SHARED[settings.sharding]
    return tuple(_share(term, settings.world) if term.name in shared else term for term in terms)


def _share(term: Term, world: int) -> Term:
    return Term(term.name, -(-term.bytes // world), f"({term.formula}) / {world}", ZERO)


def gathered_terms(shape: ModelShape, settings: TrainingSettings) -> tuple[Term, ...]:
    """Whole layers that ZeRO-3 fetches for the moment, and embedding and head, which stand outside of layers."""
    if settings.sharding is not Sharding.ZERO3:
        return ()
    largest = max(layer.parameters for layer in shape.layers)
    outside = shape.embedding_parameters + shape.head_parameters
    each = settings.precision.bytes
    layer_bytes = (
        each / 4 if settings.method is Method.QLORA else each / 2 if settings.method is Method.INT8_LORA else each
    )
    size = round(GATHERED_LAYERS * largest * layer_bytes) + outside * each
    formula = f"{GATHERED_LAYERS} x {largest:,} x {layer_bytes:g} B + {outside:,} x {each} B"
    return (Term("gathered layers", size, formula, FSDP),)
