"""How each architecture builds its layers: the facts that a config.json leaves to the code of transformers.

Every row was read in https://github.com/huggingface/transformers, src/transformers/models/<name>/modeling_<name>.py and
its configuration, release 5.23; tests build each of them and count.
"""

from devkit.estimate.shape import Blocks
from devkit.facts.record import keyword_record

SOURCE = "https://github.com/huggingface/transformers/tree/v5.23.0/src/transformers/models"

Bias = bool | str
"""Whether a linear has a bias, or the config's key that says so."""


@keyword_record
class ExpertKeys:
    """The config's keys about experts. `shared` names that of their width, or of their number when `counts_shared`."""

    count: str
    width: str
    active: str = "num_experts_per_tok"
    shared: str = ""
    counts_shared: bool = False
    has_shared_gate: bool = False
    has_bias: bool = False
    router_is_linear: bool = False


@keyword_record
class Family:
    """Names of modules as transformers has them: attention reads with all but the last, the MLP likewise.

    `attention` has four names, or two where queries, keys and values come from one linear.
    """

    attention: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    attention_bias: Bias = False
    output_bias: Bias = False
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_bias: Bias = False
    norm_width: int = 1
    """Numbers in a norm per number of the hidden width: 0 without weights, 2 with a bias."""
    query_norm: str = ""
    """"head" where queries and keys are normed by head with one weight for all, "full" over their whole width."""
    blocks: Blocks = Blocks()
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


_LAYER_NORM = Blocks(is_gated=False, has_rms_norm=False)
_GPT2_KEYS = (
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
)
_TEXT_PART = "text part only: images and their encoder come on top"
_TIED = (("tie_word_embeddings", True),)


def _as(family: Family, **changed: object) -> Family:
    return Family(**{**vars(family), **changed})


_LLAMA = Family(attention_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_QWEN2 = Family(attention_bias=True)
_QWEN3 = Family(
    attention_bias="attention_bias",
    output_bias="attention_bias",
    query_norm="head",
    blocks=Blocks(has_query_norm=True),
)
_GEMMA = Family(
    attention_bias="attention_bias", output_bias="attention_bias", blocks=Blocks(weighs_in_fp32=True), defaults=_TIED
)
_GEMMA2 = _as(_GEMMA, blocks=Blocks(norms=4, needs_eager_attention=True, weighs_in_fp32=True), window_pattern=2)
_GEMMA3_SIZES = (
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("vocab_size", 262_208),
)
_GEMMA3 = _as(
    _GEMMA,
    defaults=(*_TIED, *_GEMMA3_SIZES),
    blocks=Blocks(norms=4, has_query_norm=True, weighs_in_fp32=True),
    query_norm="head",
    window_pattern=6,
)
_PHI3 = Family(attention=("qkv_proj", "o_proj"), mlp=("gate_up_proj", "down_proj"))
_OLMO2 = _as(_LLAMA, mlp_bias=False, query_norm="full", blocks=Blocks(has_query_norm=True, weighs_in_fp32=True))
_COHERE = Family(
    attention_bias="attention_bias",
    output_bias="attention_bias",
    blocks=Blocks(norms=1, is_parallel=True, weighs_in_fp32=True),
    defaults=_TIED,
)
_GLM = Family(attention_bias="attention_bias", mlp=("gate_up_proj", "down_proj"))
_GPT2 = Family(
    attention=("c_attn", "c_proj"),
    attention_bias=True,
    output_bias=True,
    mlp=("c_fc", "c_proj"),
    mlp_bias=True,
    norm_width=2,
    blocks=_LAYER_NORM,
    keys=_GPT2_KEYS,
    defaults=(*_TIED, ("activation_function", "gelu_new")),
    position_rows=0,
)
_NEOX = Family(
    attention=("query_key_value", "dense"),
    attention_bias="attention_bias",
    output_bias="attention_bias",
    mlp=("dense_h_to_4h", "dense_4h_to_h"),
    mlp_bias=True,
    norm_width=2,
    blocks=Blocks(is_gated=False, has_rms_norm=False, is_parallel=True),
    defaults=(("attention_bias", True),),
)
_MOE = ExpertKeys(count="num_experts", width="moe_intermediate_size")
_DEEPSEEK = Family(
    attention_bias="attention_bias",
    output_bias="attention_bias",
    is_latent=True,
    experts=ExpertKeys(
        count="n_routed_experts", width="moe_intermediate_size", shared="n_shared_experts", counts_shared=True
    ),
)
_BERT = Family(
    attention=("query", "key", "value", "dense"),
    attention_bias=True,
    output_bias=True,
    mlp=("dense", "dense"),
    mlp_bias=True,
    norm_width=2,
    blocks=_LAYER_NORM,
    position_rows=0,
    defaults=(("type_vocab_size", 2),),
    is_decoder=False,
    note="encoder: no cache and no logits",
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "ministral": Family(),
    "mixtral": Family(experts=ExpertKeys(count="num_local_experts", width="intermediate_size")),
    "qwen2": _QWEN2,
    "qwen2_vl": _as(_QWEN2, note=_TEXT_PART),
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _as(_QWEN2, note=_TEXT_PART),
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _as(
        _QWEN2,
        experts=ExpertKeys(
            count="num_experts",
            width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
            has_shared_gate=True,
        ),
    ),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _as(_QWEN3, experts=_MOE),
    "qwen3_vl_moe_text": _as(_QWEN3, experts=_MOE),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "phi": Family(
        attention=("q_proj", "k_proj", "v_proj", "dense"),
        attention_bias=True,
        output_bias=True,
        mlp=("fc1", "fc2"),
        mlp_bias=True,
        norm_width=2,
        blocks=Blocks(is_gated=False, has_rms_norm=False, norms=1, is_parallel=True),
        defaults=(("hidden_act", "gelu_new"),),
        has_head_bias=True,
    ),
    "phi3": _PHI3,
    "gpt2": _GPT2,
    "gpt_bigcode": _as(
        _GPT2,
        defaults=(
            ("tie_word_embeddings", True),
            ("multi_query", True),
        ),
    ),
    "gpt_neox": _NEOX,
    "opt": Family(
        attention=("q_proj", "k_proj", "v_proj", "out_proj"),
        attention_bias=True,
        output_bias=True,
        mlp=("fc1", "fc2"),
        mlp_bias=True,
        norm_width=2,
        blocks=_LAYER_NORM,
        keys=(("intermediate_size", "ffn_dim"),),
        defaults=(*_TIED, ("activation_function", "relu")),
        position_rows=2,
    ),
    "stablelm": Family(attention_bias="use_qkv_bias", norm_width=2, blocks=Blocks(has_rms_norm=False)),
    "starcoder2": Family(
        attention_bias="use_bias",
        output_bias="use_bias",
        mlp=("c_fc", "c_proj"),
        mlp_bias="use_bias",
        norm_width=2,
        blocks=_LAYER_NORM,
        defaults=(
            ("use_bias", True),
            ("tie_word_embeddings", True),
        ),
    ),
    "olmo": _as(_LLAMA, mlp_bias=False, norm_width=0, blocks=Blocks(has_rms_norm=False)),
    "olmo2": _OLMO2,
    "olmo3": _as(_OLMO2, window_pattern=4),
    "olmoe": _as(_OLMO2, experts=ExpertKeys(count="num_experts", width="intermediate_size")),
    "cohere": _COHERE,
    "cohere2": _as(_COHERE, window_pattern=4),
    "granite": _LLAMA,
    "granitemoe": Family(
        attention_bias="attention_bias",
        output_bias="attention_bias",
        experts=ExpertKeys(count="num_local_experts", width="intermediate_size"),
    ),
    "smollm3": _as(_LLAMA, defaults=_TIED),
    "seed_oss": _as(_LLAMA, output_bias="attention_out_bias", defaults=(("attention_bias", True),)),
    "exaone4": Family(query_norm="head", blocks=Blocks(has_query_norm=True)),
    "hunyuan_v1_dense": _QWEN3,
    "glm": _GLM,
    "glm4": _as(_GLM, blocks=Blocks(norms=4)),
    "ernie4_5": Family(attention_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", defaults=_TIED),
    "deepseek_v2": _as(_DEEPSEEK, mlp_bias="mlp_bias"),
    "deepseek_v3": _DEEPSEEK,
    "gpt_oss": Family(
        attention_bias="attention_bias",
        output_bias="attention_bias",
        blocks=Blocks(needs_eager_attention=True, expert_tensors=6),
        defaults=(("attention_bias", True),),
        window_pattern=2,
        has_sinks=True,
        experts=ExpertKeys(count="num_local_experts", width="intermediate_size", has_bias=True),
    ),
    "bert": _BERT,
    "roberta": _as(_BERT),
    "distilbert": _as(
        _BERT,
        attention=("q_lin", "k_lin", "v_lin", "out_lin"),
        mlp=("lin1", "lin2"),
        keys=(
            ("hidden_size", "dim"),
            ("num_hidden_layers", "n_layers"),
            ("num_attention_heads", "n_heads"),
            ("intermediate_size", "hidden_dim"),
        ),
        defaults=(("type_vocab_size", 0),),
    ),
}
"""By `model_type`."""
