"""What a decoder layer keeps for its backward pass, tensor by tensor, in bytes per token.

Read in transformers' modeling code and checked against torch.autograd.graph.saved_tensors_hooks, tensor by tensor:
RMSNorm and the query and key norms keep a copy in fp32, attention its inputs and its output, the MLP the gate before
and after the activation and the other half. A linear with a frozen weight keeps nothing; one that trains, carries an
adapter or is held in int8 keeps its input, which it shares with its siblings unless the adapter has another data type:
then each adapter has a copy of its own.
"""

from devkit.estimate.adapters import adapted
from devkit.estimate.settings import Attention, Method, Precision, TrainingSettings
from devkit.estimate.shape import Layer, Linear, ModelShape, Reads
from devkit.facts.record import keyword_record

FP32 = Precision.FP32.bytes
SOFTMAX_BYTES = 4
"""One fp32 number per head and token, which fused attention keeps to compute the softmax again."""


@keyword_record
class Kept:
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


def stream_bytes(settings: TrainingSettings) -> int:
    """Bytes of one number of the residual stream."""
    return FP32 if is_upcast(settings) else settings.precision.bytes


def is_upcast(settings: TrainingSettings) -> bool:
    """Whether everything that is not packed was turned to fp32 before training."""
    return settings.upcast and settings.method in {Method.QLORA, Method.INT8_LORA}


def uses_eager_attention(shape: ModelShape, settings: TrainingSettings) -> bool:
    """Whether the scores of all pairs of tokens are written to memory."""
    return settings.attention is Attention.EAGER or (
        shape.blocks.needs_eager_attention and settings.attention is not Attention.FLASH
    )


def kept_by(layer: Layer, shape: ModelShape, settings: TrainingSettings) -> Kept:
    """What one such layer keeps, in bytes per token."""
    is_eager = uses_eager_attention(shape, settings)
    return Kept(
        norms=_norms(shape, settings),
        attention=_attention(shape, settings, is_eager=is_eager),
        mlp=_mlp(layer, shape, settings),
        inputs=_inputs(layer, shape, settings, is_eager=is_eager),
        adapters=_adapters(layer, settings),
        scores=shape.heads * (FP32 + stream_bytes(settings)) if is_eager else 0,
        score_gradients=shape.heads * 2 * FP32 if is_eager else 0,
    )


def _norms(shape: ModelShape, settings: TrainingSettings) -> int:
    blocks, stream = shape.blocks, stream_bytes(settings)
    if not blocks.has_rms_norm:
        return blocks.norms * shape.hidden * stream
    # A weight that trains keeps the normed numbers that it is multiplied with.
    weighed = FP32 if blocks.weighs_in_fp32 else stream
    each = FP32 + (weighed if settings.method is Method.FULL else 0)
    over_heads = shape.query_width + shape.kv_width if blocks.has_query_norm else 0
    return each * (blocks.norms * shape.hidden + over_heads)


def _attention(shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    stream = stream_bytes(settings)
    if is_eager:
        # Keys and values are repeated for every head of their group; those of one head alone need no copy for that.
        is_repeated = shape.kv_heads > 1
        keys_and_values = shape.query_width + shape.value_width if is_repeated else 2 * shape.kv_width
        return stream * (shape.query_width + keys_and_values)
    return stream * (shape.query_width + shape.value_width + 2 * shape.kv_width) + SOFTMAX_BYTES * shape.heads


def _mlp(layer: Layer, shape: ModelShape, settings: TrainingSettings) -> int:
    stream = stream_bytes(settings)
    dense = shape.mlp_tensors * layer.intermediate
    if layer.experts is None:
        return stream * dense
    experts = layer.experts.active * (shape.blocks.expert_tensors * layer.experts.width + shape.hidden)
    return stream * (dense + experts) + _trained_experts(layer, shape, settings)


def _trained_experts(layer: Layer, shape: ModelShape, settings: TrainingSettings) -> int:
    """Inputs of both expert matrices, which only training them keeps."""
    if settings.method is not Method.FULL or layer.experts is None:
        return 0
    return stream_bytes(settings) * layer.experts.active * (layer.experts.width + shape.hidden)


def _inputs(layer: Layer, shape: ModelShape, settings: TrainingSettings, *, is_eager: bool) -> int:
    """Inputs that linears keep."""
    stream, adapter = stream_bytes(settings), settings.adapter_precision.bytes
    if settings.method is Method.FULL:
        return stream * _distinct_inputs(layer.linears, shape, is_eager=is_eager)
    carriers = adapted(layer, settings)
    shared = 0
    if settings.method is Method.INT8_LORA:
        shared = stream * _distinct_inputs(layer.linears, shape, is_eager=is_eager)
    elif adapter == stream:
        shared = stream * _distinct_inputs(carriers, shape, is_eager=is_eager)
    copies = 0 if adapter == stream else adapter * sum(linear.inputs for linear in carriers)
    return shared + copies


def bytes_held_by_int8(layer: Layer, shape: ModelShape, settings: TrainingSettings) -> int:
    """Bytes per token that the linears of an int8 base hold of what they read, attention's output included."""
    return stream_bytes(settings) * _distinct_inputs(layer.linears, shape, is_eager=True)


def _distinct_inputs(linears: tuple[Linear, ...], shape: ModelShape, *, is_eager: bool) -> int:
    """Numbers per token in the inputs of these linears, each tensor once, as far as nothing else keeps it."""
    widths = {linear.reads: linear.inputs for linear in linears}
    if shape.blocks.is_parallel and Reads.ATTENTION_INPUT in widths:
        widths.pop(Reads.MLP_INPUT, None)
    if not is_eager:
        widths.pop(Reads.ATTENTION_OUTPUT, None)
    if shape.keeps_activated:
        widths.pop(Reads.MLP_INSIDE, None)
    return sum(widths.values())


def _adapters(layer: Layer, settings: TrainingSettings) -> int:
    if settings.method is Method.FULL:
        return 0
    carriers, adapter = adapted(layer, settings), settings.adapter_precision.bytes
    inner = adapter * settings.rank * len(carriers)
    if not settings.dora:
        return inner
    # Both branches are multiplied with the magnitude, which trains.
    return inner + (stream_bytes(settings) + adapter) * sum(linear.outputs for linear in carriers)
