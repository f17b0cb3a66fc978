"""The forward pass: attention over packed texts, lean passes of a frozen base with its adapters, and the loss.

Attention takes the borders of texts (cu_seqlens): no padding, and no mask of tokens by tokens. It is registered with
transformers under a name of ours and takes the keyword arguments that transformers passes to flash attention, so one set
of inputs serves both. Before the first step it is verified on the model itself that texts of a row do not attend to each
other. The loss is cross-entropy on hidden states, without materializing the full logits; every loss here is the sum over
targets, and the caller divides by their number in the whole effective batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention, Loss
from devkit.workload.finetune.dataset import (
    IGNORE_INDEX,
    BatchLayout,
    BatchRow,
    Example,
    MicroBatch,
    collate,
    move_to_device,
)
from devkit.workload.finetune.decisions import AttentionTraits
from devkit.workload.models import (
    Linear,
    LoraLayer,
    Model,
)

ATTN_IMPLEMENTATION = {
    Attention.EAGER: "eager",
    Attention.SDPA: "sdpa",
    Attention.FLASH: "flash_attention_2",
    Attention.VARLEN: "devkit_varlen",
}
"""Attention -> transformers' `attn_implementation`."""

ATTENTION_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
"""Layer types that are attention; all others carry a state along the row."""

PRECEDING_TEXTS = (Example((1, 2, 3, 4, 5), (0,) * 5), Example((5, 3, 1, 2, 4), (0,) * 5))
"""Two texts of which one precedes the watched text."""

WATCHED_TEXT = Example((2, 4, 1, 3), (0,) * 4)

MAX_CROSS_TALK = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Data type -> the change that rounding alone may make, relative to the largest value. Kernels for experts group the
tokens of a batch anew for each text; everything else gives equal bits."""


def register_varlen_attention() -> None:
    """Register our attention with transformers, before a model is loaded with it. May be called repeatedly."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTN_IMPLEMENTATION[Attention.VARLEN], varlen_attention)
    AttentionMaskInterface.register(ATTN_IMPLEMENTATION[Attention.VARLEN], sdpa_mask)


def build_model_inputs(batch: MicroBatch, attention: Attention, device: torch.device) -> dict[str, Any]:
    """Build the model's inputs on its device. There are no labels among them: the loss is not the model's.

    `use_cache` is off because transformers looks for borders in the positions only then.
    """
    mask = batch.attention_mask
    inputs: dict[str, Any] = {
        "input_ids": move_to_device(batch.ids, device),
        "position_ids": move_to_device(batch.positions, device),
        "attention_mask": None if mask is None else move_to_device(mask, device),
        "use_cache": False,
    }
    if batch.cu_seqlens is not None:
        longest = int(batch.cu_seqlens.diff().max())
        cu_seqlens = move_to_device(batch.cu_seqlens, device)
        inputs |= {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens}
        inputs |= {"max_length_q": longest, "max_length_k": longest}
        if attention is Attention.VARLEN:
            # transformers takes it for a finished mask, and so builds none of tokens by tokens.
            inputs["attention_mask"] = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    return inputs


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,  # noqa: ANN401 - what models pass to attention differs from one to the next
) -> tuple[torch.Tensor, None]:
    """Compute causal attention within each text. Takes [1, heads, tokens, head] and gives [1, tokens, heads, head].

    Without borders (padded rows, generation) it is transformers' own sdpa attention. Raises RuntimeError where a model
    needs what this attention does not compute, or has not passed the borders on.
    """
    unsupported = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if unsupported:
        raise RuntimeError(f"varlen attention does not compute {unsupported[0]}")
    if cu_seq_lens_q is None:
        if attention_mask is not None and attention_mask.numel() == 1 and query.shape[2] > 1:
            raise RuntimeError(f"{type(module).__name__} did not get the borders of its texts")
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        computed: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return computed
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and not dropout:
        longest = max_length_q or int(cu_seq_lens_q.diff().max())
        return _attend_by_kernel(query, key, value, cu_seq_lens_q, longest, scaling, sliding_window), None
    lengths = cu_seq_lens_q.diff().tolist()
    return _attend_text_by_text(query, key, value, lengths, dropout, scaling, sliding_window), None


def _attend_by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # A window of n tokens includes the token itself; the kernel counts those to its left.
    left = -1 if window is None else window - 1
    computed = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        scale=scaling,
        window_size=(left, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(computed, torch.Tensor)  # noqa: S101 - it is a pair only if its statistics are wanted
    return computed.unsqueeze(0)


def _attend_text_by_text(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    # One split and one cat: a slice for each text would make the backward pass write all tokens for each of them.
    texts = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), lengths, strict=True)
    # In a window a token attends to itself and the `window - 1` tokens before it.
    masks = {
        length: torch.ones((length, length), dtype=torch.bool, device=query.device).tril().triu(1 - window)
        for length in set(lengths)
        if window and length > window
    }
    computed = [
        scaled_dot_product_attention(
            each_query,
            each_key,
            each_value,
            attn_mask=masks.get(length),
            is_causal=not window or length <= window,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        for each_query, each_key, each_value, length in texts
    ]
    return torch.cat(computed, 2).transpose(1, 2)


def require_no_cross_attention(model: Model, attention: Attention, layout: BatchLayout, device: torch.device) -> None:
    """Raise DevkitError if texts of a row attend to each other in this model with this attention.

    Configurations and class attributes say what a model's code promises; this sees what it does. A model with
    cross-attention between texts would train without any error, on inputs that it will never get again. It computes as
    in training, since bitsandbytes rearranges its weights on some CPUs in evaluation mode. Afterwards the model's mode
    and the random generators are as before.
    """
    was_training = model.training
    model.train()
    first, second = (_watched_logits(model, before, attention, layout, device) for before in PRECEDING_TEXTS)
    model.train(was_training)
    change = float((first - second).abs().max() / first.abs().max().clamp_min(torch.finfo(torch.float32).tiny))
    if not change <= MAX_CROSS_TALK.get(next(model.parameters()).dtype, MAX_CROSS_TALK[torch.bfloat16]):
        raise DevkitError(
            f"texts that share a row attend to each other in this model with {attention} attention: "
            f"the text before another one changes it by {change:.1%}",
            "Use --no-packing --attention sdpa.",
        )


def _watched_logits(
    model: Model, before: Example, attention: Attention, layout: BatchLayout, device: torch.device
) -> torch.Tensor:
    """Return the logits of the watched text behind another, shape [tokens, vocabulary], in fp32."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    batch = collate([BatchRow((before, WATCHED_TEXT))], layout)
    cuda = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        # Equal random numbers for both texts, so that dropout makes no difference.
        torch.manual_seed(0)
        logits = base(**build_model_inputs(batch, attention, device)).logits
    watched: torch.Tensor = logits[0, -len(WATCHED_TEXT.ids) :].float()
    return watched


def has_varlen_kernel() -> bool:
    """Return True if torch's kernel takes windows and grouped heads; its first releases took neither."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa", "scale"} <= signature(varlen_attn).parameters.keys()


def read_attention_traits(config: Any) -> AttentionTraits:  # noqa: ANN401 - of transformers; fields differ by model
    """Read the traits from a model's configuration and the code of its class.

    Code that comes with a model instead of transformers is assumed not to support packed rows.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] if is_known else None
    layer_types = frozenset(getattr(text, "layer_types", None) or ())
    heads = int(getattr(text, "num_attention_heads", 1))
    own_head = getattr(text, "qk_head_dim", None) or getattr(text, "head_dim", None)
    head = int(own_head or text.hidden_size // heads)
    parameters = {} if model_class is None else signature(model_class.forward).parameters
    takes_more = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    return AttentionTraits(
        name=str(text.model_type),
        sdpa=bool(getattr(model_class, "_supports_sdpa", True)),
        flash=bool(getattr(model_class, "_supports_flash_attn", False)),
        passes_borders=bool(getattr(model_class, "_supports_attention_backend", False))
        and "position_ids" in parameters
        and takes_more,
        recurrent=bool(getattr(model_class, "_is_stateful", False)) or bool(layer_types - ATTENTION_LAYER_TYPES),
        softcap=getattr(text, "attn_logit_softcapping", None) is not None,
        chunked="chunked_attention" in layer_types or getattr(text, "attention_chunk_size", None) is not None,
        router_loss=bool(getattr(text, "output_router_logits", False)),
        dropout=float(getattr(text, "attention_dropout", 0.0) or 0.0),
        head=head,
        value_head=int(getattr(text, "v_head_dim", None) or head),
    )


RECIPE = "devkit_recipe"
"""An attribute of a tensor: the Recomputation that computes it again from what is saved in any case."""


class Recomputation:
    """Computes a tensor again in the backward pass, once for all layers that took it as their input."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self._compute = compute
        self._takers = 0
        self._computed: torch.Tensor | None = None

    def take(self) -> None:
        """Count a layer that will call in its backward pass. After the last one the tensor is dropped."""
        self._takers += 1

    def __call__(self) -> torch.Tensor:
        """Return the tensor."""
        computed = self._compute() if self._computed is None else self._computed
        self._takers -= 1
        self._computed = computed if self._takers > 0 else None
        return computed


def use_fused_lora_forward(model: Model) -> int:
    """Replace the forward pass of LoRA layers by one with fewer passes over memory, and return how many.

    peft computes the adapter's product, a scaled copy of it and the sum with the base's product, each as large as the
    layer's output, and as many gradients in the backward pass; on 4-bit bases it copies the base's product first. Here
    the scale goes into the product itself, which is added to the base's product in place. Layers keep peft's forward
    that do more than add a scaled product: with dropout, with DoRA's magnitudes, with weights of several data types.
    What is saved, and what peft computes on a model that was loaded again, stays the same. Source of what is replaced:
    peft 0.21, peft/tuners/lora/layer.py, Linear.forward, and peft/tuners/lora/bnb.py, Linear4bit.forward.
    """
    layers = [each for each in model.modules() if isinstance(each, LoraLayer) and _can_be_fused(each)]
    for layer in layers:
        layer.forward = _FusedForward(layer)
    return len(layers)


def _can_be_fused(layer: Any) -> bool:  # noqa: ANN401 - peft's layers share no type that has forward and weights
    """Return True if `layer` computes base(x) + scale * B(A(x)) and nothing else."""
    names = list(layer.active_adapters)
    if not isinstance(layer.get_base_layer(), nn.Linear) or layer.merged or layer.disable_adapters or len(names) != 1:
        return False
    name = names[0]
    if name not in layer.lora_A:
        return False
    # Before its release 0.16, peft knew DoRA and no other variants.
    is_variant = name in layer.lora_variant if hasattr(layer, "lora_variant") else bool(layer.use_dora.get(name))
    dropout = layer.lora_dropout[name]
    has_dropout = not isinstance(dropout, nn.Identity) and not (isinstance(dropout, nn.Dropout) and dropout.p == 0.0)
    if is_variant or has_dropout:
        return False
    down, up = layer.lora_A[name], layer.lora_B[name]
    is_plain = type(down) is nn.Linear and type(up) is nn.Linear and down.bias is None and up.bias is None
    return is_plain and down.weight.dtype is up.weight.dtype


class _FusedForward:
    """The replacement of a LoRA layer's `forward`."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - as above
        name = next(iter(layer.active_adapters))
        self._layer = layer
        self._base = layer.get_base_layer()
        self._down, self._up = layer.lora_A[name], layer.lora_B[name]
        self._scale = float(layer.scaling[name])
        self._is_plain = type(layer) is Linear and type(self._base) is nn.Linear and not self._base.weight.requires_grad

    def __call__(self, inputs: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - passed on
        """Shape [..., inputs] to [..., outputs]."""
        down, up = self._down.weight, self._up.weight
        if self._layer.disable_adapters or self._layer.merged or inputs.dtype is not down.dtype or more or named:
            computed: torch.Tensor = type(self._layer).forward(self._layer, inputs, *more, **named)
            return computed
        if self._is_plain and self._base.weight.dtype is inputs.dtype:
            fused: torch.Tensor = _FusedLoraLinear.apply(  # type: ignore[no-untyped-call]
                inputs, self._base.weight, self._base.bias, down, up, self._scale, getattr(inputs, RECIPE, None)
            )
            return fused
        outputs: torch.Tensor = self._base(inputs)
        if outputs.dtype is not inputs.dtype:
            return outputs + (self._scale * functional.linear(functional.linear(inputs, down), up)).to(outputs.dtype)
        inner = functional.linear(inputs, down).reshape(-1, down.shape[0])
        added = torch.addmm(outputs.reshape(-1, outputs.shape[-1]), inner, up.T, alpha=self._scale)
        return added.view(outputs.shape)


class _FusedLoraLinear(torch.autograd.Function):
    """A frozen weight and its adapter. The base's product and its gradient are computed once and added to in place."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
        recipe: Recomputation | None,
    ) -> torch.Tensor:
        """`inputs` is [..., inputs], `weight` [outputs, inputs], `down` [rank, inputs], `up` [outputs, rank].

        With a `recipe` for the inputs, they are computed again in the backward pass instead of saved.
        """
        flat = inputs.reshape(-1, inputs.shape[-1])
        inner = flat @ down.T
        outputs = functional.linear(flat, weight, bias).addmm_(inner, up.T, alpha=scale)
        ctx.save_for_backward(None if recipe else flat, inner, weight, down, up)
        ctx.scale, ctx.shape, ctx.recipe = scale, inputs.shape, recipe
        if recipe:
            recipe.take()
        return outputs.view(*inputs.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of `inputs`, `down` and `up`; the base is frozen."""
        flat, inner, weight, down, up = ctx.saved_tensors
        if flat is None:
            flat = ctx.recipe().reshape(-1, weight.shape[1])
            # What it is made of would live until the last node of the graph is gone.
            ctx.recipe = None
        gradient = grad_outputs[0].reshape(-1, weight.shape[0])
        grad_inner = gradient @ up
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            grad_inputs = (gradient @ weight).addmm_(grad_inner, down, alpha=ctx.scale).view(ctx.shape)
        grad_down = (grad_inner.T @ flat).mul_(ctx.scale)
        grad_up = (gradient.T @ inner).mul_(ctx.scale)
        return grad_inputs, None, None, grad_down, grad_up, None, None


def use_lean_forward(model: Model) -> None:
    """Replace the forward pass of frozen RMS norms and gated MLPs by one that keeps its inputs alone.

    Their outputs, which adapters otherwise save as their inputs, are computed again in the backward pass: products and
    norms of one layer at a time, without a matrix product. Only modules that compute what their own forward does, bit
    by bit, are replaced. Not for gradient checkpointing, which would not see what the recipes hold.
    """
    for module in model.modules():
        if _is_frozen_rms_norm(module):
            module.forward = partial(_normalize, module)
        elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")) and isinstance(
            getattr(module, "act_fn", None), (nn.SiLU, type(ACT2FN["silu"]))
        ):
            module.forward = partial(_compute_gated, module)


def _is_frozen_rms_norm(module: Any) -> bool:  # noqa: ANN401 - each family has a class of its own
    parameters = dict(module.named_parameters())
    if parameters.keys() != {"weight"} or module.weight.requires_grad or not hasattr(module, "variance_epsilon"):
        return False
    trial = torch.linspace(-2.0, 3.0, 2 * len(module.weight)).reshape(2, -1)
    weight = trial[0] + 2.5
    own = torch.func.functional_call(module, {"weight": weight}, (trial,))
    return torch.equal(own, _scale(trial, weight, _inverse_root(trial, module.variance_epsilon)))


def _inverse_root(hidden: torch.Tensor, epsilon: float) -> torch.Tensor:
    return torch.rsqrt(hidden.float().pow(2).mean(-1, keepdim=True) + epsilon)


def _scale(hidden: torch.Tensor, weight: torch.Tensor, inverse_root: torch.Tensor) -> torch.Tensor:
    return weight * (hidden.float() * inverse_root).to(hidden.dtype)


def _normalize(module: Any, hidden: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
    if not (torch.is_grad_enabled() and hidden.requires_grad):
        plain: torch.Tensor = type(module).forward(module, hidden)
        return plain
    inverse_root = _inverse_root(hidden.detach(), module.variance_epsilon)
    normed: torch.Tensor = _RmsNorm.apply(hidden, module.weight, inverse_root)  # type: ignore[no-untyped-call]
    kept = hidden.detach()
    setattr(normed, RECIPE, Recomputation(lambda: _scale(kept, module.weight, inverse_root)))
    return normed


class _RmsNorm(torch.autograd.Function):
    """weight * hidden / root mean square of hidden, with a frozen weight."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        hidden: torch.Tensor,
        weight: torch.Tensor,
        inverse_root: torch.Tensor,
    ) -> torch.Tensor:
        """`hidden` is [..., width], `weight` [width], `inverse_root` [..., 1] in fp32."""
        ctx.save_for_backward(hidden, weight, inverse_root)
        return _scale(hidden, weight, inverse_root)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradient of `hidden`."""
        hidden, weight, inverse_root = ctx.saved_tensors
        normed = hidden.float() * inverse_root
        weighed = (grad_outputs[0] * weight).float()
        along = (weighed * normed).mean(-1, keepdim=True)
        return weighed.sub_(normed.mul_(along)).mul_(inverse_root).to(hidden.dtype), None, None


def _compute_gated(module: Any, hidden: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - as above
    gate, up = module.gate_proj(hidden), module.up_proj(hidden)
    if not (torch.is_grad_enabled() and gate.requires_grad and up.requires_grad):
        plain: torch.Tensor = module.down_proj(module.act_fn(gate) * up)
        return plain
    product = _GatedProduct.apply(gate, up)  # type: ignore[no-untyped-call]
    kept = gate.detach(), up.detach()
    setattr(product, RECIPE, Recomputation(lambda: functional.silu(kept[0]).mul_(kept[1])))
    outputs: torch.Tensor = module.down_proj(product)
    return outputs


class _GatedProduct(torch.autograd.Function):
    """silu(gate) * up, of which only the two factors are saved."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - autograd's context
        """Return a tensor of the same shape."""
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
        """Return the gradients of both factors."""
        gate, up = ctx.saved_tensors
        gradient = grad_outputs[0]
        return torch.ops.aten.silu_backward(gradient * up, gate), functional.silu(gate).mul_(gradient)


CHUNK_TOKENS = 512
"""Tokens whose logits are materialized at once: enough that the product with the head is compute-bound on every GPU so
far, and 0.25 GiB of fp32 logits at a vocabulary of 128 thousand."""


@dataclass(frozen=True)
class OutputHead:
    """The output head: logits = `softcap` * tanh(`scale` * layer(hidden) / `softcap`); 0 for no cap."""

    layer: torch.nn.Module
    scale: float = 1.0
    softcap: float = 0.0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits in fp32. Shape [..., hidden] to [..., vocabulary]."""
        return self.apply_scale_and_softcap(self.layer(hidden).float())

    def apply_scale_and_softcap(self, raw: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of the head's product, out of place."""
        scaled = raw if self.scale == 1.0 else raw * self.scale
        return torch.tanh(scaled / self.softcap) * self.softcap if self.softcap else scaled

    @property
    def is_plain(self) -> bool:
        """True if the layer is a plain matrix product, whose gradient is written out below."""
        layer = self.layer
        return type(layer) is torch.nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def get_output_head(model: Model) -> OutputHead:
    """Return the output head of a causal language model, with its family's scale and softcap.

    Names of the configuration: Gemma's final_logit_softcapping, Cohere's logit_scale, Granite's logits_scaling.
    """
    config = model.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return OutputHead(
        model.get_output_embeddings(), scale, softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0)
    )


def head_matches_model(head: OutputHead, model: Model) -> bool:
    """Return True if `head` on the decoder's hidden states gives the model's own logits, tried on four tokens.

    Families differ in what is between the two, and new ones come: if it is not reproduced, it is not chunked. Both are
    of one forward pass, so that dropout does not matter.
    """
    seen: list[torch.Tensor] = []
    hook = model.get_decoder().register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(1, 5, device=next(model.parameters()).device).remainder(vocabulary).unsqueeze(0)
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            found = head.logits(seen[0])
    finally:
        hook.remove()
    wanted = logits.float()
    # Models scale their logits in their own data type, `head` in fp32.
    tolerance = 1e-4 if logits.dtype is torch.float32 else 1e-2
    return wanted.shape == found.shape and bool((wanted - found).abs().max() <= tolerance * wanted.abs().max())


def select_targets(labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the flat positions that have a target, and the targets, both on `device` with shape [targets].

    Selected before the labels go to the device: there, the CPU would wait for the GPU to learn how many they are.
    """
    flat = labels.reshape(-1)
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(-1)
    return move_to_device(positions, device), move_to_device(flat[positions], device)


def compute_loss(head: OutputHead, states: torch.Tensor, targets: torch.Tensor, implementation: Loss) -> torch.Tensor:
    """Return the sum of the cross-entropies, in fp32, shape [].

    `states` are the hidden states of the positions with a target, [targets, width], `targets` have shape [targets].
    """
    layer: Any = head.layer
    loss: torch.Tensor
    if implementation is Loss.STANDARD:
        return _chunk_loss(head, states, targets)
    if implementation is Loss.FUSED and head.is_plain and head.scale == 1.0:
        # Liger's Triton kernel. Source: github.com/linkedin/Liger-Kernel.
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        kernel = LigerFusedLinearCrossEntropyLoss(reduction="sum", softcap=head.softcap or None)
        loss = kernel(layer.weight, states.to(layer.weight.dtype), targets, layer.bias)
        return loss
    if head.is_plain:
        loss = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            states.to(layer.weight.dtype), layer.weight, layer.bias, targets, head
        )
        return loss
    # Heads that are more than a matrix, such as one with an adapter: each chunk is recomputed in the backward pass.
    loss = states.new_zeros((), dtype=torch.float32)
    for some, wanted in zip(torch.split(states, CHUNK_TOKENS), torch.split(targets, CHUNK_TOKENS), strict=True):
        loss = loss + checkpoint(_chunk_loss, head, some, wanted, use_reentrant=False)
    return loss


def _chunk_loss(head: OutputHead, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head.logits(states), targets, reduction="sum")


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy with gradients chunk by chunk in the forward pass, so that nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - autograd's context has no public type
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        head: OutputHead,
    ) -> torch.Tensor:
        """`states` is [targets, width], `weight` [vocabulary, width]; the loss has shape []."""
        wants = ctx.needs_input_grad
        grad_states = torch.empty_like(states) if wants[0] else None
        # Rounded once, at the end, and not with each chunk.
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wants[2] else None
        total = states.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), CHUNK_TOKENS):
            part = slice(start, start + CHUNK_TOKENS)
            some = states[part]
            raw = functional.linear(some, weight, bias).float()
            loss, gradient = _loss_and_gradient(raw, targets[part], head, wants_gradient=any(wants[:3]))
            total += loss
            if gradient is None:
                continue
            rounded = gradient.to(states.dtype)
            if grad_states is not None:
                grad_states[part] = rounded @ weight
            if grad_weight is not None:
                grad_weight += rounded.T @ some
            if grad_bias is not None:
                grad_bias += gradient.sum(dim=0)
            # Otherwise they would live beside the next chunk's: a third more memory at the peak.
            del raw, gradient, rounded
        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of the forward pass, times the gradient of the loss."""
        scale = grad_outputs[0]
        grad_states, grad_weight, grad_bias = ctx.saved_tensors
        return (
            None if grad_states is None else grad_states * scale.to(grad_states.dtype),
            None if grad_weight is None else grad_weight.mul_(scale).to(ctx.dtype),
            None if grad_bias is None else grad_bias.mul_(scale).to(ctx.dtype),
            None,
            None,
        )


def _loss_and_gradient(
    raw: torch.Tensor, targets: torch.Tensor, head: OutputHead, *, wants_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the summed loss of one chunk and its gradient by `raw`, [chunk, vocabulary]. `raw` is overwritten."""
    logits = raw.mul_(head.scale) if head.scale != 1.0 else raw
    slope = None
    if head.softcap:
        logits = logits.div_(head.softcap).tanh_()
        slope = 1.0 - logits.square()
        logits = logits.mul_(head.softcap)
    rows = torch.arange(len(targets), device=raw.device)
    logits.sub_(logits.amax(dim=-1, keepdim=True))
    chosen = logits[rows, targets]
    sums = logits.exp_().sum(dim=-1)
    loss = (sums.log() - chosen).sum()
    if not wants_gradient:
        return loss, None
    gradient = logits.div_(sums.unsqueeze(-1))
    gradient[rows, targets] -= 1.0
    if slope is not None:
        gradient.mul_(slope)
    return loss, gradient.mul_(head.scale) if head.scale != 1.0 else gradient


ModelTrial: TypeAlias = Callable[[Model], object]
"""Something that is found out about a model by using it."""


class ModelWithLoss(torch.nn.Module):
    """The model with its loss: the module that is wrapped for several ranks, so that the output head is inside.

    `is_split` is True if decoder and head are called separately; see `split_head`.
    """

    def __init__(self, model: Model, *, loss: Loss, attention: Attention, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.device = device
        self.loss = loss
        self.is_split = False
        self.train()

    def split_head(self, call_gathered: Callable[[Callable[[Model], bool]], bool]) -> None:
        """From now on call decoder and head separately, if they give the model's own logits.

        Otherwise full logits are materialized. `call_gathered` is that of the ParallelModel.
        """
        self.is_split = call_gathered(lambda _: head_matches_model(self._head(), self._base()))

    def _base(self) -> Model:
        model: Model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _head(self) -> OutputHead:
        return get_output_head(self._base())

    def forward(self, given: MicroBatch | ModelTrial) -> Any:  # noqa: ANN401 - whatever a trial returns
        """Return the loss of a micro-batch, shape []; or a trial's result: only here are sharded weights gathered."""
        return self.compute_micro_batch_loss(given) if isinstance(given, MicroBatch) else given(self.model)

    def compute_micro_batch_loss(self, batch: MicroBatch) -> torch.Tensor:
        """Return the summed loss of the batch's targets, shape [], in fp32."""
        inputs = build_model_inputs(batch, self.attention, self.device)
        positions, targets = select_targets(batch.labels, self.device)
        if not self.is_split:
            logits = _select(self._base()(**inputs).logits, positions)
            return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
        states = _select(self._base().get_decoder()(**inputs).last_hidden_state, positions)
        return compute_loss(self._head(), states, targets, self.loss)


def _select(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select positions of `values`, [rows, tokens, width], as [targets, width]."""
    return values.reshape(-1, values.shape[-1]).index_select(0, positions)
