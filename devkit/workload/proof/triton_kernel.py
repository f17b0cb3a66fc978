"""A kernel in Triton's own language. It has a separate file because Triton reads its source from there."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def multiply_tile(left, right, product, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    """Compute product = left @ right for three row-major matrices of SIZE x SIZE numbers, accumulated in fp32."""
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    positions = rows * SIZE + columns
    tl.store(product + positions, tl.dot(tl.load(left + positions), tl.load(right + positions)))
