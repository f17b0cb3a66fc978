"""What training adds to the weights: what trains, its gradients, and the optimizer's state."""

from devkit.estimate.adapters import adapter_parameters
from devkit.estimate.model import Term
from devkit.estimate.settings import Method, Optimizer, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.terms import ADAMW, DDP, LORA, OPTIMIZER_8BIT, millions
from devkit.facts.record import keyword_record

EIGHT_BIT = frozenset({Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT})
PAGED = frozenset({Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT})
MOMENTS = 2
"""AdamW keeps a mean and a mean of squares for every number that trains."""
BLOCK_8BIT = 256
"""Numbers that share one fp32 scale in 8-bit optimizers."""


@keyword_record
class Trained:
    """The numbers that train, and bytes of each."""

    parameters: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        """All of them once."""
        return self.parameters * self.bytes_each


def trained(shape: ModelShape, settings: TrainingSettings) -> Trained:
    """What trains. Raises DevkitError for an adapter's target that the model does not have."""
    if settings.method is Method.FULL:
        return Trained(parameters=shape.parameters, bytes_each=settings.precision.bytes)
    return Trained(parameters=adapter_parameters(shape, settings), bytes_each=settings.adapter_precision.bytes)


def adapter_terms(what: Trained, settings: TrainingSettings) -> tuple[Term, ...]:
    """The adapters themselves; nothing in full fine-tuning, where the weights train."""
    if settings.method is Method.FULL:
        return ()
    formula = f"{millions(what.parameters)} at rank {settings.rank} x {what.bytes_each} B"
    return (Term("adapters", what.bytes, formula, LORA),)


def gradient_terms(what: Trained, settings: TrainingSettings) -> tuple[Term, ...]:
    """Gradients of all that trains, and DDP's buckets, through which they reach the other processes."""
    formula = f"{millions(what.parameters)} x {what.bytes_each} B"
    terms = [Term("gradients", what.bytes, formula, ADAMW)]
    if settings.world > 1 and settings.sharding is settings.sharding.DDP:
        terms.append(Term("DDP buckets", what.bytes, f"{formula}, a copy of the gradients", DDP))
    return tuple(terms)


def optimizer_terms(what: Trained, settings: TrainingSettings) -> tuple[Term, ...]:
    """The optimizer's state, there from the first step on."""
    numbers = MOMENTS * what.parameters
    if settings.optimizer in EIGHT_BIT:
        scales = 4 * -(-numbers // BLOCK_8BIT)
        formula = f"{MOMENTS} x {millions(what.parameters)} x (1 B + 4 B / {BLOCK_8BIT})"
        return (Term("optimizer state", numbers + scales, formula, OPTIMIZER_8BIT),)
    if settings.has_masters:
        copies = MOMENTS + 1
        formula = f"{copies} x {millions(what.parameters)} x 4 B, a copy in fp32 among them"
        return (Term("optimizer state", copies * what.parameters * 4, formula, ADAMW),)
    each = 4 if settings.optimizer in PAGED else what.bytes_each
    formula = f"{MOMENTS} x {millions(what.parameters)} x {each} B"
    return (Term("optimizer state", numbers * each, formula, ADAMW),)


def step_terms(what: Trained, settings: TrainingSettings) -> tuple[Term, ...]:
    """What a step needs beside state: `foreach` computes all denominators at once, fused and 8-bit ones nothing."""
    if settings.optimizer is not Optimizer.ADAMW_FOREACH:
        return ()
    formula = f"{millions(what.parameters)} x {what.bytes_each} B, computed for all tensors at once"
    return (Term("optimizer temporaries", what.bytes, formula, ADAMW),)
