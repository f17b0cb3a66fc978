"""Token ids in, answers out: one batch through the model."""

import gc
import importlib.util
import os
import random
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import takewhile
from time import perf_counter
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from devkit.errors import DevkitError
from devkit.workload.finetune.memory import is_out_of_memory
from devkit.workload.finetune.model.loading import Tokenizer, silence_loading
from devkit.workload.generation.settings import DecodingSettings
from devkit.workload.generation.tokenization import TextStreamer, find_turn_end
from devkit.workload.models import Model

# When decoding is worth compiling: it needs a cache of fixed size, a compiler, and answers enough to pay for it.

MIN_STEPS_TO_COMPILE = 10_000
"""Steps of decoding from which compiling takes less time than it saves.

Reckoned, not measured: a step of an 8B model takes 8 ms as it stands and 5 ms from CUDA graphs, so 10,000 steps save
half a minute, which is about what compiling takes. `--static-cache` and `--dynamic-cache` overrule it.
"""


def has_compiler(device: torch.device) -> bool:
    """Whether torch.compile can make kernels for the device: Triton for GPUs, and a C compiler for what starts them."""
    names = (os.environ.get("CC") or "cc", "gcc", "clang")
    has_c = any(shutil.which(name) for name in names)
    return device.type == "cuda" and has_c and importlib.util.find_spec("triton") is not None


def is_compiling_worthwhile(device: torch.device, *, prompts: int, batch: int, tokens: int) -> bool:
    """Whether so many prompts, answered with up to `tokens` tokens each, pay for compiling on this device."""
    steps = -(-prompts // batch) * tokens
    return steps >= MIN_STEPS_TO_COMPILE and has_compiler(device)


# The next token where chance decides: drawn by its place and not in turn, so that nothing beside an answer matters.

BELOW_ONE = 1 - 1e-6
"""Rounding must not draw what lies behind the last token that may come."""


class SeededSampler(LogitsProcessor):  # type: ignore[misc] # untyped library
    """Leaves each row one token: the one that chance chooses, as `decoding` narrows it down.

    `numbers` are the prompts', one a row, and `prompt` is their length in tokens, with padding. What is drawn depends
    on the seed, the number and the place in the answer alone: not on what is answered beside it, or was before.
    """

    def __init__(self, decoding: DecodingSettings, numbers: Sequence[int], *, prompt: int) -> None:
        self._seed, self._numbers, self._prompt = decoding.seed, tuple(numbers), prompt
        self._narrow = LogitsProcessorList([TemperatureLogitsWarper(decoding.temperature)])
        if decoding.top_k:
            self._narrow.append(TopKLogitsWarper(decoding.top_k))
        if decoding.top_p < 1:
            self._narrow.append(TopPLogitsWarper(decoding.top_p))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """`scores`, [rows, vocabulary], with one finite number in each row."""
        place = input_ids.shape[1] - self._prompt
        reached = self._narrow(input_ids, scores.float()).softmax(-1).cumsum(-1)
        chances = [_chance(self._seed, number, place) * BELOW_ONE for number in self._numbers]
        wanted = torch.tensor(chances, device=scores.device).unsqueeze(1) * reached[:, -1:]
        # A token that may not come reaches no further than the one before it, and is passed over.
        chosen = (reached > wanted).int().argmax(-1, keepdim=True)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


def _chance(seed: int, number: int, place: int) -> float:
    """From 0 to below 1. Python promises these numbers from one release to the next; torch promises none."""
    return random.Random(f"devkit answers, seed {seed}, prompt {number}, token {place}").random()  # noqa: S311 - no secret


# When an answer ends before its last token: at a text, at the user's wish.

STOP_MARGIN_TOKENS = 4
"""A stop text may begin in the middle of a token and end in another."""


class StopOnText(StoppingCriteria):  # type: ignore[misc] # untyped library
    """Ends a row as soon as its answer, behind the `prompt` first tokens, holds one of the texts."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, prompt: int) -> None:
        self._tokenizer, self._stops, self._prompt = tokenizer, stops, prompt
        # A token is at least a byte, so this many hold every stop text that ends with the newest one.
        self._window = max(len(stop.encode()) for stop in stops) + STOP_MARGIN_TOKENS

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """One truth value a row."""
        tails = self._tokenizer.batch_decode(input_ids[:, max(self._prompt, input_ids.shape[1] - self._window) :])
        ended = [any(stop in tail for stop in self._stops) for tail in tails]
        return torch.tensor(ended, device=input_ids.device)


class StopOnRequest(StoppingCriteria):  # type: ignore[misc] # untyped library
    """Ends every row as soon as somebody asked for it."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """The same truth value for all rows."""
        return torch.full((input_ids.shape[0],), self._asked(), device=input_ids.device)


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first of `stops`, and whether there was one."""
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


class FinishReason(StrEnum):
    """Why an answer is over: the model ended it, it has all tokens that it may have, or somebody stopped it."""

    END = "end"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Completion:
    """What the model said. `ids` are without the end token, and end with a stop text if one ended the answer.

    `seconds` is the time of the whole batch.
    """

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    seconds: float


@dataclass(frozen=True)
class TextGenerator:
    """A model that generates: with its adapter, if any, and its tokenizer."""

    model: Model
    tokenizer: Tokenizer

    @cached_property
    def turn_end(self) -> str:
        """What ends a turn in the model's chats; "" where it has none. Not every model's makers name it as an end."""
        return find_turn_end(self.tokenizer)

    @property
    def base_model(self) -> Model:
        """The model of transformers inside peft's, whose layers carry the adapter."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def context_length(self) -> int | None:
        """How many tokens prompt and answer may have together; None where the model sets no limit."""
        limit = getattr(self.base_model.config.get_text_config(), "max_position_embeddings", None)
        return limit if isinstance(limit, int) else None

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end an answer: the tokenizer's, those that the model's makers name, and a turn's."""
        named = self.base_model.generation_config.eos_token_id
        named = named if isinstance(named, list) else [named]
        found = [*named, self.tokenizer.eos_token_id, self.tokenizer.get_vocab().get(self.turn_end)]
        return list(dict.fromkeys(each for each in found if each is not None))

    def find_stop_texts(self, decoding: DecodingSettings) -> tuple[str, ...]:
        """The texts that end an answer: those asked for, and a turn's end that is no token of its own."""
        is_token = self.turn_end in self.tokenizer.get_vocab()
        return decoding.stops if is_token or not self.turn_end else (*decoding.stops, self.turn_end)


def generate_batch(
    speaker: TextGenerator,
    prompts: Sequence[Sequence[int]],
    decoding: DecodingSettings,
    *,
    numbers: Sequence[int] | None = None,
    streamer: Any = None,  # noqa: ANN401 - what transformers calls with each token
    asked: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """One answer a prompt, in order, all generated side by side. `asked` is polled after each token.

    Prompts of unequal length get padding in front, which no token sees, and what is drawn for them depends on their
    `numbers` (counted from 0 where none are given): answers are those of each prompt alone. Raises DevkitError for a
    prompt that leaves no room for an answer.
    """
    longest = max(map(len, prompts))
    tokens = remaining_tokens(speaker, longest, decoding.tokens)
    filler = _filler(speaker)
    ids = torch.tensor([[*[filler] * (longest - len(each)), *each] for each in prompts], device=speaker.device)
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts], device=speaker.device)
    stopping = StoppingCriteriaList([StopOnRequest(asked)])
    stops = speaker.find_stop_texts(decoding)
    if stops:
        stopping.append(StopOnText(speaker.tokenizer, stops, prompt=longest))
    started = perf_counter()
    config = _config(speaker, decoding, tokens, filler)
    drawn = (
        [SeededSampler(decoding, numbers or range(len(prompts)), prompt=longest)] if decoding.temperature > 0 else []
    )
    with torch.inference_mode(), silence_loading(), _configured(speaker.base_model, config):
        found = speaker.base_model.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=LogitsProcessorList(drawn),
            stopping_criteria=stopping,
            streamer=streamer,
        )
    seconds = perf_counter() - started
    rows = found[:, longest:].tolist()
    return [_answer(speaker, row, stops, is_cut=len(row) >= tokens, seconds=seconds) for row in rows]


def remaining_tokens(speaker: TextGenerator, length: int, tokens: int) -> int:
    """How many of `tokens` the answer to a prompt of that length may have. Raises DevkitError where it is none."""
    limit = speaker.context_length
    if limit is None:
        return tokens
    if length >= limit:
        raise DevkitError(
            f"a prompt has {length} tokens, and prompt and answer may have {limit} together", "Shorten the prompt."
        )
    return min(tokens, limit - length)


def _filler(speaker: TextGenerator) -> int:
    """Any token does for padding, for none is ever looked at; but rows that ended are filled with it, too."""
    padding = speaker.tokenizer.pad_token_id
    if padding is not None:
        return int(padding)
    return speaker.eos_token_ids[0] if speaker.eos_token_ids else 0


def _config(speaker: TextGenerator, decoding: DecodingSettings, tokens: int, filler: int) -> GenerationConfig:
    """Made anew and not from the model's, so that nothing is sampled or punished that nobody asked for."""
    return GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=speaker.eos_token_ids or None,
        pad_token_id=filler,
        compile_config=speaker.base_model.generation_config.compile_config,
        # With a static cache transformers compiles by itself on GPUs, and fails where there is no compiler.
        disable_compile=speaker.device.type == "cuda" and not has_compiler(speaker.device),
        cache_implementation="static" if decoding.static_cache and supports_static_cache(speaker.base_model) else None,
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


def supports_static_cache(model: Model) -> bool:
    """Whether the model's keys and values fit a cache of fixed size, as those of plain attention do."""
    return bool(getattr(model, "_can_compile_fullgraph", False))


def _answer(
    speaker: TextGenerator, row: Sequence[int], stops: Sequence[str], *, is_cut: bool, seconds: float
) -> Completion:
    ends = set(speaker.eos_token_ids)
    length = next((place for place, each in enumerate(row) if each in ends), None)
    ids = tuple(row if length is None else row[:length])
    stopped_at = _stopped_at(speaker.tokenizer, ids, stops)
    # Rows that ended before others of their batch are filled up behind.
    ids = ids[:stopped_at]
    text, was_cut = cut_at_stop(speaker.tokenizer.decode(ids, skip_special_tokens=True), stops)
    if stopped_at is not None or was_cut or length is not None:
        return Completion(text, ids, FinishReason.END, seconds)
    return Completion(text, ids, FinishReason.LENGTH if is_cut else FinishReason.STOPPED, seconds)


def _stopped_at(tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str]) -> int | None:
    """With how many tokens the first stop text is whole, special tokens written out; None where there is none."""

    def holds_one(count: int) -> bool:
        text = tokenizer.decode(ids[:count])
        return any(stop in text for stop in stops)

    # One that is there stays there, so the first count is found by halving.
    return bisect_left(range(len(ids)), True, key=holds_one) if stops and holds_one(len(ids)) else None


# Many prompts through one model: alike lengths side by side, answers in the order of the prompts.


def generate_in_order(
    speaker: TextGenerator,
    prompts: Sequence[Sequence[int]],
    decoding: DecodingSettings,
    *,
    asked: Callable[[], bool] = lambda: False,
) -> Iterator[Completion]:
    """The answers to `prompts`, in their order, each as soon as all before it are there.

    Prompts of like length are put together, the longest first: there is little padding, and what does not fit into
    memory shows at once. Then the batch is halved. A prompt that fills the model so far that its answer must be short
    shortens no other's. Ends early, with whole answers alone, once `asked`.
    """
    longest_first = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    rooms = [remaining_tokens(speaker, len(prompt), decoding.tokens) for prompt in prompts]
    done: dict[int, Completion] = {}
    handed_on, begun, batch = 0, 0, decoding.batch
    while begun < len(prompts) and not asked():
        chosen = _with_equal_room(longest_first[begun : begun + batch], rooms)
        found = _tried(speaker, {index: prompts[index] for index in chosen}, decoding, asked)
        if found is None:
            batch = _halved(len(chosen))
            continue
        if asked():
            return
        begun += len(chosen)
        done |= zip(chosen, found, strict=True)
        while handed_on in done:
            yield done.pop(handed_on)
            handed_on += 1


def _with_equal_room(indices: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """The first of `indices`, and those directly behind it whose answers may be as long as its own."""
    return list(takewhile(lambda index: rooms[index] == rooms[indices[0]], indices))


def generate_one(
    speaker: TextGenerator,
    prompt: Sequence[int],
    decoding: DecodingSettings,
    *,
    number: int = 0,
    words: TextStreamer,
    asked: Callable[[], bool],
) -> Completion:
    """The answer to one prompt, shown while it is made. Raises DevkitError, also where memory runs out."""
    try:
        (answer,) = generate_batch(speaker, [prompt], decoding, numbers=[number], streamer=words, asked=asked)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise _too_large() from error
        raise
    return answer


def _tried(
    speaker: TextGenerator, prompts: Mapping[int, Sequence[int]], decoding: DecodingSettings, asked: Callable[[], bool]
) -> list[Completion] | None:
    """The answers to `prompts`, by their numbers; None where memory ran out, after what was allocated is free again."""
    how = replace(decoding, batch=len(prompts))
    try:
        return generate_batch(speaker, list(prompts.values()), how, numbers=list(prompts), asked=asked)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # The error is gone by now, and with it the frames that hold the tensors.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def _halved(batch: int) -> int:
    if batch > 1:
        return batch // 2
    raise _too_large()


def _too_large() -> DevkitError:
    return DevkitError(
        "memory ran out with a single prompt",
        "Ask for fewer --tokens, or keep the base in 4 bits with --quantisation nf4.",
    )
