"""From a config.json to the shape of the model that it describes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.settings import MAX_SIZE
from devkit.estimate.shape import BlockTraits, ExpertShape, LayerShape, LinearInput, LinearShape, ModelShape
from devkit.facts.decode import decode_fields
from devkit.formats.documents import load
from devkit.text import find_similar

BiasRule = bool | str
"""Whether a linear has a bias, or the config's key that says so."""


@dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """The config's keys about experts. `shared` names that of their width, or of their number when `counts_shared`."""

    count: str
    width: str
    active: str = "num_experts_per_tok"
    shared: str = ""
    counts_shared: bool = False
    has_shared_gate: bool = False
    has_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Names of modules as transformers has them: attention reads with all but the last, the MLP likewise.

    `attention` has four names, or two where queries, keys and values come from one linear.
    """

    attention: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    attention_bias: BiasRule = False
    output_bias: BiasRule = False
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_bias: BiasRule = False
    norm_width: int = 1
    """Numbers in a norm per number of the hidden width: 0 without weights, 2 with a bias."""
    query_norm: str = ""
    """"head" where queries and keys are normed by head with one weight for all, "full" over their whole width."""
    blocks: BlockTraits = BlockTraits()  # noqa: RUF009 - frozen
    keys: tuple[tuple[str, str], ...] = ()
    """This family's names for the config's common keys."""
    defaults: tuple[tuple[str, bool | int | str], ...] = ()
    """What the configuration class assumes where config.json is silent."""
    window_pattern: int = 0
    """Every which layer sees all tokens while others slide; 0 where all layers do the same."""
    experts: ExpertKeys | None = None
    is_latent: bool = False
    """Multi-head latent attention: keys and values are kept as one small vector."""
    position_rows: int | None = None
    """Rows of the learned position table beyond `max_position_embeddings`; None without a table."""
    has_sinks: bool = False
    has_head_bias: bool = False
    is_decoder: bool = True
    note: str = ""


@cache
def load_families() -> Mapping[str, ModelFamily]:
    """Return how each architecture of tables/families.toml builds its layers, by `model_type`."""
    rows = load("devkit.estimate", "tables/families")
    found: dict[str, ModelFamily] = {}
    for name, shared in rows.items():
        row = dict(shared)
        values = dict(vars(found[row.pop("like")])) if "like" in row else {}
        for field, kind in (("blocks", BlockTraits), ("experts", ExpertKeys)):
            if field in row:
                values[field] = kind(**decode_fields(row.pop(field), kind))
        if "defaults" in row:
            values["defaults"] = tuple(row.pop("defaults").items())
        found[name] = ModelFamily(**{**values, **decode_fields(row, ModelFamily)})
    return found


MAX_LAYERS = 10_000
"""No size in a config is larger: beyond it is a typing error."""


def build_model_shape(config: Mapping[str, Any], *, name: str = "") -> ModelShape:
    """Build the shape of the model that a config.json describes; of a vision-language model, the text part.

    Raises DevkitError for an architecture that is not known, and for sizes that are missing or make no sense.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        shape = _build_shape({"tie_word_embeddings": config.get("tie_word_embeddings", False), **text}, name)
        return replace(shape, note="for the text part only: images and their encoder need more")
    return _build_shape(config, name)


def _build_shape(config: Mapping[str, Any], name: str) -> ModelShape:
    read = _Reader(config, name)
    hidden, vocabulary = read.size("hidden_size"), read.size("vocab_size")
    attention = _LatentAttention(read) if read.family.is_latent else _Attention(read)
    depth = read.size("num_hidden_layers")
    if depth > MAX_LAYERS:
        raise DevkitError(
            f"{name or 'this config.json'} has {depth} layers, more than the limit of {MAX_LAYERS}",
            "Check the number in the config.json.",
        )
    kinds = Counter((_find_window(read, index), _has_experts(read, index)) for index in range(depth))
    layers = tuple(
        _build_layer(read, attention, count=count, window=window, has_experts=has_experts)
        for (window, has_experts), count in kinds.items()
    )
    family = read.family
    is_tied = bool(read.value("tie_word_embeddings", False))
    head = 0 if is_tied or not family.is_decoder else vocabulary * hidden
    return ModelShape(
        name=name or str(config.get("_name_or_path") or find_family_name(config)),
        architecture=find_family_name(config),
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
        other_parameters=_count_outside(read, hidden, vocabulary),
        blocks=family.blocks,
        mlp_tensors=3 if family.blocks.is_gated else 4 if _find_activation(read) in WRITTEN_OUT else 1,
        keeps_activated=_find_activation(read) == "relu",
        can_be_lean=family.experts is None
        and family.mlp == ModelFamily.mlp
        and family.blocks.has_rms_norm
        and not family.blocks.weighs_in_fp32
        and _find_activation(read) in ("", "silu"),
        max_positions=read.optional_size("max_position_embeddings", 0),
        is_decoder=family.is_decoder,
        note=family.note,
    )


def find_family_name(config: Mapping[str, Any]) -> str:
    """Find the architecture that a config names. Raises DevkitError for an unknown one."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in load_families():
        return kind
    if not isinstance(kind, str):
        raise DevkitError(
            "this config.json does not name an architecture: model_type is missing",
            "Give the config.json of a model from the hub, or describe the model: --hidden, --layers, --heads …",
        )
    near = find_similar(kind, load_families()) or ["llama", "qwen3", "mixtral"]
    raise DevkitError(
        f"the architecture {kind!r} is not known, so its layer structure is unknown",
        f"Known are {len(load_families())}, such as {', '.join(near)}. If it is built like one of them, write that name as "
        "model_type in a copy of config.json.",
    )


_ALSO_CALLED = {"num_experts": "num_local_experts", "n_routed_experts": "num_local_experts"}
"""Keys of published files -> keys that transformers 5 writes instead."""


class _Reader:
    """Values of a config under their common names."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.kind = find_family_name(config)
        self.family = load_families()[self.kind]
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
                f"{self._origin} does not set {own}, which a {self.kind} model needs",
                "Give the whole config.json, as the model's folder contains it.",
            )
        if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < MAX_SIZE:
            raise DevkitError(f"{own} is {found!r} in {self._origin}", "It must be a whole number above zero.")
        return found

    def optional_size(self, key: str, default: int) -> int:
        return default if self.value(key) is None else self.size(key)

    def says(self, bias: BiasRule) -> bool:
        return bool(self.value(bias, False)) if isinstance(bias, str) else bias

    def divided(self, key: str, by: int) -> int:
        whole, rest = divmod(self.size(key), by)
        if rest:
            raise DevkitError(
                f"{self._keys.get(key, key)} {self.size(key)} is not divisible by the number of attention heads ({by})",
                "Check both in config.json, or give head_dim.",
            )
        return whole


class _Attention:
    """Attention whose key and value heads are separate or shared by groups."""

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
                LinearShape(name, hidden, width, LinearInput.ATTENTION_INPUT, has_bias)
                for name, width in zip(inside, outputs, strict=True)
            ),
            LinearShape(out, self.query_width, hidden, LinearInput.ATTENTION_OUTPUT, read.says(family.output_bias)),
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
                LinearShape("q_a_proj", hidden, query_rank, LinearInput.ATTENTION_INPUT, has_bias),
                LinearShape("q_b_proj", query_rank, self.query_width, LinearInput.QUERY_LATENT),
            )
            if query_rank
            else (LinearShape("q_proj", hidden, self.query_width, LinearInput.ATTENTION_INPUT),)
        )
        self.linears = (
            *queries,
            LinearShape("kv_a_proj_with_mqa", hidden, rank + rope, LinearInput.ATTENTION_INPUT, has_bias),
            LinearShape("kv_b_proj", rank, self.heads * (plain + value), LinearInput.KEY_VALUE_LATENT),
            LinearShape("o_proj", self.value_width, hidden, LinearInput.ATTENTION_OUTPUT, has_bias),
        )
        self.norm_parameters = query_rank + rank


def _build_layer(
    read: _Reader, attention: _Attention | _LatentAttention, *, count: int, window: int | None, has_experts: bool
) -> LayerShape:
    family, hidden = read.family, read.size("hidden_size")
    norms = family.blocks.norms * family.norm_width * hidden + attention.norm_parameters
    if not has_experts or family.experts is None:
        width = read.optional_size("intermediate_size", 4 * hidden)
        mlp = _build_mlp(read, width)
        return LayerShape(
            count=count, linears=(*attention.linears, *mlp), other_parameters=norms, intermediate=width, window=window
        )
    keys = family.experts
    width, experts = read.size(keys.width), read.size(keys.count)
    each = 3 * hidden * width + (2 * width + hidden if keys.has_bias else 0)
    router = experts * (hidden + 1 if keys.has_bias else hidden)
    shared = read.optional_size(keys.shared, 0) if keys.shared else 0
    shared_width = shared * width if keys.counts_shared else shared
    gate = (LinearShape("shared_expert_gate", hidden, 1, LinearInput.MLP_INPUT),) if keys.has_shared_gate else ()
    return LayerShape(
        count=count,
        linears=(*attention.linears, *(_build_mlp(read, shared_width) if shared_width else ()), *gate),
        other_parameters=norms + router,
        intermediate=shared_width,
        experts=ExpertShape(count=experts, active=read.size(keys.active), width=width, parameters=experts * each),
        window=window,
    )


def _build_mlp(read: _Reader, width: int) -> tuple[LinearShape, ...]:
    *inside, out = read.family.mlp
    hidden, has_bias = read.size("hidden_size"), read.says(read.family.mlp_bias)
    is_fused = read.family.blocks.is_gated and len(inside) == 1
    outputs = 2 * width if is_fused else width
    return (
        *(LinearShape(name, hidden, outputs, LinearInput.MLP_INPUT, has_bias) for name in inside),
        LinearShape(out, width, hidden, LinearInput.MLP_INSIDE, has_bias),
    )


WRITTEN_OUT = frozenset({"gelu_new", "gelu_fast"})
"""Activations that transformers writes out in Python, so that each of their steps keeps a tensor."""


def _find_activation(read: _Reader) -> str:
    """The MLP's activation, by its name in transformers."""
    names = ("hidden_act", "activation_function", "activation", "hidden_activation")
    return next((str(read.value(name)) for name in names if read.value(name)), "")


def _has_experts(read: _Reader, index: int) -> bool:
    if read.family.experts is None or index in (read.value("mlp_only_layers") or ()):
        return False
    if index < (read.value("first_k_dense_replace") or 0):
        return False
    return bool((index + 1) % read.optional_size("decoder_sparse_step", 1) == 0)


def _find_window(read: _Reader, index: int) -> int | None:
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


def _count_outside(read: _Reader, hidden: int, vocabulary: int) -> int:
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
