"""Catalog entries that resemble a text in which nothing is known, by BM25. They need not be causes."""

import math
import re
from collections import Counter
from dataclasses import dataclass

from devkit.doctor.signatures.catalog import load_families
from devkit.doctor.signatures.log_text import is_about_gpus

_WORD = re.compile(r"[a-z_][a-z0-9_]{2,40}")
_STOP = frozenset(
    _WORD.findall(
        "the and for not with from this that was are has have can could none line file lib python site packages home user"
        " error failed exception traceback most recent call last return self args kwargs import info warning debug true"
    )
)
_K1, _B = 1.2, 0.6
_MAX_CHARACTERS = 64 * 1024
MAX_NEAREST = 3
_MIN_SCORE = 6.0
"""Below it a single common word is all that an entry shares with the text."""


@dataclass(frozen=True)
class Nearest:
    """An entry of the catalog: its code or family, what it is about, and an error text of it."""

    name: str
    about: str
    text: str


def find_nearest(lowered: str) -> tuple[Nearest, ...]:
    """Return the entries nearest to a text in lower case, best first; none for a text of another field."""
    if not is_about_gpus(lowered, least=2):
        return ()
    entries = [each for each in load_families() if not (each.is_consequence or each.is_harmless)]
    documents = [Counter(_split(f"{each.name} {' '.join(each.texts)}")) for each in entries]
    lengths = [sum(document.values()) for document in documents]
    mean = sum(lengths) / len(lengths)
    spread = Counter(word for document in documents for word in document)
    query = set(_split(lowered[:_MAX_CHARACTERS] + lowered[-_MAX_CHARACTERS:]))

    def score(place: int) -> float:
        document, length = documents[place], lengths[place]
        total = 0.0
        for word in query & document.keys():
            rarity = math.log(1 + (len(documents) - spread[word] + 0.5) / (spread[word] + 0.5))
            count = document[word]
            total += rarity * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length / mean))
        return total

    best = sorted(((score(place), -place) for place in range(len(entries))), reverse=True)[:MAX_NEAREST]
    found = [entries[-place] for points, place in best if points >= _MIN_SCORE]
    return tuple(Nearest(each.id, each.name, re.sub(r"\{\w+:\w+\}", "…", each.texts[0])) for each in found)


def _split(text: str) -> list[str]:
    words = (word.strip("_") for word in _WORD.findall(re.sub(r"\{\w+:\w+\}", " ", text.lower())))
    return [word for word in words if len(word) > 2 and word not in _STOP]
