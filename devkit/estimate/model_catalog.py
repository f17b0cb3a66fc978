"""Well-known open models by name: the sizes in their config.json, offline."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.compat.version_tables import Array, LazyDocument, Table, TableRow
from devkit.facts.values import keyword_record

_ROW = re.compile(r'^  \{ id = "([^"]+)", aliases = \[([^\]]*)\].*\n', re.MULTILINE)


_SEPARATORS = {ord(letter): None for letter in " \t_-"}


@keyword_record
class KnownModel(TableRow):
    """A model as published. `config` is what of its config.json decides sizes."""

    id: str
    aliases: tuple[str, ...]
    parameters: int
    config: Mapping[str, Any]

    @property
    def url(self) -> str:
        """Where its config.json stands."""
        return f"https://huggingface.co/{self.id}/blob/main/config.json"


class ModelTable(Table):
    """Models as published."""

    models = Array("model", KnownModel, unique=("id",))


def find_model(name: str) -> KnownModel | None:
    """The model of that name, whatever its case and with or without its publisher; None for one that is not known."""
    id_ = _ids().get(_plain(name)) or _ids().get(_plain(name.rpartition("/")[2]))
    if id_ is None:
        return None
    # Parsing the line in question takes a hundredth of what parsing them all does.
    kept = _ROW.sub(lambda row: row[0] if row[1] == id_ else "", _text())
    return ModelTable(LazyDocument(kept)).models[0]


def find_closest_models(name: str, *, count: int = 3) -> tuple[str, ...]:
    """Names of known models that look like `name`, best first."""
    near = get_close_matches(_plain(name.rpartition("/")[2]), _ids(), n=3 * count, cutoff=0.5)
    return tuple(dict.fromkeys(_ids()[each] for each in near))[:count]


def list_models() -> tuple[KnownModel, ...]:
    """Every row."""
    return ModelTable(LazyDocument(_text())).models


def count_models() -> int:
    """How many models there are."""
    return len(set(_ids().values()))


@cache
def _text() -> str:
    return (get_data("devkit.estimate", "tables/models.toml") or b"").decode()


@cache
def _ids() -> dict[str, str]:
    """The id by every name in plain form."""
    found: dict[str, str] = {}
    for row in _ROW.finditer(_text()):
        names = (row[1], *re.findall(r'"([^"]+)"', row[2]))
        spelled = (_plain(each) for name in names for each in (name, name.rpartition("/")[2]))
        found |= {plain: row[1] for plain in spelled if plain not in found}
    return found


def _plain(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
