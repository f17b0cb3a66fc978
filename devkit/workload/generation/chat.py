"""A conversation on the terminal: every turn is answered with all turns before it in mind."""

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
"""An answer shorter than this helps nobody: the oldest turns are forgotten before."""


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
        """Answer what `read` gives until it gives None. Raises DevkitError for a model that is made for no chats."""
        while (said := read()) is not None:
            if said.strip():
                self.answer(said)

    def answer(self, said: str) -> Completion | None:
        """One turn, shown while it is made. Ctrl-C ends the answer, and what there is of it is remembered.

        None, and nothing is remembered, where the turn does not fit the model even alone.
        """
        turn = {"role": "user", "content": said}
        if self._is_too_long(turn):
            return None
        self.turns.append(turn)
        ids = self._fitting()
        words = TextStreamer(self.generator.tokenizer, self.say, self.generator.find_stop_texts(self.decoding))
        with catch_interrupt() as asked:
            found = generate_one(self.generator, ids, self.decoding, number=self._answered, words=words, asked=asked)
            self.say("\n")
        self._answered += 1
        if found.finish_reason is FinishReason.STOPPED:
            self.remark("(stopped)")
        elif found.finish_reason is FinishReason.LENGTH:
            self.remark(f"(cut after {len(found.ids)} tokens)")
        self.turns.append({"role": "assistant", "content": found.text})
        return found

    def _is_too_long(self, turn: dict[str, Any]) -> bool:
        limit = self.generator.context_length
        kept = [each for each in self.turns[:1] if each["role"] == "system"]
        length = len(encode_chat([*kept, turn], self.generator.tokenizer))
        if limit is None or length < limit:
            return False
        self.remark(f"(too long: {length} tokens, and the model holds {limit} with its answer; say it shorter)")
        return True

    def _fitting(self) -> list[int]:
        """The ids of the chat, its oldest turns left out where the model could not hold it."""
        first = 0
        keeps_system = self.turns[0]["role"] == "system"
        while True:
            kept = [*self.turns[:keeps_system], *self.turns[keeps_system + first :]]
            ids = encode_chat(kept, self.generator.tokenizer)
            limit = self.generator.context_length
            if limit is None or len(ids) + MIN_ANSWER_TOKENS <= limit or len(kept) <= keeps_system + 1:
                break
            # A turn of the user and its answer go together: templates want them by turns.
            first += 2
        if first:
            self.remark(f"(the first {first} turns no longer fit the model and are forgotten)")
            del self.turns[keeps_system : keeps_system + first]
        return ids


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag inside, and interrupts as ever outside."""
    asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
