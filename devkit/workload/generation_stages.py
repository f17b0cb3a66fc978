"""Stages about inference: what the model says does not depend on how its past is kept."""

from collections.abc import Iterator
from time import perf_counter

import torch

from devkit.workload import tiny
from devkit.workload.bench import EXTRA_TOKENS, Bench
from devkit.workload.stage import Reading, equals, fact
from devkit.workload.tiny import Model


def caches_agree(bench: Bench) -> Iterator[Reading]:
    """Greedy tokens without a cache, with one that grows, and with one of fixed size are the same."""
    model = bench.tuned.model.eval()
    plain = _without_cache(model, len(bench.ids) + EXTRA_TOKENS)
    yield equals("generated", tiny.decode(plain), bench.settings.sentence)
    start = perf_counter()
    growing = _with_cache(model, len(bench.ids) + EXTRA_TOKENS)
    yield fact("tokens_per_s", round(len(growing) / (perf_counter() - start), 1))
    fixed = _with_cache(model, len(bench.ids) + EXTRA_TOKENS, cache_implementation="static", disable_compile=True)
    yield equals("growing_cache_agrees", growing == plain, wanted=True)
    yield equals("static_cache_agrees", fixed == plain, wanted=True)


def _without_cache(model: Model, tokens: int) -> list[int]:
    """The plain way, in our own few lines: each token from a full pass over all before it."""
    ids = [tiny.BOS]
    device = next(model.parameters()).device
    with torch.inference_mode():
        while len(ids) <= tokens and ids[-1] != tiny.EOS:
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
    return ids[1:]


def _with_cache(model: Model, tokens: int, **how: object) -> list[int]:
    prompt = torch.tensor([[tiny.BOS]], device=next(model.parameters()).device)
    with torch.inference_mode():
        found = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, **how
        )
    ids: list[int] = found[0, 1:].tolist()
    return ids
