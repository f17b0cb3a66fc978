"""Catalog of well-known open models: the sizes in their config.json by name, offline."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pkgutil import get_data
from typing import Any

from devkit.compat.version_tables import Array, LazyDocument, Table, TableRow

_ROW = re.compile(r'^  \{ id = "([^"]+)", aliases = \[([^\]]*)\].*\n', re.MULTILINE)
_SEPARATORS = {ord(letter): None for letter in " \t_-"}


@dataclass(frozen=True, kw_only=True)
class KnownModel(TableRow):
    """A model as published. `config` holds those keys of its config.json that decide sizes."""

    id: str
    aliases: tuple[str, ...]
    parameters: int
    config: Mapping[str, Any]

    @property
    def url(self) -> str:
        """The address of its config.json."""
        return f"https://huggingface.co/{self.id}/blob/main/config.json"


class ModelTable(Table):
    """Models as published."""

    models = Array("model", KnownModel, unique=("id",))


def find_model(name: str) -> KnownModel | None:
    """Find a model by name, whatever its case and with or without its publisher; None for an unknown one."""
    id_ = _index_ids().get(_normalize(name)) or _index_ids().get(_normalize(name.rpartition("/")[2]))
    if id_ is None:
        return None
    # Parsing one line takes a hundredth of the time of parsing them all.
    text = _ROW.sub(lambda row: row[0] if row[1] == id_ else "", _read_text())
    return ModelTable(LazyDocument(text)).models[0]


def find_closest_models(name: str, *, count: int = 3) -> tuple[str, ...]:
    """Find names of known models that look like `name`, best first."""
    near = get_close_matches(_normalize(name.rpartition("/")[2]), _index_ids(), n=3 * count, cutoff=0.5)
    return tuple(dict.fromkeys(_index_ids()[each] for each in near))[:count]


def list_models() -> tuple[KnownModel, ...]:
    """List every model."""
    return ModelTable(LazyDocument(_read_text())).models


def count_models() -> int:
    """Count the models."""
    return len(set(_index_ids().values()))


@cache
def _read_text() -> str:
    return (get_data("devkit.estimate", "tables/models.toml") or b"").decode()


@cache
def _index_ids() -> dict[str, str]:
    """Map every normalized name to its id."""
    found: dict[str, str] = {}
    for row in _ROW.finditer(_read_text()):
        names = (row[1], *re.findall(r'"([^"]+)"', row[2]))
        spelled = (_normalize(each) for name in names for each in (name, name.rpartition("/")[2]))
        found |= {plain: row[1] for plain in spelled if plain not in found}
    return found


def _normalize(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
