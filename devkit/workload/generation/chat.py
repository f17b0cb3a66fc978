"""A chat on the terminal: the model answers each turn with all earlier turns as context."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from devkit.workload.generation.decoding import Completion, FinishReason, TextGenerator, generate_one
from devkit.workload.generation.settings import DecodingSettings
from devkit.workload.generation.tokenization import TextStreamer, encode_chat

MIN_ANSWER_TOKENS = 16
"""Shorter answers are useless: rather, the oldest turns are dropped."""


@dataclass
class ChatSession:
    """The turns so far. `say` prints a piece of an answer, `remark` a line about the chat itself."""

    generator: TextGenerator
    decoding: DecodingSettings
    say: Callable[[str], None]
    remark: Callable[[str], None]
    turns: list[dict[str, Any]] = field(default_factory=list)
    _answered: int = field(default=0, init=False)

    def run(self, read: Callable[[], str | None]) -> None:
        """Answer what `read` returns until it returns None. Raises DevkitError for a model without a chat template."""
        while (text := read()) is not None:
            if text.strip():
                self.answer(text)

    def answer(self, text: str) -> Completion | None:
        """Answer one turn, streamed. Ctrl-C ends the answer, and its beginning stays in the chat.

        Returns None, and drops the turn, if it does not fit the model even alone.
        """
        turn = {"role": "user", "content": text}
        if self._is_too_long(turn):
            return None
        self.turns.append(turn)
        ids = self._encode_fitting()
        stops = self.generator.find_stop_texts(self.decoding)
        streamer = TextStreamer(self.generator.tokenizer, self.say, stops)
        with catch_interrupt() as should_stop:
            completion = generate_one(
                self.generator,
                ids,
                self.decoding,
                number=self._answered,
                streamer=streamer,
                should_stop=should_stop,
            )
            self.say("\n")
        self._answered += 1
        if completion.finish_reason is FinishReason.STOPPED:
            self.remark("(stopped)")
        elif completion.finish_reason is FinishReason.LENGTH:
            self.remark(f"(cut after {len(completion.ids)} tokens)")
        self.turns.append({"role": "assistant", "content": completion.text})
        return completion

    def _is_too_long(self, turn: dict[str, Any]) -> bool:
        limit = self.generator.context_length
        system = [each for each in self.turns[:1] if each["role"] == "system"]
        length = len(encode_chat([*system, turn], self.generator.tokenizer))
        if limit is None or length < limit:
            return False
        self.remark(f"(too long: {length} tokens, and the context length is {limit}, answer included; shorten it)")
        return True

    def _encode_fitting(self) -> list[int]:
        """Encode the chat, and drop its oldest turns if it would fill the context."""
        dropped = 0
        has_system = self.turns[0]["role"] == "system"
        while True:
            kept = [*self.turns[:has_system], *self.turns[has_system + dropped :]]
            ids = encode_chat(kept, self.generator.tokenizer)
            limit = self.generator.context_length
            if limit is None or len(ids) + MIN_ANSWER_TOKENS <= limit or len(kept) <= has_system + 1:
                break
            # A turn of the user goes with its answer: templates require them to alternate.
            dropped += 2
        if dropped:
            self.remark(f"(the first {dropped} turns no longer fit the model and are forgotten)")
            del self.turns[has_system : has_system + dropped]
        return ids


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C set a flag within the block, which the yielded function returns."""
    is_interrupted = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
