"""A job that cannot fit: what it takes, what there is, and the nearest that would fit."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.cards import Verdict
from devkit.estimate.settings import Method, Sharding
from devkit.export.need import Need, Where, need_of
from devkit.text import human_bytes
from devkit.workload.finetune.settings import FinetuneSettings

MOST_PROPOSED = 3
_WORLDS = (2, 4, 8, 16, 32, 64)
_OF_ONE_NODE = 8
"""GPUs that a node has at most nearly everywhere: more are proposed as nodes."""


def refusal_of(
    need: Need | None,
    settings: FinetuneSettings,
    config: Mapping[str, Any] | None,
    where: Where,
    fitting: tuple[str, ...],
) -> tuple[str, str] | None:
    """Message and hint where the estimate says that the GPU asked for cannot hold the job; None where it can.

    `fitting` are GPUs that hold it as it is, the smallest first.
    """
    if need is None or config is None or need.card is None or need.verdict is not Verdict.DOES_NOT_FIT:
        return None
    card = need.card
    is_loading = need.loading_bytes > card.memory_bytes
    why = ": each process loads the whole packed model before it is shared out" if is_loading else ""
    message = (
        f"the job does not fit: {human_bytes(need.peak_bytes)} on each {card.name},"
        f" which holds {human_bytes(card.memory_bytes)}{why}"
    )
    proposals = list(_proposals(settings, config, where))[:MOST_PROPOSED]
    proposals += [f"--gpu '{fitting[0]}', the smallest that holds it as it is"] if fitting else []
    nearest = "; or ".join(proposals) or "a shorter sequence, a smaller model"
    return message, f"What fits: {nearest}. Or pass --force."


def _proposals(settings: FinetuneSettings, config: Mapping[str, Any], where: Where) -> Iterator[str]:
    """Changes that make it fit: first how the work is shared out, then how the base is kept, then what is trained."""
    found = [each for words, changed in _changes(settings, where) for each in _if_fits(words, changed, config, where)]
    yield from found or _with_more_gpus(settings, config, where)
    if settings.method is Method.FULL:
        for method in (Method.LORA, Method.QLORA):
            adapter = replace(settings, method=method, optimizer=None)
            yield from _if_fits(f'an adapter, method = "{method}"', adapter, config, where)


def _with_more_gpus(settings: FinetuneSettings, config: Mapping[str, Any], where: Where) -> Iterator[str]:
    """The fewest GPUs on which it fits, shared out; the run itself refuses more than the batch has rows."""
    shared = replace(settings, sharding=Sharding.ZERO3)
    for processes in (each for each in _WORLDS if each > where.processes):
        nodes, gpus = max(1, processes // _OF_ONE_NODE), min(processes, _OF_ONE_NODE)
        asked = f"--gpus {gpus}" if nodes == 1 else f"--nodes {nodes} --gpus {gpus}"
        words = f'{asked} with sharding = "zero3"'
        found = list(_if_fits(words, shared, config, replace(where, processes=processes)))
        if found:
            yield found[0]
            return


def _changes(settings: FinetuneSettings, where: Where) -> Iterator[tuple[str, FinetuneSettings]]:
    """Settings of the run, as they stand in its file, that take less memory."""
    if where.processes > 1:
        for sharding in (Sharding.ZERO2, Sharding.ZERO3):
            yield f'sharding = "{sharding}"', replace(settings, sharding=sharding)
    if settings.method is Method.LORA:
        yield 'method = "qlora"', replace(settings, method=Method.QLORA)
        if where.processes > 1 and settings.sharding is None:
            both = replace(settings, method=Method.QLORA, sharding=Sharding.ZERO3)
            yield 'method = "qlora", sharding = "zero3"', both
    if settings.micro_batch not in (None, 1) or settings.checkpointing is False:
        yield "micro_batch and checkpointing left out", replace(settings, micro_batch=None, checkpointing=None)


def _if_fits(words: str, settings: FinetuneSettings, config: Mapping[str, Any], where: Where) -> Iterator[str]:
    try:
        need = need_of(settings, config, where)
    except DevkitError:
        return  # What cannot work together is no advice.
    if need is not None and need.verdict is Verdict.FITS:
        yield f"{words} ({human_bytes(need.peak_bytes)} on each)"
