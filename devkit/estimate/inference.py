"""How much memory generating text takes: weights, the cache of past tokens, and the prompt's own activations."""

from devkit.errors import DevkitError
from devkit.estimate.memory import (
    CACHE_SOURCE,
    CUBLAS_WORKSPACE,
    LLAMA_SOURCE,
    MEGATRON_SOURCE,
    PAGED_ATTENTION_SOURCE,
    QLORA_SOURCE,
    SDPA_SOURCE,
    MemoryEstimate,
    MemoryPhase,
    Term,
    add_overhead,
    drop_empty,
    sum_bytes,
)
from devkit.estimate.settings import Attention, CacheKind, InferenceSettings, Quantization
from devkit.estimate.shape import LayerShape, ModelShape
from devkit.estimate.weights import compute_weight_terms

PAGE_TOKENS = 16
"""Tokens in a page of a paged cache. Source: vLLM's default block size."""


def estimate_inference(shape: ModelShape, settings: InferenceSettings) -> MemoryEstimate:
    """The peak of one process. Raises DevkitError for settings that make no sense."""
    _refuse(shape, settings)
    parts = _Parts(shape, settings)
    phases = {phase: drop_empty(terms) for phase, terms in parts.phases().items()}
    fullest = max(phases, key=lambda phase: sum_bytes(phases[phase]))
    warnings = []
    wanted = settings.prompt + (settings.new if shape.is_decoder else 0)
    if shape.max_positions and wanted > shape.max_positions:
        warnings.append(f"the model was made for at most {shape.max_positions:,} tokens, not {wanted:,}")
    return add_overhead(
        fullest, phases, largest_bytes=parts.largest_bytes, world=settings.world, warnings=tuple(warnings)
    )


def compute_cache_bytes_per_token(shape: ModelShape, settings: InferenceSettings) -> int:
    """What one token leaves in the caches of all layers, as if none slid."""
    return shape.depth * shape.cache_width * _cache_each(settings)


def _cache_each(settings: InferenceSettings) -> int:
    return (settings.cache_precision or settings.precision).bytes


def _refuse(shape: ModelShape, settings: InferenceSettings) -> None:
    sizes = {
        "--seq": settings.prompt,
        "--new-tokens": settings.new + 1,
        "--sequences": settings.sequences,
        "--world": settings.world,
    }
    for flag, size in sizes.items():
        if size < 1:
            raise DevkitError(f"{flag} is {size}", "It must be a whole number above zero.")
    if shape.heads % settings.world:
        raise DevkitError(
            f"{shape.heads} attention heads cannot be shared out among {settings.world} GPUs",
            "Give a --world that divides the number of heads.",
        )


class _Parts:
    """The terms of prompt and generation, and of loading."""

    def __init__(self, shape: ModelShape, settings: InferenceSettings) -> None:
        self._shape, self._settings = shape, settings
        whole = compute_weight_terms(shape, settings.quantisation, settings.precision)
        self._weights = tuple(self._split(term) for term in whole)
        self._workspace = CUBLAS_WORKSPACE

    def phases(self) -> dict[MemoryPhase, tuple[Term, ...]]:
        """The moments at which memory may be fullest."""
        held = (*self._weights, self._workspace)
        found = {
            MemoryPhase.LOAD: (*self._weights, *self._loading()),
            MemoryPhase.PREFILL: (*held, *self._cache(self._settings.prompt), *self._prompt()),
        }
        if self._shape.is_decoder and self._settings.new:
            length = self._settings.prompt + self._settings.new
            found[MemoryPhase.DECODE] = (*held, *self._cache(length), *self._joining(length), *self._logits())
        return found

    @property
    def largest_bytes(self) -> int:
        return max(term.bytes for term in self._prompt())

    def _split(self, term: Term) -> Term:
        world = self._settings.world
        if world == 1:
            return term
        return Term(term.name, -(-term.bytes // world), f"({term.formula}) / {world}", MEGATRON_SOURCE)

    def _loading(self) -> tuple[Term, ...]:
        """A tensor in 16 bits stands beside what it is packed to."""
        if self._settings.quantisation is Quantization.NONE:
            return ()
        largest = max(linear.weights for layer in self._shape.layers for linear in layer.linears)
        each = self._settings.precision.bytes
        return (Term("weight being packed", largest * each, f"the largest, {largest:,} x {each} B", QLORA_SOURCE),)

    def _cache(self, length: int) -> tuple[Term, ...]:
        size = sum(layer.count * self._cached(layer, length) for layer in self._shape.layers)
        if not size:
            return ()
        settings = self._settings
        formula = (
            f"{settings.sequences} x {length:,} tokens x {self._shape.depth} layers x {self._shape.cache_width:,} x "
            f"{_cache_each(settings)} B"
        )
        windows = {layer.window for layer in self._shape.layers} - {None}
        if windows:
            formula += f", sliding layers at most {max(window for window in windows if window):,} tokens"
        return (self._split_cache(Term("key-value cache", size, formula, self._cache_source())),)

    def _cache_source(self) -> str:
        return PAGED_ATTENTION_SOURCE if self._settings.cache is CacheKind.PAGED else CACHE_SOURCE

    def _split_cache(self, term: Term) -> Term:
        """Heads are shared out among GPUs, but a group's keys and values are not split, nor is a latent vector."""
        is_latent = self._shape.cache_width < self._shape.kv_width
        ways = 1 if is_latent else min(self._settings.world, self._shape.kv_heads)
        return (
            term
            if ways == 1
            else Term(term.name, -(-term.bytes // ways), f"({term.formula}) / {ways}", MEGATRON_SOURCE)
        )

    def _cached(self, layer: LayerShape, length: int) -> int:
        """Bytes of one layer's cache for all sequences."""
        settings = self._settings
        most = settings.prompt + settings.new
        tokens = most if settings.cache is CacheKind.STATIC else length
        if layer.window is not None:
            tokens = min(tokens, layer.window)
        if settings.cache is CacheKind.PAGED:
            tokens = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
        return settings.sequences * tokens * self._shape.cache_width * _cache_each(settings)

    def _joining(self, length: int) -> tuple[Term, ...]:
        """A dynamic cache writes old and new tokens of one layer side by side before it drops the old."""
        if self._settings.cache is not CacheKind.DYNAMIC:
            return ()
        largest = max(self._cached(layer, length) for layer in self._shape.layers) // 2
        term = Term("cache being joined", largest, "keys of one layer, old beside new", CACHE_SOURCE)
        return (self._split_cache(term),)

    def _prompt(self) -> tuple[Term, ...]:
        """The widest moment of one layer: attention, or the MLP with gate, activated gate and the other half."""
        shape, settings = self._shape, self._settings
        tokens, each = settings.prompt * settings.sequences, settings.precision.bytes
        width = max(layer.active_width for layer in shape.layers) // settings.world
        inside = max(3 * width, 2 * (shape.query_width + shape.kv_width) // settings.world)
        size = tokens * each * (inside + 2 * shape.hidden)
        formula = f"{tokens:,} tokens x ({inside:,} + 2 x {shape.hidden:,}) x {each} B"
        return (
            Term("activations of the prompt", size, formula, LLAMA_SOURCE),
            self._scores(),
            *self._unpacked(),
            *self._logits(),
        )

    def _scores(self) -> Term:
        shape, settings = self._shape, self._settings
        is_eager = settings.attention is Attention.EAGER or shape.blocks.needs_eager_attention
        pairs = settings.sequences * settings.prompt**2 if is_eager else 0
        each = shape.heads // settings.world * (4 + settings.precision.bytes)
        formula = f"{settings.sequences} x {settings.prompt:,}^2 pairs x {each} B, not fused"
        return Term("attention scores", pairs * each, formula, SDPA_SOURCE)

    def _unpacked(self) -> tuple[Term, ...]:
        return tuple(Term("unpacked weight", term.bytes, term.formula, term.source) for term in self._loading())

    def _logits(self) -> tuple[Term, ...]:
        """Of the last token alone: generate asks for no others."""
        if not self._shape.is_decoder:
            return ()
        rows, each = self._settings.sequences, self._settings.precision.bytes + 4
        formula = f"{rows} rows x {self._shape.vocabulary:,} x {each} B"
        return (Term("logits", rows * self._shape.vocabulary * each, formula, LLAMA_SOURCE),)
