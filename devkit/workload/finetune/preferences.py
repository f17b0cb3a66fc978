"""Data of DPO, reward models and GRPO: pairs of answers, and prompts, tokenized by the same rules as texts."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devkit.errors import DevkitError
from devkit.estimate.settings import Objective
from devkit.text import format_count
from devkit.workload.finetune.dataset import (
    Example,
    TokenizedRecords,
    ensure_chat_template,
    render_chat_template,
    tokenize_records,
)
from devkit.workload.finetune.files import Tokenizer
from devkit.workload.finetune.records import PairRecord, QuestionRecord, Record


@dataclass(frozen=True)
class PairExample(Example):
    """Two answers as token ids, each after the prompt: `chosen` tokens of the better one, then the other.

    Both begin with the same `shared` tokens.
    """

    chosen: int
    shared: int

    @property
    def length(self) -> int:
        """Tokens of both rows, padded to the longer one."""
        return 2 * max(self.chosen, len(self.ids) - self.chosen)

    def to_columns(self, objective: Objective) -> dict[str, Any]:
        """Return the columns that TRL's trainer reads."""
        prompt = 0 if objective is Objective.REWARD else self.shared
        columns = {"chosen_ids": list(self.ids[prompt : self.chosen])}
        columns |= {"rejected_ids": list(self.ids[self.chosen + prompt :])}
        return columns if objective is Objective.REWARD else columns | {"prompt_ids": list(self.ids[:prompt])}


@dataclass(frozen=True)
class PromptExample(Example):
    """A prompt, as text or turns, and the other fields of its record; `length` includes its longest completion."""

    prompt: Any
    fields: Mapping[str, Any]
    new_tokens: int

    @property
    def length(self) -> int:
        """Tokens of the prompt and the longest completion."""
        return len(self.ids) + self.new_tokens

    def to_columns(self, _: Objective) -> dict[str, Any]:
        """Return the columns that TRL's trainer and the reward function read."""
        return {**self.fields, "prompt": self.prompt}


def tokenize_pairs(
    records: Iterable[Record],
    tokenizer: Tokenizer,
    *,
    sequence: int,
    **given: Any,  # noqa: ANN401 - of tokenize_records
) -> TokenizedRecords:
    """Tokenize pairs. Those with an answer of more than `sequence` tokens are left out. Raises DevkitError if all are."""
    pairs = 0

    def list_sides() -> Iterator[Record]:
        nonlocal pairs
        for record in records:
            assert isinstance(record, PairRecord)  # noqa: S101 - as they were parsed
            pairs += 1
            yield from (record.chosen, record.rejected)

    sides = tokenize_records(list_sides(), tokenizer, sequence=sys.maxsize, **given)
    if len(sides.examples) != 2 * pairs:
        raise DevkitError(
            "the chat template renders earlier answers differently once more turns follow",
            "Give pairs with one answer after their prompt.",
        )
    examples = [_join(*each) for each in zip(sides.examples[::2], sides.examples[1::2], strict=True)]
    return _keep_fitting(examples, 2 * sequence, f"answers of at most {sequence} tokens", sides.notes)


def _join(chosen: Example, rejected: Example) -> PairExample:
    """Join the sides of a pair. Their prompt ends where one of them is trained on, or differs."""
    border = min(list(side.loss_mask).index(1) for side in (chosen, rejected))
    shared = next((place for place in range(border) if chosen.ids[place] != rejected.ids[place]), border)
    both = Example.compact([*chosen.ids, *rejected.ids], [*chosen.loss_mask, *rejected.loss_mask])
    return PairExample(both.ids, both.loss_mask, len(chosen.ids), shared)


def tokenize_prompts(
    records: Iterable[Record], tokenizer: Tokenizer, *, new_tokens: int, sequence: int, **_: object
) -> TokenizedRecords:
    """Tokenize prompts, as TRL will. Those that leave less than `new_tokens` of `sequence` are left out."""
    notes, examples = [], []
    for record in records:
        assert isinstance(record, QuestionRecord)  # noqa: S101 - as they were parsed
        prompted = record.prompt
        if not isinstance(prompted, str):
            notes += [note] if (note := ensure_chat_template(tokenizer)) else []
            prompted = render_chat_template(
                tokenizer, prompted, place=record.place, tokenize=False, add_generation_prompt=True
            )
        ids = list(tokenizer(prompted, add_special_tokens=isinstance(record.prompt, str))["input_ids"])
        prompt = record.prompt if isinstance(record.prompt, str) else list(record.prompt)
        examples.append(PromptExample(ids, [0] * len(ids), prompt, record.fields, new_tokens))
    return _keep_fitting(examples, sequence, f"a prompt and {new_tokens} new tokens within {sequence}", notes)


def _keep_fitting(examples: Iterable[Example], most: int, what: str, notes: list[str]) -> TokenizedRecords:
    """Keep examples of at most `most` tokens, which have `what`. Raises DevkitError if none does."""
    examples = list(examples)
    kept = [each for each in examples if each.length <= most]
    if not kept:
        raise DevkitError(f"no record has {what}", "Use a larger --max-length, or shorter records.")
    left_out = len(examples) - len(kept)
    note = f"left out {format_count(left_out, 'record')} without {what}"
    return TokenizedRecords(kept, [*notes, *([note] if left_out else [])])
