"""From what --data names to examples."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.model import Tokenizer
from devkit.workload.finetune.settings import FinetuneSettings


@dataclass(frozen=True)
class Data:
    """Texts as token ids, and what their owner should hear of them."""

    examples: Sequence[Example]
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()


def examples_of(names: tuple[str, ...], tokenizer: Tokenizer, settings: FinetuneSettings) -> Data:
    """The texts of JSON lines with "text", as examples."""
    found = []
    for name in names:
        for line in Path(name).read_text(encoding="utf-8").splitlines():
            ids = [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id][: settings.sequence]
            found.append(Example(ids, [1] * len(ids)))
    return Data(found, tokenizer)
