"""Activations that a decoder layer saves for its backward pass, in bytes per token, and memory of the loss.

Read in transformers' modeling code and checked against torch.autograd.graph.saved_tensors_hooks, tensor by tensor:
RMSNorm and the query and key norms keep a copy in fp32, attention its inputs and its output, the MLP the gate before
and after the activation and the other half. A linear with a frozen weight keeps nothing; one that trains, carries an
adapter or is in int8 keeps its input, which it shares with its siblings unless the adapter has another data type:
then each adapter has a copy of its own.
"""

from collections.abc import Iterator

from devkit.estimate.memory import LIGER_SOURCE, LORA_SOURCE, LOSS_SOURCE, Term
from devkit.estimate.settings import CHUNK_TOKENS, Attention, Loss, Method, Precision, TrainingSettings
from devkit.estimate.shape import LayerShape, LinearInput, LinearShape, ModelShape
from devkit.estimate.weights import find_adapted_head, find_adapted_linears
from devkit.facts.values import keyword_record

FP32_BYTES = Precision.FP32.bytes
SOFTMAX_BYTES = 4
"""One fp32 number per head and token, which fused attention saves to recompute the softmax."""


@keyword_record
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


def get_residual_bytes(settings: TrainingSettings) -> int:
    """Return the bytes of one number of the residual stream."""
    return FP32_BYTES if is_upcast(settings) else settings.precision.bytes


def is_upcast(settings: TrainingSettings) -> bool:
    """Return whether everything that is not packed was cast to fp32 before training."""
    return settings.upcast and settings.method in {Method.QLORA, Method.INT8_LORA}


def is_attention_eager(shape: ModelShape, settings: TrainingSettings) -> bool:
    """Return whether attention materializes the scores of all pairs of tokens."""
    return settings.attention is Attention.EAGER or (
        shape.blocks.needs_eager_attention and settings.attention is not Attention.FLASH
    )


def compute_saved_activations(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> SavedActivations:
    """Compute what one such layer saves, in bytes per token and per pair of tokens."""
    blocks, each, is_full = shape.blocks, get_residual_bytes(settings), settings.method is Method.FULL
    norms = blocks.norms * shape.hidden * each
    if blocks.has_rms_norm:
        # A trainable weight saves the normed numbers that it is multiplied with.
        weighed = FP32_BYTES if blocks.weighs_in_fp32 else each
        over_heads = shape.query_width + shape.kv_width if blocks.has_query_norm else 0
        norms = (FP32_BYTES + (weighed if is_full else 0)) * (blocks.norms * shape.hidden + over_heads)
    is_eager = is_attention_eager(shape, settings)
    if is_eager:
        # Keys and values are repeated for every head of their group; those of one head alone need no copy for that.
        is_repeated = shape.kv_heads > 1
        keys_and_values = shape.query_width + shape.value_width if is_repeated else 2 * shape.kv_width
        attention = each * (shape.query_width + keys_and_values)
    else:
        widths = shape.query_width + shape.value_width + 2 * shape.kv_width
        attention = each * widths + SOFTMAX_BYTES * shape.heads
    mlp = each * shape.mlp_tensors * layer.intermediate
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
        scores=shape.heads * (FP32_BYTES + each) if is_eager else 0,
        score_gradients=shape.heads * 2 * FP32_BYTES if is_eager else 0,
    )


def _compute_linear_inputs(layer: LayerShape, shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    """Compute the inputs that linears save, in bytes per token."""
    each, adapter = get_residual_bytes(settings), settings.adapter_precision.bytes
    if settings.method is Method.FULL:
        return each * _sum_input_widths(layer.linears, shape, is_eager=is_eager)
    carriers = find_adapted_linears(layer, settings)
    shared = 0
    if settings.method is Method.INT8_LORA:
        shared = each * _sum_input_widths(layer.linears, shape, is_eager=is_eager)
    elif adapter == each:
        shared = each * _sum_input_widths(carriers, shape, is_eager=is_eager)
    copies = 0 if adapter == each else adapter * sum(linear.inputs for linear in carriers)
    return shared + copies


def compute_int8_input_bytes(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> int:
    """Compute the bytes per token of inputs that the linears of an int8 base hold, attention's output included."""
    return get_residual_bytes(settings) * _sum_input_widths(layer.linears, shape, is_eager=True)


def _sum_input_widths(linears: tuple[LinearShape, ...], shape: ModelShape, *, is_eager: bool) -> int:
    """Sum the widths of the inputs of these linears, each tensor once, as far as nothing else saves it."""
    widths = {linear.reads: linear.inputs for linear in linears}
    if shape.blocks.is_parallel and LinearInput.ATTENTION_INPUT in widths:
        widths.pop(LinearInput.MLP_INPUT, None)
    if not is_eager:
        widths.pop(LinearInput.ATTENTION_OUTPUT, None)
    if shape.keeps_activated:
        widths.pop(LinearInput.MLP_INSIDE, None)
    return sum(widths.values())


# ---- The loss: logits are as wide as the vocabulary, and several copies of them are the usual peak.

COPIES = 3
"""fp32 tensors as large as the logits that are alive when the loss goes backward: the logarithm of the softmax, its
gradient, and that of the logits."""
OUTPUTS_OF_ADAPTED = 3
"""Outputs of an adapted head as large as the logits: the product with its weight, that with the adapter, their sum."""
CHUNKED_SOURCE = "https://arxiv.org/abs/2411.09009"
"""Cross-entropy without whole logits."""


def compute_loss_terms(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """Compute the memory of the loss of `tokens` tokens at its fullest, beyond what layers save."""
    if not shape.is_decoder:
        return ()
    is_adapted = settings.method is not Method.FULL and find_adapted_head(shape, settings) is not None
    match settings.loss:
        case Loss.STANDARD:
            outputs = (_compute_adapted_outputs(shape, settings, tokens),) if is_adapted else ()
            return (*_compute_standard_loss(shape, settings, tokens), *outputs)
        case Loss.FUSED if not is_adapted:
            return tuple(_compute_fused_loss(shape, settings, tokens))
        case _:
            return tuple(_compute_chunked_loss(shape, settings, tokens, is_adapted=is_adapted))


def _compute_standard_loss(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Iterator[Term]:
    logits, size = tokens * shape.vocabulary, f"{tokens:,} tokens x {shape.vocabulary:,}"
    yield Term("loss", COPIES * FP32_BYTES * logits, f"{COPIES} copies x {size} x 4 B", LOSS_SOURCE)
    if settings.keeps_outputs:
        # In fp32 the head's own output is what the loss reads; in 16 bits it stays beside the copy in fp32.
        each = FP32_BYTES if is_upcast(settings) else settings.precision.bytes
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
        # The product with the head in 16 bits beside its copy in fp32, then the gradient in 16 bits beside it.
        loss_bytes = FP32_BYTES + (0 if is_upcast(settings) else settings.precision.bytes)
        formula = f"{size} x {loss_bytes} B"
    yield Term("loss", chunk * shape.vocabulary * loss_bytes, formula, CHUNKED_SOURCE)
    if is_adapted:
        yield _compute_adapted_outputs(shape, settings, chunk)
    yield _compute_hidden_states(shape, settings, tokens, copies=2)
    if not is_adapted:
        yield from _compute_head_gradient(shape, settings)


def _compute_fused_loss(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Iterator[Term]:
    ratio = -(-shape.vocabulary // shape.hidden)
    chunk = min(tokens, 1 << (-(-tokens // ratio) - 1).bit_length())
    each = get_residual_bytes(settings)
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    yield Term("loss", chunk * shape.vocabulary * each, formula, LIGER_SOURCE)
    yield _compute_hidden_states(shape, settings, tokens, copies=1)
    yield from _compute_head_gradient(shape, settings)


def _compute_adapted_outputs(shape: ModelShape, settings: TrainingSettings, tokens: int) -> Term:
    size = OUTPUTS_OF_ADAPTED * tokens * shape.vocabulary * get_residual_bytes(settings)
    formula = f"{OUTPUTS_OF_ADAPTED} x {tokens:,} tokens x {shape.vocabulary:,} x {get_residual_bytes(settings)} B"
    return Term("outputs of the adapted head", size, formula, LORA_SOURCE)


def _compute_hidden_states(shape: ModelShape, settings: TrainingSettings, tokens: int, *, copies: int) -> Term:
    size = copies * tokens * shape.hidden * get_residual_bytes(settings)
    formula = f"{copies} x {tokens:,} tokens x {shape.hidden:,} x {get_residual_bytes(settings)} B"
    return Term("hidden states at the loss", size, formula, CHUNKED_SOURCE)


def _compute_head_gradient(shape: ModelShape, settings: TrainingSettings) -> Iterator[Term]:
    """Compute the gradient of a trainable head: accumulated in fp32 over the chunks, beside that of the current one."""
    if settings.method is Method.FULL:
        each = FP32_BYTES + settings.precision.bytes
        formula = f"{shape.vocabulary:,} x {shape.hidden:,} x {each} B"
        yield Term("gradient of the head", shape.head_width * each, formula, CHUNKED_SOURCE)
