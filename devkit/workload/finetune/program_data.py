"""From what --data and --eval-data name to examples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from devkit.errors import DevkitError
from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.events import Counts, Events
from devkit.workload.finetune.model import Tokenizer
from devkit.workload.finetune.reading import Records
from devkit.workload.finetune.settings import FinetuneSettings
from devkit.workload.finetune.tokens import POSITIONS, require_positions, require_vocabulary, tokenised

DEFAULT_SEQUENCE = FinetuneSettings().sequence


@dataclass(frozen=True)
class Data:
    """Texts to learn from, texts to evaluate on, and what their owner should hear of them.

    `chat_template` is how chats were written, which whoever talks to the trained model has to know.
    """

    learned: Sequence[Example]
    held_out: Sequence[Example]
    notes: tuple[str, ...]
    chat_template: str | None = None


def data_of(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    config: Any,  # noqa: ANN401 - of transformers
    events: Events,
) -> Data:
    """Everything that is named, as examples for this model; `events` hear how far the reading is.

    Raises DevkitError for what cannot be learned.
    """
    examples, notes = _examples_of(settings.data, tokenizer, settings, events)
    require_vocabulary(examples, config)
    if settings.sequence == _positions_of(config):
        notes = (*notes, f"rows have at most {settings.sequence} tokens: this model reads no more")
    if not settings.eval_data:
        return Data(*_divided(examples, settings), notes, tokenizer.chat_template)
    held_out, more = _examples_of(settings.eval_data, tokenizer, settings, events)
    notes = (*notes, *(f"to evaluate on: {note}" for note in more))
    return Data(examples, held_out, notes, tokenizer.chat_template)


def with_rows_that_fit(settings: FinetuneSettings, config: Any) -> FinetuneSettings:  # noqa: ANN401 - of transformers
    """The settings with the longest row that the model reads, where it is shorter than the default.

    Raises DevkitError where a longer one was asked for.
    """
    most = _positions_of(config)
    if most is not None and most < settings.sequence == DEFAULT_SEQUENCE:
        return replace(settings, sequence=most)
    require_positions(settings.sequence, config)
    return settings


def _positions_of(config: Any) -> int | None:  # noqa: ANN401 - of transformers
    """The longest row that the model reads; None where its configuration does not say."""
    text = config.get_text_config()
    return next((found for name in POSITIONS if isinstance(found := getattr(text, name, None), int)), None)


def _examples_of(
    names: tuple[str, ...], tokenizer: Tokenizer, settings: FinetuneSettings, events: Events
) -> tuple[Sequence[Example], tuple[str, ...]]:
    records = Records(names)
    made = tokenised(
        records,
        tokenizer,
        sequence=settings.sequence,
        completion_only=settings.completion_only,
        counted=Counts(events),
    )
    return made.examples, (f"{records.survey()}", *made.notes)


def _divided(examples: Sequence[Example], settings: FinetuneSettings) -> tuple[Sequence[Example], Sequence[Example]]:
    """The texts without the share that is held out, spread evenly over the data, and that share."""
    wanted = round(len(examples) * settings.eval_share)
    if settings.eval_share > 0 and not 0 < wanted < len(examples):
        raise DevkitError(
            f"--eval-share {settings.eval_share:g} of {len(examples)} texts leaves nothing on one side",
            "Give more texts, or --eval-data.",
        )
    chosen = {index * len(examples) // wanted for index in range(wanted)}
    learned = [each for index, each in enumerate(examples) if index not in chosen]
    return learned, [examples[index] for index in sorted(chosen)]
