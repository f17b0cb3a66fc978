"""How much memory a training step takes: the closed form, term by term."""

from collections.abc import Iterable

from devkit.errors import DevkitError
from devkit.estimate.activations import (
    SavedActivations,
    compute_int8_input_bytes,
    compute_loss_terms,
    compute_saved_activations,
    get_residual_bytes,
    is_attention_eager,
    is_upcast,
)
from devkit.estimate.memory import (
    ADAMW_SOURCE,
    CHECKPOINT_SOURCE,
    CUBLAS_WORKSPACE,
    DDP_SOURCE,
    DORA_SOURCE,
    FSDP_SOURCE,
    INT8_SOURCE,
    LLAMA_SOURCE,
    LORA_SOURCE,
    OPTIMIZER_8BIT_SOURCE,
    QLORA_SOURCE,
    SDPA_SOURCE,
    ZERO_SOURCE,
    MemoryEstimate,
    MemoryPhase,
    Term,
    add_overhead,
    drop_empty,
    format_millions,
    sum_bytes,
)
from devkit.estimate.settings import (
    Loss,
    Method,
    Optimizer,
    Quantization,
    Sharding,
    TrainingSettings,
)
from devkit.estimate.shape import LinearShape, ModelShape
from devkit.estimate.weights import (
    compute_weight_terms,
    count_adapter_parameters,
    find_adapted_head,
    find_adapted_linears,
)
from devkit.facts.values import keyword_record

# Several processes: what each of them holds of weights, gradients and optimizer state.

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


def shard_terms(terms: Iterable[Term], settings: TrainingSettings) -> tuple[Term, ...]:
    """The share of one process in each term."""
    shared = _SHARED[settings.sharding]
    return tuple(_share(term, settings.world) if term.name in shared else term for term in terms)


def _share(term: Term, world: int) -> Term:
    return Term(term.name, -(-term.bytes // world), f"({term.formula}) / {world}", ZERO_SOURCE)


def compute_gathered_terms(shape: ModelShape, settings: TrainingSettings) -> tuple[Term, ...]:
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
    return (Term("gathered layers", size, formula, FSDP_SOURCE),)


# What training adds to the weights: what trains, its gradients, and the optimizer's state.

OPTIMIZERS_8BIT = frozenset({Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT})
PAGED_OPTIMIZERS = frozenset({Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT})
ADAMW_MOMENTS = 2
"""AdamW keeps a mean and a mean of squares for every number that trains."""
BLOCK_8BIT = 256
"""Numbers that share one fp32 scale in 8-bit optimizers."""


@keyword_record
class TrainedParameters:
    """The numbers that train, and bytes of each."""

    parameters: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        """All of them once."""
        return self.parameters * self.bytes_each


def count_trained_parameters(shape: ModelShape, settings: TrainingSettings) -> TrainedParameters:
    """What trains. Raises DevkitError for an adapter's target that the model does not have."""
    if settings.method is Method.FULL:
        return TrainedParameters(parameters=shape.parameters, bytes_each=settings.precision.bytes)
    return TrainedParameters(
        parameters=count_adapter_parameters(shape, settings), bytes_each=settings.adapter_precision.bytes
    )


def compute_adapter_terms(what: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """The adapters themselves; nothing in full fine-tuning, where the weights train."""
    if settings.method is Method.FULL:
        return ()
    formula = f"{format_millions(what.parameters)} at rank {settings.rank} x {what.bytes_each} B"
    return (Term("adapters", what.bytes, formula, LORA_SOURCE),)


def compute_gradient_terms(what: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """Gradients of all that trains, and DDP's buckets, through which they reach the other processes."""
    formula = f"{format_millions(what.parameters)} x {what.bytes_each} B"
    terms = [Term("gradients", what.bytes, formula, ADAMW_SOURCE)]
    if settings.world > 1 and settings.sharding is settings.sharding.DDP:
        terms.append(Term("DDP buckets", what.bytes, f"{formula}, a copy of the gradients", DDP_SOURCE))
    return tuple(terms)


def compute_optimizer_terms(what: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """The optimizer's state, there from the first step on."""
    numbers = ADAMW_MOMENTS * what.parameters
    if settings.optimizer in OPTIMIZERS_8BIT:
        scales = 4 * -(-numbers // BLOCK_8BIT)
        formula = f"{ADAMW_MOMENTS} x {format_millions(what.parameters)} x (1 B + 4 B / {BLOCK_8BIT})"
        return (Term("optimizer state", numbers + scales, formula, OPTIMIZER_8BIT_SOURCE),)
    if settings.has_masters:
        copies = ADAMW_MOMENTS + 1
        formula = f"{copies} x {format_millions(what.parameters)} x 4 B, a copy in fp32 among them"
        return (Term("optimizer state", copies * what.parameters * 4, formula, ADAMW_SOURCE),)
    each = 4 if settings.optimizer in PAGED_OPTIMIZERS else what.bytes_each
    formula = f"{ADAMW_MOMENTS} x {format_millions(what.parameters)} x {each} B"
    return (Term("optimizer state", numbers * each, formula, ADAMW_SOURCE),)


def compute_step_terms(what: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """What a step needs beside state: `foreach` computes all denominators at once, fused and 8-bit ones nothing."""
    if settings.optimizer is not Optimizer.ADAMW_FOREACH:
        return ()
    formula = f"{format_millions(what.parameters)} x {what.bytes_each} B, computed for all tensors at once"
    return (Term("optimizer temporaries", what.bytes, formula, ADAMW_SOURCE),)


INTEGER_BYTES = 8


def estimate_training(shape: ModelShape, settings: TrainingSettings) -> MemoryEstimate:
    """The peak of one process. Raises DevkitError for settings that make no sense together or for this model."""
    validate_training_settings(shape, settings)
    parts = _Parts(shape, settings)
    phases = {phase: drop_empty(terms) for phase, terms in parts.phases()}
    fullest = max(phases, key=lambda phase: sum_bytes(phases[phase]))
    return add_overhead(
        fullest,
        phases,
        largest_bytes=parts.largest_bytes,
        pageable_bytes=parts.pageable_bytes,
        world=settings.world,
        warnings=_warnings(shape, settings),
    )


def get_quantization(settings: TrainingSettings) -> Quantization:
    """How the base is kept while training."""
    if settings.method is Method.INT8_LORA:
        return Quantization.INT8
    if settings.method is Method.QLORA:
        return Quantization.NF4_DOUBLE if settings.double_quantisation else Quantization.NF4
    return Quantization.NONE


def validate_training_settings(shape: ModelShape, settings: TrainingSettings) -> None:
    """Raises DevkitError for settings that cannot all hold."""
    sizes = {
        "--seq": settings.sequence,
        "--micro-batch": settings.micro_batch,
        "--rank": settings.rank,
        "--world": settings.world,
        "accumulation": settings.accumulation,
    }
    for flag, size in sizes.items():
        if size < 1:
            raise DevkitError(f"{flag} is {size}", "It must be a whole number above zero.")
    if settings.upcast and get_quantization(settings) is Quantization.NONE:
        raise DevkitError(
            f"--kbit-upcast says nothing about {settings.method}: nothing is quantised",
            "Choose --method qlora or int8-lora, or leave the flag away.",
        )
    if settings.dora and settings.method is Method.FULL:
        raise DevkitError("--dora says nothing about full fine-tuning", "Choose --method lora, qlora or int8-lora.")
    if settings.sharding is not Sharding.DDP and settings.world == 1:
        raise DevkitError(
            f"--sharding {settings.sharding} shares nothing out among one process", "Give --world, the number of GPUs."
        )
    if not shape.is_decoder and get_quantization(settings) is not Quantization.NONE:
        raise DevkitError(
            f"{shape.name} is an encoder, which is not trained quantised here", "Choose --method full or lora."
        )


class _Parts:
    """The terms of one step, and how they meet in its phases."""

    def __init__(self, shape: ModelShape, settings: TrainingSettings) -> None:
        self._shape, self._settings = shape, settings
        self._tokens = settings.sequence * settings.micro_batch
        self._what = count_trained_parameters(shape, settings)
        weights = compute_weight_terms(
            shape, get_quantization(settings), settings.precision, is_upcast=is_upcast(settings)
        )
        state = compute_optimizer_terms(self._what, settings)
        is_paged = settings.optimizer in PAGED_OPTIMIZERS
        self.pageable_bytes = sum_bytes(shard_terms(state, settings)) if is_paged else 0
        fixed = (*weights, *compute_adapter_terms(self._what, settings), *(() if is_paged else state))
        self._fixed = (*shard_terms(fixed, settings), *compute_gathered_terms(shape, settings), *self._small())
        self._gradients = shard_terms(compute_gradient_terms(self._what, settings), settings)

    def phases(self) -> Iterable[tuple[MemoryPhase, tuple[Term, ...]]]:
        """The moments at which memory may be fullest, and what is there then."""
        early = self._gradients if self._settings.accumulation > 1 else ()
        loss = compute_loss_terms(self._shape, self._settings, self._tokens)
        yield MemoryPhase.LOSS, (*self._fixed, *early, *self._stored(), *loss)
        yield MemoryPhase.BACKWARD, self._backward(early)
        yield (
            MemoryPhase.STEP,
            (
                *self._fixed,
                *self._gradients,
                *shard_terms(compute_step_terms(self._what, self._settings), self._settings),
            ),
        )

    @property
    def largest_bytes(self) -> int:
        """The largest single tensor of a step beside the weights."""
        tokens = self._tokens if self._settings.loss is Loss.STANDARD else 0
        pairs = self._settings.micro_batch * self._settings.sequence**2
        return max(
            4 * tokens * self._shape.vocabulary,
            self._tokens * get_residual_bytes(self._settings) * self._widest(),
            pairs
            * max(
                compute_saved_activations(layer, self._shape, self._settings).score_gradients
                for layer in self._shape.layers
            ),
        )

    def _widest(self) -> int:
        return max(layer.active_width for layer in self._shape.layers)

    def _backward(self, early: tuple[Term, ...]) -> tuple[Term, ...]:
        """Stored activations shrink while gradients grow, both evenly: the fullest is the first layer or the last."""
        kept = max(
            (compute_saved_activations(layer, self._shape, self._settings) for layer in self._shape.layers),
            key=self._bytes_of,
        )
        layer = (*self._recomputed(kept), *self._temporaries(kept))
        first = (*self._fixed, *early, *self._stored(), *layer)
        last = (
            *self._fixed,
            *self._gradients,
            *layer,
            *(() if self._settings.checkpointing else self._one_layer(kept)),
        )
        return max(first, last, (*self._fixed, *self._gradients, *self._tied()), key=sum_bytes)

    def _tied(self) -> tuple[Term, ...]:
        """A matrix that is embedding and head has two gradients, which stay beside their sum until it is made."""
        if not self._shape.is_tied or self._settings.method is not Method.FULL:
            return ()
        each = self._settings.precision.bytes
        formula = f"2 x {self._shape.vocabulary:,} x {self._shape.hidden:,} x {each} B, as embedding and as head"
        return (
            Term("gradients of the tied matrix", 2 * self._shape.embedding_parameters * each, formula, LLAMA_SOURCE),
        )

    def _stored(self) -> tuple[Term, ...]:
        """What all layers keep between forward and backward."""
        shape, settings, tokens = self._shape, self._settings, self._tokens
        stream = get_residual_bytes(settings)
        if settings.checkpointing:
            size = shape.depth * tokens * shape.hidden * stream
            formula = f"{shape.depth} layers x {tokens:,} tokens x {shape.hidden:,} x {stream} B"
            return (Term("checkpoints", size, formula, CHECKPOINT_SOURCE), *self._held_by_int8())
        kept = [(layer.count, compute_saved_activations(layer, shape, settings)) for layer in shape.layers]
        per_token = sum(count * each.per_token for count, each in kept)
        scores = settings.micro_batch * settings.sequence**2 * sum(count * each.scores for count, each in kept)
        formula = f"{tokens:,} tokens x {per_token / shape.depth:,.0f} B in each of {shape.depth} layers"
        return (
            Term("activations", tokens * per_token, formula, LLAMA_SOURCE),
            Term("attention scores", scores, self._score_formula(), SDPA_SOURCE),
        )

    def _held_by_int8(self) -> tuple[Term, ...]:
        """LLM.int8() keeps its inputs as attributes, which checkpointing does not know of and does not drop."""
        if self._settings.method is not Method.INT8_LORA:
            return ()
        layers = self._shape.layers
        per_token = sum(layer.count * compute_int8_input_bytes(layer, self._shape, self._settings) for layer in layers)
        formula = f"{self._tokens:,} tokens x {per_token:,} B, in spite of checkpointing"
        return (Term("inputs of int8 products", self._tokens * per_token, formula, INT8_SOURCE),)

    def _score_formula(self) -> str:
        settings = self._settings
        return f"{settings.micro_batch} x {settings.sequence:,}^2 pairs x {self._shape.heads} heads, not fused"

    def _recomputed(self, kept: SavedActivations) -> tuple[Term, ...]:
        return self._one_layer(kept) if self._settings.checkpointing else ()

    def _one_layer(self, kept: SavedActivations) -> tuple[Term, ...]:
        scores = self._settings.micro_batch * self._settings.sequence**2 * kept.scores
        formula = f"{self._tokens:,} tokens x {kept.per_token:,} B"
        return (
            Term("one layer, computed again", self._tokens * kept.per_token, formula, LLAMA_SOURCE),
            Term("attention scores", scores, self._score_formula(), SDPA_SOURCE),
        )

    def _bytes_of(self, kept: SavedActivations) -> int:
        return kept.per_token * self._tokens + kept.scores * self._settings.micro_batch * self._settings.sequence**2

    def _temporaries(self, kept: SavedActivations) -> tuple[Term, ...]:
        """What going back through one layer takes for the moment."""
        pairs = self._settings.micro_batch * self._settings.sequence**2
        scores = Term("gradients of scores", pairs * kept.score_gradients, self._score_formula(), SDPA_SOURCE)
        return (*self._gradients_inside(), scores, *self._unpacked(), *self._dora())

    def _gradients_inside(self) -> tuple[Term, ...]:
        settings, stream = self._settings, get_residual_bytes(self._settings)
        width = self._widest()
        each = 2 * stream
        if settings.method is not Method.FULL and settings.adapter_precision.bytes != stream:
            each += settings.adapter_precision.bytes
        formula = f"{self._tokens:,} tokens x ({width:,} x {each} B + {self._shape.hidden:,} x {stream} B)"
        size = self._tokens * (width * each + self._shape.hidden * stream)
        return (Term("gradients of activations", size, formula, LLAMA_SOURCE),)

    def _unpacked(self) -> tuple[Term, ...]:
        if get_quantization(self._settings) is Quantization.NONE:
            return ()
        largest = max(linear.weights for layer in self._shape.layers for linear in layer.linears)
        each = self._settings.precision.bytes
        return (Term("unpacked weight", largest * each, f"the largest, {largest:,} x {each} B", QLORA_SOURCE),)

    def _dora(self) -> tuple[Term, ...]:
        if not self._settings.dora:
            return ()
        each = self._settings.adapter_precision.bytes
        head = find_adapted_head(self._shape, self._settings)
        linears = [linear for layer in self._shape.layers for linear in find_adapted_linears(layer, self._settings)]
        size = max((_norm_bytes(linear, each) for linear in (*linears, *((head,) if head else ()))), default=0)
        return (
            Term("norm of the adapted weight", size, "identity, product and weight of the largest linear", DORA_SOURCE),
        )

    def _small(self) -> tuple[Term, ...]:
        """Inputs, labels, positions, rotary tables and the last norm; and the workspace of cuBLAS."""
        head = self._shape.query_width // self._shape.heads
        per_token = 3 * INTEGER_BYTES + 2 * head * get_residual_bytes(self._settings) + 4 * self._shape.hidden
        formula = f"{self._tokens:,} tokens x {per_token:,} B"
        return (
            Term("inputs and last norm", self._tokens * per_token, formula, LLAMA_SOURCE),
            CUBLAS_WORKSPACE,
        )


def _norm_bytes(linear: LinearShape, each: int) -> int:
    """DoRA sends an identity through the adapter and adds the product to a copy of the weight."""
    return each * (linear.inputs**2 + 2 * linear.weights)


def _warnings(shape: ModelShape, settings: TrainingSettings) -> tuple[str, ...]:
    found = []
    if any(layer.experts for layer in shape.layers) and get_quantization(settings) is not Quantization.NONE:
        found.append(
            "bitsandbytes leaves the experts as they are: they are fused 3-D tensors, no linear layers "
            "(https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849)"
        )
    if is_attention_eager(shape, settings):
        found.append(
            "attention without a fused kernel is estimated less surely: published runs took up to a quarter more"
        )
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        found.append("activations and logits are not shared out: more GPUs do not make them smaller")
    if shape.max_positions and settings.sequence > shape.max_positions:
        found.append(f"the model was made for at most {shape.max_positions:,} tokens")
    return tuple(found)
