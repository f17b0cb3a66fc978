"""When decoding is worth compiling: it needs a cache of fixed size, a compiler, and answers enough to pay for it."""

import importlib.util
import os
import shutil

import torch

PAYS_FROM_STEPS = 10_000
"""Steps of decoding from which compiling takes less time than it saves.

Reckoned, not measured: a step of an 8B model takes 8 ms as it stands and 5 ms from CUDA graphs, so 10,000 steps save
half a minute, which is about what compiling takes. `--static-cache` and `--dynamic-cache` overrule it.
"""


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile can make kernels for the device: Triton for GPUs, and a C compiler for what starts them."""
    names = (os.environ.get("CC") or "cc", "gcc", "clang")
    has_c = any(shutil.which(name) for name in names)
    return device.type == "cuda" and has_c and importlib.util.find_spec("triton") is not None


def pays(device: torch.device, *, prompts: int, batch: int, tokens: int) -> bool:
    """Whether so many prompts, answered with up to `tokens` tokens each, pay for compiling on this device."""
    steps = -(-prompts // batch) * tokens
    return steps >= PAYS_FROM_STEPS and has_compiler(device)
