"""The forward pass of a micro-batch: attention over packed texts, and the model with its loss.

Attention takes the borders of texts (cu_seqlens): no padding, and no mask of tokens by tokens. It is registered with
transformers under a name of ours and takes the keyword arguments that transformers passes to flash attention, so one set
of inputs serves both. Before the first step it is verified on the model itself that texts of a row do not attend to each
other. The loss is cross-entropy on hidden states, without materializing the full logits; every loss here is the sum over
targets, and the caller divides by their number in the whole effective batch.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeAlias

import torch
from torch.nn.functional import scaled_dot_product_attention

from devkit.errors import DevkitError
from devkit.estimate.settings import Attention
from devkit.workload.finetune.dataset import (
    IGNORE_INDEX,
    BatchRow,
    Example,
    MicroBatch,
    collate,
    move_to_device,
)
from devkit.workload.finetune.decisions import AttentionTraits
from devkit.workload.models import Model
from devkit.workload.patches import OutputHead, compute_loss, get_output_head, head_matches_model

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
tokens of a batch again for each text; everything else gives equal bits."""


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
            raise RuntimeError(f"{type(module).__name__} did not receive the boundaries of its texts")
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


def require_no_cross_attention(model: Model, attention: Attention, device: torch.device) -> None:
    """Raise DevkitError if texts of a row attend to each other in this model with this attention.

    Configurations and class attributes say what a model's code promises; this sees what it does. A model with
    cross-attention between texts would train without any error, on inputs that it will never get again. It computes as
    in training, since bitsandbytes rearranges its weights on some CPUs in evaluation mode. Afterwards the model's mode
    and the random generators are as before.
    """
    was_training = model.training
    model.train()
    first, second = (_watched_logits(model, before, attention, device) for before in PRECEDING_TEXTS)
    model.train(was_training)
    change = float((first - second).abs().max() / first.abs().max().clamp_min(torch.finfo(torch.float32).tiny))
    if not change <= MAX_CROSS_TALK.get(next(model.parameters()).dtype, MAX_CROSS_TALK[torch.bfloat16]):
        raise DevkitError(
            f"texts that share a row attend to each other in this model with {attention} attention: "
            f"the text before another one changes it by {change:.1%}",
            "Use --no-packing --attention sdpa.",
        )


def _watched_logits(model: Model, before: Example, attention: Attention, device: torch.device) -> torch.Tensor:
    """Return the logits of the watched text behind another, shape [tokens, vocabulary], in fp32."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    batch = collate([BatchRow((before, WATCHED_TEXT))], flat=True)
    cuda = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        # Equal random numbers for both texts, so that dropout makes no difference.
        torch.manual_seed(0)
        logits = base(**build_model_inputs(batch, attention, device)).logits
    watched: torch.Tensor = logits[0, -len(WATCHED_TEXT.ids) :].float()
    return watched


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


def select_targets(labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the flat positions that have a target, and the targets, both on `device` with shape [targets].

    Selected before the labels go to the device: there, the CPU would wait for the GPU to learn how many they are.
    """
    flat = labels.reshape(-1)
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(-1)
    return move_to_device(positions, device), move_to_device(flat[positions], device)


ModelTrial: TypeAlias = Callable[[Model], object]
"""Something that is found out about a model by using it."""


class ModelWithLoss(torch.nn.Module):
    """The model with its loss: the module that is wrapped for several ranks, so it includes the output head.

    `is_split` is True if decoder and head are called separately; see `split_head`.
    """

    def __init__(self, model: Model, *, attention: Attention, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.attention = attention
        self.device = device
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
        return compute_loss(self._head(), states, targets)


def _select(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Select positions of `values`, [rows, tokens, width], as [targets, width]."""
    return values.reshape(-1, values.shape[-1]).index_select(0, positions)
