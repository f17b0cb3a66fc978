"""A kernel in Triton's own language. It stands in a file of its own, because Triton reads its source from there."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def multiply_tile(left, right, product, SIZE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    """product = left @ right for three row-major matrices of SIZE x SIZE numbers, accumulated in fp32."""
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    places = rows * SIZE + columns
    tl.store(product + places, tl.dot(tl.load(left + places), tl.load(right + places)))
