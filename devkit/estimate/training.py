"""How much memory a training step takes: the closed form, term by term."""

from collections.abc import Iterable

from devkit.errors import DevkitError
from devkit.estimate.activations import Kept, bytes_held_by_int8, is_upcast, kept_by, stream_bytes, uses_eager_attention
from devkit.estimate.adapters import adapted, adapted_head
from devkit.estimate.logits import loss_terms
from devkit.estimate.model import MemoryEstimate, Phase, Term
from devkit.estimate.overhead import WORKSPACE, finished
from devkit.estimate.settings import (
    Loss,
    Method,
    Quantisation,
    Sharding,
    TrainingSettings,
)
from devkit.estimate.shape import Linear, ModelShape
from devkit.estimate.sharding import gathered_terms, sharded
from devkit.estimate.terms import (
    CHECKPOINT,
    DORA,
    INT8,
    LAYERS,
    QLORA,
    SDPA,
    present,
    total,
)
from devkit.estimate.trained import (
    PAGED,
    adapter_terms,
    gradient_terms,
    optimizer_terms,
    step_terms,
    trained,
)
from devkit.estimate.weights import weight_terms

INTEGER_BYTES = 8


def estimate_training(shape: ModelShape, settings: TrainingSettings) -> MemoryEstimate:
    """The peak of one process. Raises DevkitError for settings that make no sense together or for this model."""
    refuse_contradictions(shape, settings)
    parts = _Parts(shape, settings)
    phases = {phase: present(terms) for phase, terms in parts.phases()}
    fullest = max(phases, key=lambda phase: total(phases[phase]))
    return finished(
        fullest,
        phases,
        largest_bytes=parts.largest_bytes,
        pageable_bytes=parts.pageable_bytes,
        world=settings.world,
        warnings=_warnings(shape, settings),
    )


def quantisation_of(settings: TrainingSettings) -> Quantisation:
    """How the base is kept while training."""
    if settings.method is Method.INT8_LORA:
        return Quantisation.INT8
    if settings.method is Method.QLORA:
        return Quantisation.NF4_DOUBLE if settings.double_quantisation else Quantisation.NF4
    return Quantisation.NONE


def refuse_contradictions(shape: ModelShape, settings: TrainingSettings) -> None:
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
    if settings.upcast and quantisation_of(settings) is Quantisation.NONE:
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
    if not shape.is_decoder and quantisation_of(settings) is not Quantisation.NONE:
        raise DevkitError(
            f"{shape.name} is an encoder, which is not trained quantised here", "Choose --method full or lora."
        )


class _Parts:
    """The terms of one step, and how they meet in its phases."""

    def __init__(self, shape: ModelShape, settings: TrainingSettings) -> None:
        self._shape, self._settings = shape, settings
        self._tokens = settings.sequence * settings.micro_batch
        self._what = trained(shape, settings)
        weights = weight_terms(shape, quantisation_of(settings), settings.precision, is_upcast=is_upcast(settings))
        state = optimizer_terms(self._what, settings)
        is_paged = settings.optimizer in PAGED
        self.pageable_bytes = total(sharded(state, settings)) if is_paged else 0
        fixed = (*weights, *adapter_terms(self._what, settings), *(() if is_paged else state))
        self._fixed = (*sharded(fixed, settings), *gathered_terms(shape, settings), *self._small())
        self._gradients = sharded(gradient_terms(self._what, settings), settings)

    def phases(self) -> Iterable[tuple[Phase, tuple[Term, ...]]]:
        """The moments at which memory may be fullest, and what is there then."""
        early = self._gradients if self._settings.accumulation > 1 else ()
        loss = loss_terms(self._shape, self._settings, self._tokens)
        yield Phase.LOSS, (*self._fixed, *early, *self._stored(), *loss)
        yield Phase.BACKWARD, self._backward(early)
        yield (
            Phase.STEP,
            (*self._fixed, *self._gradients, *sharded(step_terms(self._what, self._settings), self._settings)),
        )

    @property
    def largest_bytes(self) -> int:
        """The largest single tensor of a step beside the weights."""
        tokens = self._tokens if self._settings.loss is Loss.STANDARD else 0
        pairs = self._settings.micro_batch * self._settings.sequence**2
        return max(
            4 * tokens * self._shape.vocabulary,
            self._tokens * stream_bytes(self._settings) * self._widest(),
            pairs * max(kept_by(layer, self._shape, self._settings).score_gradients for layer in self._shape.layers),
        )

    def _widest(self) -> int:
        return max(layer.active_width for layer in self._shape.layers)

    def _backward(self, early: tuple[Term, ...]) -> tuple[Term, ...]:
        """Stored activations shrink while gradients grow, both evenly: the fullest is the first layer or the last."""
        kept = max((kept_by(layer, self._shape, self._settings) for layer in self._shape.layers), key=self._bytes_of)
        layer = (*self._recomputed(kept), *self._temporaries(kept))
        first = (*self._fixed, *early, *self._stored(), *layer)
        last = (
            *self._fixed,
            *self._gradients,
            *layer,
            *(() if self._settings.checkpointing else self._one_layer(kept)),
        )
        return max(first, last, (*self._fixed, *self._gradients, *self._tied()), key=total)

    def _tied(self) -> tuple[Term, ...]:
        """A matrix that is embedding and head has two gradients, which stay beside their sum until it is made."""
        if not self._shape.is_tied or self._settings.method is not Method.FULL:
            return ()
        each = self._settings.precision.bytes
        formula = f"2 x {self._shape.vocabulary:,} x {self._shape.hidden:,} x {each} B, as embedding and as head"
        return (Term("gradients of the tied matrix", 2 * self._shape.embedding_parameters * each, formula, LAYERS),)

    def _stored(self) -> tuple[Term, ...]:
        """What all layers keep between forward and backward."""
        shape, settings, tokens = self._shape, self._settings, self._tokens
        stream = stream_bytes(settings)
        if settings.checkpointing:
            size = shape.depth * tokens * shape.hidden * stream
            formula = f"{shape.depth} layers x {tokens:,} tokens x {shape.hidden:,} x {stream} B"
            return (Term("checkpoints", size, formula, CHECKPOINT), *self._held_by_int8())
        kept = [(layer.count, kept_by(layer, shape, settings)) for layer in shape.layers]
        per_token = sum(count * each.per_token for count, each in kept)
        scores = settings.micro_batch * settings.sequence**2 * sum(count * each.scores for count, each in kept)
        formula = f"{tokens:,} tokens x {per_token / shape.depth:,.0f} B in each of {shape.depth} layers"
        return (
            Term("activations", tokens * per_token, formula, LAYERS),
            Term("attention scores", scores, self._score_formula(), SDPA),
        )

    def _held_by_int8(self) -> tuple[Term, ...]:
        """LLM.int8() keeps its inputs as attributes, which checkpointing does not know of and does not drop."""
        if self._settings.method is not Method.INT8_LORA:
            return ()
        layers = self._shape.layers
        per_token = sum(layer.count * bytes_held_by_int8(layer, self._shape, self._settings) for layer in layers)
        formula = f"{self._tokens:,} tokens x {per_token:,} B, in spite of checkpointing"
        return (Term("inputs of int8 products", self._tokens * per_token, formula, INT8),)

    def _score_formula(self) -> str:
        settings = self._settings
        return f"{settings.micro_batch} x {settings.sequence:,}^2 pairs x {self._shape.heads} heads, not fused"

    def _recomputed(self, kept: Kept) -> tuple[Term, ...]:
        return self._one_layer(kept) if self._settings.checkpointing else ()

    def _one_layer(self, kept: Kept) -> tuple[Term, ...]:
        scores = self._settings.micro_batch * self._settings.sequence**2 * kept.scores
        formula = f"{self._tokens:,} tokens x {kept.per_token:,} B"
        return (
            Term("one layer, computed again", self._tokens * kept.per_token, formula, LAYERS),
            Term("attention scores", scores, self._score_formula(), SDPA),
        )

    def _bytes_of(self, kept: Kept) -> int:
        return kept.per_token * self._tokens + kept.scores * self._settings.micro_batch * self._settings.sequence**2

    def _temporaries(self, kept: Kept) -> tuple[Term, ...]:
        """What going back through one layer takes for the moment."""
        pairs = self._settings.micro_batch * self._settings.sequence**2
        scores = Term("gradients of scores", pairs * kept.score_gradients, self._score_formula(), SDPA)
        return (*self._gradients_inside(), scores, *self._unpacked(), *self._dora())

    def _gradients_inside(self) -> tuple[Term, ...]:
        settings, stream = self._settings, stream_bytes(self._settings)
        width = self._widest()
        each = 2 * stream
        if settings.method is not Method.FULL and settings.adapter_precision.bytes != stream:
            each += settings.adapter_precision.bytes
        formula = f"{self._tokens:,} tokens x ({width:,} x {each} B + {self._shape.hidden:,} x {stream} B)"
        size = self._tokens * (width * each + self._shape.hidden * stream)
        return (Term("gradients of activations", size, formula, LAYERS),)

    def _unpacked(self) -> tuple[Term, ...]:
        if quantisation_of(self._settings) is Quantisation.NONE:
            return ()
        largest = max(linear.weights for layer in self._shape.layers for linear in layer.linears)
        each = self._settings.precision.bytes
        return (Term("unpacked weight", largest * each, f"the largest, {largest:,} x {each} B", QLORA),)

    def _dora(self) -> tuple[Term, ...]:
        if not self._settings.dora:
            return ()
        each = self._settings.adapter_precision.bytes
        head = adapted_head(self._shape, self._settings)
        linears = [linear for layer in self._shape.layers for linear in adapted(layer, self._settings)]
        size = max((_norm_bytes(linear, each) for linear in (*linears, *((head,) if head else ()))), default=0)
        return (Term("norm of the adapted weight", size, "identity, product and weight of the largest linear", DORA),)

    def _small(self) -> tuple[Term, ...]:
        """Inputs, labels, positions, rotary tables and the last norm; and the workspace of cuBLAS."""
        head = self._shape.query_width // self._shape.heads
        per_token = 3 * INTEGER_BYTES + 2 * head * stream_bytes(self._settings) + 4 * self._shape.hidden
        formula = f"{self._tokens:,} tokens x {per_token:,} B"
        return (
            Term("inputs and last norm", self._tokens * per_token, formula, LAYERS),
            WORKSPACE,
        )


def _norm_bytes(linear: Linear, each: int) -> int:
    """DoRA sends an identity through the adapter and adds the product to a copy of the weight."""
    return each * (linear.inputs**2 + 2 * linear.weights)


def _warnings(shape: ModelShape, settings: TrainingSettings) -> tuple[str, ...]:
    found = []
    if any(layer.experts for layer in shape.layers) and quantisation_of(settings) is not Quantisation.NONE:
        found.append(
            "bitsandbytes leaves the experts as they are: they are fused 3-D tensors, no linear layers "
            "(https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849)"
        )
    if uses_eager_attention(shape, settings):
        found.append(
            "attention without a fused kernel is estimated less surely: published runs took up to a quarter more"
        )
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        found.append("activations and logits are not shared out: more GPUs do not make them smaller")
    if shape.max_positions and settings.sequence > shape.max_positions:
        found.append(f"the model was made for at most {shape.max_positions:,} tokens")
    return tuple(found)
