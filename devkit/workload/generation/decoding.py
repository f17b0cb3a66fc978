"""Token ids in, answers out: one batch through the model."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from devkit.errors import DevkitError
from devkit.workload.finetune.model import Model, Tokenizer, quiet_loading
from devkit.workload.generation.compiling import has_compiler
from devkit.workload.generation.drawing import Drawn
from devkit.workload.generation.encoding import turn_end
from devkit.workload.generation.settings import Decoding
from devkit.workload.generation.stops import AtText, AtWish, cut_at


class Ending(StrEnum):
    """Why an answer is over: the model ended it, it has all tokens that it may have, or somebody stopped it."""

    END = "end"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Answer:
    """What the model said. `ids` are without the end token, and end with a stop text if one ended the answer.

    `seconds` is the time of the whole batch.
    """

    text: str
    ids: tuple[int, ...]
    ending: Ending
    seconds: float


@dataclass(frozen=True)
class Speaker:
    """A model that generates: with its adapter, if any, and its tokenizer."""

    model: Model
    tokenizer: Tokenizer

    @cached_property
    def turn_end(self) -> str:
        """What ends a turn in the model's chats; "" where it has none. Not every model's makers name it as an end."""
        return turn_end(self.tokenizer)

    @property
    def plain(self) -> Model:
        """The model of transformers inside peft's, whose layers carry the adapter."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def longest(self) -> int | None:
        """How many tokens prompt and answer may have together; None where the model sets no limit."""
        limit = getattr(self.plain.config.get_text_config(), "max_position_embeddings", None)
        return limit if isinstance(limit, int) else None

    @property
    def ends(self) -> list[int]:
        """The tokens that end an answer: the tokenizer's, those that the model's makers name, and a turn's."""
        named = self.plain.generation_config.eos_token_id
        named = named if isinstance(named, list) else [named]
        found = [*named, self.tokenizer.eos_token_id, self.tokenizer.get_vocab().get(self.turn_end)]
        return list(dict.fromkeys(each for each in found if each is not None))

    def stops(self, decoding: Decoding) -> tuple[str, ...]:
        """The texts that end an answer: those asked for, and a turn's end that is no token of its own."""
        is_token = self.turn_end in self.tokenizer.get_vocab()
        return decoding.stops if is_token or not self.turn_end else (*decoding.stops, self.turn_end)


def answers(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    numbers: Sequence[int] | None = None,
    streamer: Any = None,  # noqa: ANN401 - what transformers calls with each token
    asked: Callable[[], bool] = lambda: False,
) -> list[Answer]:
    """One answer a prompt, in order, all generated side by side. `asked` is polled after each token.

    Prompts of unequal length get padding in front, which no token sees, and what is drawn for them depends on their
    `numbers` (counted from 0 where none are given): answers are those of each prompt alone. Raises DevkitError for a
    prompt that leaves no room for an answer.
    """
    longest = max(map(len, prompts))
    tokens = room(speaker, longest, decoding.tokens)
    filler = _filler(speaker)
    ids = torch.tensor([[*[filler] * (longest - len(each)), *each] for each in prompts], device=speaker.device)
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=speaker.device)
    stopping = StoppingCriteriaList([AtWish(asked)])
    stops = speaker.stops(decoding)
    if stops:
        stopping.append(AtText(speaker.tokenizer, stops, prompt=longest))
    started = perf_counter()
    config = _config(speaker, decoding, tokens, filler)
    drawn = [Drawn(decoding, numbers or range(len(prompts)), prompt=longest)] if decoding.temperature > 0 else []
    with torch.inference_mode(), quiet_loading(), _configured(speaker.plain, config):
        found = speaker.plain.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=LogitsProcessorList(drawn),
            stopping_criteria=stopping,
            streamer=streamer,
        )
    seconds = perf_counter() - started
    rows = found[:, longest:].tolist()
    return [_answer(speaker, row, stops, is_cut=len(row) >= tokens, seconds=seconds) for row in rows]


def room(speaker: Speaker, length: int, tokens: int) -> int:
    """How many of `tokens` the answer to a prompt of that length may have. Raises DevkitError where it is none."""
    limit = speaker.longest
    if limit is None:
        return tokens
    if length >= limit:
        raise DevkitError(
            f"a prompt has {length} tokens, and prompt and answer may have {limit} together", "Shorten the prompt."
        )
    return min(tokens, limit - length)


def _filler(speaker: Speaker) -> int:
    """Any token does for padding, for none is ever looked at; but rows that ended are filled with it, too."""
    padding = speaker.tokenizer.pad_token_id
    if padding is not None:
        return int(padding)
    return speaker.ends[0] if speaker.ends else 0


def _config(speaker: Speaker, decoding: Decoding, tokens: int, filler: int) -> GenerationConfig:
    """Made anew and not from the model's, so that nothing is sampled or punished that nobody asked for."""
    return GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=speaker.ends or None,
        pad_token_id=filler,
        compile_config=speaker.plain.generation_config.compile_config,
        # With a static cache transformers compiles by itself on GPUs, and fails where there is no compiler.
        disable_compile=speaker.device.type == "cuda" and not has_compiler(speaker.device),
        cache_implementation="static" if decoding.static_cache and can_be_static(speaker.plain) else None,
    )


@contextmanager
def _configured(model: Model, config: GenerationConfig) -> Iterator[None]:
    """Put `config` in the place of the model's own, from which transformers takes whatever another leaves open."""
    own = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own


def can_be_static(model: Model) -> bool:
    """Whether the model's keys and values fit a cache of fixed size, as those of plain attention do."""
    return bool(getattr(model, "_can_compile_fullgraph", False))


def _answer(speaker: Speaker, row: Sequence[int], stops: Sequence[str], *, is_cut: bool, seconds: float) -> Answer:
    ends = set(speaker.ends)
    length = next((place for place, each in enumerate(row) if each in ends), None)
    ids = tuple(row if length is None else row[:length])
    stopped_at = _stopped_at(speaker.tokenizer, ids, stops)
    # Rows that ended before others of their batch are filled up behind.
    ids = ids[:stopped_at]
    text, was_cut = cut_at(speaker.tokenizer.decode(ids, skip_special_tokens=True), stops)
    if stopped_at is not None or was_cut or length is not None:
        return Answer(text, ids, Ending.END, seconds)
    return Answer(text, ids, Ending.LENGTH if is_cut else Ending.STOPPED, seconds)


def _stopped_at(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> int | None:
    """With how many tokens the first stop text is whole, special tokens written out; None where there is none."""

    def holds_one(count: int) -> bool:
        text = tokenizer.decode(ids[:count])
        return any(stop in text for stop in stops)

    # One that is there stays there, so the first count is found by halving.
    return bisect_left(range(len(ids)), True, key=holds_one) if stops and holds_one(len(ids)) else None
