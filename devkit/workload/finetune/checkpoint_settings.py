"""Which settings must be the same for a run to be gone on with, and fingerprints of the model and the data."""

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import fields

from devkit.workload.finetune.batch import Example
from devkit.workload.finetune.manifest import Value
from devkit.workload.finetune.settings import FinetuneSettings

_FREE = frozenset(
    {"data", "output", "micro_batch", "attention", "checkpointing", "loss", "compile", "sharding"}
    | {"save_every", "keep", "resume", "eval_data", "eval_every"}
)
"""Settings that decide where and how fast a run computes, but not what: they may change from one part to the next.

Data are compared by what is in them. A field that is added to the settings counts until it is named here.
"""


def settings_that_count(settings: FinetuneSettings, chosen: Mapping[str, Value]) -> dict[str, Value]:
    """The settings that a checkpoint's numbers depend on. `chosen` replaces what the user left open, and adds to it."""
    wished = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in _FREE}
    return {name: _value(value) for name, value in {**wished, **chosen}.items()}


def fingerprint_of_data(examples: Iterable[Example]) -> str:
    """Sixteen hexadecimal digits that tell these token ids, in this order, from others."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(len(example.ids).to_bytes(8, "little"))
        digest.update(array("q", example.ids).tobytes())
        digest.update(bytes(example.counted))
    return digest.hexdigest()[:16]


def _value(value: object) -> Value:
    """As JSON gives it back, so that what was read compares equal to what is asked for."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return [str(each) for each in value] if isinstance(value, (tuple, list)) else str(value)
