"""Patches that make training of a transformers model leaner and faster, in anybody's trainer.

Two lines, after the adapter is attached:

    from devkit.workload.patches import patch
    patch(model)

They replace forward passes by ones that compute the same with fewer passes over memory and fewer saved tensors:
`use_fused_lora_forward` those of LoRA layers, `use_lean_forward` those of frozen norms and gated MLPs, and
`use_chunked_loss` the loss, which then never materializes the full logits. Each leaves alone what it cannot reproduce.
Parameters, their names and what is saved stay as they are.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN
from transformers.modeling_outputs import CausalLMOutputWithPast

from devkit.workload.models import Linear, LoraLayer, Model

IGNORED_LABEL = -100
"""The label that torch and transformers leave out of the loss."""


@dataclass(frozen=True)
class Patched:
    """The patches that a model took: replaced LoRA layers, replaced norms and MLPs, and if its loss is chunked."""

    lora_layers: int
    lean_modules: int
    has_chunked_loss: bool


def patch(model: Model, *, loss: bool = True, lean: bool = True) -> Patched:
    """Apply all patches that fit to a model of transformers, or of peft on one, in place.

    Args:
        loss: replace the loss as well. Not for a trainer that needs logits, or chunks the loss already, as TRL's does.
        lean: replace norms and MLPs as well. Not with gradient checkpointing, which saves nothing of them anyway.
    """
    return Patched(
        use_fused_lora_forward(model), use_lean_forward(model) if lean else 0, loss and use_chunked_loss(model)
    )


def use_chunked_loss(model: Model) -> bool:
    """Have a causal language model compute the loss of `labels` without its logits; its outputs have none then.

    Returns False, and changes nothing, where the model's own logits are not reproduced. Calls without labels, such as
    generation, are as before. The loss is divided by `num_items_in_batch` where it is given, as Trainer does.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not head_matches_model(get_output_head(base), base):
        return False
    whole = base.forward

    @functools.wraps(whole)
    def forward(
        input_ids: torch.Tensor | None = None,
        *more: Any,  # noqa: ANN401 - whatever the model takes
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if labels is None or more or named.get("logits_to_keep"):
            named |= {} if labels is None else {"labels": labels, "num_items_in_batch": num_items_in_batch}
            return whole(input_ids, *more, **named)
        named.pop("logits_to_keep", None)
        states = base.get_decoder()(input_ids=input_ids, **named).last_hidden_state
        targets = functional.pad(labels[..., 1:], (0, 1), value=IGNORED_LABEL).reshape(-1)
        positions = (targets != IGNORED_LABEL).nonzero().squeeze(-1)
        chosen = states.reshape(-1, states.shape[-1]).index_select(0, positions)
        total = compute_loss(get_output_head(base), chosen, targets[positions])
        count = len(positions) if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutputWithPast(loss=total / count)

    base.forward = forward
    return True


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


def use_lean_forward(model: Model) -> int:
    """Replace the forward pass of frozen RMS norms and gated MLPs by one that keeps its inputs alone; return how many.

    Their outputs, which adapters otherwise save as their inputs, are computed again in the backward pass: products and
    norms of one layer at a time, without a matrix product. Only modules that compute what their own forward does, bit
    by bit, are replaced. Not for gradient checkpointing, which would not see what the recipes hold.
    """
    replaced = 0
    for module in model.modules():
        if _is_frozen_rms_norm(module):
            module.forward = functools.partial(_normalize, module)
        elif all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")) and isinstance(
            getattr(module, "act_fn", None), (nn.SiLU, type(ACT2FN["silu"]))
        ):
            module.forward = functools.partial(_compute_gated, module)
        else:
            continue
        replaced += 1
    return replaced


def _is_frozen_rms_norm(module: Any) -> bool:  # noqa: ANN401 - each family has its own class
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


def compute_loss(head: OutputHead, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of the cross-entropies, in fp32, shape [].

    `states` are the hidden states of the positions with a target, [targets, width], `targets` have shape [targets].
    """
    layer: Any = head.layer
    loss: torch.Tensor
    if head.is_plain:
        loss = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            states.to(layer.weight.dtype), layer.weight, layer.bias, targets, head
        )
        return loss
    # Heads that are more than a matrix, such as one with an adapter: each chunk is recomputed in the backward pass.
    loss = states.new_zeros((), dtype=torch.float32)
    for chunk in zip(torch.split(states, CHUNK_TOKENS), torch.split(targets, CHUNK_TOKENS), strict=True):
        loss = loss + checkpoint(
            lambda some, wanted: functional.cross_entropy(head.logits(some), wanted, reduction="sum"),
            *chunk,
            use_reentrant=False,
        )
    return loss


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
