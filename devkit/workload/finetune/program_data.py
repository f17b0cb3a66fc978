"""From what --data names to examples."""

import json
from pathlib import Path

from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.model import Tokenizer
from devkit.workload.finetune.settings import FinetuneSettings


def examples_of(names: tuple[str, ...], tokenizer: Tokenizer, settings: FinetuneSettings) -> list[Example]:
    """The texts of JSON lines with "text", as examples."""
    found = []
    for name in names:
        for line in Path(name).read_text(encoding="utf-8").splitlines():
            ids = tokenizer(json.loads(line)["text"])["input_ids"][: settings.sequence]
            found.append(Example(ids, [1] * len(ids)))
    return found
