"""Memory of text generation in closed form (weights, the KV cache, activations of the prompt), and a server's settings by it."""

from dataclasses import dataclass

from devkit.errors import DevkitError
from devkit.estimate.memory import (
    CACHE_SOURCE,
    CUBLAS_WORKSPACE,
    FIRST_BF16_MAJOR,
    LLAMA_SOURCE,
    MEGATRON_SOURCE,
    PAGED_ATTENTION_SOURCE,
    QLORA_SOURCE,
    SDPA_SOURCE,
    Fit,
    GpuSpec,
    MemoryEstimate,
    MemoryPhase,
    Term,
    build_memory_estimate,
    sum_bytes,
)
from devkit.estimate.settings import Attention, CacheKind, InferenceSettings, Quantization, validate_sizes
from devkit.estimate.shape import LayerShape, ModelShape, compute_weight_terms
from devkit.facts.gpu import Gpu
from devkit.facts.values import Unknown

PAGE_TOKENS = 16
"""Tokens in a page of a paged cache. Source: vLLM's default block size."""


def estimate_inference(shape: ModelShape, settings: InferenceSettings) -> MemoryEstimate:
    """Estimate the peak of one process, in bytes. Raises DevkitError for settings that make no sense."""
    sizes = {"--max-length": settings.prompt, "--sequences": settings.sequences, "--world": settings.world}
    validate_sizes({**sizes, "--max-new-tokens": settings.new + 1})
    if shape.heads % settings.world:
        raise DevkitError(
            f"{shape.heads} attention heads cannot be split across {settings.world} GPUs",
            "Give a --world that divides the number of heads.",
        )
    warnings: tuple[str, ...] = ()
    tokens = settings.prompt + (settings.new if shape.is_decoder else 0)
    if shape.max_positions and tokens > shape.max_positions:
        warnings = (f"the model was made for at most {shape.max_positions:,} tokens, not {tokens:,}",)
    generation = _Generation(shape, settings)
    prompt = generation.prompt_terms()
    return build_memory_estimate(
        generation.phases(prompt),
        largest_bytes=max(term.bytes for term in prompt),
        world=settings.world,
        warnings=warnings,
    )


def _get_cache_precision_bytes(settings: InferenceSettings) -> int:
    return (settings.cache_precision or settings.precision).bytes


def compute_generation_terms(shape: ModelShape, settings: InferenceSettings) -> tuple[Term, ...]:
    """Compute what generation takes beside the weights, at its fullest: of the prompt, or of the last token."""
    generation = _Generation(shape, settings)
    phases = generation.phases(generation.prompt_terms())
    fixed = phases[MemoryPhase.LOAD]
    beside = ([term for term in terms if term not in (*fixed, CUBLAS_WORKSPACE)] for terms in phases.values())
    return tuple(max(beside, key=sum_bytes))


class _Generation:
    """The terms of loading, prefill and decoding."""

    def __init__(self, shape: ModelShape, settings: InferenceSettings) -> None:
        self._shape, self._settings = shape, settings
        weights = compute_weight_terms(shape, settings.quantization, settings.precision)
        self._weights = tuple(_split(term, settings.world) for term in weights)
        # A tensor in 16 bits is in memory next to the one it is packed to; unpacked, it is needed for every product.
        largest = max(linear.weights for layer in shape.layers for linear in layer.linears)
        size, formula = largest * settings.precision.bytes, f"the largest, {largest:,} x {settings.precision.bytes} B"
        is_packed = settings.quantization is not Quantization.NONE
        self._packing = (Term("weight being packed", size, formula, QLORA_SOURCE),) if is_packed else ()
        self._unpacked = (Term("unpacked weight", size, formula, QLORA_SOURCE),) if is_packed else ()
        rows, each = settings.sequences, settings.precision.bytes + 4
        formula = f"{rows} rows x {shape.vocabulary:,} x {each} B"
        # Of the last token alone: generate computes no others.
        logits = Term("logits", rows * shape.vocabulary * each, formula, LLAMA_SOURCE)
        self._logits = (logits,) if shape.is_decoder else ()

    def phases(self, prompt: tuple[Term, ...]) -> dict[MemoryPhase, tuple[Term, ...]]:
        """The terms in memory in every phase. `prompt` are those of `prompt_terms`."""
        settings, fixed = self._settings, (*self._weights, CUBLAS_WORKSPACE)
        found = {
            MemoryPhase.LOAD: (*self._weights, *self._packing),
            MemoryPhase.PREFILL: (*fixed, *self._compute_cache(settings.prompt), *prompt),
        }
        if self._shape.is_decoder and settings.new:
            cache = self._compute_cache(settings.prompt + settings.new)
            if settings.cache is CacheKind.DYNAMIC:
                # It writes old and new tokens of one layer to a new tensor before it drops the old one.
                sizes = (
                    self._compute_layer_cache(layer, settings.prompt + settings.new) for layer in self._shape.layers
                )
                joining = Term("cache being joined", max(sizes) // 2, "keys of one layer, old and new", CACHE_SOURCE)
                cache = (*cache, _split(joining, self._cache_shards))
            found[MemoryPhase.DECODE] = (*fixed, *cache, *self._logits)
        return found

    def prompt_terms(self) -> tuple[Term, ...]:
        """The terms at the fullest moment of one layer: attention, or gate, activated gate and up projection of the MLP."""
        shape, settings = self._shape, self._settings
        tokens, each = settings.prompt * settings.sequences, settings.precision.bytes
        width = max(layer.active_width for layer in shape.layers) // settings.world
        inside = max(3 * width, 2 * (shape.query_width + shape.kv_width) // settings.world)
        formula = f"{tokens:,} tokens x ({inside:,} + 2 x {shape.hidden:,}) x {each} B"
        is_eager = settings.attention is Attention.EAGER or shape.blocks.needs_eager_attention
        pairs = settings.sequences * settings.prompt**2 if is_eager else 0
        per_pair = shape.heads // settings.world * (4 + each)
        pairs_formula = f"{settings.sequences} x {settings.prompt:,}^2 pairs x {per_pair} B, not fused"
        return (
            Term("activations of the prompt", tokens * each * (inside + 2 * shape.hidden), formula, LLAMA_SOURCE),
            Term("attention scores", pairs * per_pair, pairs_formula, SDPA_SOURCE),
            *self._unpacked,
            *self._logits,
        )

    def _compute_cache(self, length: int) -> tuple[Term, ...]:
        shape, settings = self._shape, self._settings
        size = sum(layer.count * self._compute_layer_cache(layer, length) for layer in shape.layers)
        if not size:
            return ()
        formula = (
            f"{settings.sequences} x {length:,} tokens x {shape.depth} layers x {shape.cache_width:,} x "
            f"{_get_cache_precision_bytes(settings)} B"
        )
        windows = [layer.window for layer in shape.layers if layer.window]
        if windows:
            formula += f", sliding layers at most {max(windows):,} tokens"
        source = PAGED_ATTENTION_SOURCE if settings.cache is CacheKind.PAGED else CACHE_SOURCE
        return (_split(Term("key-value cache", size, formula, source), self._cache_shards),)

    @property
    def _cache_shards(self) -> int:
        """Among how many GPUs the cache is split: by heads, but a group's keys and values and a latent vector are whole."""
        is_latent = self._shape.cache_width < self._shape.kv_width
        return 1 if is_latent else min(self._settings.world, self._shape.kv_heads)

    def _compute_layer_cache(self, layer: LayerShape, length: int) -> int:
        """Compute the bytes of one layer's cache for all sequences."""
        settings = self._settings
        tokens = settings.prompt + settings.new if settings.cache is CacheKind.STATIC else length
        if layer.window is not None:
            tokens = min(tokens, layer.window)
        if settings.cache is CacheKind.PAGED:
            tokens = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS
        return settings.sequences * tokens * self._shape.cache_width * _get_cache_precision_bytes(settings)


def _split(term: Term, shards: int) -> Term:
    """Split a term among GPUs (tensor parallel)."""
    if shards == 1:
        return term
    return Term(term.name, -(-term.bytes // shards), f"({term.formula}) / {shards}", MEGATRON_SOURCE)


PREFILL_TOKENS = 8192
"""Tokens of prompts that a server computes at once: vLLM's default of `--max-num-batched-tokens` on large GPUs.

Source: https://docs.vllm.ai/en/latest/configuration/optimization/#chunked-prefill
"""
ENOUGH_TOKENS = 8192
"""A context for which one GPU is preferred to several with more."""
_LEAST_TOKENS = 1024
_MAX_SHARE, _SPARE_SHARE = 0.9, 0.03
"""vLLM's default of `--gpu-memory-utilization`, and what stays free beside other processes: it refuses to start where
less than its share is free. https://docs.vllm.ai/en/latest/configuration/conserving_memory/"""


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """GPUs by UUID, the context in tokens, the share of each GPU's memory, and whether fp16 takes the place of bf16."""

    gpus: tuple[str, ...]
    context: int
    memory_share: float
    is_half: bool


def order_by_free_memory(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the whole GPUs whose free memory is known, the freest first, and no others than alike the first."""
    usable = sorted(
        (-gpu.free_bytes, gpu.index, gpu)
        for gpu in gpus
        if isinstance(gpu.free_bytes, int) and isinstance(gpu.memory_bytes, int) and gpu.mig_enabled is not True
    )
    return tuple(gpu for _, _, gpu in usable if gpu.name == usable[0][2].name)


def solve_serving(shape: ModelShape, gpus: tuple[Gpu, ...], *, context: int | None = None) -> ServingSettings | None:
    """Choose the fewest GPUs and the longest context that surely fit their free memory; None where none does.

    `context` is requested; without it, as much as fits, and more GPUs only for less than ENOUGH_TOKENS on one.
    """
    free = order_by_free_memory(gpus)
    longest = context or shape.max_positions or ENOUGH_TOKENS
    best: ServingSettings | None = None
    for world in (1, 2, 4, 8):
        if world > len(free) or shape.heads % world:
            continue
        taken = free[:world]
        tokens = _find_context(shape, taken, longest, least=context or min(longest, _LEAST_TOKENS))
        if tokens is None or (best and tokens <= best.context):
            continue
        shares = [
            gpu.free_bytes / gpu.memory_bytes
            for gpu in taken
            if isinstance(gpu.free_bytes, int) and isinstance(gpu.memory_bytes, int)
        ]
        share = int(100 * min(_MAX_SHARE, min(shares) - _SPARE_SHARE)) / 100
        is_half = any(
            not isinstance(gpu.capability, Unknown) and gpu.capability.major < FIRST_BF16_MAJOR for gpu in taken
        )
        best = ServingSettings(
            gpus=tuple(str(gpu.index if isinstance(gpu.uuid, Unknown) else gpu.uuid) for gpu in taken),
            context=tokens,
            memory_share=share,
            is_half=is_half,
        )
        if tokens >= min(longest, ENOUGH_TOKENS):
            break
    return best


def _find_context(shape: ModelShape, gpus: tuple[Gpu, ...], longest: int, *, least: int) -> int | None:
    memory = min(gpu.free_bytes for gpu in gpus if isinstance(gpu.free_bytes, int))
    spec = GpuSpec(name=gpus[0].name, memory_bytes=memory)
    tokens = longest
    while tokens >= least:
        prompt = min(PREFILL_TOKENS, tokens - 1)
        settings = InferenceSettings(prompt=prompt, new=tokens - prompt, cache=CacheKind.PAGED, world=len(gpus))
        if spec.verdict(estimate_inference(shape, settings)) is Fit.FITS:
            return tokens
        tokens //= 2
    return None
