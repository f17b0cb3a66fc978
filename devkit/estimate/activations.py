"""Activations that a decoder layer saves for its backward pass, in bytes per token, and memory of the loss.

Read in transformers' modeling code and checked against torch.autograd.graph.saved_tensors_hooks, tensor by tensor:
RMSNorm and the query and key norms keep a copy in fp32, attention its inputs and its output, the MLP the gate before
and after the activation and the other half. A linear with a frozen weight keeps nothing; one that trains, carries an
adapter or is in int8 keeps its input, which it shares with its siblings unless the adapter has another data type:
then each adapter has its own copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from devkit.estimate.memory import LIGER_SOURCE, LORA_SOURCE, LOSS_SOURCE, Term
from devkit.estimate.settings import CHUNK_TOKENS, Attention, Loss, Method, Precision, Stack, TrainingSettings
from devkit.estimate.shape import (
    LayerShape,
    LinearInput,
    LinearShape,
    ModelShape,
    find_adapted_head,
    find_adapted_linears,
)

FP32_BYTES = Precision.FP32.bytes
SOFTMAX_BYTES = 4
"""One fp32 number per head and token, which fused attention saves to recompute the softmax."""


@dataclass(frozen=True, kw_only=True)
class SavedActivations:
    """Bytes that one layer saves for one token, by part; `scores` are bytes per pair of tokens."""

    norms: int
    attention: int
    mlp: int
    inputs: int
    """Inputs of linears that are trainable or carry adapters, as far as nothing else saves them."""
    adapters: int
    """Between the two matrices of adapters, and both branches of DoRA."""
    scores: int = 0
    score_gradients: int = 0
    """Bytes per pair of tokens in the backward pass: gradients after and before the softmax, in fp32."""

    @property
    def per_token(self) -> int:
        """All but the scores."""
        return self.norms + self.attention + self.mlp + self.inputs + self.adapters


def uses_math_kernel(shape: ModelShape, settings: TrainingSettings) -> bool:
    """Return whether torch's sdpa on CUDA has none but the math kernel, which materializes the scores.

    Of its fused kernels flash computes no fp32, and the memory-efficient one no grouped heads.
    Source: https://github.com/pytorch/pytorch/pull/181528
    """
    is_fp32 = settings.compute_bytes == FP32_BYTES
    is_grouped = shape.kv_heads < shape.heads and not settings.masked
    return settings.attention is Attention.SDPA and is_fp32 and is_grouped


def is_attention_eager(shape: ModelShape, settings: TrainingSettings) -> bool:
    """Return whether attention materializes the scores of all pairs of tokens."""
    return (
        settings.attention is Attention.EAGER
        or uses_math_kernel(shape, settings)
        or (shape.blocks.needs_eager_attention and settings.attention is not Attention.FLASH)
    )


def compute_saved_activations(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> SavedActivations:
    """Compute what one such layer saves, in bytes per token and per pair of tokens."""
    blocks, each, is_full = shape.blocks, settings.compute_bytes, settings.method is Method.FULL
    norms = blocks.norms * shape.hidden * settings.residual_bytes
    if blocks.has_rms_norm:
        # A trainable weight saves the normed numbers that it is multiplied with.
        weighed = FP32_BYTES if blocks.weighs_in_fp32 else settings.residual_bytes
        over_heads = shape.query_width + shape.kv_width if blocks.has_query_norm else 0
        is_lean = settings.is_lean and shape.can_be_lean
        kept = settings.residual_bytes if is_lean else FP32_BYTES + (weighed if is_full else 0)
        norms = kept * (blocks.norms * shape.hidden + over_heads)
    is_eager = is_attention_eager(shape, settings)
    if is_eager:
        # Keys and values are repeated for every head of their group; those of one head alone need no copy for that.
        is_repeated = shape.kv_heads > 1
        keys_and_values = shape.query_width + shape.value_width if is_repeated else 2 * shape.kv_width
        attention = each * (shape.query_width + keys_and_values)
    else:
        widths = shape.query_width + shape.value_width + 2 * shape.kv_width
        attention = each * widths + SOFTMAX_BYTES * shape.heads
    # bitsandbytes returns the data type of the inputs, under autocast too.
    outputs = settings.residual_bytes if settings.method in {Method.QLORA, Method.INT8_LORA} else each
    mlp = outputs * (2 if settings.is_lean and shape.can_be_lean else shape.mlp_tensors) * layer.intermediate
    if layer.experts is not None:
        width = layer.experts.width
        # Only training saves the inputs of both expert matrices.
        inputs = width + shape.hidden if is_full else 0
        mlp += each * layer.experts.active * (blocks.expert_tensors * width + shape.hidden + inputs)
    adapters = 0
    if not is_full:
        carriers, adapter = find_adapted_linears(layer, settings), settings.adapter_precision.bytes
        adapters = adapter * settings.rank * len(carriers)
        if settings.dora:
            # Both branches are multiplied with the trainable magnitude.
            adapters += (each + adapter) * sum(linear.outputs for linear in carriers)
    return SavedActivations(
        norms=norms,
        attention=attention,
        mlp=mlp,
        inputs=_compute_linear_inputs(layer, shape, settings, is_eager=is_eager),
        adapters=adapters,
        # Eager attention saves the softmax in fp32 and in the type of the computation, the math kernel once.
        scores=shape.heads * (FP32_BYTES + (0 if uses_math_kernel(shape, settings) else each)) if is_eager else 0,
        score_gradients=shape.heads * 2 * FP32_BYTES if is_eager else 0,
    )


_RESIDUAL_INPUTS = (LinearInput.ATTENTION_INPUT, LinearInput.MLP_INPUT)
"""Inputs of linears that a norm makes of the residual stream, in its data type."""


def _compute_linear_inputs(layer: LayerShape, shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    """Compute the inputs that linears save, in bytes per token."""
    each, adapter = settings.compute_bytes, settings.adapter_precision.bytes
    is_cast = settings.residual_bytes != each
    carriers = layer.linears if settings.method is Method.FULL else find_adapted_linears(layer, settings)
    # Under autocast each linear casts the residual stream for itself; what is in 16 bits already is shared.
    from_residual = [linear for linear in carriers if linear.reads in _RESIDUAL_INPUTS]
    if settings.method is Method.FULL:
        shared = [linear for linear in carriers if not is_cast or linear not in from_residual]
        copies = each * sum(linear.inputs for linear in from_residual) if is_cast else 0
        return copies + each * _sum_input_widths(tuple(shared), shape, is_eager=is_eager)
    shared_bytes = 0
    if settings.method is Method.INT8_LORA:
        shared_bytes = each * _sum_input_widths(layer.linears, shape, is_eager=is_eager)
    if adapter != each:
        # The cast to the adapter's type; autocast casts it once more, and that copy is what the adapter saves.
        return shared_bytes + (each if settings.autocast else adapter) * sum(linear.inputs for linear in carriers)
    if settings.method is not Method.INT8_LORA:
        shared = [linear for linear in carriers if not is_cast or linear not in from_residual]
        is_lean = settings.is_lean and shape.can_be_lean
        shared_bytes = each * _sum_input_widths(tuple(shared), shape, is_eager=is_eager, is_lean=is_lean)
    return shared_bytes + (each * sum(linear.inputs for linear in from_residual) if is_cast else 0)


def compute_int8_input_bytes(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> int:
    """Compute the bytes per token of inputs that the linears of an int8 base hold, attention's output included."""
    return settings.residual_bytes * _sum_input_widths(layer.linears, shape, is_eager=True)


def _sum_input_widths(
    linears: tuple[LinearShape, ...], shape: ModelShape, *, is_eager: bool, is_lean: bool = False
) -> int:
    """Sum the widths of the inputs of these linears, each tensor once, as far as nothing else saves it."""
    widths = {linear.reads: linear.inputs for linear in linears}
    if shape.blocks.is_parallel and LinearInput.ATTENTION_INPUT in widths:
        widths.pop(LinearInput.MLP_INPUT, None)
    if not is_eager:
        widths.pop(LinearInput.ATTENTION_OUTPUT, None)
    if shape.keeps_activated:
        widths.pop(LinearInput.MLP_INSIDE, None)
    if is_lean:
        for derived in (LinearInput.ATTENTION_INPUT, LinearInput.MLP_INPUT, LinearInput.MLP_INSIDE):
            widths.pop(derived, None)
    return sum(widths.values())


# ---- The loss: logits are as wide as the vocabulary, and several copies of them are the usual peak.

COPIES = 3
"""fp32 tensors as large as the logits that are alive when the loss goes backward: the logarithm of the softmax, its
gradient, and that of the logits."""
DIVIDED_COPIES = 4
"""The same where TRL 1.0 to 1.9 divide logits by GRPO's temperature in place, which goes backward through a copy: the
gradient, two copies of it, and the quotient. Earlier and later versions have COPIES."""
DIVIDED_SOURCE = "https://github.com/huggingface/trl/blob/v1.9.0/trl/trainer/grpo_trainer.py"
OUTPUTS_OF_ADAPTED = 3
"""Outputs of an adapted head as large as the logits: the product with its weight, that with the adapter, their sum."""
CHUNKED_SOURCE = "https://arxiv.org/abs/2411.09009"
"""Cross-entropy without whole logits."""


TRL_SOURCE = "https://github.com/huggingface/trl/blob/v1.16.0/trl/kernels/chunked_logprob.py"
TRL_TILE = (4096, 32768)
"""Tokens, and numbers of the vocabulary, of which TRL has logits in memory at once."""


def compute_loss_terms(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """Compute the memory of the loss of `tokens` tokens at its fullest, beyond what layers save."""
    if not shape.is_decoder:
        return ()
    is_adapted = settings.method is not Method.FULL and find_adapted_head(shape, settings) is not None
    match settings.loss:
        case Loss.STANDARD:
            outputs = (_compute_adapted_outputs(shape, settings, tokens),) if is_adapted else ()
            return (*_compute_standard_loss(shape, settings, tokens), *outputs)
        case Loss.CHUNKED if settings.stack is Stack.TRL and not is_adapted:
            return tuple(_compute_tiled_loss(shape, settings, tokens))
        case Loss.FUSED if not is_adapted:
            return tuple(_compute_fused_loss(shape, settings, tokens))
        case _:
            return tuple(_compute_chunked_loss(shape, settings, tokens, is_adapted=is_adapted))


def _compute_standard_loss(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Iterator[Term]:
    """Compute whole logits. Under autocast accelerate returns them in fp32; cross-entropy casts them itself."""
    tokens -= settings.unscored_tokens
    logits, size = tokens * shape.vocabulary, f"{tokens:,} tokens x {shape.vocabulary:,}"
    copies, width, source = COPIES, FP32_BYTES, LOSS_SOURCE
    if settings.objective is settings.objective.GRPO:
        copies, source = DIVIDED_COPIES, DIVIDED_SOURCE
        width = FP32_BYTES if settings.autocast else settings.compute_bytes
    yield Term("loss", copies * width * logits, f"{copies} copies x {size} x {width} B", source)
    if settings.keeps_outputs:
        # In fp32 the head's own output is what the loss reads; in 16 bits it stays beside the copy in fp32.
        each = settings.compute_bytes
        yield Term("held logits", each * logits, f"{size} x {each} B, still held as outputs.logits", LOSS_SOURCE)


def _compute_chunked_loss(
    shape: ModelShape, settings: TrainingSettings, tokens: int, *, is_adapted: bool
) -> Iterator[Term]:
    chunk = min(CHUNK_TOKENS, tokens)
    size = f"{chunk:,} tokens at a time x {shape.vocabulary:,}"
    if is_adapted:
        # A head that is more than a matrix: each chunk is recomputed in the backward pass, as whole logits are.
        loss_bytes, formula = COPIES * FP32_BYTES, f"{COPIES} copies x {size} x {FP32_BYTES} B"
    else:
        # The product with the head in 16 bits beside its copy in fp32, then the gradient in 16 bits beside it. In fp32
        # there are no copies.
        is_copied = settings.compute_bytes != FP32_BYTES
        loss_bytes = FP32_BYTES + (settings.compute_bytes if is_copied else 0)
        formula = f"{size} x {loss_bytes} B"
    yield Term("loss", chunk * shape.vocabulary * loss_bytes, formula, CHUNKED_SOURCE)
    if is_adapted:
        yield _compute_adapted_outputs(shape, settings, chunk)
    yield _compute_hidden_states(shape, settings, tokens, copies=2)
    if not is_adapted:
        yield from _compute_head_gradient(shape, settings)


def _compute_tiled_loss(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Iterator[Term]:
    """Compute TRL's loss: tiles of logits, and the gradient of the hidden states in fp32 beside its rounded copy."""
    tile = min(TRL_TILE[0], tokens), min(TRL_TILE[1], shape.vocabulary)
    each = settings.compute_bytes
    formula = f"{tile[0]:,} tokens x {tile[1]:,} numbers of the vocabulary at a time x {each} B"
    yield Term("loss", tile[0] * tile[1] * each, formula, TRL_SOURCE)
    width = FP32_BYTES + settings.residual_bytes
    formula = f"{tokens:,} tokens x {shape.hidden:,} x {width} B"
    yield Term("hidden states at the loss", tokens * shape.hidden * width, formula, TRL_SOURCE)
    yield from _compute_head_gradient(shape, settings)


def _compute_fused_loss(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Iterator[Term]:
    ratio = -(-shape.vocabulary // shape.hidden)
    chunk = min(tokens, 1 << (-(-tokens // ratio) - 1).bit_length())
    each = settings.residual_bytes
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    yield Term("loss", chunk * shape.vocabulary * each, formula, LIGER_SOURCE)
    yield _compute_hidden_states(shape, settings, tokens, copies=1)
    yield from _compute_head_gradient(shape, settings)


def _compute_adapted_outputs(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Term:
    size = OUTPUTS_OF_ADAPTED * tokens * shape.vocabulary * settings.residual_bytes
    formula = f"{OUTPUTS_OF_ADAPTED} x {tokens:,} tokens x {shape.vocabulary:,} x {settings.residual_bytes} B"
    return Term("outputs of the adapted head", size, formula, LORA_SOURCE)


def _compute_hidden_states(shape: ModelShape, settings: TrainingSettings, tokens: int, *, copies: int) -> Term:
    size = copies * tokens * shape.hidden * settings.residual_bytes
    formula = f"{copies} x {tokens:,} tokens x {shape.hidden:,} x {settings.residual_bytes} B"
    return Term("hidden states at the loss", size, formula, CHUNKED_SOURCE)


def _compute_head_gradient(shape: ModelShape, settings: TrainingSettings) -> Iterator[Term]:
    """Compute the gradient of a trainable head: accumulated in fp32 over the chunks, beside that of the current one."""
    if settings.method is Method.FULL:
        each = FP32_BYTES + settings.precision.bytes
        formula = f"{shape.vocabulary:,} x {shape.hidden:,} x {each} B"
        yield Term("gradient of the head", shape.head_width * each, formula, CHUNKED_SOURCE)
