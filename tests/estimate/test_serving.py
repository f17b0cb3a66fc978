"""Settings of a server: the freest GPUs, as few as suffice, and a context that fits."""

from dataclasses import replace

import pytest

from devkit.estimate.config import build_model_shape
from devkit.estimate.inference import order_by_free_memory, solve_serving
from devkit.estimate.shape import find_model
from devkit.facts.gpu import Gpu
from devkit.facts.values import ComputeCapability, Unknown

GIB = 1 << 30
CARD = Gpu(0, "GPU-0", "NVIDIA L4", ComputeCapability.parse("8.9"), 23 * GIB, 22 * GIB, False, ())


def cards(*free_gib, **changed):
    return tuple(
        replace(CARD, index=index, uuid=f"GPU-{index}", free_bytes=free * GIB, **changed)
        for index, free in enumerate(free_gib)
    )


def llama():
    return build_model_shape(find_model("llama-3.1-8b").config)


def test_the_freest_gpus_go_first_and_only_alike_ones():
    other = replace(CARD, index=3, name="NVIDIA T4", free_bytes=21 * GIB)
    unread = replace(CARD, index=4, free_bytes=Unknown("not supported"))
    divided = replace(CARD, index=5, mig_enabled=True)
    found = order_by_free_memory((*cards(5, 22, 22), other, unread, divided))
    assert [gpu.index for gpu in found] == [1, 2, 0]
    assert order_by_free_memory((unread, divided)) == ()


@pytest.mark.parametrize(
    ("free_gib", "asked", "gpus", "share"),
    [
        pytest.param((22, 22), None, ("GPU-0",), 0.9, id="one GPU is enough for 8,192 tokens"),
        pytest.param((4, 22), None, ("GPU-1",), 0.9, id="the free one of two"),
        pytest.param((11, 11), None, ("GPU-0", "GPU-1"), 0.44, id="two half-free ones together"),
        pytest.param((22, 22), 100_000, ("GPU-0", "GPU-1"), 0.9, id="two for a long context"),
    ],
)
def test_as_few_gpus_as_suffice(free_gib, asked, gpus, share):
    found = solve_serving(llama(), cards(*free_gib), context=asked)
    assert (found.gpus, found.memory_share, found.is_half) == (gpus, share, False)
    assert found.context == asked if asked else found.context >= 1024


def test_nothing_is_promised_where_it_does_not_fit():
    assert solve_serving(llama(), cards(8)) is None
    assert solve_serving(llama(), cards(22), context=130_000) is None
    assert solve_serving(llama(), ()) is None


def test_gpus_without_bf16_serve_in_fp16():
    assert solve_serving(llama(), cards(22, capability=ComputeCapability.parse("7.5"))).is_half
