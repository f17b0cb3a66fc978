"""Who computes attention, and whether texts may share a row. Importable without torch.

Sources: torch's varlen kernels, https://docs.pytorch.org/docs/2.12/nn.attention.varlen.html; FlashAttention's GPUs and
head sizes, https://github.com/Dao-AILab/flash-attention#installation-and-features; how transformers is told of packed
rows, https://huggingface.co/docs/transformers/main/en/attention_interface.
"""

from dataclasses import dataclass

from devkit.estimate.settings import Attention, Precision
from devkit.facts.values import ComputeCapability
from devkit.workload.finetune.layout import Layout

FLASH_CAPABILITY = ComputeCapability(8, 0)
FLASH_HEAD = 256
"""The largest head that the kernels of FlashAttention take; its size must be a multiple of 8 as well."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What of a model decides who can compute its attention.

    `head` and `value_head` are in numbers per head. `hands_on` is whether its attention is handed the positions and
    borders that its caller gives. `chunked` layers attend within chunks of a text, `recurrent` ones carry a state.
    """

    name: str
    sdpa: bool = True
    flash: bool = True
    hands_on: bool = True
    recurrent: bool = False
    softcap: bool = False
    chunked: bool = False
    router_loss: bool = False
    dropout: float = 0.0
    head: int = 64
    value_head: int = 64


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What this machine computes attention with. `varlen` is torch's own kernel, `flash` the package flash-attn."""

    device: str
    precision: Precision
    capability: ComputeCapability | None = None
    rocm: bool = False
    varlen: bool = False
    flash: bool = False


def attention_choice(traits: Traits, kernels: Kernels) -> tuple[Attention, str]:
    """The best attention for this model on this machine, and why: a clause that follows "attention: varlen, ..."."""
    refusal = refusal_of(Attention.VARLEN, traits, kernels)
    if refusal is None and kernels.device == "cpu":
        return Attention.VARLEN, "each text is computed by itself, so that short ones cost what short ones cost"
    if refusal is None:
        return Attention.VARLEN, "torch's flash kernel takes rows of several texts without padding or a mask"
    if refusal_of(Attention.FLASH, traits, kernels) is None:
        return Attention.FLASH, f"the package flash-attn is installed, and varlen is out: {refusal}"
    if refusal_of(Attention.SDPA, traits, kernels) is None:
        return Attention.SDPA, f"varlen is out: {refusal}"
    return Attention.EAGER, f"{traits.name} has attention that no kernel here computes: {_own_attention(traits)}"


def refusal_of(attention: Attention, traits: Traits, kernels: Kernels) -> str | None:
    """Why this attention cannot compute this model here; None where it can."""
    match attention:
        case Attention.VARLEN:
            return _packs_not(traits) or _varlen_model(traits) or _varlen_kernel(traits, kernels)
        case Attention.FLASH:
            return _flash_model(traits) or _flash_gpu(traits, kernels)
        case Attention.SDPA:
            return _own_attention(traits)
        case Attention.EAGER:
            return None


def packing_refusal(traits: Traits) -> str | None:
    """Why texts must not share a row of this model; None where they may."""
    return _packs_not(traits)


def layout_of(attention: Attention, *, pack: bool) -> Layout:
    """How rows are laid out for this attention."""
    if attention is Attention.VARLEN or (attention is Attention.FLASH and pack):
        return Layout.FLAT
    return Layout.BLOCKS if pack else Layout.PADDED


def _packs_not(traits: Traits) -> str | None:
    if traits.recurrent:
        return f"{traits.name} has recurrent layers, which carry what they read from one text of a row into the next"
    if not traits.hands_on:
        return f"{traits.name} does not tell its attention where the texts of a row begin"
    return None


def _own_attention(traits: Traits) -> str | None:
    if traits.softcap:
        return "its attention scores are capped"
    return None if traits.sdpa else "its attention is written by hand"


def _varlen_model(traits: Traits) -> str | None:
    own = _own_attention(traits)
    if own is not None:
        return own
    if traits.chunked:
        return "some of its layers attend within chunks of a text"
    if traits.router_loss:
        return "its router's loss wants a mask of padded rows"
    return None


def _varlen_kernel(traits: Traits, kernels: Kernels) -> str | None:
    if kernels.device == "cpu":
        return None
    if kernels.device != "cuda" or kernels.rocm:
        return f"torch's varlen kernel is for NVIDIA GPUs, and this is {'ROCm' if kernels.rocm else kernels.device}"
    if not kernels.varlen:
        return "this torch has no varlen kernel with windows and grouped heads (torch 2.12 has)"
    if traits.dropout:
        return f"the kernel has no dropout, and the model asks for {traits.dropout:g}"
    return _flash_gpu_limits(traits, kernels)


def _flash_model(traits: Traits) -> str | None:
    return None if traits.flash else f"{traits.name} is not written for flash-attn"


def _flash_gpu(traits: Traits, kernels: Kernels) -> str | None:
    if kernels.device != "cuda":
        return f"flash-attn is for GPUs, and this is {kernels.device}"
    if not kernels.flash:
        return "the package flash-attn is not installed"
    return _flash_gpu_limits(traits, kernels)


def _flash_gpu_limits(traits: Traits, kernels: Kernels) -> str | None:
    if kernels.capability is not None and not kernels.rocm and kernels.capability < FLASH_CAPABILITY:
        return f"flash kernels need compute capability {FLASH_CAPABILITY} and this GPU has {kernels.capability}"
    if kernels.precision is Precision.FP32:
        return "flash kernels compute in 16 bit and this run is in fp32"
    if traits.head != traits.value_head:
        return f"its value heads ({traits.value_head}) are not as large as its key heads ({traits.head})"
    if traits.head > FLASH_HEAD or traits.head % 8:
        return f"flash kernels take heads of up to {FLASH_HEAD} in steps of 8 and its heads have {traits.head}"
    return None
