"""Frozen dataclasses that cost little to make: every command starts with two hundred of them."""

import dataclasses
from functools import cache
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(kind: type[T]) -> type[T]:
    """`kind` as a frozen dataclass whose methods are shared, where `dataclass` compiles six for every class.

    Construction, `fields`, `replace`, equality, hash and `repr` are those of `dataclass(frozen=True)`; there is no
    `default_factory` and no `__post_init__`. See docs/decisions/0007.
    """
    return _made(kind, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def keyword_record(kind: type[T]) -> type[T]:
    """As `record`, for classes whose fields are given by name."""
    return _made(kind, kw_only=True)


def _made(kind: type[T], *, kw_only: bool) -> type[T]:
    own = vars(kind)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(kind)
    if "__post_init__" in own or any(
        field.default_factory is not dataclasses.MISSING for field in dataclasses.fields(made)
    ):
        raise TypeError(f"{kind.__name__} wants what only a dataclass has")
    made.__init__ = _init
    made.__setattr__ = _refuse
    made.__delattr__ = _refuse
    for name, method in (("__repr__", _repr), ("__eq__", _eq), ("__hash__", _hash)):
        if name not in own:
            setattr(made, name, method)
    return kind


@cache
def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any class made here
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _compared(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any class made here
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


@cache
def _defaults(kind: Any) -> dict[str, object]:  # noqa: ANN401 - any class made here
    known = dataclasses.MISSING
    return {field.name: field.default for field in dataclasses.fields(kind) if field.default is not known}


def _init(self: object, *values: object, **named: object) -> None:
    kind: Any = type(self)
    names = _names(kind)
    if not named and len(values) == len(names):
        # As the outcome of every check is made: at less than half the cost.
        self.__dict__.update(zip(names, values, strict=True))
        return
    given = _defaults(kind) | dict(zip(names, values, strict=False)) | named
    if len(values) > len(names) or len(given) != len(names) or not named.keys().isdisjoint(names[: len(values)]):
        raise TypeError(f"{kind.__name__} takes {', '.join(names)}; got {len(values)} values and {', '.join(named)}")
    # In the order of the fields, which `repr` and JSON follow.
    self.__dict__.update((name, given[name]) for name in names)


def _refuse(self: object, name: str, *_value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}")


def _repr(self: object) -> str:
    kind: Any = type(self)
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(kind))
    return f"{kind.__qualname__}({shown})"


def _key(self: object) -> tuple[object, ...]:
    kind: Any = type(self)
    return tuple(getattr(self, name) for name in _compared(kind))


def _eq(self: object, other: object) -> bool:
    return _key(self) == _key(other) if type(other) is type(self) else NotImplemented


def _hash(self: object) -> int:
    return hash(_key(self))
