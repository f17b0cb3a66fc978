"""The base of facts: unknowns, releases, compute capabilities."""

import re
from dataclasses import dataclass
from functools import cached_property, total_ordering


@dataclass(frozen=True)
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

    @property
    def minor(self) -> str:
        """Its first two numbers: 3.12 of Python 3.12.4."""
        return ".".join(map(str, self.numbers[:2]))

    @cached_property
    def _key(self) -> tuple[int, ...]:
        significant = self.numbers
        while len(significant) > 1 and significant[-1] == 0:
            significant = significant[:-1]
        return significant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and self._key == other._key

    def __lt__(self, other: "Release") -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

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
