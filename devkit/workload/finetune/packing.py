"""Laying texts of differing length into rows of equal room. Importable without torch."""

from collections.abc import Sequence


def packed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which texts share a row: indices into `lengths`, each exactly once, no row longer than `room`.

    Best fit decreasing: the longest text first, each into the fullest row that still has room for it, which never
    takes more than 11/9 of the fewest possible rows and four more. The same lengths always give the same rows.
    Source: Johnson, Demers, Ullman, Garey, Graham, "Worst-case performance bounds for simple one-dimensional packing
    algorithms", SIAM Journal on Computing 3 (1974). Raises ValueError where a text is empty or longer than `room`.
    """
    wrong = next((length for length in lengths if not 0 < length <= room), None)
    if wrong is not None:
        raise ValueError(f"a text of {wrong} tokens does not go into rows of {room}")
    rows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(room + 1)]
    """The rows that still have so much room."""
    spaces = 0
    """Bit n is set where some row has room for exactly n more tokens: the best fit is one shift away."""
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, row = room, len(rows)
            rows.append([])
        rows[row].append(index)
        with_space[space - length].append(row)
        spaces |= 1 << (space - length)
    return rows


def efficiency(*, tokens: int, rows: int, room: int) -> float:
    """Which share of the rows' room holds tokens, between 0 and 1."""
    return tokens / (rows * room) if rows else 0.0
