"""What a decoder layer keeps for its backward pass, tensor by tensor, in bytes per token.

Read in transformers' modeling code and checked against torch.autograd.graph.saved_tensors_hooks, tensor by tensor:
RMSNorm and the query and key norms keep a copy in fp32, attention its inputs and its output, the MLP the gate before
and after the activation and the other half. A linear with a frozen weight keeps nothing; one that trains, carries an
adapter or is held in int8 keeps its input, which it shares with its siblings unless the adapter has another data type:
then each adapter has a copy of its own.
"""

from devkit.estimate.memory import LIGER_SOURCE, LORA_SOURCE, LOSS_SOURCE, Term
from devkit.estimate.settings import CHUNK_TOKENS, Attention, Loss, Method, Precision, TrainingSettings
from devkit.estimate.shape import LayerShape, LinearInput, LinearShape, ModelShape
from devkit.estimate.weights import find_adapted_head, find_adapted_linears
from devkit.facts.values import keyword_record

FP32_BYTES = Precision.FP32.bytes
SOFTMAX_BYTES = 4
"""One fp32 number per head and token, which fused attention keeps to compute the softmax again."""


@keyword_record
class SavedActivations:
    """Bytes that one layer keeps for one token, by what keeps them; `scores` are bytes per pair of tokens."""

    norms: int
    attention: int
    mlp: int
    inputs: int
    """Inputs of linears that train or carry adapters, as far as nothing else keeps them."""
    adapters: int
    """Between the two halves of adapters, and what DoRA keeps of both branches."""
    scores: int = 0
    score_gradients: int = 0
    """Bytes per pair of tokens while the scores go backward: their gradient after and before the softmax, in fp32."""

    @property
    def per_token(self) -> int:
        """All but the scores."""
        return self.norms + self.attention + self.mlp + self.inputs + self.adapters


def get_residual_bytes(settings: TrainingSettings) -> int:
    """Bytes of one number of the residual stream."""
    return FP32_BYTES if is_upcast(settings) else settings.precision.bytes


def is_upcast(settings: TrainingSettings) -> bool:
    """Whether everything that is not packed was turned to fp32 before training."""
    return settings.upcast and settings.method in {Method.QLORA, Method.INT8_LORA}


def is_attention_eager(shape: ModelShape, settings: TrainingSettings) -> bool:
    """Whether the scores of all pairs of tokens are written to memory."""
    return settings.attention is Attention.EAGER or (
        shape.blocks.needs_eager_attention and settings.attention is not Attention.FLASH
    )


def compute_saved_activations(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> SavedActivations:
    """What one such layer keeps, in bytes per token."""
    is_eager = is_attention_eager(shape, settings)
    return SavedActivations(
        norms=_norms(shape, settings),
        attention=_attention(shape, settings, is_eager=is_eager),
        mlp=_mlp(layer, shape, settings),
        inputs=_inputs(layer, shape, settings, is_eager=is_eager),
        adapters=_adapters(layer, settings),
        scores=shape.heads * (FP32_BYTES + get_residual_bytes(settings)) if is_eager else 0,
        score_gradients=shape.heads * 2 * FP32_BYTES if is_eager else 0,
    )


def _norms(shape: ModelShape, settings: TrainingSettings) -> int:
    blocks, stream = shape.blocks, get_residual_bytes(settings)
    if not blocks.has_rms_norm:
        return blocks.norms * shape.hidden * stream
    # A weight that trains keeps the normed numbers that it is multiplied with.
    weighed = FP32_BYTES if blocks.weighs_in_fp32 else stream
    each = FP32_BYTES + (weighed if settings.method is Method.FULL else 0)
    over_heads = shape.query_width + shape.kv_width if blocks.has_query_norm else 0
    return each * (blocks.norms * shape.hidden + over_heads)


def _attention(shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    stream = get_residual_bytes(settings)
    if is_eager:
        # Keys and values are repeated for every head of their group; those of one head alone need no copy for that.
        is_repeated = shape.kv_heads > 1
        keys_and_values = shape.query_width + shape.value_width if is_repeated else 2 * shape.kv_width
        return stream * (shape.query_width + keys_and_values)
    return stream * (shape.query_width + shape.value_width + 2 * shape.kv_width) + SOFTMAX_BYTES * shape.heads


def _mlp(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> int:
    stream = get_residual_bytes(settings)
    dense = shape.mlp_tensors * layer.intermediate
    if layer.experts is None:
        return stream * dense
    experts = layer.experts.active * (shape.blocks.expert_tensors * layer.experts.width + shape.hidden)
    return stream * (dense + experts) + _trained_experts(layer, shape, settings)


def _trained_experts(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> int:
    """Inputs of both expert matrices, which only training them keeps."""
    if settings.method is not Method.FULL or layer.experts is None:
        return 0
    return get_residual_bytes(settings) * layer.experts.active * (layer.experts.width + shape.hidden)


def _inputs(layer: LayerShape, shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    """Inputs that linears keep."""
    stream, adapter = get_residual_bytes(settings), settings.adapter_precision.bytes
    if settings.method is Method.FULL:
        return stream * _distinct_inputs(layer.linears, shape, is_eager=is_eager)
    carriers = find_adapted_linears(layer, settings)
    shared = 0
    if settings.method is Method.INT8_LORA:
        shared = stream * _distinct_inputs(layer.linears, shape, is_eager=is_eager)
    elif adapter == stream:
        shared = stream * _distinct_inputs(carriers, shape, is_eager=is_eager)
    copies = 0 if adapter == stream else adapter * sum(linear.inputs for linear in carriers)
    return shared + copies


def compute_int8_input_bytes(layer: LayerShape, shape: ModelShape, settings: TrainingSettings) -> int:
    """Bytes per token that the linears of an int8 base hold of what they read, attention's output included."""
    return get_residual_bytes(settings) * _distinct_inputs(layer.linears, shape, is_eager=True)


def _distinct_inputs(linears: tuple[LinearShape, ...], shape: ModelShape, *, is_eager: bool) -> int:
    """Numbers per token in the inputs of these linears, each tensor once, as far as nothing else keeps it."""
    widths = {linear.reads: linear.inputs for linear in linears}
    if shape.blocks.is_parallel and LinearInput.ATTENTION_INPUT in widths:
        widths.pop(LinearInput.MLP_INPUT, None)
    if not is_eager:
        widths.pop(LinearInput.ATTENTION_OUTPUT, None)
    if shape.keeps_activated:
        widths.pop(LinearInput.MLP_INSIDE, None)
    return sum(widths.values())


def _adapters(layer: LayerShape, settings: TrainingSettings) -> int:
    if settings.method is Method.FULL:
        return 0
    carriers, adapter = find_adapted_linears(layer, settings), settings.adapter_precision.bytes
    inner = adapter * settings.rank * len(carriers)
    if not settings.dora:
        return inner
    # Both branches are multiplied with the magnitude, which trains.
    return inner + (get_residual_bytes(settings) + adapter) * sum(linear.outputs for linear in carriers)


# The loss: logits are as wide as the vocabulary, and several copies of them are the usual peak.

FP32_LOGIT_BYTES = Precision.FP32.bytes
COPIES = 3
"""fp32 tensors as large as the logits that are alive when the loss goes backward: the logarithm of the softmax, its
gradient, and that of the logits."""
OUTPUTS_OF_ADAPTED = 3
"""What an adapted head makes as large as the logits: the product with its weight, that with the adapter, their sum."""
CHUNKED = "https://arxiv.org/abs/2411.09009"
"""Cross-entropy without whole logits."""


def compute_loss_terms(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """What computing the loss of `tokens` tokens takes at its fullest, beyond what layers keep."""
    if not shape.is_decoder:
        return ()
    is_adapted = settings.method is not Method.FULL and find_adapted_head(shape, settings) is not None
    match settings.loss:
        case Loss.STANDARD:
            return (*_standard(shape, settings, tokens), *(_outputs(shape, settings, tokens) if is_adapted else ()))
        case _ if is_adapted:
            return _by_chunks_again(shape, settings, tokens)
        case Loss.CHUNKED:
            return _by_chunks(shape, settings, tokens)
        case Loss.FUSED:
            return _fused(shape, settings, tokens)


def _standard(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    logits = tokens * shape.vocabulary
    terms = [
        Term(
            "loss",
            COPIES * FP32_LOGIT_BYTES * logits,
            f"{COPIES} copies x {tokens:,} tokens x {shape.vocabulary:,} x 4 B",
            LOSS_SOURCE,
        )
    ]
    if settings.keeps_outputs:
        # In fp32 the head's own output is what the loss reads; in 16 bits it stays beside the copy in fp32.
        each = FP32_LOGIT_BYTES if is_upcast(settings) else settings.precision.bytes
        formula = f"{tokens:,} tokens x {shape.vocabulary:,} x {each} B, still held as outputs.logits"
        terms.append(Term("held logits", each * logits, formula, LOSS_SOURCE))
    return tuple(terms)


def _by_chunks(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    chunk = min(CHUNK_TOKENS, tokens)
    # The product with the head in 16 bits beside its copy in fp32, then the gradient in 16 bits beside it.
    each = FP32_LOGIT_BYTES + (0 if is_upcast(settings) else settings.precision.bytes)
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    return (
        Term("loss", chunk * shape.vocabulary * each, formula, CHUNKED),
        _states(shape, settings, tokens, copies=2),
        *_head_gradient(shape, settings),
    )


def _by_chunks_again(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """A head that is more than a matrix: each chunk is computed again in the backward pass, as whole logits are."""
    chunk = min(CHUNK_TOKENS, tokens)
    formula = f"{COPIES} copies x {chunk:,} tokens at a time x {shape.vocabulary:,} x {FP32_LOGIT_BYTES} B"
    return (
        Term("loss", COPIES * FP32_LOGIT_BYTES * chunk * shape.vocabulary, formula, CHUNKED),
        *_outputs(shape, settings, chunk),
        _states(shape, settings, tokens, copies=2),
    )


def _outputs(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    each = get_residual_bytes(settings)
    formula = f"{OUTPUTS_OF_ADAPTED} x {tokens:,} tokens x {shape.vocabulary:,} x {each} B"
    return (
        Term(
            "outputs of the adapted head", OUTPUTS_OF_ADAPTED * tokens * shape.vocabulary * each, formula, LORA_SOURCE
        ),
    )


def _fused(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    ratio = -(-shape.vocabulary // shape.hidden)
    chunk = min(tokens, 1 << (-(-tokens // ratio) - 1).bit_length())
    each = get_residual_bytes(settings)
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    return (
        Term("loss", chunk * shape.vocabulary * each, formula, LIGER_SOURCE),
        _states(shape, settings, tokens, copies=1),
        *_head_gradient(shape, settings),
    )


def _states(shape: ModelShape, settings: TrainingSettings, tokens: int, *, copies: int) -> Term:
    size = copies * tokens * shape.hidden * get_residual_bytes(settings)
    formula = f"{copies} x {tokens:,} tokens x {shape.hidden:,} x {get_residual_bytes(settings)} B"
    return Term("hidden states at the loss", size, formula, CHUNKED)


def _head_gradient(shape: ModelShape, settings: TrainingSettings) -> tuple[Term, ...]:
    """A head that trains gathers its gradient in fp32 over the chunks, beside the one of the chunk at hand."""
    if settings.method is not Method.FULL:
        return ()
    each = FP32_LOGIT_BYTES + settings.precision.bytes
    formula = f"{shape.vocabulary:,} x {shape.hidden:,} x {each} B"
    return (Term("gradient of the head", shape.head_width * each, formula, CHUNKED),)
