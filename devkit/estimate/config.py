"""From a config.json to the shape of the model that it describes."""

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.families import FAMILIES, Bias, ExpertKeys, Family
from devkit.estimate.shape import Experts, Layer, Linear, ModelShape, Reads

MOST = 1 << 34
"""No size in a config is larger: beyond it somebody mistyped."""


def shape_of_config(config: Mapping[str, Any], *, name: str = "") -> ModelShape:
    """The model that a config.json describes. Of a vision-language model, the text part.

    Raises DevkitError for an architecture that is not known, and for sizes that are missing or make no sense.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        shape = _shape({"tie_word_embeddings": config.get("tie_word_embeddings", False), **text}, name)
        return _noted(shape, "text part only: images and their encoder come on top")
    return _shape(config, name)


def _noted(shape: ModelShape, note: str) -> ModelShape:
    return ModelShape(**{**vars(shape), "note": note})


def _shape(config: Mapping[str, Any], name: str) -> ModelShape:
    read = _Reader(config, name)
    hidden, vocabulary = read.size("hidden_size"), read.size("vocab_size")
    attention = _LatentAttention(read) if read.family.is_latent else _Attention(read)
    layers = _layers(read, attention)
    family = read.family
    is_tied = bool(read.value("tie_word_embeddings", False))
    head = 0 if is_tied or not family.is_decoder else vocabulary * hidden
    return ModelShape(
        name=name or str(config.get("_name_or_path") or family_name(config)),
        architecture=family_name(config),
        hidden=hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        query_width=attention.query_width,
        value_width=attention.value_width,
        kv_width=attention.kv_width,
        cache_width=attention.cache_width if family.is_decoder else 0,
        vocabulary=vocabulary,
        layers=layers,
        embedding_parameters=vocabulary * hidden,
        head_parameters=head,
        other_parameters=_outside(read, hidden, vocabulary),
        blocks=family.blocks,
        mlp_tensors=3 if family.blocks.is_gated else 4 if _activation(read) in WRITTEN_OUT else 1,
        keeps_activated=_activation(read) == "relu",
        max_positions=read.optional_size("max_position_embeddings", 0),
        is_decoder=family.is_decoder,
        note=family.note,
    )


def family_name(config: Mapping[str, Any]) -> str:
    """The architecture that a config names. Raises DevkitError where devkit knows none of that name."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return kind
    if not isinstance(kind, str):
        raise DevkitError(
            "this config.json names no architecture: model_type is missing",
            "Give the config.json of a model from the hub, or describe the model: --hidden, --layers, --heads …",
        )
    near = get_close_matches(kind, FAMILIES, n=3) or ["llama", "qwen3", "mixtral"]
    raise DevkitError(
        f"the architecture {kind!r} is not known: how its layers are built is missing",
        f"Known are {len(FAMILIES)}, such as {', '.join(near)}. If it is built like one of them, write that name as "
        "model_type in a copy of config.json.",
    )


_ALSO_CALLED = {"num_experts": "num_local_experts", "n_routed_experts": "num_local_experts"}
"""Names that transformers 5 writes for what published files call otherwise."""


class _Reader:
    """Values of a config under their common names."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.kind = family_name(config)
        self.family: Family = FAMILIES[self.kind]
        self._config = config
        self._keys = dict(self.family.keys)
        self._defaults = dict(self.family.defaults)
        self._origin = name or "this config.json"

    def value(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever JSON holds
        own = self._keys.get(key, key)
        found = self._config.get(own, self._config.get(_ALSO_CALLED.get(key, key)))
        return self._defaults.get(key, default) if found is None else found

    def size(self, key: str) -> int:
        """A number of things. Raises DevkitError where it is missing or cannot be one."""
        found = self.value(key)
        own = self._keys.get(key, key)
        if found is None:
            raise DevkitError(
                f"{self._origin} does not say {own}, which a {self.kind} model needs",
                "Give the whole config.json, as the model's folder holds it.",
            )
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < MOST:
            raise DevkitError(f"{own} is {found!r} in {self._origin}", "It must be a whole number above zero.")
        return found

    def optional_size(self, key: str, default: int) -> int:
        return default if self.value(key) is None else self.size(key)

    def says(self, bias: Bias) -> bool:
        return bool(self.value(bias, False)) if isinstance(bias, str) else bias

    def divided(self, key: str, by: int) -> int:
        whole, rest = divmod(self.size(key), by)
        if rest:
            raise DevkitError(
                f"{self._keys.get(key, key)} {self.size(key)} is no multiple of the {by} attention heads",
                "Check both in config.json, or give head_dim.",
            )
        return whole


class _Attention:
    """Attention with heads of its own, or shared by groups."""

    def __init__(self, read: _Reader) -> None:
        self.heads = read.size("num_attention_heads")
        self.kv_heads = 1 if read.value("multi_query") else read.optional_size("num_key_value_heads", self.heads)
        head = read.optional_size("head_dim", 0) or read.divided("hidden_size", self.heads)
        self.query_width = self.value_width = self.heads * head
        self.kv_width = self.kv_heads * head
        self.cache_width = 2 * self.kv_width
        hidden, family = read.size("hidden_size"), read.family
        *inside, out = family.attention
        widths = (self.query_width, self.kv_width, self.kv_width)
        has_bias = read.says(family.attention_bias)
        outputs = (sum(widths),) if len(inside) == 1 else widths
        self.linears = (
            *(
                Linear(name, hidden, width, Reads.ATTENTION_INPUT, has_bias)
                for name, width in zip(inside, outputs, strict=True)
            ),
            Linear(out, self.query_width, hidden, Reads.ATTENTION_OUTPUT, read.says(family.output_bias)),
        )
        norms = {"": 0, "head": 2 * head, "full": self.query_width + self.kv_width}
        self.norm_parameters = norms[family.query_norm] + (self.heads if family.has_sinks else 0)


class _LatentAttention:
    """Multi-head latent attention: DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1."""

    def __init__(self, read: _Reader) -> None:
        self.heads = self.kv_heads = read.size("num_attention_heads")
        rope, plain = read.size("qk_rope_head_dim"), read.size("qk_nope_head_dim")
        value, rank = read.size("v_head_dim"), read.size("kv_lora_rank")
        query_rank = read.optional_size("q_lora_rank", 0)
        hidden, has_bias = read.size("hidden_size"), read.says(read.family.attention_bias)
        self.query_width = self.kv_width = self.heads * (rope + plain)
        self.value_width = self.heads * value
        self.cache_width = rank + rope
        queries = (
            (
                Linear("q_a_proj", hidden, query_rank, Reads.ATTENTION_INPUT, has_bias),
                Linear("q_b_proj", query_rank, self.query_width, Reads.QUERY_LATENT),
            )
            if query_rank
            else (Linear("q_proj", hidden, self.query_width, Reads.ATTENTION_INPUT),)
        )
        self.linears = (
            *queries,
            Linear("kv_a_proj_with_mqa", hidden, rank + rope, Reads.ATTENTION_INPUT, has_bias),
            Linear("kv_b_proj", rank, self.heads * (plain + value), Reads.KEY_VALUE_LATENT),
            Linear("o_proj", self.value_width, hidden, Reads.ATTENTION_OUTPUT, has_bias),
        )
        self.norm_parameters = query_rank + rank


def _layers(read: _Reader, attention: _Attention | _LatentAttention) -> tuple[Layer, ...]:
    depth = read.size("num_hidden_layers")
    kinds = Counter((_window(read, index), _has_experts(read, index)) for index in range(depth))
    return tuple(
        _layer(read, attention, count=count, window=window, has_experts=has_experts)
        for (window, has_experts), count in kinds.items()
    )


def _layer(
    read: _Reader, attention: _Attention | _LatentAttention, *, count: int, window: int | None, has_experts: bool
) -> Layer:
    family, hidden = read.family, read.size("hidden_size")
    norms = family.blocks.norms * family.norm_width * hidden + attention.norm_parameters
    if not has_experts or family.experts is None:
        width = read.optional_size("intermediate_size", 4 * hidden)
        mlp = _mlp(read, width)
        return Layer(
            count=count,
            linears=(*attention.linears, *mlp),
            other_parameters=norms,
            intermediate=width,
            window=window,
        )
    experts, shared, router = _experts(read, family.experts)
    return Layer(
        count=count,
        linears=(*attention.linears, *(_mlp(read, shared) if shared else ()), *_shared_gate(family.experts, hidden)),
        other_parameters=norms + router,
        intermediate=shared,
        experts=experts,
        window=window,
    )


def _mlp(read: _Reader, width: int) -> tuple[Linear, ...]:
    *inside, out = read.family.mlp
    hidden, has_bias = read.size("hidden_size"), read.says(read.family.mlp_bias)
    is_fused = read.family.blocks.is_gated and len(inside) == 1
    outputs = 2 * width if is_fused else width
    return (
        *(Linear(name, hidden, outputs, Reads.MLP_INPUT, has_bias) for name in inside),
        Linear(out, width, hidden, Reads.MLP_INSIDE, has_bias),
    )


def _experts(read: _Reader, keys: ExpertKeys) -> tuple[Experts, int, int]:
    """The experts of a layer, the width of the shared ones, and the router's parameters."""
    hidden, width, count = read.size("hidden_size"), read.size(keys.width), read.size(keys.count)
    each = 3 * hidden * width + (2 * width + hidden if keys.has_bias else 0)
    shared = read.optional_size(keys.shared, 0) if keys.shared else 0
    router = count * (hidden + 1 if keys.has_bias else hidden)
    experts = Experts(count=count, active=read.size(keys.active), width=width, parameters=count * each)
    return experts, shared * width if keys.counts_shared else shared, router


def _shared_gate(keys: ExpertKeys, hidden: int) -> tuple[Linear, ...]:
    return (Linear("shared_expert_gate", hidden, 1, Reads.MLP_INPUT),) if keys.has_shared_gate else ()


WRITTEN_OUT = frozenset({"gelu_new", "gelu_fast"})
"""Activations that transformers writes out in Python, so that each of their steps keeps a tensor."""


def _activation(read: _Reader) -> str:
    """The MLP's activation, by its name in transformers."""
    names = ("hidden_act", "activation_function", "activation", "hidden_activation")
    return next((str(read.value(name)) for name in names if read.value(name)), "")


def _has_experts(read: _Reader, index: int) -> bool:
    if read.family.experts is None or index in (read.value("mlp_only_layers") or ()):
        return False
    if index < (read.value("first_k_dense_replace") or 0):
        return False
    return bool((index + 1) % read.optional_size("decoder_sparse_step", 1) == 0)


def _window(read: _Reader, index: int) -> int | None:
    window = read.value("sliding_window")
    if not window or read.value("use_sliding_window") is False:
        return None
    kinds = read.value("layer_types")
    if isinstance(kinds, list) and index < len(kinds):
        slides = kinds[index] == "sliding_attention"
    else:
        pattern = read.optional_size("sliding_window_pattern", read.family.window_pattern)
        slides = not pattern or bool((index + 1) % pattern)
    return read.size("sliding_window") if slides else None


def _outside(read: _Reader, hidden: int, vocabulary: int) -> int:
    """Parameters that are neither in layers nor in embedding and head."""
    family = read.family
    norm = family.norm_width * hidden
    positions = 0
    if family.position_rows is not None:
        positions = (read.size("max_position_embeddings") + family.position_rows) * hidden
    if not family.is_decoder:
        kinds = (read.value("type_vocab_size") or 0) * hidden
        pooler = hidden * hidden + hidden if kinds else 0
        return norm + positions + kinds + pooler
    return norm + positions + (vocabulary if family.has_head_bias else 0)
