"""Facts of every shape, for property tests."""

import dataclasses
import types
import typing
from enum import StrEnum

from hypothesis import strategies as st

from devkit.facts.model import Facts
from devkit.facts.values import ComputeCapability, Release, Unknown

_LETTERS = st.characters(exclude_categories=("Cs",))
_LEAVES = {
    str: st.text(_LETTERS, max_size=12),
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
    Unknown: st.builds(Unknown, st.text(_LETTERS, max_size=12)),
    ComputeCapability: st.builds(ComputeCapability, st.integers(1, 20), st.integers(0, 9)),
    Release: st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3}){0,3}([-+~][a-z0-9.]{1,6})?", fullmatch=True).map(Release.parse),
}


def any_of(kind) -> st.SearchStrategy:
    """Values of the type in a fact's annotation."""
    if isinstance(kind, types.UnionType):
        return st.one_of(*(any_of(option) for option in typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return st.lists(any_of(typing.get_args(kind)[0]), max_size=2).map(tuple)
    if kind in _LEAVES:
        return _LEAVES[kind]
    if issubclass(kind, StrEnum):
        return st.sampled_from(list(kind))
    assert dataclasses.is_dataclass(kind), kind
    return st.builds(kind, **{name: _any_field(name, inner) for name, inner in typing.get_type_hints(kind).items()})


def _any_field(name, kind) -> st.SearchStrategy:
    """Values of a field: a number of bytes is not negative."""
    values = any_of(kind)
    return values.map(lambda each: abs(each) if isinstance(each, int) else each) if name.endswith("_bytes") else values


def _facts(**changes) -> st.SearchStrategy:
    fields = {name: any_of(kind) for name, kind in typing.get_type_hints(Facts).items() if name not in changes}
    return st.builds(Facts, **fields, **changes)


_ONE_SIDE = _facts(inside=st.one_of(st.none(), _LEAVES[Unknown]))
FACTS = st.one_of(_ONE_SIDE, _facts(inside=_ONE_SIDE))
