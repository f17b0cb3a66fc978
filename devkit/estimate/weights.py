"""Weights of the base model, in 16 or 32 bits or packed by bitsandbytes, and LoRA and DoRA adapters."""

from devkit.errors import DevkitError
from devkit.estimate.memory import BITSANDBYTES_SOURCE, KBIT_SOURCE, LLAMA_SOURCE, QLORA_SOURCE, Term, format_millions
from devkit.estimate.settings import ALL_LINEAR, Precision, Quantization, TrainingSettings
from devkit.estimate.shape import LayerShape, LinearInput, LinearShape, ModelShape

NF4_BLOCK = 64
"""Weights that share one scale in nf4. Source: section 3 of the QLoRA paper."""
SCALE_BLOCK = 256
"""Scales that share one scale of their own under double quantisation. Source: as above."""


def compute_weight_terms(
    shape: ModelShape, quantisation: Quantization, precision: Precision, *, is_upcast: bool = False
) -> tuple[Term, ...]:
    """Compute the base weights on one GPU. `is_upcast`: everything that is not packed was cast to fp32 for training."""
    if quantisation is Quantization.NONE:
        formula = f"{format_millions(shape.parameters)} parameters x {precision.bytes} B"
        return (Term("weights", shape.parameters * precision.bytes, formula, LLAMA_SOURCE),)
    rest = shape.parameters - shape.packed_weights
    each = Precision.FP32.bytes if is_upcast else precision.bytes
    why = "fp32 by prepare_model_for_kbit_training" if is_upcast else "never quantised"
    return (
        *_compute_packed_terms(shape, quantisation),
        Term(
            "unquantised weights",
            rest * each,
            f"{format_millions(rest)} in embeddings, head, norms and experts x {each} B ({why})",
            KBIT_SOURCE if is_upcast else BITSANDBYTES_SOURCE,
        ),
    )


def _compute_packed_terms(shape: ModelShape, quantisation: Quantization) -> tuple[Term, Term]:
    packed = shape.packed_weights
    if quantisation is Quantization.INT8:
        rows = sum(layer.count * linear.outputs for layer in shape.layers for linear in layer.linears)
        return (
            Term("packed weights", packed, f"{format_millions(packed)} x 1 B", BITSANDBYTES_SOURCE),
            Term("quantisation scales", 4 * rows, f"{rows:,} rows x 4 B", BITSANDBYTES_SOURCE),
        )
    scales = -(-packed // NF4_BLOCK)
    if quantisation is Quantization.NF4_DOUBLE:
        scale_bytes = scales + 4 * -(-scales // SCALE_BLOCK)
        formula = f"{format_millions(packed)} / {NF4_BLOCK} x (1 B + 4 B / {SCALE_BLOCK})"
    else:
        scale_bytes, formula = 4 * scales, f"{format_millions(packed)} / {NF4_BLOCK} x 4 B"
    return (
        Term("packed weights", packed // 2, f"{format_millions(packed)} x 0.5 B", QLORA_SOURCE),
        Term("quantisation scales", scale_bytes, formula, QLORA_SOURCE),
    )


OUTPUT_HEAD = "lm_head"
"""The output head's name in transformers in every family that is known here."""


def find_adapted_linears(layer: LayerShape, settings: TrainingSettings) -> tuple[LinearShape, ...]:
    """Find the linears of a layer that carry an adapter. Experts in fused tensors never do."""
    if settings.targets == ALL_LINEAR:
        return layer.linears
    return tuple(linear for linear in layer.linears if linear.name in settings.targets)


def find_adapted_head(shape: ModelShape, settings: TrainingSettings) -> LinearShape | None:
    """Find the output head if it carries an adapter. One that is the embedding never does: merged, it would be both."""
    return _build_head(shape) if OUTPUT_HEAD in settings.targets else None


def _build_head(shape: ModelShape) -> LinearShape | None:
    if shape.is_tied or not shape.is_decoder:
        return None
    return LinearShape(OUTPUT_HEAD, shape.hidden, shape.vocabulary, LinearInput.LAST_STATE)


def count_adapter_parameters(shape: ModelShape, settings: TrainingSettings) -> int:
    """Count the parameters of all adapters. Raises DevkitError for a target that no layer has."""
    known = {linear.name: None for layer in shape.layers for linear in layer.linears}
    if _build_head(shape) is not None:
        known[OUTPUT_HEAD] = None
    unknown = [target for target in settings.targets if target not in known]
    if unknown and settings.targets != ALL_LINEAR:
        raise DevkitError(
            f"{shape.name} has no linear module {unknown[0]!r} to put an adapter on",
            f"It has {', '.join(known)}; {ALL_LINEAR[0]} means all of them but the output head.",
        )
    inside = sum(
        layer.count * sum(_count_parameters(linear, settings) for linear in find_adapted_linears(layer, settings))
        for layer in shape.layers
    )
    head = find_adapted_head(shape, settings)
    return inside + (_count_parameters(head, settings) if head is not None else 0)


def _count_parameters(linear: LinearShape, settings: TrainingSettings) -> int:
    return settings.rank * (linear.inputs + linear.outputs) + (linear.outputs if settings.dora else 0)
