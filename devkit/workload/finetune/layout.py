"""How rows become the tensors of a micro-batch. Importable without torch."""

from enum import StrEnum


class Layout(StrEnum):
    """How rows become the tensors of a micro-batch.

    FLAT lays all texts end to end in one row of any length, for attention that is told the borders: nothing is padded.
    BLOCKS keeps rows apart, for attention that finds the borders in the positions, and fills them to equal length.
    PADDED holds one text a row, filled to equal length.
    """

    FLAT = "flat"
    BLOCKS = "blocks"
    PADDED = "padded"
