"""Shape of a language model: all that decides its memory, layer by layer, and the bytes of its weights and adapters.

The catalog of well-known open models has the sizes of their config.json by name, offline.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from typing import Any

from devkit.compat.version_tables import Array, Table, TableRow
from devkit.errors import DevkitError
from devkit.estimate.memory import BITSANDBYTES_SOURCE, KBIT_SOURCE, LLAMA_SOURCE, QLORA_SOURCE, Term, format_millions
from devkit.estimate.settings import ALL_LINEAR, Precision, Quantization, TrainingSettings
from devkit.formats.documents import load


class LinearInput(StrEnum):
    """The tensor that a linear reads: siblings that read the same one share it."""

    ATTENTION_INPUT = "attention input"
    QUERY_LATENT = "query latent"
    KEY_VALUE_LATENT = "key and value latent"
    ATTENTION_OUTPUT = "attention output"
    MLP_INPUT = "MLP input"
    MLP_INSIDE = "MLP inside"
    LAST_STATE = "last hidden state"


@dataclass(frozen=True)
class LinearShape:
    """A linear module of a layer, named as transformers names it; its weight has `inputs` x `outputs` numbers."""

    name: str
    inputs: int
    outputs: int
    reads: LinearInput
    has_bias: bool = False

    @property
    def weights(self) -> int:
        """Numbers in the weight matrix, the part that quantization packs."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Numbers in weight and bias."""
        return self.weights + (self.outputs if self.has_bias else 0)


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """The experts of a layer, held in fused 3-D tensors: no linear modules, so bitsandbytes leaves them as they are.

    Every token visits `active` of `count` experts. `parameters` are those of all experts of one layer.
    """

    count: int
    active: int
    width: int
    parameters: int


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """`count` decoder layers that are alike. `other_parameters` are norms, routers and whatever else is not a linear layer.

    `window` is how many tokens back attention sees, None for all of them.
    """

    count: int
    linears: tuple[LinearShape, ...]
    other_parameters: int
    intermediate: int
    """Width of the dense part of the MLP, that of shared experts included; 0 when experts are all there is."""
    experts: ExpertShape | None = None
    window: int | None = None

    @property
    def linear_parameters(self) -> int:
        """Numbers in the linears of one such layer."""
        return sum(linear.parameters for linear in self.linears)

    @property
    def parameters(self) -> int:
        """Numbers in one such layer."""
        return self.linear_parameters + self.other_parameters + (self.experts.parameters if self.experts else 0)

    @property
    def active_width(self) -> int:
        """The MLP neurons that a token passes through."""
        return self.intermediate + (self.experts.active * self.experts.width if self.experts else 0)


@dataclass(frozen=True, kw_only=True)
class BlockTraits:
    """Traits of an architecture's blocks that decide what they save for the backward pass."""

    is_gated: bool = True
    """Whether the MLP multiplies an activated half with a plain one (SwiGLU, GeGLU)."""
    has_rms_norm: bool = True
    """RMSNorm as transformers writes it keeps a copy in fp32; LayerNorm is one fused call and keeps its input."""
    norms: int = 2
    """Norms over the hidden width in one layer."""
    weighs_in_fp32: bool = False
    """Whether RMSNorm multiplies with its weight before it returns to 16 bits."""
    has_query_norm: bool = False
    """Whether queries and keys are normed by head."""
    expert_tensors: int = 3
    """How many tensors of their width the experts keep for the backward pass."""
    is_parallel: bool = False
    """Whether attention and MLP read the same normed input."""
    needs_eager_attention: bool = False
    """Scores are capped, or heads have sinks: transformers computes attention without a fused kernel."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder, or an encoder, as its config.json describes it; of a vision-language model the text part.

    `query_width` is heads times the size of a head; `cache_width` how many numbers one token leaves in one layer's
    cache. `head_parameters` is 0 when the output head is the embedding.
    """

    name: str
    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    query_width: int
    value_width: int
    """Width of what attention hands to its output projection: heads times the size of a value."""
    kv_width: int
    """Width of keys, and of values, before they are shared among the heads of a group."""
    cache_width: int
    vocabulary: int
    layers: tuple[LayerShape, ...]
    embedding_parameters: int
    head_parameters: int
    other_parameters: int
    """Outside layers: the last norm, learned positions, a pooler."""
    blocks: BlockTraits = BlockTraits()
    mlp_tensors: int = 3
    """How many tensors of its width the MLP keeps for the backward pass: gate, activated gate and the other half."""
    keeps_activated: bool = False
    """Whether what the MLP keeps is what its last linear reads: ReLU goes backward by its result."""
    can_be_lean: bool = False
    """Whether its norms and MLPs are those that devkit's loop replaces by ones that keep their inputs alone."""
    max_positions: int = 0
    """Longest text by the config; 0 when it names none."""
    is_decoder: bool = True
    note: str = ""
    """What the shape leaves out, for people: "text part only"."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(layer.count for layer in self.layers)

    @property
    def is_tied(self) -> bool:
        """True if the output head is the embedding."""
        return self.is_decoder and self.head_parameters == 0

    @property
    def parameters(self) -> int:
        """All numbers, each stored once."""
        layers = sum(layer.count * layer.parameters for layer in self.layers)
        return layers + self.embedding_parameters + self.head_parameters + self.other_parameters

    @property
    def packed_weights(self) -> int:
        """Numbers that a 4-bit or 8-bit base packs: the weights of linears inside layers, never head and experts."""
        return sum(layer.count * linear.weights for layer in self.layers for linear in layer.linears)

    @property
    def active_parameters(self) -> int:
        """Numbers that one token is multiplied with: all linears, its experts, and the head."""
        inside = 0
        for layer in self.layers:
            share = layer.experts.parameters * layer.experts.active // layer.experts.count if layer.experts else 0
            inside += layer.count * (layer.linear_parameters + share)
        return inside + (self.head_width if self.is_decoder else 0)

    @property
    def head_width(self) -> int:
        """Numbers in the matrix that makes logits."""
        return self.vocabulary * self.hidden


NF4_BLOCK = 64
"""Weights that share one scale in nf4. Source: section 3 of the QLoRA paper."""
SCALE_BLOCK = 256
"""Scales that share one second-level scale under double quantization. Source: as above."""


def compute_weight_terms(
    shape: ModelShape, quantization: Quantization, precision: Precision, *, is_upcast: bool = False
) -> tuple[Term, ...]:
    """Compute the base weights on one GPU. `is_upcast`: everything that is not packed was cast to fp32 for training."""
    if quantization is Quantization.NONE:
        formula = f"{format_millions(shape.parameters)} parameters x {precision.bytes} B"
        return (Term("weights", shape.parameters * precision.bytes, formula, LLAMA_SOURCE),)
    rest = shape.parameters - shape.packed_weights
    each = Precision.FP32.bytes if is_upcast else precision.bytes
    why = "fp32 by prepare_model_for_kbit_training" if is_upcast else "never quantized"
    return (
        *_compute_packed_terms(shape, quantization),
        Term(
            "unquantized weights",
            rest * each,
            f"{format_millions(rest)} in embeddings, head, norms and experts x {each} B ({why})",
            KBIT_SOURCE if is_upcast else BITSANDBYTES_SOURCE,
        ),
    )


def _compute_packed_terms(shape: ModelShape, quantization: Quantization) -> tuple[Term, Term]:
    packed = shape.packed_weights
    if quantization is Quantization.INT8:
        rows = sum(layer.count * linear.outputs for layer in shape.layers for linear in layer.linears)
        return (
            Term("packed weights", packed, f"{format_millions(packed)} x 1 B", BITSANDBYTES_SOURCE),
            Term("quantization scales", 4 * rows, f"{rows:,} rows x 4 B", BITSANDBYTES_SOURCE),
        )
    scales = -(-packed // NF4_BLOCK)
    if quantization is Quantization.NF4_DOUBLE:
        scale_bytes = scales + 4 * -(-scales // SCALE_BLOCK)
        formula = f"{format_millions(packed)} / {NF4_BLOCK} x (1 B + 4 B / {SCALE_BLOCK})"
    else:
        scale_bytes, formula = 4 * scales, f"{format_millions(packed)} / {NF4_BLOCK} x 4 B"
    return (
        Term("packed weights", packed // 2, f"{format_millions(packed)} x 0.5 B", QLORA_SOURCE),
        Term("quantization scales", scale_bytes, formula, QLORA_SOURCE),
    )


OUTPUT_HEAD = "lm_head"
"""The output head's name in transformers in every family that is known here."""


def find_adapted_linears(layer: LayerShape, settings: TrainingSettings) -> tuple[LinearShape, ...]:
    """Find the linears of a layer that carry an adapter. Experts in fused tensors never do."""
    if settings.targets == ALL_LINEAR:
        return layer.linears
    return tuple(linear for linear in layer.linears if linear.name in settings.targets)


def find_adapted_head(shape: ModelShape, settings: TrainingSettings) -> LinearShape | None:
    """Find the output head if it carries an adapter. One that is the embedding never does: merged, it would be both."""
    return _build_head(shape) if OUTPUT_HEAD in settings.targets else None


def _build_head(shape: ModelShape) -> LinearShape | None:
    if shape.is_tied or not shape.is_decoder:
        return None
    return LinearShape(OUTPUT_HEAD, shape.hidden, shape.vocabulary, LinearInput.LAST_STATE)


def count_adapter_parameters(shape: ModelShape, settings: TrainingSettings) -> int:
    """Count the parameters of all adapters. Raises DevkitError for a target that no layer has."""
    known = {linear.name: None for layer in shape.layers for linear in layer.linears}
    if _build_head(shape) is not None:
        known[OUTPUT_HEAD] = None
    unknown = [target for target in settings.targets if target not in known]
    if unknown and settings.targets != ALL_LINEAR:
        raise DevkitError(
            f"{shape.name} does not have a linear module {unknown[0]!r} for an adapter",
            f"It has {', '.join(known)}; {ALL_LINEAR[0]} means all of them except the output head.",
        )
    inside = sum(
        layer.count * sum(_count_parameters(linear, settings) for linear in find_adapted_linears(layer, settings))
        for layer in shape.layers
    )
    head = find_adapted_head(shape, settings)
    return inside + (_count_parameters(head, settings) if head is not None else 0)


def _count_parameters(linear: LinearShape, settings: TrainingSettings) -> int:
    return settings.rank * (linear.inputs + linear.outputs) + (linear.outputs if settings.dora else 0)


_SEPARATORS = {ord(letter): None for letter in " \t_-"}


@dataclass(frozen=True, kw_only=True)
class KnownModel(TableRow):
    """A model as published. `config` holds those keys of its config.json that decide sizes."""

    id: str
    aliases: tuple[str, ...]
    parameters: int
    config: Mapping[str, Any]

    @property
    def url(self) -> str:
        """The address of its config.json."""
        return f"https://huggingface.co/{self.id}/blob/main/config.json"


class ModelTable(Table):
    """Models as published."""

    models = Array("model", KnownModel, unique=("id",))


def find_model(name: str) -> KnownModel | None:
    """Find a model by name, whatever its case and with or without its publisher; None for an unknown one."""
    known = _index_models()
    return known.get(_normalize(name)) or known.get(_normalize(name.rpartition("/")[2]))


def find_closest_models(name: str) -> tuple[str, ...]:
    """Find the names of up to three known models that look like `name`, best first."""
    near = get_close_matches(_normalize(name.rpartition("/")[2]), _index_models(), n=9, cutoff=0.6)
    return tuple(dict.fromkeys(_index_models()[each].id for each in near))[:3]


@cache
def list_models() -> tuple[KnownModel, ...]:
    """List every model."""
    return ModelTable(load("devkit.estimate", "tables/models")).models


@cache
def _index_models() -> dict[str, KnownModel]:
    """Map every normalized name to its model."""
    found: dict[str, KnownModel] = {}
    for row in list_models():
        for name in (row.id, *row.aliases):
            found.setdefault(_normalize(name), row)
            found.setdefault(_normalize(name.rpartition("/")[2]), row)
    return found


def _normalize(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
