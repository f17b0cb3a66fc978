"""The base of facts: records, unknowns, releases, compute capabilities."""

import dataclasses
import re
from dataclasses import dataclass
from functools import cache, total_ordering
from typing import Any, NoReturn, TypeVar, dataclass_transform

# Frozen dataclasses that take little time to define: every command starts with two hundred of them.

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(kind: type[T]) -> type[T]:
    """Make `kind` a frozen dataclass whose methods are shared, where `dataclass` compiles six for every class.

    Construction, `fields`, `replace`, equality, hash and `repr` are those of `dataclass(frozen=True)`; there is no
    `default_factory` and no `__post_init__`. See docs/decisions/0007 and 0021.
    """
    return _define(kind, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def keyword_record(kind: type[T]) -> type[T]:
    """Make `kind` a record whose fields are given by name."""
    return _define(kind, kw_only=True)


def _define(kind: type[T], *, kw_only: bool) -> type[T]:
    own = vars(kind)
    defined: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(kind)
    if "__post_init__" in own or any(
        field.default_factory is not dataclasses.MISSING for field in dataclasses.fields(defined)
    ):
        raise TypeError(f"{kind.__name__} needs what only a dataclass has")
    defined.__init__ = _init
    defined.__setattr__ = _refuse
    defined.__delattr__ = _refuse
    for name, method in (("__repr__", _repr), ("__eq__", _eq), ("__hash__", lambda self: hash(_key(self)))):
        if name not in own:
            setattr(defined, name, method)
    return kind


@cache
def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any record
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _compared(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - any record
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


@cache
def _defaults(kind: Any) -> dict[str, object]:  # noqa: ANN401 - any record
    known = dataclasses.MISSING
    return {field.name: field.default for field in dataclasses.fields(kind) if field.default is not known}


def _init(self: object, *values: object, **named: object) -> None:
    kind: Any = type(self)
    names = _names(kind)
    if not named and len(values) == len(names):
        # The outcome of every check is built so: at less than half the cost.
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


@record
class Unknown:
    """A reading that could not be taken, and why. Never the same as "absent" or "fine".

    `is_lost`: it exists on this machine and was not got, because something hung, crashed or was refused; without it the
    reading does not apply here, or is only taken elsewhere.
    """

    reason: str
    is_lost: bool = False


NOT_READ = Unknown("not read")
"""The value in facts that were written by hand or by an older release; no probe ever returns it."""


MAX_SHOWN_CHARACTERS = 80
"""Characters of a wrong text that a message repeats."""

_NUMBERS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18}){0,9}")
_WORD = re.compile(r"[\w.+~-]{1,200}", re.ASCII)


@total_ordering
@dataclass(frozen=True, eq=False)
class Release:
    """A vendor's version, such as driver 470.256.02: ordered by its numbers, printed as read.

    `packaging.version` would print 470.256.02 as 470.256.2, which no search finds.
    """

    numbers: tuple[int, ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> "Release":
        """Parse the first dotted number in `text`, with the word around it. Raises ValueError if there is none."""
        release = cls.find(text)
        if release is None:
            raise ValueError(f"no version in {text[:MAX_SHOWN_CHARACTERS]!r}")
        return release

    @classmethod
    def find(cls, text: str) -> "Release | None":
        """Find the first version in `text`; None without one."""
        found = _NUMBERS.search(text)
        if found is None:
            return None
        word = _WORD.match(text, found.start())
        return cls(tuple(int(part) for part in found[0].split(".")), word[0] if word else found[0])

    @property
    def major(self) -> int:
        """The first number: a driver's branch, a CUDA major."""
        return self.numbers[0]

    def _key(self) -> tuple[int, ...]:
        significant = list(self.numbers)
        while len(significant) > 1 and significant[-1] == 0:
            significant.pop()
        return tuple(significant)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and self._key() == other._key()

    def __lt__(self, other: "Release") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True)
class ComputeCapability:
    """The hardware feature level of a GPU, such as 9.0.

    Machine code (a cubin, `sm_XY`) runs only within its major and from its minor up; PTX crosses majors.
    Source: NVIDIA, CUDA C++ Programming Guide, "Compute capabilities" and "Binary compatibility".
    """

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> "ComputeCapability":
        """Parse "9.0", "sm_90", "sm_120" or "compute_103". Raises ValueError on anything else."""
        found = re.fullmatch(r"(\d+)\.(\d)|(?:sm_|compute_)(\d+)(\d)", text.strip())
        if found is None:
            raise ValueError(f"not a compute capability: {text!r}")
        major, minor = (part for part in found.groups() if part is not None)
        return cls(int(major), int(minor))

    @property
    def sm(self) -> str:
        """The name of its machine-code target: sm_90."""
        return f"sm_{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"
