"""The weights of the base model: in 16 or 32 bits, or packed by bitsandbytes."""

from devkit.estimate.model import Term
from devkit.estimate.settings import Precision, Quantisation
from devkit.estimate.shape import ModelShape
from devkit.estimate.terms import BITSANDBYTES, KBIT, LAYERS, QLORA, millions

BLOCK = 64
"""Weights that share one scale in nf4. Source: section 3 of the QLoRA paper."""
SCALE_BLOCK = 256
"""Scales that share one scale of their own under double quantisation. Source: as above."""


def weight_terms(
    shape: ModelShape, quantisation: Quantisation, precision: Precision, *, is_upcast: bool = False
) -> tuple[Term, ...]:
    """All weights of the base on one GPU. `is_upcast`: what is not packed was turned to fp32 for training."""
    if quantisation is Quantisation.NONE:
        formula = f"{millions(shape.parameters)} parameters x {precision.bytes} B"
        return (Term("weights", shape.parameters * precision.bytes, formula, LAYERS),)
    rest = shape.parameters - shape.packed_weights
    each = Precision.FP32.bytes if is_upcast else precision.bytes
    why = "fp32 by prepare_model_for_kbit_training" if is_upcast else "never quantised"
    return (
        *_packed(shape, quantisation),
        Term(
            "unquantised weights",
            rest * each,
            f"{millions(rest)} in embeddings, head, norms and experts x {each} B ({why})",
            KBIT if is_upcast else BITSANDBYTES,
        ),
    )


def _packed(shape: ModelShape, quantisation: Quantisation) -> tuple[Term, Term]:
    packed = shape.packed_weights
    if quantisation is Quantisation.INT8:
        rows = sum(layer.count * linear.outputs for layer in shape.layers for linear in layer.linears)
        return (
            Term("packed weights", packed, f"{millions(packed)} x 1 B", BITSANDBYTES),
            Term("quantisation scales", 4 * rows, f"{rows:,} rows x 4 B", BITSANDBYTES),
        )
    scales = -(-packed // BLOCK)
    if quantisation is Quantisation.NF4_DOUBLE:
        scale_bytes = scales + 4 * -(-scales // SCALE_BLOCK)
        formula = f"{millions(packed)} / {BLOCK} x (1 B + 4 B / {SCALE_BLOCK})"
    else:
        scale_bytes, formula = 4 * scales, f"{millions(packed)} / {BLOCK} x 4 B"
    return (
        Term("packed weights", packed // 2, f"{millions(packed)} x 0.5 B", QLORA),
        Term("quantisation scales", scale_bytes, formula, QLORA),
    )
