"""Texts to token ids, by one tokenizer of transformers, with what is learned of them. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from devkit.workload.finetune.chat import Span, Tokenizer
from devkit.workload.finetune.records import Kind

PIECE = 1 << 20
"""Characters of plain text that are tokenised in one go. Longer ones are cut at line ends first."""

LAST = 3
"""How near its end a turn must have a token that means its end: a line break or two may follow."""


@dataclass(frozen=True)
class Draft:
    """A text before it is tokenised. `learned` is where in it what is learned stands, in order."""

    text: str
    learned: tuple[Span, ...]
    kind: Kind

    @property
    def is_whole(self) -> bool:
        """Whether all of it is learned."""
        return self.learned == ((0, len(self.text)),)


@dataclass(frozen=True)
class Tokens:
    """A text as token ids, and 1 for each that is learned.

    `apart` is whether a token would have lain across the border between what is read and what is learned, so that both
    sides were tokenised by themselves: as they are when the model answers.
    """

    ids: list[int]
    learned: list[int]
    kind: Kind
    apart: bool = False


class Writer:
    """One tokenizer, and what its texts begin and end with."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.beginning = self._beginning()
        self.end: int | None = tokenizer.eos_token_id
        added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(each for each, token in added.items() if token.special)}

    def tokens(self, drafts: Sequence[Draft]) -> list[Tokens]:
        """The drafts as tokens, in order. All are handed to the tokenizer at once: it works on many at a time."""
        whole = [draft for draft in drafts if draft.is_whole]
        ids = self._long([draft.text for draft in whole])
        wholly = iter([Tokens(each, [1] * len(each), draft.kind) for draft, each in zip(whole, ids, strict=True)])
        partly = iter(self._partly([draft for draft in drafts if not draft.is_whole]))
        return [self._between_ends(next(wholly if draft.is_whole else partly), draft) for draft in drafts]

    def _beginning(self) -> list[int]:
        """What the tokenizer puts before a text. What it puts behind is not asked for: every text gets an end."""
        with_more = list(self.tokenizer("a")["input_ids"])
        bare = self._ids(["a"])[0]
        places = range(len(with_more) - len(bare) + 1)
        return next((with_more[:place] for place in places if with_more[place : place + len(bare)] == bare), [])

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        found = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [list(each) for each in found["input_ids"]]

    def _long(self, texts: Sequence[str]) -> list[list[int]]:
        pieces = [_pieces(text) for text in texts]
        ids = iter(self._ids([piece for each in pieces for piece in each]))
        return [[token for _ in each for token in next(ids)] for each in pieces]

    def _partly(self, drafts: Sequence[Draft]) -> list[Tokens]:
        if not drafts:
            return []
        if not self.tokenizer.is_fast:
            return [self._apart(draft) for draft in drafts]
        found = self.tokenizer(
            [draft.text for draft in drafts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        each = zip(drafts, found["input_ids"], found["offset_mapping"], strict=True)
        return [self._told_apart(draft, ids, offsets) for draft, ids, offsets in each]

    def _told_apart(self, draft: Draft, ids: Sequence[int], offsets: Sequence[Span]) -> Tokens:
        learned = [0] * len(ids)
        spans = iter(draft.learned)
        span = next(spans, None)
        for place, (start, end) in enumerate(offsets):
            while span is not None and start >= span[1]:
                span = next(spans, None)
            if span is None:
                break
            if start < span[0] < end:
                return self._apart(draft)
            learned[place] = int(span[0] <= start < end)
        return Tokens(list(ids), learned, draft.kind)

    def _apart(self, draft: Draft) -> Tokens:
        """The text cut where what is learned begins and ends, each piece tokenised by itself."""
        borders = sorted({0, len(draft.text), *(border for span in draft.learned for border in span)})
        pieces = [(start, end) for start, end in pairwise(borders) if start < end]
        ids = self._ids([draft.text[start:end] for start, end in pieces])
        learned = [int(any(start <= piece[0] < end for start, end in draft.learned)) for piece in pieces]
        marks = [mark for mark, each in zip(learned, ids, strict=True) for _ in each]
        return Tokens([token for each in ids for token in each], marks, draft.kind, apart=True)

    def _between_ends(self, tokens: Tokens, draft: Draft) -> Tokens:
        before = [] if draft.kind is Kind.CHAT else self._missing_beginning(tokens.ids)
        behind = self._missing_end(tokens, draft)
        ids = [*before, *tokens.ids, *behind]
        learned = [*[0] * len(before), *tokens.learned, *[1] * len(behind)]
        return Tokens(ids, learned, tokens.kind, tokens.apart)

    def _missing_beginning(self, ids: list[int]) -> list[int]:
        return [] if ids[: len(self.beginning)] == self.beginning else self.beginning

    def _missing_end(self, tokens: Tokens, draft: Draft) -> list[int]:
        """The end of text, unless it is there, or the turn of a chat ends otherwise."""
        if self.end is None or tokens.ids[-1:] == [self.end]:
            return []
        if draft.kind is Kind.CHAT:
            ends_with_answer = bool(draft.learned) and draft.learned[-1][1] == len(draft.text)
            if not ends_with_answer or self._special & set(tokens.ids[-LAST:]):
                return []
        return [self.end]


def _pieces(text: str) -> list[str]:
    """`text` in pieces of at most PIECE characters, cut behind line ends where there are any."""
    pieces = []
    start = 0
    while len(text) - start > PIECE:
        cut = text.rfind("\n", start, start + PIECE) + 1 or start + PIECE
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]
