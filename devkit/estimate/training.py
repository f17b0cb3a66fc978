"""Memory of a training step in closed form, term by term: gradients, optimizer state, sharding, activations."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from devkit.errors import DevkitError
from devkit.estimate.activations import (
    FP32_BYTES,
    SavedActivations,
    compute_int8_input_bytes,
    compute_loss_terms,
    compute_saved_activations,
    is_attention_eager,
)
from devkit.estimate.inference import compute_generation_terms
from devkit.estimate.memory import (
    ADAMW_SOURCE,
    AUTOCAST_SOURCE,
    CHECKPOINT_SOURCE,
    CUBLAS_WORKSPACE,
    DDP_SOURCE,
    DORA_SOURCE,
    DPO_SOURCE,
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
    build_memory_estimate,
    format_millions,
    sum_bytes,
)
from devkit.estimate.settings import (
    InferenceSettings,
    Loss,
    Method,
    Objective,
    Optimizer,
    Quantization,
    Sharding,
    Stack,
    TrainingSettings,
    validate_sizes,
)
from devkit.estimate.shape import (
    ModelShape,
    compute_weight_terms,
    count_adapter_parameters,
    find_adapted_head,
    find_adapted_linears,
)

_OF_OPTIMIZER = ("optimizer state", "optimizer temporaries")
_OF_MODEL = ("adapters", "weights", "unquantized weights", "packed weights")
_SHARDED: dict[Sharding, tuple[str, ...]] = {
    Sharding.DDP: (),
    Sharding.ZERO1: _OF_OPTIMIZER,
    Sharding.ZERO2: (*_OF_OPTIMIZER, "gradients"),
    Sharding.ZERO3: (*_OF_OPTIMIZER, "gradients", *_OF_MODEL),
}
"""Terms of which every rank holds its shard. Source: section 5 of the ZeRO paper.

The scales of packed weights are not parameters: they stay whole beside each part. Source: bitsandbytes 0.50,
nn/modules.py, Params4bit.quant_state.
"""

INTEGER_BYTES = 8
HIDDEN_STATES_SOURCE = "https://github.com/huggingface/trl/blob/v0.23.1/trl/trainer/dpo_trainer.py"
GATHERED_LAYERS = 2
"""The layer at work and the one fetched meanwhile. Source: section 3.3 of the FSDP paper."""


def shard_terms(terms: Iterable[Term], settings: TrainingSettings) -> tuple[Term, ...]:
    """Return each term as large as one rank's shard of it."""
    world, sharded = settings.world, _SHARDED[settings.sharding]
    return tuple(
        Term(term.name, -(-term.bytes // world), f"({term.formula}) / {world}", ZERO_SOURCE)
        if term.name in sharded
        else term
        for term in terms
    )


def compute_gathered_terms(shape: ModelShape, settings: TrainingSettings) -> tuple[Term, ...]:
    """Compute the layers that ZeRO-3 gathers temporarily, and embedding and head, which belong to no layer."""
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


OPTIMIZERS_8BIT = frozenset({Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT})
PAGED_OPTIMIZERS = frozenset({Optimizer.PAGED_ADAMW, Optimizer.PAGED_ADAMW_8BIT})
ADAMW_MOMENTS = 2
"""AdamW keeps a mean and a mean of squares for every trainable parameter."""
BLOCK_8BIT = 256
"""Numbers that share one fp32 scale in 8-bit optimizers."""


@dataclass(frozen=True, kw_only=True)
class TrainedParameters:
    """The trainable parameters, and bytes of each."""

    parameters: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        """All of them once."""
        return self.parameters * self.bytes_each


def count_trained_parameters(shape: ModelShape, settings: TrainingSettings) -> TrainedParameters:
    """Count the trainable parameters. Raises DevkitError for an adapter's target that the model does not have."""
    if settings.method is Method.FULL:
        return TrainedParameters(parameters=shape.parameters, bytes_each=settings.precision.bytes)
    return TrainedParameters(
        parameters=count_adapter_parameters(shape, settings),
        bytes_each=settings.adapter_precision.bytes,
    )


def compute_gradient_terms(trained: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """Compute the gradients, and DDP's buckets, through which they reach the other ranks."""
    formula = f"{format_millions(trained.parameters)} x {trained.bytes_each} B"
    terms = [Term("gradients", trained.bytes, formula, ADAMW_SOURCE)]
    if settings.world > 1 and settings.sharding is settings.sharding.DDP:
        terms.append(Term("DDP buckets", trained.bytes, f"{formula}, a copy of the gradients", DDP_SOURCE))
    return tuple(terms)


def compute_optimizer_terms(trained: TrainedParameters, settings: TrainingSettings) -> tuple[Term, ...]:
    """Compute the optimizer's state, in memory from the first step on."""
    numbers = ADAMW_MOMENTS * trained.parameters
    if settings.optimizer in OPTIMIZERS_8BIT:
        scales = 4 * -(-numbers // BLOCK_8BIT)
        formula = f"{ADAMW_MOMENTS} x {format_millions(trained.parameters)} x (1 B + 4 B / {BLOCK_8BIT})"
        return (Term("optimizer state", numbers + scales, formula, OPTIMIZER_8BIT_SOURCE),)
    if settings.has_masters:
        copies = ADAMW_MOMENTS + 1
        formula = f"{copies} x {format_millions(trained.parameters)} x 4 B, including a copy in fp32"
        return (Term("optimizer state", copies * trained.parameters * 4, formula, ADAMW_SOURCE),)
    each = 4 if settings.optimizer in PAGED_OPTIMIZERS else trained.bytes_each
    formula = f"{ADAMW_MOMENTS} x {format_millions(trained.parameters)} x {each} B"
    return (Term("optimizer state", numbers * each, formula, ADAMW_SOURCE),)


def estimate_training(shape: ModelShape, settings: TrainingSettings) -> MemoryEstimate:
    """Estimate the peak of one process, in bytes.

    Raises DevkitError for settings that make no sense together or for this model.
    """
    validate_training_settings(shape, settings)
    if settings.objective is Objective.REWARD:
        # Its head makes one number of a row, in the place of logits.
        shape = replace(shape, head_parameters=shape.hidden)
    step = _TrainingStep(shape, settings)
    phases = {
        MemoryPhase.LOSS: step.loss_terms(),
        MemoryPhase.BACKWARD: step.backward_terms(),
        MemoryPhase.STEP: step.optimizer_step_terms(),
    }
    if settings.objective is Objective.GRPO:
        phases[MemoryPhase.DECODE] = step.generation_terms()
    return build_memory_estimate(
        phases,
        largest_bytes=step.largest_bytes,
        pageable_bytes=step.pageable_bytes,
        world=settings.world,
        warnings=tuple(_list_warnings(shape, settings)),
    )


def get_quantization(settings: TrainingSettings) -> Quantization:
    """Return the format of the base model's weights during training."""
    if settings.method is Method.INT8_LORA:
        return Quantization.INT8
    if settings.method is Method.QLORA:
        return Quantization.NF4_DOUBLE if settings.double_quantization else Quantization.NF4
    return Quantization.NONE


def validate_training_settings(shape: ModelShape, settings: TrainingSettings) -> None:
    """Raise DevkitError for settings that exclude each other or that the model rules out."""
    sizes = {
        "--max-length": settings.sequence,
        "--micro-batch": settings.micro_batch,
        "--rank": settings.rank,
        "--world": settings.world,
        "--set accumulation": settings.accumulation,
        "--set completions": settings.completions,
    }
    validate_sizes(sizes)
    if not 0 <= settings.prompt < settings.sequence:
        raise DevkitError(
            f"--set prompt={settings.prompt} leaves nothing of --max-length {settings.sequence} to learn",
            "Give the number of tokens in a row that come before the answer, or 0 if it is not known.",
        )
    is_quantized = get_quantization(settings) is not Quantization.NONE
    if settings.upcast and not is_quantized:
        raise DevkitError(
            f"--set upcast has no effect on {settings.method}: nothing is quantized",
            "Choose --method qlora or int8-lora, or omit --set upcast.",
        )
    if settings.autocast and settings.stack is Stack.DEVKIT:
        raise DevkitError(
            "--set autocast has no effect on devkit's own loop, which computes in the precision of its weights",
            "Add --stack trainer or trl, or omit --set autocast.",
        )
    if settings.dora and settings.method is Method.FULL:
        raise DevkitError("--dora has no effect on full fine-tuning", "Choose --method lora, qlora or int8-lora.")
    if settings.sharding is not Sharding.DDP and settings.world == 1:
        raise DevkitError(
            f"--sharding {settings.sharding} needs more than one process", "Give --world, the number of GPUs."
        )
    if not shape.is_decoder and is_quantized:
        raise DevkitError(
            f"{shape.name} is an encoder; devkit does not train encoders quantized", "Choose --method full or lora."
        )


class _TrainingStep:
    """The terms of one optimizer step, and those of them that are in memory together."""

    def __init__(self, shape: ModelShape, settings: TrainingSettings) -> None:
        self._shape, self._settings = shape, settings
        self._tokens = settings.sequence * settings.rows
        self._pairs = settings.rows * settings.sequence**2
        self._residual_bytes = settings.residual_bytes
        self._trained = count_trained_parameters(shape, settings)
        self._saved = [(layer.count, compute_saved_activations(layer, shape, settings)) for layer in shape.layers]
        self._widest = max(layer.active_width for layer in shape.layers)
        quantization, is_paged = get_quantization(settings), settings.optimizer in PAGED_OPTIMIZERS
        self._is_quantized = quantization is not Quantization.NONE
        weights = compute_weight_terms(shape, quantization, settings.precision, is_upcast=settings.is_upcast)
        state = compute_optimizer_terms(self._trained, settings)
        # With adapters, the reference is the base, computed without them.
        has_copy = settings.objective is Objective.DPO and settings.method is Method.FULL
        reference = (Term("reference model", sum_bytes(weights), "the weights again, frozen", DPO_SOURCE),)
        weights = (*weights, *(reference if has_copy else ()))
        trained = self._trained
        formula = f"{format_millions(trained.parameters)} at rank {settings.rank} x {trained.bytes_each} B"
        adapters = (Term("adapters", trained.bytes, formula, LORA_SOURCE),)
        fixed = (*weights, *(() if settings.method is Method.FULL else adapters), *(() if is_paged else state))
        self.pageable_bytes = sum_bytes(shard_terms(state, settings)) if is_paged else 0
        # Inputs, labels, positions, rotary tables and the last norm.
        head = shape.query_width // shape.heads
        per_token = 3 * INTEGER_BYTES + 2 * head * self._residual_bytes + 4 * shape.hidden
        formula = f"{self._tokens:,} tokens x {per_token:,} B"
        self._fixed = (
            *shard_terms(fixed, settings),
            *compute_gathered_terms(shape, settings),
            Term("inputs and last norm", self._tokens * per_token, formula, LLAMA_SOURCE),
            CUBLAS_WORKSPACE,
        )
        self._gradients = shard_terms(compute_gradient_terms(self._trained, settings), settings)
        # With gradient accumulation, gradients are in memory from the second micro-batch on.
        self._early_gradients = self._gradients if settings.accumulation > 1 else ()

    @property
    def largest_bytes(self) -> int:
        """The largest single tensor of a step beside the weights."""
        scored = self._tokens - self._settings.unscored_tokens if self._settings.loss is Loss.STANDARD else 0
        return max(
            4 * scored * self._shape.vocabulary,
            self._tokens * self._residual_bytes * self._widest,
            self._pairs * max(saved.score_gradients for _, saved in self._saved),
        )

    def loss_terms(self) -> tuple[Term, ...]:
        """The terms in memory while the loss is computed."""
        has_logits = self._settings.objective is not Objective.REWARD
        loss = compute_loss_terms(self._shape, self._settings, self._tokens) if has_logits else ()
        cast = self._compute_cast_weights(is_forward=True)
        held = (*self._fixed, *self._early_gradients, *self._compute_stored(), *cast)
        return max((*held, *loss), (*held, *self._compute_reference_pass()), key=sum_bytes)

    def _compute_reference_pass(self) -> tuple[Term, ...]:
        """Compute what a reference model's pass takes that returns the hidden states of all layers.

        Nothing of it is checkpointed; under autocast, accelerate returns a copy of all outputs in fp32. Meanwhile the
        logits of the trained model wait for their backward pass.
        """
        shape, settings, each = self._shape, self._settings, self._residual_bytes
        if settings.objective is not Objective.DPO or not settings.hidden_states:
            return ()
        cast = FP32_BYTES if settings.autocast and each != FP32_BYTES else 0
        states = (shape.depth + 1) * self._tokens * shape.hidden * (each + cast)
        formula = f"{shape.depth + 1} x {self._tokens:,} tokens x {shape.hidden:,} x {each + cast} B"
        scored, of_both = self._tokens - settings.unscored_tokens, (cast or each) + each + cast
        logits_formula = f"{scored:,} tokens x {shape.vocabulary:,} x {of_both} B, of both models"
        return (
            Term("hidden states of the reference", states, formula, HIDDEN_STATES_SOURCE),
            Term("logits", scored * shape.vocabulary * of_both, logits_formula, HIDDEN_STATES_SOURCE),
        )

    def generation_terms(self) -> tuple[Term, ...]:
        """The terms in memory while GRPO generates all completions of a step: caches grow to whole rows."""
        settings = self._settings
        prompt = settings.prompt or -(-settings.sequence // 2)
        generation = InferenceSettings(
            prompt=prompt,
            new=settings.sequence - prompt,
            sequences=settings.completions,
            precision=settings.precision,
            attention=settings.attention,
        )
        return (*self._fixed, *compute_generation_terms(self._shape, generation))

    def optimizer_step_terms(self) -> tuple[Term, ...]:
        """The terms in memory while the optimizer steps."""
        held, trained = (*self._fixed, *self._gradients), self._trained
        if self._settings.optimizer is not Optimizer.ADAMW_FOREACH:
            return held
        # `foreach` computes all denominators at once, fused and 8-bit optimizers have no temporaries.
        formula = f"{format_millions(trained.parameters)} x {trained.bytes_each} B, computed for all tensors at once"
        temporaries = Term("optimizer temporaries", trained.bytes, formula, ADAMW_SOURCE)
        return (*held, *shard_terms([temporaries], self._settings))

    def backward_terms(self) -> tuple[Term, ...]:
        """The terms in memory at the fullest moment of the backward pass.

        Stored activations shrink while gradients grow, both evenly: the fullest is the first layer or the last. A
        matrix that is embedding and head has two gradients, which stay in memory until they are summed.
        """
        tokens, pairs = self._tokens, self._pairs
        layers = (saved for _, saved in self._saved)
        saved = max(layers, key=lambda each: each.per_token * tokens + each.scores * pairs)
        formula = f"{tokens:,} tokens x {saved.per_token:,} B"
        one_layer = (
            Term("one layer, recomputed", tokens * saved.per_token, formula, LLAMA_SOURCE),
            Term("attention scores", pairs * saved.scores, self._score_formula(), SDPA_SOURCE),
        )
        temporaries = (*self._compute_temporaries(saved), *self._compute_cast_weights(is_forward=False))
        recomputed = one_layer if self._settings.checkpointing else ()
        first = (*self._fixed, *self._early_gradients, *self._compute_stored(), *recomputed, *temporaries)
        # Without checkpointing the last layer's activations are still stored.
        stored = () if self._settings.checkpointing else one_layer
        last = (*self._fixed, *self._gradients, *recomputed, *temporaries, *stored)
        tied = (*self._fixed, *self._gradients, *self._compute_tied_gradients())
        return max(first, last, tied, key=sum_bytes)

    def _compute_cast_weights(self, *, is_forward: bool) -> tuple[Term, ...]:
        """Compute the 16-bit copies of fp32 weights that autocast makes.

        They are saved for the backward pass, with checkpointing those of one layer. Copies of weights that are trained
        also stay until the forward pass ends.
        """
        shape, settings = self._shape, self._settings
        weights = shape.head_width
        if not self._is_quantized:
            is_cached = is_forward and settings.method is Method.FULL
            counts = [(layer.count, sum(each.weights for each in layer.linears)) for layer in shape.layers]
            if settings.checkpointing and not is_cached:
                weights += max(each for _, each in counts)
            else:
                weights += sum(count * each for count, each in counts)
        if not settings.autocast or settings.residual_bytes != FP32_BYTES:
            return ()
        size = weights * settings.compute_bytes
        return (Term("weights cast by autocast", size, f"{format_millions(weights)} x 2 B", AUTOCAST_SOURCE),)

    def _compute_stored(self) -> tuple[Term, ...]:
        """Compute what all layers save between forward and backward pass."""
        shape, settings, tokens, each = self._shape, self._settings, self._tokens, self._residual_bytes
        if not settings.checkpointing:
            per_token = sum(count * saved.per_token for count, saved in self._saved)
            scores = self._pairs * sum(count * saved.scores for count, saved in self._saved)
            formula = f"{tokens:,} tokens x {per_token / shape.depth:,.0f} B in each of {shape.depth} layers"
            return (
                Term("activations", tokens * per_token, formula, LLAMA_SOURCE),
                Term("attention scores", scores, self._score_formula(), SDPA_SOURCE),
            )
        size = shape.depth * tokens * shape.hidden * each
        formula = f"{shape.depth} layers x {tokens:,} tokens x {shape.hidden:,} x {each} B"
        checkpoints = Term("checkpoints", size, formula, CHECKPOINT_SOURCE)
        if settings.method is not Method.INT8_LORA:
            return (checkpoints,)
        # LLM.int8() keeps its inputs as attributes, which checkpointing does not know of and does not drop.
        per_token = sum(layer.count * compute_int8_input_bytes(layer, shape, settings) for layer in shape.layers)
        formula = f"{tokens:,} tokens x {per_token:,} B, despite checkpointing"
        return checkpoints, Term("inputs of int8 products", tokens * per_token, formula, INT8_SOURCE)

    def _compute_temporaries(self, saved: SavedActivations) -> tuple[Term, ...]:
        """Compute what the backward pass through one layer takes temporarily."""
        shape, settings, tokens, each = self._shape, self._settings, self._tokens, self._residual_bytes
        per_neuron = 2 * settings.compute_bytes
        if settings.method is not Method.FULL and settings.adapter_precision.bytes != each:
            per_neuron += settings.adapter_precision.bytes
        formula = f"{tokens:,} tokens x ({self._widest:,} x {per_neuron} B + {shape.hidden:,} x {each} B)"
        size = tokens * (self._widest * per_neuron + shape.hidden * each)
        terms = [
            Term("gradients of activations", size, formula, LLAMA_SOURCE),
            Term("gradients of scores", self._pairs * saved.score_gradients, self._score_formula(), SDPA_SOURCE),
        ]
        if self._is_quantized:
            largest = max(linear.weights for layer in shape.layers for linear in layer.linears)
            formula = f"the largest, {largest:,} x {settings.precision.bytes} B"
            terms.append(Term("unpacked weight", largest * settings.precision.bytes, formula, QLORA_SOURCE))
        if settings.dora:
            # DoRA sends an identity through the adapter and adds the product to a copy of the weight.
            head = find_adapted_head(shape, settings)
            linears = [linear for layer in shape.layers for linear in find_adapted_linears(layer, settings)]
            numbers = (linear.inputs**2 + 2 * linear.weights for linear in (*linears, *((head,) if head else ())))
            formula = "identity, product and weight of the largest linear"
            size = settings.adapter_precision.bytes * max(numbers, default=0)
            terms.append(Term("norm of the adapted weight", size, formula, DORA_SOURCE))
        return tuple(terms)

    def _compute_tied_gradients(self) -> tuple[Term, ...]:
        shape, each = self._shape, self._settings.precision.bytes
        if not shape.is_tied or self._settings.method is not Method.FULL:
            return ()
        formula = f"2 x {shape.vocabulary:,} x {shape.hidden:,} x {each} B, as embedding and as head"
        return (Term("gradients of the tied matrix", 2 * shape.embedding_parameters * each, formula, LLAMA_SOURCE),)

    def _score_formula(self) -> str:
        settings = self._settings
        return f"{settings.rows} x {settings.sequence:,}^2 pairs x {self._shape.heads} heads, not fused"


_COMPARED = {
    Objective.DPO: "was compared with 2 published runs, of LoRA on TRL 0.23: 0.8% off, after they corrected it",
    Objective.GRPO: (
        "was compared with 10 published runs, of QLoRA on whole logits: 0.3% off in the median, 16% at worst; "
        "7 of them corrected it"
    ),
}
"""What benchmarks/estimate_accuracy.py found of allocated memory, by objective."""


def _list_warnings(shape: ModelShape, settings: TrainingSettings) -> Iterator[str]:
    if any(layer.experts for layer in shape.layers) and get_quantization(settings) is not Quantization.NONE:
        yield (
            "bitsandbytes does not quantize the experts: they are fused 3-D tensors, not linear layers "
            "(https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1849)"
        )
    if settings.objective is not Objective.SFT:
        compared = _COMPARED.get(settings.objective, "has not been compared with measured runs")
        yield f"the estimate for {settings.objective} {compared}"
    if is_attention_eager(shape, settings):
        yield "estimates for attention without a fused kernel are less certain: published runs used up to a quarter more"
    if settings.world > 1 and settings.sharding is not Sharding.DDP:
        yield "activations and logits are not sharded, so more GPUs do not reduce them"
    if shape.max_positions and settings.sequence > shape.max_positions:
        yield f"the model was made for at most {shape.max_positions:,} tokens"
