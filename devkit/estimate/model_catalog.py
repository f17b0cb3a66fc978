"""Catalog of well-known open models: the sizes in their config.json by name, offline."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from devkit.compat.version_tables import Array, Table, TableRow
from devkit.formats.documents import load

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
    known = _index_models()
    return known.get(_normalize(name)) or known.get(_normalize(name.rpartition("/")[2]))


def find_closest_models(name: str, *, count: int = 3) -> tuple[str, ...]:
    """Find names of known models that look like `name`, best first."""
    near = get_close_matches(_normalize(name.rpartition("/")[2]), _index_models(), n=3 * count, cutoff=0.5)
    return tuple(dict.fromkeys(_index_models()[each].id for each in near))[:count]


@cache
def list_models() -> tuple[KnownModel, ...]:
    """List every model."""
    return ModelTable(load("devkit.estimate", "tables/models")).models


@cache
def _index_models() -> dict[str, KnownModel]:
    """Map every normalized name to its model."""
    found: dict[str, KnownModel] = {}
    for row in list_models():
        for name in (row.id, *row.aliases):
            found.setdefault(_normalize(name), row)
            found.setdefault(_normalize(name.rpartition("/")[2]), row)
    return found


def _normalize(name: str) -> str:
    return name.lower().translate(_SEPARATORS)
