"""Decoding: prompts to token ids to completions or streamed text, in batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
)

from devkit.errors import DevkitError
from devkit.text import format_count
from devkit.workload.device import is_out_of_memory
from devkit.workload.finetune.dataset import find_context_length, render_chat_template
from devkit.workload.finetune.files import Tokenizer
from devkit.workload.finetune.model import silence_loading
from devkit.workload.finetune.records import require_utf8
from devkit.workload.generation.settings import DecodingSettings, Prompt
from devkit.workload.models import Model


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, *, raw: bool) -> list[int]:
    """Encode a prompt, a chat up to where the assistant's next turn begins. Raises DevkitError.

    `raw` leaves out the chat template for a text, but not for a chat.
    """
    if not prompt.messages and (raw or not tokenizer.chat_template):
        ids: list[int] = tokenizer(prompt.text)["input_ids"]
        if not ids:
            raise DevkitError("the prompt has no tokens, and the model has no start token", "Write a prompt.")
        # Some tokenizers end every text; a text to be continued has no end yet.
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    if not tokenizer.chat_template:
        raise DevkitError(
            "the model has no chat template, so it was not made for chat",
            "Give a prompt as text; or put the template that it was tuned on into chat_template.jinja next to its tokenizer.",
        )
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    text = render_chat_template(tokenizer, messages, tokenize=False, add_generation_prompt=True)
    require_utf8(text, "the chat")
    # The template writes every special token itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def find_turn_end(tokenizer: Tokenizer) -> str:
    """Return what the chat template writes after an answer, without surrounding space; "" for nothing."""
    if not tokenizer.chat_template:
        return ""
    marker = "the-answer"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": marker}]
    try:
        text: str = render_chat_template(tokenizer, turns, tokenize=False)
    except DevkitError:  # a template that refuses this chat may take others
        return ""
    end = text.rpartition(marker)[2].strip()
    # Some write more than one token; the first ends the turn.
    return next((token for token in tokenizer.all_special_tokens if end.startswith(token)), end)


class AnswerStreamer(TextStreamer):  # type: ignore[misc] # untyped library
    """Passes on the text of one answer to `show`, piece by piece."""

    def __init__(self, tokenizer: Tokenizer, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Show the text that no later token changes."""
        if text:
            self._show(text)


STOP_MARGIN_TOKENS = 4
"""A stop text may begin in the middle of a token and end in another."""


class FinishReason(StrEnum):
    """The reason why an answer ended: the model ended it, it has its most tokens, or the user stopped it."""

    END = "end"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Completion:
    """An answer of the model. `ids` are without the end token, and end with a stop text if one ended the answer."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class TextGenerator:
    """A model that generates, with its adapter, if any, and its tokenizer."""

    model: Model
    tokenizer: Tokenizer

    @cached_property
    def turn_end(self) -> str:
        """The text that ends a turn in the model's chats; "" for none. Not every model declares it as an end token."""
        return find_turn_end(self.tokenizer)

    @property
    def base_model(self) -> Model:
        """The model of transformers inside peft's, whose layers carry the adapter."""
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end an answer: the tokenizer's, those of the model's generation config, and a turn's."""
        configured = self.base_model.generation_config.eos_token_id
        configured = configured if isinstance(configured, list) else [configured]
        found = [*configured, self.tokenizer.eos_token_id, self.tokenizer.get_vocab().get(self.turn_end)]
        return list(dict.fromkeys(each for each in found if each is not None))

    def find_stop_texts(self, decoding: DecodingSettings) -> tuple[str, ...]:
        """Return the texts that end an answer: those of the settings, and a turn's end that is not a single token."""
        is_token = self.turn_end in self.tokenizer.get_vocab()
        return decoding.stops if is_token or not self.turn_end else (*decoding.stops, self.turn_end)


def remaining_tokens(generator: TextGenerator, prompt_length: int, tokens: int) -> int:
    """Return how many of `tokens` the answer to a prompt of that length may have. Raises DevkitError for none."""
    limit = find_context_length(generator.base_model.config)
    if limit is None:
        return tokens
    if prompt_length >= limit:
        raise DevkitError(
            f"a prompt has {prompt_length} tokens, but the model's context length is {limit}, including the answer",
            "Shorten the prompt.",
        )
    return min(tokens, limit - prompt_length)


def generate_in_order(
    generator: TextGenerator, prompts: Sequence[Sequence[int]], decoding: DecodingSettings
) -> Iterator[Completion]:
    """Yield the answers to `prompts`, in their order, each as soon as all before it are complete.

    Prompts of similar length are batched, the longest first: there is little padding, and a batch that does not fit
    into memory shows at once. A prompt that nearly fills the context is batched only with others whose answers are as
    short. Raises DevkitError where memory runs out.
    """
    longest_first = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    limits = [remaining_tokens(generator, len(prompt), decoding.tokens) for prompt in prompts]
    done: dict[int, Completion] = {}
    yielded = 0
    while longest_first:
        candidates = longest_first[: decoding.batch]
        batch = list(takewhile(lambda index: limits[index] == limits[candidates[0]], candidates))  # noqa: B023 - used at once
        del longest_first[: len(batch)]
        with _explain_out_of_memory(len(batch)):
            done |= zip(
                batch,
                generate_batch(generator, [prompts[each] for each in batch], decoding, numbers=batch),
                strict=True,
            )
        while yielded in done:
            yield done.pop(yielded)
            yielded += 1


def generate_one(
    generator: TextGenerator,
    prompt: Sequence[int],
    decoding: DecodingSettings,
    *,
    show: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> Completion:
    """Generate the answer to one prompt, and show it piece by piece. Raises DevkitError, also where memory runs out.

    With stop texts, which a later token may complete, it is shown as a whole.
    """
    streamer = None if generator.find_stop_texts(decoding) else AnswerStreamer(generator.tokenizer, show)
    with _explain_out_of_memory(1):
        (completion,) = generate_batch(generator, [prompt], decoding, streamer=streamer, should_stop=should_stop)
    if streamer is None:
        show(completion.text)
    return completion


@contextmanager
def _explain_out_of_memory(prompts: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        smaller = "Reduce --batch, or --max-new-tokens" if prompts > 1 else "Reduce --max-new-tokens"
        raise DevkitError(
            f"memory ran out with {format_count(prompts, 'prompt')} at once",
            f"{smaller}, or load the base in 4 bits with --quantization nf4.",
        ) from error


def generate_batch(
    generator: TextGenerator,
    prompts: Sequence[Sequence[int]],
    decoding: DecodingSettings,
    *,
    numbers: Sequence[int] | None = None,
    streamer: Any = None,  # noqa: ANN401 - what transformers calls with each token
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Generate one answer per prompt, in order, in one batch. `should_stop` is polled after each token.

    Prompts of unequal length are padded on the left, where no token attends to: greedy answers are those of each prompt
    alone. Samples depend on the seed, the batch and the first of `numbers`. Raises DevkitError for a prompt that fills
    the context.
    """
    longest = max(map(len, prompts))
    tokens = remaining_tokens(generator, longest, decoding.tokens)
    base_model, eos_token_ids = generator.base_model, generator.eos_token_ids
    padding = generator.tokenizer.pad_token_id
    if padding is None:
        # Any token does for padding, which is never attended to; but rows that ended are filled with it, too.
        padding = eos_token_ids[0] if eos_token_ids else 0
    pads = [longest - len(prompt) for prompt in prompts]
    rows = [[*[int(padding)] * pad, *prompt] for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)]

    def stop_on_request(input_ids: torch.Tensor, _: torch.Tensor, **__: object) -> torch.Tensor:
        return torch.full((len(input_ids),), should_stop(), device=input_ids.device)

    stopping = StoppingCriteriaList([stop_on_request])
    stops = generator.find_stop_texts(decoding)
    if stops:
        stopping.append(StopOnText(generator.tokenizer, stops, prompt_length=longest))
    sampling: dict[str, Any] = {"do_sample": False}
    if decoding.temperature > 0:
        torch.manual_seed(decoding.seed + (numbers or [0])[0])
        sampling = {"do_sample": True, **{name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}}
    # New and not the model's own, so that nothing is sampled or penalized that was not requested.
    config = GenerationConfig(
        max_new_tokens=tokens,
        **sampling,
        eos_token_id=eos_token_ids or None,
        pad_token_id=int(padding),
        disable_compile=True,
    )
    with torch.inference_mode(), silence_loading(), _replace_generation_config(base_model, config):
        output = base_model.generate(
            input_ids=torch.tensor(rows, device=generator.device),
            attention_mask=torch.tensor(mask, device=generator.device),
            stopping_criteria=stopping,
            streamer=streamer,
        )
    return [_complete(generator, row, stops, is_cut=len(row) >= tokens) for row in output[:, longest:].tolist()]


@contextmanager
def _replace_generation_config(model: Model, config: GenerationConfig) -> Iterator[None]:
    """Replace the model's own configuration, from which transformers takes whatever another leaves open."""
    own = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own


def _complete(generator: TextGenerator, row: Sequence[int], stops: Sequence[str], *, is_cut: bool) -> Completion:
    """Cut a generated row at its end token or stop text; rows that ended before others of the batch are padded."""
    tokenizer = generator.tokenizer
    ends = {*generator.eos_token_ids, tokenizer.pad_token_id}
    ids = tuple(takewhile(lambda token: token not in ends, row))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    text = text[: min((start for stop in stops if (start := text.find(stop)) >= 0), default=None)]
    # Stop texts may be special tokens.
    if len(ids) < len(row) or any(stop in tokenizer.decode(ids) for stop in stops):
        return Completion(text, ids, FinishReason.END)
    return Completion(text, ids, FinishReason.LENGTH if is_cut else FinishReason.STOPPED)


class StopOnText(StoppingCriteria):  # type: ignore[misc] # untyped library
    """Ends a row as soon as its answer, after the first `prompt_length` tokens, holds one of the texts."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, prompt_length: int) -> None:
        self._tokenizer, self._stops, self._prompt_length = tokenizer, stops, prompt_length
        # A token is at least a byte, so this many hold every stop text that ends with the newest one.
        self._window = max(len(stop.encode()) for stop in stops) + STOP_MARGIN_TOKENS

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """Return whether each row has ended. Shape: [rows]."""
        first = max(self._prompt_length, input_ids.shape[1] - self._window)
        tails = self._tokenizer.batch_decode(input_ids[:, first:])
        ended = [any(stop in tail for stop in self._stops) for tail in tails]
        return torch.tensor(ended, device=input_ids.device)
