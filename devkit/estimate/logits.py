"""The loss: logits are as wide as the vocabulary, and several copies of them are the usual peak."""

from devkit.estimate.activations import is_upcast, stream_bytes
from devkit.estimate.adapters import adapted_head
from devkit.estimate.model import Term
from devkit.estimate.settings import CHUNK_TOKENS, Loss, Method, Precision, TrainingSettings
from devkit.estimate.shape import ModelShape
from devkit.estimate.terms import LIGER, LORA, LOSS

FP32 = Precision.FP32.bytes
COPIES = 3
"""fp32 tensors as large as the logits that are alive when the loss goes backward: the logarithm of the softmax, its
gradient, and that of the logits."""
OUTPUTS_OF_ADAPTED = 3
"""What an adapted head makes as large as the logits: the product with its weight, that with the adapter, their sum."""
CHUNKED = "https://arxiv.org/abs/2411.09009"
"""Cross-entropy without whole logits."""


def loss_terms(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """What computing the loss of `tokens` tokens takes at its fullest, beyond what layers keep."""
    if not shape.is_decoder:
        return ()
    is_adapted = settings.method is not Method.FULL and adapted_head(shape, settings) is not None
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
        Term("loss", COPIES * FP32 * logits, f"{COPIES} copies x {tokens:,} tokens x {shape.vocabulary:,} x 4 B", LOSS)
    ]
    if settings.keeps_outputs:
        # In fp32 the head's own output is what the loss reads; in 16 bits it stays beside the copy in fp32.
        each = FP32 if is_upcast(settings) else settings.precision.bytes
        formula = f"{tokens:,} tokens x {shape.vocabulary:,} x {each} B, still held as outputs.logits"
        terms.append(Term("held logits", each * logits, formula, LOSS))
    return tuple(terms)


def _by_chunks(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    chunk = min(CHUNK_TOKENS, tokens)
    # The product with the head in 16 bits beside its copy in fp32, then the gradient in 16 bits beside it.
    each = FP32 + (0 if is_upcast(settings) else settings.precision.bytes)
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    return (
        Term("loss", chunk * shape.vocabulary * each, formula, CHUNKED),
        _states(shape, settings, tokens, copies=2),
        *_head_gradient(shape, settings),
    )


def _by_chunks_again(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    """A head that is more than a matrix: each chunk is computed again in the backward pass, as whole logits are."""
    chunk = min(CHUNK_TOKENS, tokens)
    formula = f"{COPIES} copies x {chunk:,} tokens at a time x {shape.vocabulary:,} x {FP32} B"
    return (
        Term("loss", COPIES * FP32 * chunk * shape.vocabulary, formula, CHUNKED),
        *_outputs(shape, settings, chunk),
        _states(shape, settings, tokens, copies=2),
    )


def _outputs(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    each = stream_bytes(settings)
    formula = f"{OUTPUTS_OF_ADAPTED} x {tokens:,} tokens x {shape.vocabulary:,} x {each} B"
    return (Term("outputs of the adapted head", OUTPUTS_OF_ADAPTED * tokens * shape.vocabulary * each, formula, LORA),)


def _fused(shape: ModelShape, settings: TrainingSettings, tokens: int) -> tuple[Term, ...]:
    ratio = -(-shape.vocabulary // shape.hidden)
    chunk = min(tokens, 1 << (-(-tokens // ratio) - 1).bit_length())
    each = stream_bytes(settings)
    formula = f"{chunk:,} tokens at a time x {shape.vocabulary:,} x {each} B"
    return (
        Term("loss", chunk * shape.vocabulary * each, formula, LIGER),
        _states(shape, settings, tokens, copies=1),
        *_head_gradient(shape, settings),
    )


def _states(shape: ModelShape, settings: TrainingSettings, tokens: int, *, copies: int) -> Term:
    size = copies * tokens * shape.hidden * stream_bytes(settings)
    formula = f"{copies} x {tokens:,} tokens x {shape.hidden:,} x {stream_bytes(settings)} B"
    return Term("hidden states at the loss", size, formula, CHUNKED)


def _head_gradient(shape: ModelShape, settings: TrainingSettings) -> tuple[Term, ...]:
    """A head that trains gathers its gradient in fp32 over the chunks, beside the one of the chunk at hand."""
    if settings.method is not Method.FULL:
        return ()
    each = FP32 + settings.precision.bytes
    formula = f"{shape.vocabulary:,} x {shape.hidden:,} x {each} B"
    return (Term("gradient of the head", shape.head_width * each, formula, CHUNKED),)
