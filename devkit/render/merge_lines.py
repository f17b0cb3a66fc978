"""Three versions of a text joined line by line: what it was, what the user made of it, what devkit would write now.

Not taken from a library: merge3 is under the GPL, which this project is not, and three-merge joins single characters,
so that half of a line of the one could meet half of a line of the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

Lines = Sequence[str]


@dataclass(frozen=True)
class Piece:
    """A stretch of the joined text. `mine` and `theirs` are the same unless both sides changed it differently."""

    mine: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def is_clash(self) -> bool:
        """Whether the two sides disagree here."""
        return self.mine != self.theirs


@dataclass(frozen=True)
class _Hunk:
    """One side puts `lines` in the place of the base's lines from `start` to `end`."""

    start: int
    end: int
    lines: tuple[str, ...]


def merged_lines(base: Lines, mine: Lines, theirs: Lines) -> Iterator[Piece]:
    """The pieces of the joined text, in order. Changes that touch each other clash, as they do in git."""
    ours, others = _hunks(base, mine), _hunks(base, theirs)
    place = 0
    for start, end in _regions([*ours, *others]):
        yield _agreed(base[place:start])
        my_lines, their_lines = _side(base, ours, start, end), _side(base, others, start, end)
        before = tuple(base[start:end])
        if before == my_lines:
            yield _agreed(their_lines)
        elif before == their_lines:
            yield _agreed(my_lines)
        else:
            yield Piece(my_lines, their_lines)
        place = end
    yield _agreed(base[place:])


def _agreed(lines: Lines) -> Piece:
    return Piece(tuple(lines), tuple(lines))


def _hunks(base: Lines, other: Lines) -> list[_Hunk]:
    matcher = SequenceMatcher(None, base, other, autojunk=False)
    return [
        _Hunk(start, end, tuple(other[from_:to]))
        for tag, start, end, from_, to in matcher.get_opcodes()
        if tag != "equal"
    ]


def _regions(hunks: list[_Hunk]) -> Iterator[tuple[int, int]]:
    """The stretches of the base that one side or both changed; those that touch are one."""
    ordered = sorted(hunks, key=lambda hunk: (hunk.start, hunk.end))
    while ordered:
        start, end = ordered[0].start, ordered[0].end
        while ordered and ordered[0].start <= end:
            end = max(end, ordered.pop(0).end)
        yield start, end


def _side(base: Lines, hunks: list[_Hunk], start: int, end: int) -> tuple[str, ...]:
    """What one side has in the place of the base's lines from `start` to `end`."""
    lines: list[str] = []
    place = start
    for hunk in hunks:
        if start <= hunk.start and hunk.end <= end:
            lines += [*base[place : hunk.start], *hunk.lines]
            place = hunk.end
    return (*lines, *base[place:end])
